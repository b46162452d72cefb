
/*
 * Numbers in decimal, in a fraction of the time that printf() takes.  Pure.
 */


#ifndef _NGX_RL_NUMBER_H_INCLUDED_
#define _NGX_RL_NUMBER_H_INCLUDED_


#include <stdint.h>


/* bytes that a number may take */
#define NGX_RL_NUMBER_LEN  (sizeof("18446744073709551615") - 1)


/* writes a number that ends before "last"; returns where it begins */
char *ngx_rl_number(char *last, uint64_t n);


#endif /* _NGX_RL_NUMBER_H_INCLUDED_ */
