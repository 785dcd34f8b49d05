/* daemon/inspect_report.h: what a model file or directory holds, as one JSON object. `tpd inspect`
 * prints it as it is (--json) or as a table. Any thread; blocking. */
#ifndef TPD_DAEMON_INSPECT_REPORT_H
#define TPD_DAEMON_INSPECT_REPORT_H

#include "base/json.h"

/* Opens path, checks all of it, and fills *out (the caller's to json_decref):
 *   path, kind ("model", "tensors", "adapter"), format ("safetensors", "gguf"), files,
 *   model (kind model: architecture and shapes), adapter (kind adapter: adapter_config.json's
 *   essentials), parameters, bytes, bytes_by_dtype {dtype: bytes}, tensor_count,
 *   tensors [{name, dtype, shape, bytes}], and of GGUF: gguf_version, metadata {key: value; a long
 *   array is {array: type, count}}. note: present when tpd cannot run the model, and says why. */
int inspect_report(json_t **out, const char *path, struct error *e);

#endif
