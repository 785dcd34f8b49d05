/* Every path that HTTP answers. */
#include "daemon/http.h"
#include "daemon/openai.h"

#define END                                                                                        \
    { NULL, 0, false, 0, 0, NULL }

static const struct param no_params[] = {END};

static const struct param completion_params[] = {
    OPENAI_PARAMS,
    {"prompt", PARAM_ANY, true, 0, 0, NULL},
    {"logprobs", PARAM_INT, false, 0, SAMPLING_MAX_LOGPROBS, NULL},
    {"echo", PARAM_BOOL, false, 0, 0, NULL},
    {"best_of", PARAM_INT, false, 1, 64, NULL},
    {"suffix", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param chat_params[] = {
    OPENAI_PARAMS,
    {"messages", PARAM_ANY, true, 0, 0, NULL},
    {"max_completion_tokens", PARAM_INT, false, -1, 1e9, NULL},
    {"logprobs", PARAM_BOOL, false, 0, 0, NULL},
    {"top_logprobs", PARAM_INT, false, 0, SAMPLING_MAX_LOGPROBS, NULL},
    {"tools", PARAM_ANY, false, 0, 0, NULL},
    {"tool_choice", PARAM_ANY, false, 0, 0, NULL},
    {"parallel_tool_calls", PARAM_BOOL, false, 0, 0, NULL},
    {"chat_template_kwargs", PARAM_OBJECT, false, 0, 0, NULL},
    {"add_generation_prompt", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param embedding_params[] = {
    {"model", PARAM_STRING, false, 0, 0, NULL},
    {"input", PARAM_ANY, true, 0, 0, NULL},
    {"encoding_format", PARAM_CHOICE, false, 0, 0, "float|base64"},
    {"dimensions", PARAM_INT, false, 1, 1e6, NULL},
    {"pooling", PARAM_CHOICE, false, 0, 0, "mean|last"},
    {"adapter", PARAM_STRING, false, 0, 0, NULL},
    {"user", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param model_params[] = {
    {"model", PARAM_STRING, true, 0, 0, NULL},
    END,
};

static const struct param file_params[] = {
    {"file", PARAM_STRING, true, 0, 0, NULL},
    END,
};

static const struct param file_list_params[] = {
    {"purpose", PARAM_CHOICE, false, 0, 0, "fine-tune"},
    {"limit", PARAM_INT, false, 1, 10000, NULL},
    {"after", PARAM_STRING, false, 0, 0, NULL},
    {"order", PARAM_CHOICE, false, 0, 0, "desc"},
    END,
};

static const struct param job_create_params[] = {
    {"model", PARAM_STRING, false, 0, 0, NULL},
    {"training_file", PARAM_STRING, true, 0, 0, NULL},
    {"validation_file", PARAM_STRING, false, 0, 0, NULL},
    {"hyperparameters", PARAM_OBJECT, false, 0, 0, NULL},
    {"method", PARAM_OBJECT, false, 0, 0, NULL},
    {"suffix", PARAM_STRING, false, 0, 0, NULL},
    {"seed", PARAM_INT, false, 0, 9007199254740991.0, NULL},
    {"metadata", PARAM_OBJECT, false, 0, 0, NULL},
    {"integrations", PARAM_ANY, false, 0, 0, NULL},
    {"tpd", PARAM_OBJECT, false, 0, 0, NULL},
    END,
};

static const struct param job_params[] = {
    {"job", PARAM_STRING, true, 0, 0, NULL},
    END,
};

static const struct param job_list_params[] = {
    {"limit", PARAM_INT, false, 1, 10000, NULL},
    {"after", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param job_page_params[] = {
    {"job", PARAM_STRING, true, 0, 0, NULL},
    {"limit", PARAM_INT, false, 1, 10000, NULL},
    {"after", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param tokenize_params[] = {
    {"model", PARAM_STRING, false, 0, 0, NULL},
    {"prompt", PARAM_STRING, true, 0, 0, NULL},
    {"add_special_tokens", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param detokenize_params[] = {
    {"model", PARAM_STRING, false, 0, 0, NULL},
    {"tokens", PARAM_IDS, true, 0, 0, NULL},
    END,
};

enum { GENERATES = METHOD_NEEDS_MODEL | METHOD_WORK };

const struct http_route http_routes[] = {
    {"GET", "/", NULL, false, true, {"GET /", handle_http_page, 0, no_params}},
    {"GET", "/health", NULL, false, true, {"GET /health", handle_http_health, 0, no_params}},
    {"GET", "/metrics", NULL, false, false, {"GET /metrics", handle_http_metrics, 0, no_params}},
    {"GET", "/v1/models", NULL, false, false, {"GET /v1/models", handle_openai_models, 0, no_params}},
    {"GET", "/v1/models/*", "model", false, false,
     {"GET /v1/models/MODEL", handle_openai_model, 0, model_params}},
    {"POST", "/v1/completions", NULL, false, false,
     {"POST /v1/completions", handle_openai_completions, GENERATES, completion_params}},
    {"POST", "/v1/chat/completions", NULL, false, false,
     {"POST /v1/chat/completions", handle_openai_chat, GENERATES, chat_params}},
    {"POST", "/v1/embeddings", NULL, false, false,
     {"POST /v1/embeddings", handle_openai_embeddings, GENERATES, embedding_params}},
    {"POST", "/v1/files", NULL, true, false,
     {"POST /v1/files", handle_openai_file_create, METHOD_ADMIN | METHOD_WORK, no_params}},
    {"GET", "/v1/files", NULL, false, false,
     {"GET /v1/files", handle_openai_file_list, METHOD_WORK, file_list_params}},
    {"GET", "/v1/files/*", "file", false, false,
     {"GET /v1/files/ID", handle_openai_file_get, METHOD_WORK, file_params}},
    {"GET", "/v1/files/*/content", "file", false, false,
     {"GET /v1/files/ID/content", handle_openai_file_content, METHOD_WORK, file_params}},
    {"DELETE", "/v1/files/*", "file", false, false,
     {"DELETE /v1/files/ID", handle_openai_file_delete, METHOD_ADMIN | METHOD_WORK, file_params}},
    {"POST", "/v1/fine_tuning/jobs", NULL, false, false,
     {"POST /v1/fine_tuning/jobs", handle_openai_job_create, METHOD_ADMIN | METHOD_WORK, job_create_params}},
    {"GET", "/v1/fine_tuning/jobs", NULL, false, false,
     {"GET /v1/fine_tuning/jobs", handle_openai_job_list, METHOD_WORK, job_list_params}},
    {"GET", "/v1/fine_tuning/jobs/*", "job", false, false,
     {"GET /v1/fine_tuning/jobs/ID", handle_openai_job_get, METHOD_WORK, job_params}},
    {"GET", "/v1/fine_tuning/jobs/*/events", "job", false, false,
     {"GET /v1/fine_tuning/jobs/ID/events", handle_openai_job_events, METHOD_ADMIN | METHOD_WORK, job_page_params}},
    {"GET", "/v1/fine_tuning/jobs/*/checkpoints", "job", false, false,
     {"GET /v1/fine_tuning/jobs/ID/checkpoints", handle_openai_job_checkpoints, METHOD_WORK, job_page_params}},
    {"POST", "/v1/fine_tuning/jobs/*/cancel", "job", false, false,
     {"POST /v1/fine_tuning/jobs/ID/cancel", handle_openai_job_cancel, METHOD_ADMIN | METHOD_WORK, job_params}},
    {"POST", "/v1/fine_tuning/jobs/*/pause", "job", false, false,
     {"POST /v1/fine_tuning/jobs/ID/pause", handle_openai_job_pause, METHOD_ADMIN | METHOD_WORK, job_params}},
    {"POST", "/v1/fine_tuning/jobs/*/resume", "job", false, false,
     {"POST /v1/fine_tuning/jobs/ID/resume", handle_openai_job_resume, METHOD_ADMIN | METHOD_WORK, job_params}},
    {"POST", "/tokenize", NULL, false, false,
     {"POST /tokenize", handle_http_tokenize, GENERATES, tokenize_params}},
    {"POST", "/detokenize", NULL, false, false,
     {"POST /detokenize", handle_http_detokenize, GENERATES, detokenize_params}},
};

const size_t http_n_routes = sizeof http_routes / sizeof *http_routes;
