/* daemon/methods.h: the command table: every method, who may call it, what it takes. */
#ifndef TPD_DAEMON_METHODS_H
#define TPD_DAEMON_METHODS_H

#include "daemon/call.h"
#include "daemon/schema.h"

enum {
    METHOD_ADMIN = 1,       /* admin_uid and admin_gid apply */
    METHOD_NEEDS_MODEL = 2, /* waits while the model is being opened */
    METHOD_WORK = 4,        /* refused while draining */
    METHOD_NOTIFIABLE = 8   /* has an effect that makes sense without an answer */
};

struct method {
    const char *name;
    void (*handle)(struct call *call); /* ends the call, now or later */
    unsigned flags;
    const struct param *params; /* NULL: the handler checks them */
};

extern const struct method methods[];
extern const size_t n_methods;
extern const struct param plan_params[]; /* `tpd plan` takes the same */
/* NULL when there is none. */
const struct method *method_find(const char *name);

/* The handlers, by file. */
/* methods_daemon.c */
void handle_ping(struct call *call);
void handle_status(struct call *call);
void handle_model_info(struct call *call);
void handle_metrics(struct call *call);
void handle_cancel(struct call *call);
void handle_shutdown(struct call *call);
/* methods_model.c */
void handle_model_load(struct call *call);
void handle_model_unload(struct call *call);
/* merge.c */
void handle_model_merge(struct call *call);
/* methods_text.c */
void handle_tokenize(struct call *call);
void handle_detokenize(struct call *call);
/* generate.c */
void handle_generate(struct call *call);
/* chat.c */
void handle_chat(struct call *call);
void handle_template(struct call *call);
/* score.c */
void handle_score(struct call *call);
/* methods_plan.c */
void handle_plan(struct call *call);
/* methods_adapter.c */
void handle_adapter_list(struct call *call);
void handle_adapter_load(struct call *call);
void handle_adapter_unload(struct call *call);
void handle_adapter_activate(struct call *call);
void handle_adapter_rollback(struct call *call);

/* tensors.c */
void handle_tensor_list(struct call *call);
void handle_tensor_export(struct call *call);
/* embed.c */
void handle_embed(struct call *call);
/* POST /v1/embeddings */
void handle_openai_embeddings(struct call *call);
/* methods_finetune.c */
void handle_finetune_submit(struct call *call);
void handle_finetune_list(struct call *call);
void handle_finetune_get(struct call *call);
void handle_finetune_log(struct call *call);
void handle_finetune_cancel(struct call *call);
void handle_finetune_pause(struct call *call);
void handle_finetune_resume(struct call *call);
void handle_finetune_delete(struct call *call);
/* watch.c */
void handle_finetune_watch(struct call *call);

#endif
