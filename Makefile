# ngx_http_ratelimit_module.  "make help" says what there is.

MODULE      := ngx_http_ratelimit_module

# where nginx is: the headers of the installed one, or a full source tree
NGINX_DEV   ?= /usr/share/nginx/src
NGINX_SRC   ?=

# how a source tree is configured
NGINX_FLAGS ?= --with-compat --with-debug --with-threads \
               --with-http_ssl_module --with-http_v2_module \
               --with-http_realip_module --with-http_auth_request_module \
               --with-http_addition_module --with-http_sub_module \
               --with-http_stub_status_module

# those of these that the compiler has: not every processor has all
HARDENING   := $(shell for flag in -fstack-clash-protection -fcf-protection; do \
                           $(CC) $$flag -Werror -x c -c -o /dev/null /dev/null \
                               2>/dev/null && echo $$flag; \
                       done)

CFLAGS      ?= -O2 -g -fstack-protector-strong $(HARDENING) \
               -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 \
               -Wformat -Werror=format-security
LDFLAGS     ?= -Wl,-z,relro -Wl,-z,now

TESTS       ?=
PROVEFLAGS  ?=
REDIS       ?=
QUICK       ?=
PORT        ?=
EXAMPLE     ?=
TOPOLOGY    ?=
DESTDIR     ?=
MODULESDIR  ?=
PREFIX      ?= /usr/local
DOCSDIR     ?= build/docs
REVISION    ?=

# plain, what "make asan" and "make valgrind" set, or other: a second module
FLAVOUR     ?= plain

# variables reach a make of our own through the environment, and nginx's
# Makefile, which has a CFLAGS too, not at all
export NGINX_DEV NGINX_SRC NGINX_FLAGS CFLAGS LDFLAGS TESTS PROVEFLAGS REDIS QUICK \
       PORT EXAMPLE TOPOLOGY FLAVOUR REVISION
MAKEOVERRIDES :=

# the folders of src/, each a layer
folders     := $(shell awk '/^[a-z]/ { print $$1 }' tools/layers)

# for the module's own sources; they are errors in "make lint" alone
WARNINGS    := -Wall -Wextra -Wno-unused-parameter -Wmissing-prototypes \
               -Wstrict-prototypes -Wshadow

ifneq ($(words $(CURDIR)),1)
$(error nginx can only be built in a path without spaces)
endif


ifneq ($(NGINX_SRC),)
tree    := $(abspath $(NGINX_SRC))
group   := source
else
tree    := $(NGINX_DEV)
group   := build
endif

version := $(shell sed -n 's/^.define NGINX_VERSION  *"\(.*\)".*/\1/p' \
                   $(tree)/src/core/nginx.h 2>/dev/null)

cc_opt  := $(CFLAGS)
ld_opt  := $(LDFLAGS)
own     := $(WARNINGS)
add     := --add-dynamic-module=$(CURDIR)

ifeq ($(FLAVOUR),asan)

# nginx core is checked by AddressSanitizer alone, the module by both
dir     := build/asan-$(version)
cc_opt  := -O1 -g -fsanitize=address -fno-omit-frame-pointer \
           -DNGX_DEBUG_PALLOC=1
ld_opt  := -fsanitize=address,undefined $(CURDIR)/tools/lsan.c
own     += -fsanitize=undefined -fno-sanitize-recover=undefined
add     := --add-module=$(CURDIR)
product := $(dir)/objs/nginx

else ifeq ($(FLAVOUR),valgrind)

dir     := build/valgrind-$(version)
cc_opt  := -O1 -g -DNGX_DEBUG_PALLOC=1
ld_opt  :=
add     := --add-module=$(CURDIR)
product := $(dir)/objs/nginx

else ifeq ($(FLAVOUR),other)

# a second build for tests of upgrades: it calls itself otherwise, and keeps
# its shared memory in another format
dir     := build/other-$(version)
own     += -DNGX_HTTP_RATELIMIT_BUILD=other -DNGX_RL_ZONE_FORMAT=0
so      := $(dir)/$(MODULE).so
product := $(so)

else ifneq ($(NGINX_SRC),)

dir     := build/nginx-src-$(version)
so      := $(dir)/$(MODULE).so
product := $(so)

else

dir     := build/nginx-dev
so      := build/$(MODULE).so
product := $(so)
nginx    = $(or $(shell command -v nginx),/usr/sbin/nginx)

