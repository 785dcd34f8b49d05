/* train/part.h: which bytes of a data file a job learns: all of them, those that are new since another
 * job, or those that it began with. Pure data. */
#ifndef TPD_TRAIN_PART_H
#define TPD_TRAIN_PART_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes from … to of a file; hash is that of its bytes 0 … to, in blocks (train/records.c). */
struct data_part {
    int64_t from, to; /* to 0 = no part */
    uint64_t hash;
};

struct data_want {
    struct data_part pinned; /* exactly these bytes, or an error; to 0 = see below */
    struct data_part known;  /* what comes behind known.to, where the file still begins with the same
                                bytes; else all of it. to 0 = all of it */
    bool growing; /* others append to the file: what follows its last whole record is left alone */
    const _Atomic bool *stop; /* reading ends with ERR_CANCELLED soon after it becomes true; or NULL */
};

#endif
