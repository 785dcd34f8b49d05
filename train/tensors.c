#include "train/tensors.h"

#include "formats/store.h"

#include <stdlib.h>

int host_tensors_new(struct host_tensors *out, const struct trainee *of, struct error *e) {
    int n = trainee_tensor_count(of);
    *out = (struct host_tensors){.shape = calloc((size_t)n, sizeof *out->shape),
                                 .at = calloc(3 * (size_t)n, sizeof *out->at)};
    if (!out->shape || !out->at) {
        free(out->shape);
        free(out->at);
        *out = (struct host_tensors){0};
        return error_set(e, ERR_MEMORY, "no memory for the list of trained tensors");
    }
    out->n = n;
    out->n_parts = 3;
    for (int i = 0; i < n; i++) trainee_tensor(of, i, &out->shape[i]);
    pthread_mutex_init(&out->lock, NULL);
    pthread_cond_init(&out->moved, NULL);
    return 0;
}

void host_tensors_free(struct host_tensors *t) {
    if (!t->n) return;
    host_tensors_end(t);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->moved);
    free(t->shape);
    free(t->at);
    *t = (struct host_tensors){0};
}

int host_pieces(const struct host_tensors *t) { return t->n * t->n_parts; }

size_t host_piece_floats(const struct host_tensors *t, int piece) {
    const struct train_tensor *shape = &t->shape[piece / t->n_parts];
    return (size_t)shape->rows * (size_t)shape->cols;
}

int host_piece_make(struct host_tensors *t, int piece, struct error *e) {
    size_t floats = host_piece_floats(t, piece);
    t->at[piece] = calloc(floats ? floats : 1, sizeof(float));
    if (!t->at[piece])
        return error_set(e, ERR_MEMORY, "no memory for a copy of %s",
                         t->shape[piece / t->n_parts].name);
    pthread_mutex_lock(&t->lock);
    t->floats += floats;
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static void drop_piece(struct host_tensors *t, int piece) {
    if (!t->at[piece]) return;
    free(t->at[piece]);
    t->at[piece] = NULL;
    pthread_mutex_lock(&t->lock);
    t->floats -= host_piece_floats(t, piece);
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

/* --- gathering ----------------------------------------------------------------------------------- */

void host_tensors_begin(struct host_tensors *t, int n_parts) {
    host_tensors_end(t);
    t->n_parts = n_parts;
    pthread_mutex_lock(&t->lock);
    t->ready = 0;
    t->stopped = false;
    pthread_mutex_unlock(&t->lock);
}

static bool has_room(const struct host_tensors *t) { return t->stopped || t->floats < HOST_FLOATS; }

bool host_tensors_room(struct host_tensors *t) {
    pthread_mutex_lock(&t->lock);
    bool room = has_room(t);
    pthread_mutex_unlock(&t->lock);
    return room;
}

void host_tensors_wait_room(struct host_tensors *t) {
    pthread_mutex_lock(&t->lock);
    while (!has_room(t)) pthread_cond_wait(&t->moved, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void host_piece_ready(struct host_tensors *t) {
    pthread_mutex_lock(&t->lock);
    t->ready++;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

void host_tensors_stop(struct host_tensors *t) {
    if (!t->n) return;
    pthread_mutex_lock(&t->lock);
    t->stopped = true;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

bool host_tensors_stopped(struct host_tensors *t) {
    pthread_mutex_lock(&t->lock);
    bool stopped = t->stopped;
    pthread_mutex_unlock(&t->lock);
    return stopped;
}

/* --- taking -------------------------------------------------------------------------------------- */

static int wait_for(struct host_tensors *t, int piece, struct error *e) {
    pthread_mutex_lock(&t->lock);
    while (t->ready <= piece && !t->stopped) pthread_cond_wait(&t->moved, &t->lock);
    bool here = t->ready > piece;
    pthread_mutex_unlock(&t->lock);
    return here ? 0 : error_set(e, ERR_CANCELLED, "the writing was given up");
}

const float *host_tensors_next(struct host_tensors *t, struct error *e) {
    int piece = t->taken++;
    if (piece > 0) drop_piece(t, piece - 1);
    if (piece > 0 && t->wake) t->wake(t->user);
    int err = 0;
    if (!t->from) err = wait_for(t, piece, e);
    else err = host_piece_make(t, piece, e);
    if (!err && t->from) err = checkpoint_copy_piece(t, piece, t->at[piece], e);
    return err ? NULL : t->at[piece];
}

void host_tensors_end(struct host_tensors *t) {
    for (int i = 0; i < 3 * t->n; i++) free(t->at[i]);
    for (int i = 0; i < 3 * t->n; i++) t->at[i] = NULL;
    store_close(t->from);
    t->from = NULL;
    t->taken = 0;
    pthread_mutex_lock(&t->lock);
    t->floats = 0;
    pthread_mutex_unlock(&t->lock);
}
