
#include "http/ngx_rl_files.h"
#include "core/ngx_rl_core.h"

#include "ngx_rl_embedded.h"


const ngx_rl_file_t  ngx_rl_openapi = {
    ngx_string("openapi.json"),
    ngx_string("application/json"),
    ngx_string(NGX_RL_FILE_OPENAPI_JSON)
};


static const ngx_rl_file_t  ngx_rl_console_files[] = {

    { ngx_string(""),
      ngx_string("text/html"),
      ngx_string(NGX_RL_FILE_INDEX_HTML) },

    { ngx_string("console.css"),
      ngx_string("text/css"),
      ngx_string(NGX_RL_FILE_CONSOLE_CSS) },

    { ngx_string("console.js"),
      ngx_string("text/javascript"),
      ngx_string(NGX_RL_FILE_CONSOLE_JS) },

    { ngx_string("icon.svg"),
      ngx_string("image/svg+xml"),
      ngx_string(NGX_RL_FILE_ICON_SVG) },

    { ngx_null_string, ngx_null_string, ngx_null_string }
};


const ngx_rl_file_t *
ngx_rl_console_file(ngx_str_t *name)
{
    const ngx_rl_file_t  *file;

    for (file = ngx_rl_console_files; file->text.len; file++) {
        if (ngx_rl_str_equal(&file->name, name)) {
            return file;
        }
    }

    return NULL;
}
