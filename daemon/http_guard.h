/* daemon/http_guard.h: from a URL to a route, and who may use it. */
#ifndef TPD_DAEMON_HTTP_GUARD_H
#define TPD_DAEMON_HTTP_GUARD_H

#include "daemon/http.h"

/* Splits the request's URL into its decoded path and its query ("" when there is none; points into
 * http->url). */
int http_read_url(const struct http *http, char *path, size_t size, const char **query,
                  struct error *e);
/* a=1&b=x: an object of strings and, where a value is a whole number, integers. */
int http_read_query(const char *query, json_t **params, struct error *e);
/* ERR_METHOD for a path that is not there, ERR_VERB for one that is, with the note `allow`. */
int http_find_route(const char *verb, const char *path, const struct http_route **route,
                    char capture[HTTP_MAX_CAPTURE], struct error *e);
/* Over TCP: the API key where one is set, and no web page of another site. */
int http_guard(const struct conn *conn, const struct http_route *route, struct error *e);

#endif
