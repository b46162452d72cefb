/*
 * Combined calls, remembered denials, leases and refunds, for Spin.
 *
 * Two machines ask one bucket in Redis.  Clients arrive and leave at any moment,
 * calls, replies and refunds get lost at any moment, tokens are refilled at any
 * moment.  Actions have the names of the functions that they stand for.
 *
 * What must hold:
 *
 *   - no more requests are admitted than the bucket had and got (over_admits)
 *   - each request is answered once, or its client has left
 *   - a token is in the bucket, held, spent, or lost by a message that was lost;
 *     none gets lost otherwise, and none is there twice
 *
 * -DBUG_... plants a mistake, which Spin must find; t/project/194-model.t does
 * both.
 */

#ifndef MACHINES
#define MACHINES  2
#endif
#ifndef REQUESTS
#define REQUESTS  3             /* of each machine */
#endif
#ifndef CAPACITY
#define CAPACITY  2
#endif
#ifndef LEASE
#define LEASE     1             /* tokens taken in advance */
#endif
#ifndef REFILLS
#define REFILLS   1             /* tokens refilled in all */
#endif
#ifndef LOSSES
#define LOSSES    1             /* messages lost in all */
#endif

#define NOTHING   255           /* no denial is remembered */

mtype = { ANSWER, NO_ANSWER };

byte tokens = CAPACITY;         /* in Redis */
byte refilled;                  /* also the clock: rates are known to all */
byte losses;

/* totals */

byte admitted, denied, failed, departed;
byte lost;                      /* tokens of messages that were lost */
byte ended;                     /* machines */

/* requests, tokens in advance */
chan call[MACHINES] = [1] of { byte, byte };

/* what, passed, held, left in the bucket */
chan reply[MACHINES] = [1] of { mtype, byte, byte, byte };

chan refund = [MACHINES] of { byte };

#define over_admits  (admitted > CAPACITY + refilled)


inline smaller(result, a, b)
{
    if
    :: a <= b -> result = a
    :: else -> result = b
    fi
}


/* a call of this machine reaches Redis, or not; so does the reply */

active proctype redis()
{
    byte i, n, ahead, passed, held;

end:
    do
    :: tokens < CAPACITY && refilled < REFILLS ->
        atomic { tokens++; refilled++ }

    :: atomic { refund?n ->
            if
            :: tokens + n <= CAPACITY -> tokens = tokens + n
            :: else ->                  /* a bucket is never more than full */
                lost = lost + tokens + n - CAPACITY;
                tokens = CAPACITY
            fi;
            n = 0
       }

    :: atomic { refund?[n] && losses < LOSSES ->
            refund?n; losses++; lost = lost + n; n = 0
       }

    :: atomic { call[0]?[n, ahead] -> i = 0; goto take }
    :: atomic { MACHINES > 1 && call[MACHINES - 1]?[n, ahead] ->
            i = MACHINES - 1; goto take
       }
    od;

take:
    atomic {
        call[i]?n, ahead;

        if
        :: losses < LOSSES ->           /* the call is lost */
            losses++;
            reply[i]!NO_ANSWER, 0, 0, 0

        :: true ->
            smaller(passed, n, tokens);
            tokens = tokens - passed;
            smaller(held, ahead, tokens);
            tokens = tokens - held;

            if
            :: losses < LOSSES ->       /* the reply is lost */
                losses++;
#ifndef BUG_REFUND_UNANSWERED
                lost = lost + passed + held;
                reply[i]!NO_ANSWER, 0, 0, 0
#else
                reply[i]!NO_ANSWER, n, ahead, 0
#endif
            :: true ->
                reply[i]!ANSWER, passed, held, tokens
            fi
        fi;

        n = 0; ahead = 0; passed = 0; held = 0; i = 0
    };

    goto end
}


proctype machine(byte me)
{
    byte todo = REQUESTS;       /* requests to come */
    byte waiting;               /* in the combiner */
    byte served;                /* by the call under way */
    byte gone;                  /* of these, whose clients have left */
    byte held;                  /* tokens of leases */

    byte learned = NOTHING;     /* tokens that were left, */
    byte sent;                  /* when the call was sent, */
    byte since;                 /* and what was refunded here since */

    byte passed, ahead, left, alive, n;
    mtype what;

    do
    :: atomic { todo > 0 ->     /* http/handler: a request arrives */
            todo--;

            if
            :: held > 0 ->      /* known_decide: a lease */
                held--;
                admitted++;
                assert(!over_admits)

            :: (held == 0 && learned != NOTHING &&
                learned + refilled - sent + since == 0) ->
                                /* known_decide: a denial */
                denied++

            :: else -> waiting++
            fi
       }

    :: atomic { waiting > 0 && served == 0 ->   /* combine_send */
            served = waiting;
            waiting = 0;
            gone = 0;
            n = refilled;       /* the clock of a denial starts now */
            call[me]!served, LEASE
       }

    :: atomic { waiting > 0 ->  /* combine_leave: a client that waits leaves */
            waiting--;
            departed++
       }

    :: atomic { served > gone ->        /* the same while the call is sent */
            gone++;
            departed++
       }

    :: atomic { reply[me]?what, passed, ahead, left ->  /* combine_answer */

            alive = served - gone;

            if
            :: what == NO_ANSWER ->     /* never repeated, never refunded */
                failed = failed + alive;

#ifdef BUG_REFUND_UNANSWERED
                if
                :: passed + ahead > 0 -> refund!passed + ahead
                :: else
                fi
#endif
            :: else ->
#ifdef BUG_LEASE_TWICE
                held = held + ahead + ahead;
#else
                held = held + ahead;    /* known_learn */
#endif
                learned = left;
                sent = n;
                since = 0;

                if
                :: alive == 0 ->        /* charged, though nobody is there */
                    lost = lost + passed

                :: else ->
                    smaller(left, alive, passed);
                    admitted = admitted + left;
                    denied = denied + alive - left;
                    passed = passed - left;
                    assert(!over_admits);

#ifdef BUG_ANSWER_TWICE
                    if
                    :: gone > 0 -> denied++
                    :: else
                    fi;
#endif
                    if
                    :: passed > 0 ->    /* refund: what nobody needs */
#ifndef BUG_REFUND_FORGOTTEN
                        refund!passed;
#endif
                        since = since + passed
                    :: else
                    fi
                fi
            fi;

            served = 0; gone = 0; passed = 0; ahead = 0; left = 0; alive = 0
       }

    :: atomic { held > 0 ->     /* lease_end */
            refund!held;
            since = since + held;
            held = 0
       }

    :: atomic { todo == 0 && waiting == 0 && served == 0 && held == 0 ->
            ended++;
            break
       }
    od
}


/* when all is over */

active proctype observer()
{
    (ended == MACHINES && empty(refund));

    atomic {
        /* redis may just have taken a refund, in one step with its use */

        assert(admitted + denied + failed + departed == MACHINES * REQUESTS);
        assert(tokens + admitted + lost == CAPACITY + refilled)
    }
}


init
{
    byte i;

    atomic {
        do
        :: i < MACHINES -> run machine(i); i++
        :: else -> break
        od;
        i = 0
    }
}
