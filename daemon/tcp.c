#include "daemon/tcp.h"

#include "base/log.h"
#include "daemon/accept.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "HOST:PORT", "[HOST]:PORT" or ":PORT" (this machine alone). */
static int parse(const char *listen, struct sockaddr_storage *address, struct error *e) {
    char host[INET6_ADDRSTRLEN] = "127.0.0.1";
    const char *colon = strrchr(listen, ':');
    bool bracket = listen[0] == '[';
    size_t n = colon ? (size_t)(colon - listen) : 0;
    char *end;
    long port = colon && colon[1] ? strtol(colon + 1, &end, 10) : -1;
    if (bracket && (n < 2 || listen[n - 1] != ']')) port = -1;
    if (port < 0 || port > 65535 || *end != '\0' || n - 2 * bracket >= sizeof host)
        return error_set(e, ERR_CONFIG, "listen: \"%s\" is not HOST:PORT, as in 127.0.0.1:8080",
                         listen);
    if (n > 0) {
        memcpy(host, listen + bracket, n - 2 * bracket);
        host[n - 2 * bracket] = '\0';
    }
    if (strcmp(host, "localhost") == 0) strcpy(host, "127.0.0.1");
    if (uv_ip4_addr(host, (int)port, (struct sockaddr_in *)address) == 0 ||
        uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)address) == 0)
        return 0;
    return error_set(e, ERR_CONFIG, "listen: \"%s\" is not an address of this machine: give it as "
                     "numbers, or localhost", host);
}

static bool is_loopback(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    uint32_t v4 = ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
    return v4 >> 24 == 127;
}

int tcp_check(const struct daemon_config *config, struct error *e) {
    struct sockaddr_storage address;
    if (*config->listen == '\0') return 0;
    int rc = parse(config->listen, &address, e);
    if (rc != 0) return rc;
    if (*config->api_key && strspn(config->api_key, ", \t") == strlen(config->api_key))
        return error_set(e, ERR_CONFIG, "api_key has no key in it: give one, or leave it empty");
    if (*config->api_key) return 0;
    if (!is_loopback(&address))
        return error_set(e, ERR_CONFIG,
                         "listen = %s can be reached from other machines: set api_key, or listen on "
                         "127.0.0.1",
                         config->listen);
    if (config->allow_uid.n > 0 || config->allow_gid.n > 0)
        return error_set(e, ERR_CONFIG, "listen = %s lets in every user of this machine, whom "
                         "allow_uid and allow_gid keep out: set api_key", config->listen);
    return 0;
}

static void say_address(struct server *server) {
    struct sockaddr_storage address;
    char host[INET6_ADDRSTRLEN];
    int size = sizeof address;
    if (uv_tcp_getsockname(&server->tcp, (struct sockaddr *)&address, &size) != 0) return;
    bool v6 = address.ss_family == AF_INET6;
    int port = ntohs(v6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                        : ((struct sockaddr_in *)&address)->sin_port);
    if (v6) uv_ip6_name((struct sockaddr_in6 *)&address, host, sizeof host);
    else uv_ip4_name((struct sockaddr_in *)&address, host, sizeof host);
    log_info(v6 ? "http://[%s]:%d" : "http://%s:%d", host, port);
}

int tcp_listen(struct server *server, struct error *e) {
    const char *listen = server->config->listen;
    struct sockaddr_storage address;
    if (*listen == '\0') return 0;
    int rc = parse(listen, &address, e);
    if (rc != 0) return rc;
    int uv = uv_tcp_init(&server->loop, &server->tcp);
    server->tcp.data = server;
    server->has_tcp = uv == 0;
    if (uv == 0) uv = uv_tcp_bind(&server->tcp, (struct sockaddr *)&address, 0);
    if (uv == 0) uv = uv_listen((uv_stream_t *)&server->tcp, SOMAXCONN, accept_connection);
    if (uv == UV_EADDRINUSE)
        return error_set(e, ERR_CONFLICT, "listen = %s: another program listens there", listen);
    if (uv != 0) return error_set(e, ERR_IO, "listen = %s: %s", listen, uv_strerror(uv));
    say_address(server);
    return 0;
}

void tcp_close(struct server *server) {
    if (server->has_tcp) uv_close((uv_handle_t *)&server->tcp, NULL);
    server->has_tcp = false;
}
