# Read by nginx's auto/make after config: the rule that embeds the scripts.

mkdir -p $NGX_OBJS/addon/ratelimit

cat << END                                                    >> $NGX_MAKEFILE

$ngx_http_ratelimit_lua_h:	$ngx_addon_dir/tools/embed-lua.sh \\
	$ngx_http_ratelimit_lua
	sh $ngx_addon_dir/tools/embed-lua.sh \$@ $ngx_http_ratelimit_lua

END
