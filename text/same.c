/* Whether two tokenizers mean the same tokens by the same ids. */
#include "text/tokenizer.h"

#include <string.h>

int tokenizer_check_same(const struct tokenizer *t, const struct tokenizer *other, struct error *e) {
    int32_t n = tokenizer_size(t) < tokenizer_size(other) ? tokenizer_size(t) : tokenizer_size(other);
    int32_t n_both = 0;
    for (token_id id = 0; id < n; id++) {
        size_t size, other_size;
        const char *piece = tokenizer_piece(t, id, &size);
        const char *other_piece = tokenizer_piece(other, id, &other_size);
        if (!piece || !other_piece) continue;
        n_both++;
        if (size != other_size || memcmp(piece, other_piece, size) != 0)
            return error_set(e, ERR_CONFIG, "token %d is \"%.*s\" in one vocabulary and \"%.*s\" in the other",
                             id, (int)(size < 64 ? size : 64), piece,
                             (int)(other_size < 64 ? other_size : 64), other_piece);
    }
    return n_both ? 0 : error_set(e, ERR_CONFIG, "the vocabularies have no token in common");
}