endif

ifneq ($(NGINX_SRC),)
nginx   := $(CURDIR)/$(dir)/objs/nginx
flags   := $(NGINX_FLAGS)
goals   := $(if $(filter other,$(FLAVOUR)),,binary) $(if $(so),modules)
else
goals   := modules
endif

# put together, as Redis gets them, for tests and other programs: next to this
# header, which embeds them
scripts := build/lua/ngx_rl_lua.h

configure = --with-cc-opt='$(cc_opt)' --with-ld-opt='$(ld_opt)' $(flags) $(add)

nginx_make = $(MAKE) $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc)) \
                 -C $(dir) -f objs/Makefile --no-print-directory


.PHONY: all unit install uninstall clean lint test docs run bench asan valgrind \
        fuzz model dist distcheck deb help force

all: $(product) $(scripts) ## build the module for the installed nginx or for NGINX_SRC=DIR


# --- nginx and the module ----------------------------------------------------

$(tree)/src/core/nginx.h:
ifneq ($(NGINX_SRC),)
	@echo "no nginx source tree in NGINX_SRC=$(NGINX_SRC)" >&2; exit 1
else
	@echo "the headers of nginx are missing: tools/setup.sh build" >&2; exit 1
endif

# changes when what configure is told changes
$(dir)/arguments: $(tree)/src/core/nginx.h force
	@mkdir -p $(@D)
	@printf '%s\n' "$(version) $(tree) $(own) $(configure)" > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(dir)/objs/Makefile: $(dir)/arguments config config.make tools/configure.sh \
                       tools/layers
	@echo "configuring nginx $(version)"
	@ASAN_OPTIONS=detect_leaks=0 tools/configure.sh $(dir) $(tree) $(configure)
	@for objects in src/$(MODULE) $(folders:%=%/ngx_rl_%); do \
	     echo "objs/addon/$$objects.o: CFLAGS += $(own)"; \
	 done >> $@

$(product): $(dir)/objs/Makefile force
	@$(nginx_make) -q $(goals) > /dev/null 2>&1 \
	 || echo "building $@ (nginx $(version))"
	@$(nginx_make) -s $(goals)
ifneq ($(so),)
	@# a running nginx keeps the old file: it must not change under it
	@cmp -s $(dir)/objs/$(MODULE).so $@ \
	 || { cp $(dir)/objs/$(MODULE).so $@.new && mv $@.new $@; }
endif


# where "make install" puts the module, and a Debian nginx its snippets.  With
# MODULESDIR only the file is copied: the configuration is the caller's.
find_dirs = dir='$(MODULESDIR)'; conf=; \
	 test -n "$$dir" || conf=$$($(nginx) -V 2>&1 \
	     | sed -n 's/.*--conf-path=\([^ ]*\)\/[^ ]*.*/\1/p'); \
	 test -n "$$dir" || dir=$$($(nginx) -V 2>&1 \
	     | sed -n 's/.*--modules-path=\([^ ]*\).*/\1/p'); \
	 test -n "$$dir" || dir=$$($(nginx) -V 2>&1 \
	     | sed -n 's/.*--prefix=\([^ ]*\).*/\1\/modules/p'); \
	 test -n "$$dir" || dir=/usr/local/nginx/modules; \
	 file="$(DESTDIR)$$dir/$(MODULE).so"; \
	 snippet="$$conf/modules-available/mod-http-ratelimit.conf"; \
	 enabled="$(DESTDIR)$$conf/modules-enabled"; \
	 link="$$enabled/50-mod-http-ratelimit.conf"

# the command line tool; its man page is there after "make docs"
bindir      := $(DESTDIR)$(PREFIX)/bin
completions := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
mandir      := $(DESTDIR)$(PREFIX)/share/man

# a module that a package has installed is left to that package
check_owner = if test -z '$(DESTDIR)' && test -e "$$file" \
	    && owner=$$(dpkg-query -S "$$file" 2>/dev/null); then \
	     echo "$$file belongs to the package $${owner%%:*}:" \
	          "run \"apt-get remove $${owner%%:*}\" first" >&2; \
	     exit 1; \
	 fi

