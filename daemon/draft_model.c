#include "daemon/draft_model.h"

int draft_model_open(struct model **out, const char *path, const struct tokenizer *tokenizer,
                     struct error *e) {
    struct tokenizer *own;
    *out = NULL;
    int rc = model_open(out, path, e);
    if (rc == 0) rc = tokenizer_open(&own, path, e);
    if (rc == 0) {
        rc = tokenizer_check_same(tokenizer, own, e);
        tokenizer_free(own);
        if (rc != 0) error_prefix(e, "%s has another vocabulary than the model: ", path);
    }
    if (rc == 0) return 0;
    model_free(*out);
    *out = NULL;
    return error_prefix(e, "draft: ");
}
