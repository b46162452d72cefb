# Read by nginx's auto/make after config: the rule that embeds the scripts, and
# the flags of the module's own objects.

mkdir -p $NGX_OBJS/addon/ratelimit

cat << END                                                    >> $NGX_MAKEFILE

$ngx_http_ratelimit_lua_h:	$ngx_addon_dir/tools/embed-lua.sh \\
	$ngx_http_ratelimit_lua
	sh $ngx_addon_dir/tools/embed-lua.sh \$@ $ngx_http_ratelimit_lua

$NGX_OBJS/addon/src/ngx_http_ratelimit_%.o: CFLAGS +=$ngx_http_ratelimit_cflags

END
