/* daemon/http.h: the other language of the socket. */
#ifndef TPD_DAEMON_HTTP_H
#define TPD_DAEMON_HTTP_H

#include "daemon/conn.h"

/* Answers any request with 501 and closes: HTTP is not in this version. */
extern const struct language http_language;

#endif
