#include "daemon/mailbox.h"

void mailbox_deliver(struct mailbox *box) {
    uv_mutex_lock(&box->mutex);
    struct letter *letter = box->first;
    box->first = NULL;
    box->last = &box->first;
    uv_mutex_unlock(&box->mutex);
    while (letter) {
        struct letter *next = letter->next;
        letter->deliver(letter);
        letter = next;
    }
}

static void on_async(uv_async_t *async) {
    mailbox_deliver(async->data);
}

int mailbox_init(struct mailbox *box, uv_loop_t *loop, struct error *e) {
    box->first = NULL;
    box->last = &box->first;
    int rc = uv_mutex_init(&box->mutex);
    if (rc == 0) rc = uv_async_init(loop, &box->async, on_async);
    if (rc != 0) return error_set(e, ERR_INTERNAL, "cannot make the mailbox: %s", uv_strerror(rc));
    box->async.data = box;
    return 0;
}

void mailbox_post(struct mailbox *box, struct letter *letter) {
    letter->next = NULL;
    uv_mutex_lock(&box->mutex);
    *box->last = letter;
    box->last = &letter->next;
    uv_mutex_unlock(&box->mutex);
    uv_async_send(&box->async);
}

static void on_closed(uv_handle_t *handle) {
    struct mailbox *box = handle->data;
    uv_mutex_destroy(&box->mutex);
}

void mailbox_close(struct mailbox *box) {
    uv_close((uv_handle_t *)&box->async, on_closed);
}