# by a rename: a running nginx has the old file mapped, and would crash if that
# changed under it
install: $(product) ## copy the module to nginx's modules folder, enable it on Debian, install ratelimitctl (DESTDIR=, PREFIX=)
	@$(find_dirs); $(check_owner); \
	 install -d "$(DESTDIR)$$dir" && \
	 install -m 644 $(so) "$$file.new" && mv -f "$$file.new" "$$file" && \
	 echo "installed $$file" && \
	 if test -n "$$conf" && test -d "$$enabled"; then \
	     install -d "$(DESTDIR)$$conf/modules-available" && \
	     echo "load_module $$dir/$(MODULE).so;" > "$(DESTDIR)$$snippet" && \
	     ln -sf "$$snippet" "$$link" && \
	     echo "enabled by $$link"; \
	 fi
	@$(MAKE) --no-print-directory install-tools
	@test -n '$(DESTDIR)' || { $(find_dirs); \
	 echo; \
	 echo "What to do next:"; \
	 test -n "$$conf" && test -e "$$link" \
	 || echo "  put \"load_module $$dir/$(MODULE).so;\" at the top of nginx.conf"; \
	 echo "  add a limit to a server, see step 3 of README.md"; \
	 echo "  run \"nginx -t\", and restart nginx"; }

# what does not depend on nginx; packages use it
.PHONY: install-tools
install-tools:
	@install -d "$(bindir)" "$(completions)"
	@install -m 755 tools/ratelimitctl "$(bindir)/ratelimitctl"
	@install -m 644 tools/ratelimitctl.bash "$(completions)/ratelimitctl"
	@for page in '$(DOCSDIR)'/*.[1-9]; do \
	     test -f "$$page" || continue; \
	     install -d "$(mandir)/man$${page##*.}" && \
	     install -m 644 "$$page" "$(mandir)/man$${page##*.}" || exit 1; \
	 done
	@echo "installed $(bindir)/ratelimitctl"


uninstall: ## remove what "make install" has installed (DESTDIR=)
	@$(find_dirs); $(check_owner); \
	 if test -n "$$conf"; then \
	     rm -f "$$link" "$(DESTDIR)$$snippet"; \
	 fi; \
	 rm -f "$$file" && echo "removed $$file"
	@rm -f "$(bindir)/ratelimitctl" "$(completions)/ratelimitctl" \
	       "$(mandir)/man1/ratelimitctl.1" "$(mandir)/man5/$(MODULE).5"
	@echo "removed $(bindir)/ratelimitctl"


clean: ## remove everything that was built
	@rm -rf build t/servroot t/servroot_*


# --- tests -------------------------------------------------------------------

# the sources that do without nginx, see tools/layers
pure_objs  := $(patsubst src/%.c,build/unit/%.o, \
                  $(wildcard src/pure/*.c src/script/*.c))
unit_tests := $(patsubst t/unit/%.c,build/unit/%,$(wildcard t/unit/*/*.c))

unit_cc     = $(CC) $$(cat build/unit/flags) -MMD -MP -I src -I t/unit -I build/lua

unit: $(unit_tests) ## build the unit tests of the parts that need no nginx

build/unit/flags: Makefile
	@mkdir -p $(@D)
	@flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined"; \
	 echo 'int main(void) { return 0; }' \
	 | $(CC) $$flags -x c -o build/unit/sanitize - 2>/dev/null || flags=; \
	 rm -f build/unit/sanitize; \
	 echo "-O1 -g -fno-omit-frame-pointer" \
	      "$(WARNINGS) $$flags $$(pkg-config --cflags hiredis)" > $@

$(scripts): tools/embed-lua.sh $(wildcard lua/*.lua lua/lib/*.lua)
	@mkdir -p $(@D)
	@tools/embed-lua.sh $@ $(wildcard lua/*.lua)

build/unit/%.o: src/%.c build/unit/flags $(scripts)
	@mkdir -p $(@D)
	@$(unit_cc) -c -o $@ $<

build/unit/%: t/unit/%.c $(pure_objs)
	@echo "building $@"
	@mkdir -p $(@D)
	@$(unit_cc) -o $@ $< $(pure_objs) $$(pkg-config --libs hiredis) -lm

.SECONDARY: $(pure_objs)

-include $(wildcard build/unit/*.d build/unit/*/*.d)


test: ## install what is needed, build, run the tests (QUICK=1, TESTS='t/http/*.t 070', REDIS=valkey)
	@tools/setup.sh $(group) run test valkey browser
	@$(MAKE) --no-print-directory prove


