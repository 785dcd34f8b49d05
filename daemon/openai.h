/* daemon/openai.h: what the paths under /v1 have in common: ids, model names, usage, schemas. */
#ifndef TPD_DAEMON_OPENAI_H
#define TPD_DAEMON_OPENAI_H

#include "daemon/adapters.h"
#include "daemon/generation.h"
#include "daemon/http.h"
#include "daemon/sampling_params.h"

enum { OPENAI_MAX_CHOICES = 128, OPENAI_COMPLETION_TOKENS = 16 /* where max_tokens is not given */ };

/* What a generation that answers an OpenAI request remembers (generation.about). */
struct openai_about {
    char id[48];
    int64_t created; /* Unix time */
    bool base64;     /* encoding_format of embeddings */
    bool told_usage; /* stream_options.include_usage */
    char model[];    /* as the client named it */
};

/* What every path that generates takes, for its schema. Those of OpenAI's that change nothing here are
 * taken and not looked at. */
#define OPENAI_PARAMS                                                                              \
    SAMPLING_PARAMS,                                                                               \
    {"model", PARAM_STRING, false, 0, 0, NULL},                                                    \
    {"stream", PARAM_BOOL, false, 0, 0, NULL},                                                     \
    {"stream_options", PARAM_OBJECT, false, 0, 0, NULL},                                           \
    {"n", PARAM_INT, false, 1, 64, NULL},                                                          \
    {"response_format", PARAM_OBJECT, false, 0, 0, NULL},                                          \
    {"user", PARAM_STRING, false, 0, 0, NULL},                                                     \
    {"store", PARAM_BOOL, false, 0, 0, NULL},                                                      \
    {"metadata", PARAM_OBJECT, false, 0, 0, NULL},                                                 \
    {"service_tier", PARAM_STRING, false, 0, 0, NULL}

/* The name under which /v1/models lists the model that is loaded. */
const char *openai_base_name(const struct server *server);
/* Reads model, adapter, stream, stream_options and the sampling parameters of an open call into g, and
 * makes g->about with an id that begins with prefix. */
int openai_read(struct generation *g, const char *prefix, struct error *e);

/* Members id, object, created, model of an object that is open. */
void openai_put_head(struct json_out *out, const struct generation *g, const char *object);
/* Member usage, of all choices. */
void openai_put_usage(struct json_out *out, const struct generation *g);
/* "stop" or "length". */
const char *openai_finish_reason(const struct gen_event *end);
/* ERR_SHUTTING_DOWN when a choice was cut off before its end. */
int openai_check_ends(const struct generation *g, struct error *e);
/* In a stream with include_usage: an event without choices that tells the usage. */
void openai_put_last(struct json_out *out, const struct generation *g, const char *object);

/* openai_files.c: the path of an uploaded file by its id ("file-…"), to be freed. ERR_NOT_FOUND. Any
 * thread. */
int openai_file_path(char **path, const char *data_dir, const char *id, struct error *e);

/* openai_chat.c */
void handle_openai_chat(struct call *call);
/* The handlers. */
void handle_openai_completions(struct call *call);
void handle_openai_models(struct call *call);
void handle_openai_model(struct call *call);
void handle_openai_file_create(struct call *call);
void handle_openai_file_list(struct call *call);
void handle_openai_file_get(struct call *call);
void handle_openai_file_content(struct call *call);
void handle_openai_file_delete(struct call *call);
void handle_openai_job_create(struct call *call);
void handle_openai_job_list(struct call *call);
void handle_openai_job_get(struct call *call);
void handle_openai_job_events(struct call *call);
void handle_openai_job_checkpoints(struct call *call);
void handle_openai_job_cancel(struct call *call);
void handle_openai_job_pause(struct call *call);
void handle_openai_job_resume(struct call *call);
void handle_http_tokenize(struct call *call);
void handle_http_detokenize(struct call *call);
void handle_http_health(struct call *call);
void handle_http_metrics(struct call *call);
void handle_http_page(struct call *call);

#endif
