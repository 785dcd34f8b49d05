/* Errors as the library's users see them. Codes of the daemon get their word and exit code from the
 * one table in base/error.c; the struct in the public header stands alone. */
#include "internal.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)TPD_EXIT_FAILED == (int)EXIT_FAILED && (int)TPD_EXIT_USAGE == (int)EXIT_USAGE &&
                   (int)TPD_EXIT_BAD_DATA == (int)EXIT_BAD_DATA &&
                   (int)TPD_EXIT_NO_FILE == (int)EXIT_NO_FILE &&
                   (int)TPD_EXIT_NO_DAEMON == (int)EXIT_NO_DAEMON &&
                   (int)TPD_EXIT_INTERNAL == (int)EXIT_INTERNAL &&
                   (int)TPD_EXIT_IO == (int)EXIT_IO && (int)TPD_EXIT_BUSY == (int)EXIT_BUSY &&
                   (int)TPD_EXIT_NOT_PERMITTED == (int)EXIT_NOT_PERMITTED &&
                   (int)TPD_EXIT_BAD_CONFIG == (int)EXIT_BAD_CONFIG &&
                   (int)TPD_EXIT_DEADLINE == (int)EXIT_DEADLINE &&
                   (int)TPD_EXIT_INTERRUPTED == (int)EXIT_INTERRUPTED,
               "client and daemon exit alike");

static const struct {
    int code;
    const char *kind;
    int exit_code;
} fails[] = {
    [FAIL_NO_DAEMON] = {TPD_CODE_NO_DAEMON, "no_daemon", TPD_EXIT_NO_DAEMON},
    [FAIL_IO] = {TPD_CODE_IO, "io_error", TPD_EXIT_IO},
    [FAIL_DEADLINE] = {TPD_CODE_DEADLINE, "deadline", TPD_EXIT_DEADLINE},
    [FAIL_CANCELLED] = {TPD_CODE_CANCELLED, "cancelled", TPD_EXIT_INTERRUPTED},
    [FAIL_NOT_PERMITTED] = {-32007, "not_permitted", TPD_EXIT_NOT_PERMITTED},
    [FAIL_USAGE] = {-32012, "usage", TPD_EXIT_USAGE},
    [FAIL_CONFIG] = {-32013, "bad_config", TPD_EXIT_BAD_CONFIG},
    [FAIL_BUSY] = {-32001, "overloaded", TPD_EXIT_BUSY},
    [FAIL_MEMORY] = {-32004, "out_of_memory", TPD_EXIT_BUSY},
};

void tpd_error_clear(struct tpd_error *error) {
    if (!error) return;
    json_decref(error->data);
    memset(error, 0, sizeof *error);
}

/* struct error knows how to keep a message one clean line, whatever text it quotes. */
static void set_message(struct tpd_error *error, const char *message) {
    struct error clean;
    error_set(&clean, ERR_INTERNAL, "%s", message);
    snprintf(error->message, sizeof error->message, "%s", clean.message);
}

int client_fail(struct tpd_error *error, enum fail_kind kind, const char *format, ...) {
    if (!error) return -1;
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tpd_error_clear(error);
    error->code = fails[kind].code;
    error->exit_code = fails[kind].exit_code;
    snprintf(error->kind, sizeof error->kind, "%s", fails[kind].kind);
    set_message(error, message);
    return -1;
}

int client_fail_rpc(struct tpd_error *error, const json_t *rpc_error) {
    if (!error) return -1;
    json_t *data = json_object_get(rpc_error, "data");
    const char *message = json_string_value(json_object_get(rpc_error, "message"));
    const char *kind = json_string_value(json_object_get(data, "kind"));
    json_int_t code = json_integer_value(json_object_get(rpc_error, "code"));
    if (code == 0 || code < INT32_MIN || code > INT32_MAX) code = -32603;
    const struct error_class *class = error_class_of_rpc((int)code);
    tpd_error_clear(error);
    error->code = (int)code;
    error->exit_code = class->exit_code;
    snprintf(error->kind, sizeof error->kind, "%s", kind ? kind : class->name);
    set_message(error, message && *message ? message : "the daemon failed and did not say why");
    if (json_is_object(data)) error->data = json_incref(data);
    return -1;
}
