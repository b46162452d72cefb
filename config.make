# Read by nginx's auto/make after config: the rules that embed scripts and files,
# and the flags of the module's own objects.

mkdir -p $NGX_OBJS/addon/ratelimit

cat << END                                                    >> $NGX_MAKEFILE

$ngx_rl_lua_h:	$ngx_addon_dir/tools/embed-lua.sh \\
	$ngx_rl_lua $ngx_rl_lua_lib
	sh $ngx_addon_dir/tools/embed-lua.sh \$@ $ngx_rl_lua

$ngx_rl_files_h:	$ngx_addon_dir/tools/embed-text.sh $ngx_rl_files
	sh $ngx_addon_dir/tools/embed-text.sh \$@ $ngx_rl_files

$NGX_OBJS/addon/src/ngx_http_ratelimit_module.o: CFLAGS +=$ngx_rl_cflags

END

for ngx_rl_folder in $ngx_rl_folders; do
    cat << END                                                >> $NGX_MAKEFILE
$NGX_OBJS/addon/$ngx_rl_folder/ngx_rl_%.o: CFLAGS +=$ngx_rl_cflags

END
done
