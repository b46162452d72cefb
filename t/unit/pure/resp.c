
/*
 * Commands, byte by byte, and the writer that is used again and again.
 */

#include "args.h"

#include "pure/ngx_rl_resp.h"


static void
test_command(void)
{
    char      *command;
    long long  len;

    len = ngx_rl_resp_command(&command, "AUTH", "bob", "s cret", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n"
                                    "$6\r\ns cret\r\n"), "AUTH with a user");
    ngx_rl_resp_free(command);

    len = ngx_rl_resp_command(&command, "AUTH", "", NULL);
    is_bytes(command, len, bytes_of("*2\r\n$4\r\nAUTH\r\n$0\r\n\r\n"),
             "an empty word");
    ngx_rl_resp_free(command);

    len = ngx_rl_resp_command(&command, "CLIENT", "SETNAME", "a\r\nb", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n"
             "$4\r\na\r\nb\r\n"), "a word with a line end in it");
    ngx_rl_resp_free(command);
}


static void
is_written(ngx_rl_resp_t *resp, const char *expected, size_t expected_len,
    const char *name)
{
    char    *command;
    ssize_t  len;

    len = ngx_rl_resp_end(resp, &command);

    is_bytes(command, len, expected, expected_len, name);
}


static void
test_words(void)
{
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(resp));

    ngx_rl_resp_begin(&resp);
    ngx_rl_resp_text(&resp, "GET");
    ngx_rl_resp_word(&resp, bytes_of("a\0\r\n"));
    is_written(&resp, bytes_of("*2\r\n$3\r\nGET\r\n$4\r\na\0\r\n\r\n"),
               "words are any bytes, by their length");

    /* an end is no end: it can be looked at, and goes on */

    ngx_rl_resp_number(&resp, 0);
    ngx_rl_resp_number(&resp, UINT64_MAX);
    is_written(&resp, bytes_of("*4\r\n$3\r\nGET\r\n$4\r\na\0\r\n\r\n"
                               "$1\r\n0\r\n$20\r\n18446744073709551615\r\n"),
               "numbers are decimal");

    ngx_rl_resp_begin(&resp);
    is_written(&resp, bytes_of("*0\r\n"), "the next one begins anew");

    ngx_rl_resp_close(&resp);
    ok(resp.start == NULL, "a writer that is closed has no memory");

    ngx_rl_resp_begin(&resp);
    ngx_rl_resp_text(&resp, "");
    is_written(&resp, bytes_of("*1\r\n$0\r\n\r\n"), "and can be used again");
    ngx_rl_resp_close(&resp);
}


/* commands of any length, with one writer, in an order in which it grows */

static void
test_growth(void)
{
    char          *command, *word, *start;
    args_t         args;
    size_t         i, k, size, wrong;
    ssize_t        len;
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(resp));
    wrong = 0;

    for (size = 0; size < 20000; size += size / 3 + 1) {
        word = malloc(size + 1);
        memset(word, 'x', size);

        for (k = 1; k < 120; k += 37) {
            ngx_rl_resp_begin(&resp);

            for (i = 0; i < k; i++) {
                ngx_rl_resp_word(&resp, word, size);
            }

            len = ngx_rl_resp_end(&resp, &command);

            wrong += len < 0 || !args_of(command, len, &args) || args.n != k
                     || !arg_is(&args, 0, word, size)
                     || !arg_is(&args, k - 1, word, size)
                     || command < resp.start || command + len > resp.end;
        }

        free(word);
    }

    is_number(wrong, 0, "commands of 1 to 112 words of any length");

    start = resp.start;

    for (i = 0; i < 100; i++) {
        ngx_rl_resp_begin(&resp);
        ngx_rl_resp_number(&resp, i);
    }

    ok(resp.start == start, "what a writer has got is kept for the next ones");

    len = ngx_rl_resp_detach(&resp, &command);
    is_bytes(command, len, bytes_of("*1\r\n$2\r\n99\r\n"),
             "a detached command is the caller's");
    ok(resp.start == NULL, "and the writer a new one");
    ngx_rl_resp_free(command);
}


/* no command can be that long: the memory is not there, or it is too much */

static void
test_no_memory(void)
{
    char          *command;
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(resp));

    ngx_rl_resp_begin(&resp);
    ngx_rl_resp_text(&resp, "GET");
    resp.failed = 1;
    ngx_rl_resp_text(&resp, "more");

    is_number(resp.n, 1, "after a failure nothing is added");
    ok(ngx_rl_resp_end(&resp, &command) == -1, "and there is no command");

    ngx_rl_resp_begin(&resp);
    ngx_rl_resp_text(&resp, "PING");
    is_written(&resp, bytes_of("*1\r\n$4\r\nPING\r\n"),
               "the next one may be fine");

    resp.failed = 1;
    ok(ngx_rl_resp_detach(&resp, &command) == -1 && resp.start == NULL,
       "nothing is left of one that failed and should be detached");
}


int
main(void)
{
    test_command();
    test_words();
    test_growth();
    test_no_memory();

    return tap_done();
}
