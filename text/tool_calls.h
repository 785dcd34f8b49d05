/* text/tool_calls.h: the calls of tools that a model has written.
 *
 * Families write them in their own ways, all of which are read, whatever the model: Hermes and Qwen
 * <tool_call>{"name": …, "arguments": {…}}</tool_call>, after text or alone; Granite, Mistral and Llama 3 a
 * list or an object (with "parameters" for "arguments") that is the whole answer, after a token of its own
 * that has no text or after that token's text; Mistral's newer name{…}. Where the whole answer must be a
 * call, it is one only if it names a tool that was offered, so that JSON stays an answer. Any thread. */
#ifndef TPD_TEXT_TOOL_CALLS_H
#define TPD_TEXT_TOOL_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Reads a whole answer. tools: those that were offered, as OpenAI has them (an array of {"type", "function":
 * {"name", …}} or of functions). Returns an array of {"name": …, "arguments": text of JSON}, empty when
 * there are no calls; NULL: no memory. *content: bytes of text before the first call that are content, all
 * of them when there is none. */
json_t *tool_calls_read(const char *text, size_t size, const json_t *tools, size_t *content);

/* Of an answer that is not at its end: how many bytes are content, whatever comes. */
size_t tool_calls_content(const char *text, size_t size, const json_t *tools);

/* Whether a tool of that name was offered. */
bool tool_is_offered(const json_t *tools, const char *name, size_t size);

#endif