asan: ## run all tests with AddressSanitizer and UBSan in a source build of nginx
	@tools/setup.sh asan run test browser
	@NGINX_SRC=$${NGINX_SRC:-$$(tools/nginx-source.sh)} FLAVOUR=asan \
	 $(MAKE) --no-print-directory prove


valgrind: ## run the core tests under valgrind, with a source build of nginx
	@tools/setup.sh valgrind run test
	@NGINX_SRC=$${NGINX_SRC:-$$(tools/nginx-source.sh)} FLAVOUR=valgrind \
	 $(MAKE) --no-print-directory prove


# what parses or computes, with libFuzzer; a finding is left in build/fuzz/
fuzz_tests := $(patsubst t/fuzz/%.c,build/fuzz/%,$(wildcard t/fuzz/*.c))

fuzz: ## fuzz all that parses or computes, each for SECONDS=60 (TARGETS='reply rate', RUNS=)
	@tools/setup.sh fuzz
	@$(MAKE) --no-print-directory $(fuzz_tests)
	@SECONDS_EACH='$(or $(SECONDS),60)' RUNS='$(RUNS)' tools/fuzz.sh $(TARGETS)

build/fuzz/%: t/fuzz/%.c t/fuzz/fuzz.h $(wildcard src/pure/* src/script/*) $(scripts)
	@echo "building $@"
	@mkdir -p $(@D)
	@clang -O1 -g -fsanitize=fuzzer,address,undefined \
	     -fno-sanitize-recover=undefined -Wall -Wextra \
	     -I src -I t/fuzz -I build/lua $$(pkg-config --cflags hiredis) \
	     -o $@ $< src/pure/*.c src/script/*.c $$(pkg-config --libs hiredis) -lm


model: ## check the model of combined calls, denials, leases and refunds with Spin
	@tools/setup.sh model
	@tools/model.sh


.PHONY: prove
prove: $(product) $(scripts) $(unit_tests)
	@TEST_NGINX_BINARY=$(nginx) RATELIMIT_MODULE=$(if $(so),$(CURDIR)/$(so)) \
	 tools/test.sh $(FLAVOUR) $(TESTS)


lint: ## check style, layers, symbols, warnings; run cppcheck and luacheck
	@tools/setup.sh $(group) lint
	@$(MAKE) --no-print-directory all
	@WARNINGS='$(WARNINGS)' tools/lint.sh $(so) $(dir)


# --- docs --------------------------------------------------------------------

docs: ## write the man pages and one HTML page of all docs to build/docs/
	@tools/setup.sh docs
	@mkdir -p '$(DOCSDIR)'
	@tools/docs.pl '$(DOCSDIR)'


# --- packages ----------------------------------------------------------------

dist: ## write a tarball of the last commit to build/dist/, the same bytes each time
	@tools/package.sh dist


distcheck: ## the same, and build the module from it
	@tools/setup.sh build
	@tools/package.sh check


deb: ## build a package for this release of Debian in build/deb/ (REVISION=)
	@tools/setup.sh build deb
	@tools/package.sh deb


# --- a try -------------------------------------------------------------------

run: ## start nginx and Redis servers in a sandbox, until Ctrl-C (TOPOLOGY=shards|cluster|sentinel|tls, EXAMPLE=, PORT=)
	@tools/setup.sh $(group) run
	@$(MAKE) --no-print-directory all
	@tools/run.sh $(nginx) $(CURDIR)/$(so)


# as they were written: a regular expression may hold a "$"
bench_options := $(foreach name,CASES ROUNDS SECONDS KEYS CONTEST SVG JSON, \
                     $(if $(value $(name)), \
                         --$(shell echo $(name) | tr A-Z a-z)='$(value $(name))')) \
                 $(if $(QUICK),--quick) $(if $(LIST),--list)

bench: ## measure what limits cost, compared with limit_req (QUICK=1, CONTEST='name=snippet.conf', more in bench/bench.pl)
	@tools/setup.sh $(group) run bench
	@$(MAKE) --no-print-directory all
	@TEST_NGINX_BINARY=$(nginx) RATELIMIT_MODULE=$(CURDIR)/$(so) \
	 bench/bench.pl $(bench_options)


help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' \
	     Makefile
