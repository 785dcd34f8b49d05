#include "train/task.h"

#include "base/thread.h"

#include <string.h>

static void *task_main(void *arg) {
    struct task *t = arg;
    thread_name("tpd-train-io");
    t->result = t->fn(t->arg, &t->error);
    atomic_store_explicit(&t->done, true, memory_order_release);
    if (t->wake) t->wake(t->user);
    return NULL;
}

int task_start(struct task *t, int (*fn)(void *arg, struct error *e), void *arg, struct error *e) {
    t->fn = fn;
    t->arg = arg;
    t->error = (struct error){0};
    atomic_store(&t->done, false);
    int errnum = pthread_create(&t->thread, NULL, task_main, t);
    if (errnum) return error_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(errnum));
    t->running = true;
    return 0;
}

int task_join(struct task *t, struct error *e) {
    pthread_join(t->thread, NULL);
    t->running = false;
    if (t->result && e) *e = t->error;
    return t->result;
}

int task_poll(struct task *t, int *result, struct error *e) {
    if (!atomic_load_explicit(&t->done, memory_order_acquire)) return 0;
    *result = task_join(t, e);
    return 1;
}
