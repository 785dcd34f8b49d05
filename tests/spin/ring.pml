/* The ring all-reduce: one block of each rank, call after call, each of TILES tiles. -DN=ranks -DDEPTH=2 (of a
 * lane; the kernels have 4). -DNO_CREDIT does not wait for room in the neighbour's lane and must fail.
 *
 * A partial sum is the set of ranks that it has, as bits; the lane also holds which tile it is. */
#ifndef N
#define N 2
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef TILES
#define TILES 3
#endif
#ifndef CALLS
#define CALLS 2
#endif
#define ALL ((1 << N) - 1)

byte flag[N * N];      /* the meeting at the beginning */
byte partial[N];       /* at rank r: tiles whose partial sum is in r's lane */
byte result[N];        /* at rank r: tiles of which r's buffer has the sum */
byte credit[N];        /* at rank r: tiles that the next one has read from its lane */
byte lane_sum[N * DEPTH];
byte lane_tile[N * DEPTH];
byte x[N * TILES];     /* a rank's buffer: 1 << r is its input, ALL the sum */
byte done = 0;

#define NEXT ((me + 1) % N)
#define PREV ((me + N - 1) % N)
#define X(r, i) x[(r) * TILES + (i)]
#define LANE(r, t) (r) * DEPTH + (t) % DEPTH

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

inline reduce(i) {
    number = base + i + 1;
    sum = 0;
    if
    :: me > 0 -> partial[me] >= number
    :: else
    fi;
#ifndef NO_CREDIT
    if
    :: me < N - 1 -> credit[me] + DEPTH >= number
    :: else
    fi;
#endif
    if
    :: me > 0 ->
        assert(lane_tile[LANE(me, number)] == number); /* not overwritten before it is read */
        sum = lane_sum[LANE(me, number)]
    :: else
    fi;
    assert(X(me, i) == (1 << me)); /* no result comes before the input is read */
    assert(sum == (1 << me) - 1);  /* in rank order */
    sum = sum | X(me, i);
    if
    :: me < N - 1 ->
        lane_sum[LANE(NEXT, number)] = sum;
        lane_tile[LANE(NEXT, number)] = number;
        partial[NEXT] = number
    :: else ->
        X(me, i) = sum;
        X(NEXT, i) = sum;
        result[NEXT] = number
    fi;
    if
    :: me > 0 -> credit[PREV] = number
    :: else
    fi
}

inline gather(i) {
    if
    :: me < N - 1 ->
        number = base + i + 1;
        result[me] >= number;
        assert(X(me, i) == ALL);
        if
        :: me < N - 2 ->
            X(NEXT, i) = X(me, i);
            result[NEXT] = number
        :: else
        fi
    :: else
    fi
}

active [N] proctype rank() {
    byte me = _pid, call = 0, base = 0, number, sum, i, p;
    do
    :: call < CALLS ->
        i = 0;
        do /* the input of the next call */
        :: i < TILES -> X(me, i) = 1 << me; i++
        :: else -> break
        od;
        meet(call + 1);
        i = 0;
        do
        :: i < TILES + N ->
            if
            :: i < TILES -> reduce(i)
            :: else
            fi;
            if
            :: i >= N -> gather(i - N)
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < TILES -> assert(X(me, i) == ALL); i++
        :: else -> break
        od;
        base = base + TILES;
        call++
    :: else -> break
    od;
    done++;
    (done == N)
}
