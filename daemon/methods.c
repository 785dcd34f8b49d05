#include "daemon/methods.h"

#include "daemon/sampling_params.h"

#include <string.h>

#define END                                                                                        \
    { NULL, 0, false, 0, 0, NULL }

static const struct param no_params[] = {END};

static const struct param job_params[] = {
    {"job", PARAM_ID, true, 0, 0, NULL},
    END,
};

static const struct param job_delete_params[] = {
    {"job", PARAM_ID, true, 0, 0, NULL},
    {"result", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param job_watch_params[] = {
    {"job", PARAM_ID, true, 0, 0, NULL},
    {"after", PARAM_INT, false, 0, 9007199254740991.0, NULL},
    END,
};

static const struct param job_log_params[] = {
    {"job", PARAM_ID, true, 0, 0, NULL},
    {"after", PARAM_INT, false, 0, 9007199254740991.0, NULL},
    {"limit", PARAM_INT, false, 1, 10000, NULL},
    END,
};

static const struct param generate_params[] = {
    {"prompt", PARAM_PROMPT, true, 0, 0, NULL},
    {"stream", PARAM_BOOL, false, 0, 0, NULL},
    {"n", PARAM_INT, false, 1, 64, NULL},
    SAMPLING_PARAMS,
    {"logprobs", PARAM_INT, false, 0, SAMPLING_MAX_LOGPROBS, NULL},
    {"echo", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param chat_params[] = {
    {"messages", PARAM_ANY, true, 0, 0, NULL},
    {"tools", PARAM_ANY, false, 0, 0, NULL},
    {"add_generation_prompt", PARAM_BOOL, false, 0, 0, NULL},
    {"chat_template_kwargs", PARAM_OBJECT, false, 0, 0, NULL},
    {"stream", PARAM_BOOL, false, 0, 0, NULL},
    {"n", PARAM_INT, false, 1, 64, NULL},
    SAMPLING_PARAMS,
    {"logprobs", PARAM_INT, false, 0, SAMPLING_MAX_LOGPROBS, NULL},
    END,
};

static const struct param template_params[] = {
    {"messages", PARAM_ANY, true, 0, 0, NULL},
    {"tools", PARAM_ANY, false, 0, 0, NULL},
    {"add_generation_prompt", PARAM_BOOL, false, 0, 0, NULL},
    {"chat_template_kwargs", PARAM_OBJECT, false, 0, 0, NULL},
    END,
};

static const struct param score_params[] = {
    {"prompt", PARAM_PROMPT, false, 0, 0, NULL},
    {"completion", PARAM_PROMPT, true, 0, 0, NULL},
    END,
};

static const struct param embed_params[] = {
    {"input", PARAM_ANY, true, 0, 0, NULL},
    {"pooling", PARAM_CHOICE, false, 0, 0, "mean|last"},
    {"adapter", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param tokenize_params[] = {
    {"text", PARAM_STRING, true, 0, 0, NULL},
    {"special", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param detokenize_params[] = {
    {"tokens", PARAM_IDS, true, 0, 0, NULL},
    {"special", PARAM_BOOL, false, 0, 0, NULL},
    END,
};

static const struct param cancel_params[] = {
    {"id", PARAM_ID, true, 0, 0, NULL},
    END,
};

static const struct param shutdown_params[] = {
    {"drain", PARAM_BOOL, false, 0, 0, NULL},
    {"timeout_s", PARAM_NUMBER, false, 0, 86400, NULL},
    END,
};

static const struct param adapter_load_params[] = {
    {"name", PARAM_STRING, true, 0, 0, NULL},
    {"path", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param adapter_rollback_params[] = {
    {"name", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param merge_params[] = {
    {"adapter", PARAM_STRING, true, 0, 0, NULL},
    {"out", PARAM_STRING, true, 0, 0, NULL},
    END,
};

static const struct param adapter_params[] = {
    {"name", PARAM_STRING, true, 0, 0, NULL},
    END,
};

static const struct param model_load_params[] = {
    {"path", PARAM_STRING, false, 0, 0, NULL},
    {"tp", PARAM_INT, false, 1, PLAN_MAX_RANKS, NULL},
    {"ctx", PARAM_INT, false, 0, 1 << 24, NULL},
    {"quant", PARAM_CHOICE, false, 0, 0, "none|q8|q4"},
    {"draft", PARAM_STRING, false, 0, 0, NULL},
    END,
};

static const struct param model_unload_params[] = {
    {"timeout_s", PARAM_NUMBER, false, 0, 86400, NULL},
    END,
};

static const struct param tensor_params[] = {
    {"name", PARAM_STRING, true, 0, 0, NULL},
    END,
};

const struct param plan_params[] = {
    {"path", PARAM_STRING, false, 0, 0, NULL},
    {"config", PARAM_OBJECT, false, 0, 0, NULL},
    {"dtype", PARAM_STRING, false, 0, 0, NULL},
    {"quant", PARAM_CHOICE, false, 0, 0, "none|q8|q4"},
    {"draft", PARAM_STRING, false, 0, 0, NULL},
    {"draft_tp", PARAM_INT, false, 1, PLAN_MAX_RANKS, NULL},
    {"tp", PARAM_INT, false, 1, PLAN_MAX_RANKS, NULL},
    {"ctx", PARAM_INT, false, 1, 1 << 24, NULL},
    {"batch", PARAM_INT, false, 1, 4096, NULL},
    {"kv_type", PARAM_CHOICE, false, 0, 0, "auto|f32|f16|bf16|q8"},
    {"train", PARAM_CHOICE, false, 0, 0, "lora|full"},
    {"grad_checkpointing", PARAM_SWITCH, false, 0, 0, "auto"},
    {"job", PARAM_OBJECT, false, 0, 0, NULL},
    {"device", PARAM_CHOICE, false, 0, 0, "cpu|cuda"},
    {"memory", PARAM_INT, false, 1, 1e15, NULL},
    {"bandwidth", PARAM_NUMBER, false, 1, 1e18, NULL},
    {"flops", PARAM_NUMBER, false, 1, 1e18, NULL},
    END,
};

const struct method methods[] = {
    {"ping", handle_ping, 0, no_params},
    {"status", handle_status, 0, no_params},
    {"generate", handle_generate, METHOD_NEEDS_MODEL | METHOD_WORK, generate_params},
    {"chat", handle_chat, METHOD_NEEDS_MODEL | METHOD_WORK, chat_params},
    {"template", handle_template, METHOD_NEEDS_MODEL | METHOD_WORK, template_params},
    {"score", handle_score, METHOD_NEEDS_MODEL | METHOD_WORK, score_params},
    {"embed", handle_embed, METHOD_NEEDS_MODEL | METHOD_WORK, embed_params},
    {"tokenize", handle_tokenize, METHOD_NEEDS_MODEL | METHOD_WORK, tokenize_params},
    {"detokenize", handle_detokenize, METHOD_NEEDS_MODEL | METHOD_WORK, detokenize_params},
    {"model.info", handle_model_info, METHOD_NEEDS_MODEL, no_params},
    {"model.load", handle_model_load, METHOD_ADMIN | METHOD_WORK, model_load_params},
    {"model.unload", handle_model_unload, METHOD_ADMIN | METHOD_WORK, model_unload_params},
    {"model.merge", handle_model_merge, METHOD_ADMIN | METHOD_NEEDS_MODEL | METHOD_WORK, merge_params},
    {"finetune.submit", handle_finetune_submit, METHOD_ADMIN | METHOD_WORK, NULL},
    {"finetune.list", handle_finetune_list, METHOD_WORK, no_params},
    {"finetune.get", handle_finetune_get, METHOD_WORK, job_params},
    {"finetune.log", handle_finetune_log, METHOD_ADMIN | METHOD_WORK, job_log_params},
    {"finetune.watch", handle_finetune_watch, METHOD_WORK, job_watch_params},
    {"finetune.cancel", handle_finetune_cancel, METHOD_ADMIN | METHOD_WORK, job_params},
    {"finetune.pause", handle_finetune_pause, METHOD_ADMIN | METHOD_WORK, job_params},
    {"finetune.resume", handle_finetune_resume, METHOD_ADMIN | METHOD_WORK, job_params},
    {"finetune.delete", handle_finetune_delete, METHOD_ADMIN | METHOD_WORK, job_delete_params},
    {"plan", handle_plan, METHOD_NEEDS_MODEL | METHOD_WORK, plan_params},
    {"metrics", handle_metrics, 0, no_params},
    {"adapter.list", handle_adapter_list, 0, no_params},
    {"adapter.load", handle_adapter_load, METHOD_ADMIN | METHOD_NEEDS_MODEL | METHOD_WORK,
     adapter_load_params},
    {"adapter.unload", handle_adapter_unload, METHOD_ADMIN | METHOD_NEEDS_MODEL | METHOD_WORK,
     adapter_params},
    {"adapter.activate", handle_adapter_activate, METHOD_ADMIN | METHOD_NEEDS_MODEL, adapter_params},
    {"adapter.rollback", handle_adapter_rollback, METHOD_ADMIN | METHOD_NEEDS_MODEL,
     adapter_rollback_params},
    {"tensor.list", handle_tensor_list, METHOD_NEEDS_MODEL, no_params},
    {"tensor.export", handle_tensor_export, METHOD_NEEDS_MODEL | METHOD_WORK, tensor_params},
    {"cancel", handle_cancel, METHOD_NOTIFIABLE, cancel_params},
    {"shutdown", handle_shutdown, METHOD_ADMIN | METHOD_NOTIFIABLE, shutdown_params},
};

const size_t n_methods = sizeof methods / sizeof *methods;

const struct method *method_find(const char *name) {
    for (size_t i = 0; i < n_methods; i++)
        if (strcmp(methods[i].name, name) == 0) return &methods[i];
    return NULL;
}
