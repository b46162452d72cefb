
/*
 * A reload opens all modules again before it releases the old configuration.
 * The GNU loader identifies a file by its path: as long as that path is open,
 * it returns the code that it has loaded, whatever is on disk by now.  So a
 * new module that is installed at the same path does not take effect on
 * reload, and the log must say so.  A module at another path is loaded beside
 * the old one.
 */


#include "core/ngx_rl_version.h"


ngx_int_t
ngx_rl_version_check(ngx_cycle_t *cycle)
{
#if (NGX_HAVE_DLOPEN)
    Dl_info          module, core;
    ngx_file_info_t  fi;

    /* live as long as the code, over reloads that do not replace it */
    static time_t           mtime;
    static ngx_uint_t       loaded;
    static ngx_file_uniq_t  uniq;

    if (dladdr(&loaded, &module) == 0 || dladdr(&ngx_cycle, &core) == 0
        || module.dli_fbase == core.dli_fbase
        || ngx_file_info(module.dli_fname, &fi) == NGX_FILE_ERROR)
    {
        /* compiled in, or the file was removed: nothing to compare */
        return NGX_OK;
    }

    if (!loaded) {
        loaded = 1;
        mtime = ngx_file_mtime(&fi);
        uniq = ngx_file_uniq(&fi);

        return NGX_OK;
    }

    if (mtime != ngx_file_mtime(&fi) || uniq != ngx_file_uniq(&fi)) {
        ngx_log_error(NGX_LOG_ERR, cycle->log, 0,
                      "\"%s\" has changed since it was loaded, but a reload "
                      "keeps the old code, ratelimit %s: restart nginx, or "
                      "upgrade it on the fly (USR2)",
                      module.dli_fname, NGX_RL_VERSION);
    }
#endif

    return NGX_OK;
}
