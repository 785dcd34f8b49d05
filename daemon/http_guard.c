#include "daemon/http_guard.h"

#include "daemon/server.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- URLs --- */

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undoes %XX (and + for a space in a query); NUL and broken escapes are refused. */
static int decode(const char *text, size_t n, bool plus, char *out, size_t size, struct error *e) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)text[i];
        if (c == '%') {
            bool there = i + 2 < n;
            int high = there ? hex(text[i + 1]) : -1, low = there ? hex(text[i + 2]) : -1;
            if (high < 0 || low < 0)
                return error_set(e, ERR_INVALID_REQUEST, "the URL has a broken %%-escape");
            c = high * 16 + low;
            i += 2;
        } else if (plus && c == '+') c = ' ';
        if (c == 0 || k + 1 >= size)
            return error_set(e, ERR_INVALID_REQUEST, "the URL has a part that cannot be read");
        out[k++] = (char)c;
    }
    out[k] = '\0';
    return 0;
}

int http_read_url(const struct http *http, char *path, size_t size, const char **query,
                  struct error *e) {
    struct http_parser_url url;
    http_parser_url_init(&url);
    *query = "";
    if (http_parser_parse_url(http->url, http->url_size, 0, &url) != 0 ||
        !(url.field_set & (1 << UF_PATH)))
        return error_set(e, ERR_INVALID_REQUEST, "the URL cannot be read");
    if (url.field_set & (1 << UF_QUERY)) *query = http->url + url.field_data[UF_QUERY].off;
    return decode(http->url + url.field_data[UF_PATH].off, url.field_data[UF_PATH].len, false, path,
                  size, e);
}

static json_t *query_value(const char *text) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    bool whole = *text && !isspace((unsigned char)*text) && *text != '+' && *end == '\0';
    return whole && errno == 0 ? json_integer(number) : json_string(text);
}

int http_read_query(const char *query, json_t **params, struct error *e) {
    char name[64], value[1024];
    json_t *object = json_object();
    int rc = object ? 0 : error_set(e, ERR_MEMORY, "no memory for the request");
    while (rc == 0 && *query && *query != '#') {
        size_t n = strcspn(query, "&#"), key = strcspn(query, "=&#");
        rc = decode(query, key, true, name, sizeof name, e);
        if (rc == 0) rc = decode(query + key + (key < n), n - key - (key < n), true, value,
                                 sizeof value, e);
        json_t *at = rc == 0 ? query_value(value) : NULL;
        if (rc == 0 && (!at || json_object_set_new(object, name, at) != 0))
            rc = error_set(e, ERR_INVALID_REQUEST, "the query is not valid UTF-8");
        query += n + (query[n] == '&');
    }
    if (rc != 0) json_decref(object);
    else *params = object;
    return rc;
}

/* --- routes --- */

static bool matches(const char *pattern, const char *path, char capture[HTTP_MAX_CAPTURE]) {
    while (*pattern && *path) {
        if (*pattern == '*') {
            size_t n = strcspn(path, "/");
            if (n == 0 || n >= HTTP_MAX_CAPTURE) return false;
            memcpy(capture, path, n);
            capture[n] = '\0';
            path += n;
            pattern++;
        } else if (*pattern++ != *path++) return false;
    }
    return *pattern == *path;
}

static bool answers(const struct http_route *route, const char *verb) {
    return strcmp(route->verb, verb) == 0 ||
           (strcmp(verb, "HEAD") == 0 && strcmp(route->verb, "GET") == 0);
}

int http_find_route(const char *verb, const char *path, const struct http_route **route,
                    char capture[HTTP_MAX_CAPTURE], struct error *e) {
    char allow[128] = "";
    for (size_t i = 0; i < http_n_routes; i++) {
        const struct http_route *at = &http_routes[i];
        if (!matches(at->path, path, capture)) continue;
        *route = at;
        if (answers(at, verb)) return 0;
        if (*allow) strcat(allow, ", "); /* a path has few verbs */
        strcat(allow, at->verb);
    }
    if (*allow) {
        error_set(e, ERR_VERB, "%s %.200s: this path takes %s", verb, path, allow);
        error_note(e, "allow", allow);
        return -(int)ERR_VERB;
    }
    return error_set(e, ERR_METHOD, "no such path: %s %.200s", verb, path);
}

/* --- who may --- */

/* Takes as long whatever the key is: only its length may be learnt. */
static bool same_secret(const char *a, size_t n, const char *b, size_t m) {
    unsigned char different = n != m;
    for (size_t i = 0; i < n; i++)
        different |= (unsigned char)(a[i] ^ b[m > 0 ? i % m : 0]);
    return m > 0 && different == 0;
}

/* keys: one or more, separated by commas or spaces. */
static bool key_fits(const char *keys, const char *given) {
    bool fits = false;
    while (*keys) {
        size_t n = strcspn(keys, ", \t");
        if (n > 0 && same_secret(given, strlen(given), keys, n)) fits = true;
        keys += n;
        keys += strspn(keys, ", \t");
    }
    return fits;
}

static int check_key(const struct http *http, const char *keys, struct error *e) {
    static const char bearer[] = "Bearer ";
    const char *given = http->authorization.text;
    if (*given == '\0')
        return error_set(e, ERR_NO_KEY,
                         "no API key: send the header \"Authorization: Bearer KEY\"");
    if (strncasecmp(given, bearer, sizeof bearer - 1) != 0 ||
        !key_fits(keys, given + sizeof bearer - 1))
        return error_set(e, ERR_NO_KEY, "the API key is not one of this server's");
    return 0;
}

/* Whether a Host header (name or name:port) is an address or localhost: another name may be a web
 * page's that was made to point here. */
static bool is_plain_host(const char *host) {
    char name[HTTP_MAX_HEADER];
    struct in_addr v4;
    struct in6_addr v6;
    bool bracket = host[0] == '[';
    size_t n = strcspn(host + bracket, bracket ? "]" : ":");
    memcpy(name, host + bracket, n);
    name[n] = '\0';
    return n == 0 || strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &v4) == 1 ||
           inet_pton(AF_INET6, name, &v6) == 1;
}

static int check_page(const struct http *http, struct error *e) {
    const char *origin = http->origin.text, *host = http->host.text;
    if (!is_plain_host(host))
        return error_set(e, ERR_NOT_PERMITTED,
                         "the host \"%.100s\" is not this machine's: without an api_key use "
                         "localhost or an address",
                         host);
    const char *page = strstr(origin, "://");
    if (*origin == '\0' || (page && strcasecmp(page + 3, host) == 0)) return 0;
    return error_set(e, ERR_NOT_PERMITTED,
                     "a web page of %.100s may not use this server without an api_key", origin);
}

int http_guard(const struct conn *conn, const struct http_route *route, struct error *e) {
    const struct http *http = conn->speech;
    const char *keys = conn->server->config->api_key;
    if (!conn->over_tcp) return 0;
    if (*keys == '\0') return check_page(http, e);
    return route->open ? 0 : check_key(http, keys, e);
}
