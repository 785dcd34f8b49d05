/* daemon/inspect_adapter.h: a LoRA adapter as PEFT writes it, looked at and checked. */
#ifndef TPD_DAEMON_INSPECT_ADAPTER_H
#define TPD_DAEMON_INSPECT_ADAPTER_H

#include "base/json.h"
#include "formats/store.h"

/* Whether dir has an adapter_config.json. */
bool adapter_directory(const char *dir);
/* Reads adapter_config.json and adapter_model.safetensors. *config gets what tells of the adapter;
 * both are the caller's. */
int inspect_adapter_open(struct store **store, json_t **config, const char *dir, struct error *e);

#endif
