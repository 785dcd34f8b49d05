/* The one-shot all-reduce of kernels/cuda/comm_all_reduce.cu (and all that goes through slots): what one
 * block of each rank does, call after call. -DN=ranks -DSLOTS=2; SLOTS=1 must fail.
 *
 * flag[r * N + w] is at reader r, written by w alone. What goes over the bus is modelled as one step where
 * the device's release and acquire make it one: data before the flag, the flag before the reader's data. */
#ifndef N
#define N 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#define CALLS 4

byte flag[N * N];     /* numbers of meetings */
byte slot[N * SLOTS]; /* which call's data a rank's slot holds */
byte done = 0;

active [N] proctype rank() {
    byte me = _pid, call = 1, p;
    do
    :: call <= CALLS ->
        slot[me * SLOTS + call % SLOTS] = call; /* the copy into the slot */
        p = 0;
        do /* signal all, in the order that a warp may have */
        :: p < N -> flag[p * N + me] = call; p++
        :: else -> break
        od;
        p = 0;
        do /* wait for all */
        :: p < N -> flag[me * N + p] >= call; p++
        :: else -> break
        od;
        p = 0;
        do /* the sum: every slot holds this call's data when it is read */
        :: p < N -> assert(slot[p * SLOTS + call % SLOTS] == call); p++
        :: else -> break
        od;
        call++
    :: else -> break
    od;
    done++;
    (done == N) /* nobody is left waiting: else an invalid end state */
}
