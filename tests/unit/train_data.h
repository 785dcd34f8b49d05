/* tests/unit/train_data.h: data files written, opened and shown again, for the tests of train/. */
#ifndef TPD_TESTS_TRAIN_DATA_H
#define TPD_TESTS_TRAIN_DATA_H

#include "tests/unit/tiny_files.h"

#include "text/buffer.h"
#include "text/chat.h"
#include "train/dataset.h"

static const char chat_tokenizer[] = "tests/data/models/tiny-chat"; /* ChatML, byte-level BPE */
static const char spm_tokenizer[] = "tests/data/models/tiny-spm";   /* ▁ in front of a text */

UNUSED static struct tokenizer *open_tokenizer_at(const char *path) {
    struct tokenizer *t;
    struct error e = {0};
    if (tokenizer_open(&t, path, &e)) fail_msg("%s", e.message);
    return t;
}

/* That of tiny-chat, once for a test program; NULL for tokenizers without its tokens. */
UNUSED static const struct chat *chat_for(const struct tokenizer *t) {
    static struct chat *chat;
    struct error e = {0};
    if (tokenizer_find(t, "<|im_start|>") < 0) return NULL;
    if (!chat && chat_open(&chat, chat_tokenizer, NULL, t, &e)) fail_msg("%s", e.message);
    return chat;
}

/* tests/data's own tokenizers end a text with </s>. */
UNUSED static struct dataset_options options_for(const struct tokenizer *t) {
    tiny_path("");
    return (struct dataset_options){.tokenizer = t,
                                    .chat = chat_for(t),
                                    .cache_dir = tiny_dir,
                                    .vocab = tokenizer_size(t),
                                    .eos = tokenizer_find(t, "</s>"),
                                    .seq_len = 256,
                                    .on_completion = true,
                                    .threads = 2};
}

UNUSED static struct dataset *open_data(const char *path, const struct dataset_options *o) {
    struct dataset *d;
    struct error e = {0};
    if (dataset_open(&d, path, o, &e)) fail_msg("%s", e.message);
    return d;
}

struct shown_rows {
    struct dataset_rows rows;
    int32_t at[5][1 << 14];
};
UNUSED static struct shown_rows *rows_new(void) {
    struct shown_rows *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->rows = (struct dataset_rows){
        .ids = s->at[0], .labels = s->at[1], .pos = s->at[2], .first = s->at[3], .len = s->at[4]};
    return s;
}

UNUSED static struct dataset_epoch *open_epoch(const struct dataset_view *view, int64_t number) {
    struct dataset_epoch *ep;
    struct error e = {0};
    if (dataset_epoch_new(&ep, view, number, &e)) fail_msg("%s", e.message);
    return ep;
}

/* All examples in file order, one a micro-batch. */
UNUSED static struct dataset_epoch *in_file_order(const struct dataset *d, int32_t seq_len) {
    return open_epoch(
        &(struct dataset_view){
            .data = d, .eval = true, .eval_fraction = 1, .seq_len = seq_len, .rows = seq_len},
        0);
}

static void show_token(const struct tokenizer *t, token_id id, struct buf *out) {
    uint8_t bytes[64];
    size_t n;
    const char *piece = tokenizer_piece(t, id, &n);
    if (tokenizer_is_special(t, id)) buf_add(out, piece, n);
    else {
        n = tokenizer_bytes(t, id, bytes, sizeof bytes);
        buf_add(out, bytes, n);
    }
}

/* The example in rows as text, what is learnt in {braces}; to be freed. */
UNUSED static char *show_example(const struct tokenizer *t, const struct dataset_rows *r) {
    struct buf out = {0};
    bool open = false;
    show_token(t, r->ids[0], &out);
    for (int32_t i = 0; i < r->n_rows; i++) {
        bool learnt = r->labels[i] >= 0;
        token_id next = i + 1 < r->n_rows ? r->ids[i + 1] : r->labels[i];
        if (learnt) assert_int_equal(next, r->labels[i]);
        if (learnt != open) buf_add_char(&out, learnt ? '{' : '}');
        open = learnt;
        show_token(t, next, &out);
    }
    if (open) buf_add_char(&out, '}');
    buf_add_char(&out, '\0');
    assert_false(out.failed);
    return out.data;
}

#endif
