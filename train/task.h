/* train/task.h: one piece of slow work (reading data, writing a checkpoint) on a thread of its own, so
 * that neither the ranks nor the loop wait for the disk. Started, polled and joined by one thread. */
#ifndef TPD_TRAIN_TASK_H
#define TPD_TRAIN_TASK_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>

struct task {
    bool running; /* started and not yet taken */
    _Atomic bool done;
    pthread_t thread;
    int (*fn)(void *arg, struct error *e);
    void *arg;
    void (*wake)(void *user); /* called on the task's thread at its end */
    void *user;
    int result;
    struct error error;
};

int task_start(struct task *t, int (*fn)(void *arg, struct error *e), void *arg, struct error *e);
/* 1 when it has ended (and is taken: *result, *e are its), 0 while it runs. */
int task_poll(struct task *t, int *result, struct error *e);
/* Waits and takes. */
int task_join(struct task *t, struct error *e);

#endif
