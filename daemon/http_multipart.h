/* daemon/http_multipart.h: multipart/form-data (RFC 7578), whole in memory. Any thread. */
#ifndef TPD_DAEMON_HTTP_MULTIPART_H
#define TPD_DAEMON_HTTP_MULTIPART_H

#include "base/error.h"

/* A part; data points into the body. */
struct form_part {
    char name[64], filename[256]; /* filename is "" for a part that is no file */
    const char *data;
    size_t size;
};

struct form {
    const char *at, *end; /* of what is not yet read */
    char boundary[80];    /* "\r\n--…" */
};

/* content_type: the request's header, with its boundary. The body outlives the form. */
int form_open(struct form *form, const char *content_type, const char *body, size_t size,
              struct error *e);
/* 1 and a part, 0 at the end, negative with e where the body is broken. */
int form_next(struct form *form, struct form_part *part, struct error *e);

#endif
