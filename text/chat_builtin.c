/* text/chat_builtin.c: the usual forms of a conversation, as templates of our own. Each takes a system
 * message where its family has one, and marks what the assistant writes by {% generation %}, so that
 * training on messages needs no other look at it. */
#include "text/chat_builtin.h"

#include <stddef.h>
#include <string.h>

const char chat_builtin_names[] =
    "chatml, llama2, llama3, mistral, gemma, phi3, zephyr, vicuna, alpaca";

static const struct {
    const char *name, *text;
} builtins[] = {
    {"chatml", "{%- for m in messages %}\n"
               "{{- '<|im_start|>' + m.role + '\\n' }}\n"
               "{%- if m.role == 'assistant' %}\n"
               "{%- generation %}{{- m.content + '<|im_end|>' }}{%- endgeneration %}\n"
               "{%- else %}\n"
               "{{- m.content + '<|im_end|>' }}\n"
               "{%- endif %}\n"
               "{{- '\\n' }}\n"
               "{%- endfor %}\n"
               "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"},
    {"llama2",
     "{%- set ns = namespace(system='') %}\n"
     "{%- for m in messages %}\n"
     "{%- if m.role == 'system' %}\n"
     "{%- set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' %}\n"
     "{%- elif m.role == 'user' %}\n"
     "{{- bos_token ~ '[INST] ' + ns.system + m.content + ' [/INST]' }}\n"
     "{%- set ns.system = '' %}\n"
     "{%- elif m.role == 'assistant' %}\n"
     "{%- generation %}{{- ' ' + m.content ~ ' ' ~ eos_token }}{%- endgeneration %}\n"
     "{%- else %}\n"
     "{{- raise_exception('the llama2 form has the roles system, user and assistant alone') }}\n"
     "{%- endif %}\n"
     "{%- endfor %}\n"},
    {"llama3",
     "{{- bos_token }}\n"
     "{%- for m in messages %}\n"
     "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}\n"
     "{%- if m.role == 'assistant' %}\n"
     "{%- generation %}{{- m.content | trim + '<|eot_id|>' }}{%- endgeneration %}\n"
     "{%- else %}\n"
     "{{- m.content | trim + '<|eot_id|>' }}\n"
     "{%- endif %}\n"
     "{%- endfor %}\n"
     "{%- if add_generation_prompt %}\n"
     "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
     "{%- endif %}\n"},
    {"mistral",
     "{{- bos_token }}\n"
     "{%- set ns = namespace(system='') %}\n"
     "{%- for m in messages %}\n"
     "{%- if m.role == 'system' %}\n"
     "{%- set ns.system = m.content + '\\n\\n' %}\n"
     "{%- elif m.role == 'user' %}\n"
     "{{- '[INST] ' + ns.system + m.content + ' [/INST]' }}\n"
     "{%- set ns.system = '' %}\n"
     "{%- elif m.role == 'assistant' %}\n"
     "{%- generation %}{{- ' ' + m.content ~ eos_token }}{%- endgeneration %}\n"
     "{%- else %}\n"
     "{{- raise_exception('the mistral form has the roles system, user and assistant alone') }}\n"
     "{%- endif %}\n"
     "{%- endfor %}\n"},
    {"gemma",
     "{{- bos_token }}\n"
     "{%- set ns = namespace(system='') %}\n"
     "{%- for m in messages %}\n"
     "{%- if m.role == 'system' %}\n"
     "{%- set ns.system = m.content + '\\n\\n' %}\n"
     "{%- elif m.role == 'assistant' %}\n"
     "{{- '<start_of_turn>model\\n' }}\n"
     "{%- generation %}{{- m.content | trim + '<end_of_turn>' }}{%- endgeneration %}\n"
     "{{- '\\n' }}\n"
     "{%- else %}\n"
     "{{- '<start_of_turn>' + m.role + '\\n' + ns.system + m.content | trim }}\n"
     "{{- '<end_of_turn>\\n' }}\n"
     "{%- set ns.system = '' %}\n"
     "{%- endif %}\n"
     "{%- endfor %}\n"
     "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}\n"},
    {"phi3", "{%- for m in messages %}\n"
             "{{- '<|' + m.role + '|>\\n' }}\n"
             "{%- if m.role == 'assistant' %}\n"
             "{%- generation %}{{- m.content + '<|end|>' }}{%- endgeneration %}\n"
             "{%- else %}\n"
             "{{- m.content + '<|end|>' }}\n"
             "{%- endif %}\n"
             "{{- '\\n' }}\n"
             "{%- endfor %}\n"
             "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}\n"},
    {"zephyr", "{%- for m in messages %}\n"
               "{{- '<|' + m.role + '|>\\n' }}\n"
               "{%- if m.role == 'assistant' %}\n"
               "{%- generation %}{{- m.content ~ eos_token }}{%- endgeneration %}\n"
               "{%- else %}\n"
               "{{- m.content ~ eos_token }}\n"
               "{%- endif %}\n"
               "{{- '\\n' }}\n"
               "{%- endfor %}\n"
               "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}\n"},
    {"vicuna", "{{- bos_token }}\n"
               "{%- for m in messages %}\n"
               "{%- if m.role == 'user' %}\n"
               "{{- 'USER: ' + m.content + ' ' }}\n"
               "{%- elif m.role == 'assistant' %}\n"
               "{{- 'ASSISTANT:' }}\n"
               "{%- generation %}{{- ' ' + m.content ~ eos_token }}{%- endgeneration %}\n"
               "{%- else %}\n"
               "{{- m.content + ' ' }}\n"
               "{%- endif %}\n"
               "{%- endfor %}\n"
               "{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}\n"},
    {"alpaca", "{{- bos_token }}\n"
               "{%- for m in messages %}\n"
               "{%- if m.role == 'user' %}\n"
               "{{- '### Instruction:\\n' + m.content + '\\n\\n' }}\n"
               "{%- elif m.role == 'assistant' %}\n"
               "{{- '### Response:\\n' }}\n"
               "{%- generation %}{{- m.content ~ eos_token }}{%- endgeneration %}\n"
               "{{- '\\n\\n' }}\n"
               "{%- else %}\n"
               "{{- m.content + '\\n\\n' }}\n"
               "{%- endif %}\n"
               "{%- endfor %}\n"
               "{%- if add_generation_prompt %}{{- '### Response:\\n' }}{%- endif %}\n"},
};

const char *chat_builtin_find(const char *name) {
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0) return builtins[i].text;
    return NULL;
}
