/* The two-shot all-reduce, and scatter and gather over peer memory: a meeting, work in everybody's buffers, a
 * meeting. -DN=ranks. -DNO_END leaves the second meeting out and must fail.
 *
 * part[o * N + r]: of rank o's buffer, the part that rank r sums. It holds the number of the call whose input
 * (2 * call) or sum (2 * call + 1) it is. */
#ifndef N
#define N 2
#endif
#define CALLS 2

byte flag[N * N];
byte part[N * N];
byte done = 0;

inline meet(number) {
    p = 0;
    do
    :: p < N -> flag[p * N + me] = number; p++
    :: else -> break
    od;
    p = 0;
    do
    :: p < N -> flag[me * N + p] >= number; p++
    :: else -> break
    od
}

active [N] proctype rank() {
    byte me = _pid, call = 1, number = 0, p;
    do
    :: call <= CALLS ->
        p = 0;
        do /* an earlier kernel of the stream makes the input */
        :: p < N -> part[me * N + p] = 2 * call; p++
        :: else -> break
        od;
        number++;
        meet(number);
        p = 0;
        do /* read the own part of all */
        :: p < N -> assert(part[p * N + me] == 2 * call); p++
        :: else -> break
        od;
        p = 0;
        do /* and write the sum to all */
        :: p < N -> part[p * N + me] = 2 * call + 1; p++
        :: else -> break
        od;
#ifndef NO_END
        number++;
        meet(number);
#endif
        p = 0;
        do /* the kernel has ended: all is summed, and stays so until this rank changes it */
        :: p < N -> assert(part[me * N + p] == 2 * call + 1); p++
        :: else -> break
        od;
        call++
    :: else -> break
    od;
    done++;
    (done == N)
}
