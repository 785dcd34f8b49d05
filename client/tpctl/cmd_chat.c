/* tpctl chat: a conversation, and tpctl template: what chat would give the model to read. */
#include "lines.h"
#include "tpctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLING_OPTIONS                                                                           \
    {"max-tokens", 'n', OPTION_INTEGER, "N", "max_tokens",                                         \
     "at most N tokens an answer (else to the context's end)"},                                    \
    {"temperature", 't', OPTION_NUMBER, "T", "temperature",                                        \
     "0 always takes the likeliest token (default 1)"},                                            \
    {"top-p", 0, OPTION_NUMBER, "P", "top_p",                                                      \
     "sample among the likeliest that sum to P (1 = all)"},                                        \
    {"top-k", 0, OPTION_INTEGER, "K", "top_k", "sample among the K likeliest (0 = all)"},          \
    {"min-p", 0, OPTION_NUMBER, "P", "min_p",                                                      \
     "drop tokens under P times the likeliest (0 = none)"},                                        \
    {"repetition-penalty", 0, OPTION_NUMBER, "R", "repetition_penalty",                            \
     "over 1 discourages what was said (1 = off)"},                                                \
    {"seed", 0, OPTION_INTEGER, "S", "seed", "the same seed, talk and model give the same text"},  \
    {"stop", 0, OPTION_TEXTS, "STR", "stop", "end before STR; may be given several times"},        \
    {"speculative", 0, OPTION_TEXT, "WAY", "speculative",                                          \
     "guess ahead by ngram, draft or auto, or off (default: auto with a draft model)"}

const struct option_def chat_options[] = {
    {"system", 's', OPTION_TEXT, "TEXT", NULL, "what the model is told before all"},
    {"adapter", 0, OPTION_TEXT, "A", "adapter", "talk to this adapter"},
    SAMPLING_OPTIONS,
    {"ignore-eos", 0, OPTION_FLAG, NULL, "ignore_eos", "go on past the end of the turn"},
    {"timings", 0, OPTION_FLAG, NULL, NULL, "say after each answer how fast it came"},
    {"no-history", 0, OPTION_FLAG, NULL, NULL, "keep nothing of what is typed"},
    {0},
};

const struct option_def template_options[] = {
    {"system", 's', OPTION_TEXT, "TEXT", NULL, "what the model is told before all"},
    {"no-prompt", 0, OPTION_FLAG, NULL, NULL, "without the beginning of the assistant's turn"},
    {0},
};

struct talk {
    struct tool *tool;
    json_t *params;   /* sampling and adapter, as the command line and /adapter have them */
    json_t *messages; /* a system message first, or none */
    struct lines *lines;
    bool terminal, timings;
};

/* --- the conversation ----------------------------------------------------------------------- */

static int out_of_memory(void) {
    complain("out of memory");
    return TPD_EXIT_BUSY;
}

static int add_message(json_t *messages, const char *role, json_t *content) {
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    return message && json_array_append_new(messages, message) == 0 ? EXIT_OK : out_of_memory();
}

static bool has_system(const struct talk *talk) {
    const char *role = json_string_value(json_object_get(json_array_get(talk->messages, 0), "role"));
    return role && !strcmp(role, "system");
}

/* An empty text takes the system message away. */
static int set_system(struct talk *talk, const char *text, size_t size) {
    json_t *content, *message;
    int rc = text_to_json("system message", text, size, &content);
    if (rc != EXIT_OK) return rc;
    if (has_system(talk)) json_array_remove(talk->messages, 0);
    if (size == 0) {
        json_decref(content);
        return EXIT_OK;
    }
    message = json_pack("{s:s, s:o}", "role", "system", "content", content);
    return message && json_array_insert_new(talk->messages, 0, message) == 0 ? EXIT_OK
                                                                            : out_of_memory();
}

static void reset(struct talk *talk) {
    size_t keep = has_system(talk) ? 1 : 0;
    while (json_array_size(talk->messages) > keep)
        json_array_remove(talk->messages, json_array_size(talk->messages) - 1);
}

/* --- asking --------------------------------------------------------------------------------- */

static void say_timings(const struct talk *talk, const json_t *result) {
    const json_t *usage = json_object_get(result, "usage");
    const json_t *timings = json_object_get(result, "timings");
    if (!talk->timings || talk->tool->format != OUT_HUMAN || !timings) return;
    fflush(stdout);
    fprintf(stderr,
            "[%" JSON_INTEGER_FORMAT " tokens, %.1f tokens/s, first after %.0f ms, %" JSON_INTEGER_FORMAT
            " of %" JSON_INTEGER_FORMAT " prompt tokens from the cache]\n",
            json_integer_value(json_object_get(usage, "completion_tokens")),
            json_number_value(json_object_get(timings, "tokens_per_s")),
            json_number_value(json_object_get(timings, "queue_ms")) +
                json_number_value(json_object_get(timings, "prefill_ms")),
            json_integer_value(json_object_get(usage, "cached_tokens")),
            json_integer_value(json_object_get(usage, "prompt_tokens")));
}

static int ask(struct talk *talk, json_t **result, struct answer *answer) {
    struct tool *tool = talk->tool;
    bool streamed = tool->format != OUT_JSON;
    json_t *params = json_copy(talk->params);
    if (!params) return out_of_memory();
    json_object_set(params, "messages", talk->messages);
    if (streamed) json_object_set_new(params, "stream", json_true());
    int rc = tool_call(tool, "chat", params, streamed ? answer_on_token : NULL, answer, result);
    json_decref(params);
    return rc;
}

static void put_answer(struct talk *talk, struct answer *answer, const json_t *result) {
    struct tool *tool = talk->tool;
    if (tool->format == OUT_JSON && result) put_json(result);
    if (tool->format == OUT_JSON) return;
    if (!answer->began) answer_put(answer, json_object_get(result, "text"));
    if (result) putchar('\n');
    tool->mid_line = false;
    say_timings(talk, result);
}

/* What was said stays part of the conversation, also when Ctrl-C cut it short; a message that got no
 * answer does not. */
static int say(struct talk *talk, const char *text, size_t size) {
    struct answer answer = {.tool = talk->tool};
    json_t *content, *result = NULL;
    int rc = text_to_json("message", text, size, &content);
    if (rc == EXIT_OK) rc = add_message(talk->messages, "user", content);
    if (rc != EXIT_OK) return rc;
    rc = ask(talk, &result, &answer);
    put_answer(talk, &answer, result);
    if (ferror(stdout)) rc = finish_output();
    if (rc == EXIT_OK) rc = answer_outcome(result);
    flush_output();
    const json_t *said = json_object_get(result, "message");
    if (said && (rc == EXIT_OK || answer.began))
        json_array_append(talk->messages, (json_t *)said);
    else json_array_remove(talk->messages, json_array_size(talk->messages) - 1);
    json_decref(result);
    return rc;
}

/* --- commands ------------------------------------------------------------------------------- */

static int do_reset(struct talk *talk, const char *word) {
    (void)word;
    reset(talk);
    return EXIT_OK;
}

static int do_system(struct talk *talk, const char *word) {
    if (*word) {
        reset(talk);
        return set_system(talk, word, strlen(word));
    }
    if (has_system(talk)) {
        put_string(talk->tool, json_object_get(json_array_get(talk->messages, 0), "content"));
        putchar('\n');
    } else fprintf(stderr, "there is no system message; /system TEXT sets one and begins anew\n");
    return EXIT_OK;
}

/* As a job on messages reads it: a record a line. On a terminal the conversation outlives a failure, so that
 * it can be saved elsewhere. */
static int do_save(struct talk *talk, const char *word) {
    if (!*word) {
        complain("/save wants the name of a file");
        return TPD_EXIT_USAGE;
    }
    json_t *record = json_pack("{s:O}", "messages", talk->messages);
    char *line = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    FILE *file = line ? fopen(word, "a") : NULL;
    bool written = file && fprintf(file, "%s\n", line) > 0 && fflush(file) == 0;
    int why = errno;
    if (file) fclose(file);
    free(line);
    if (!written) {
        complain("%s: cannot write: %s", word, strerror(why));
        return talk->terminal ? EXIT_OK : TPD_EXIT_IO;
    }
    if (!talk->tool->quiet && talk->terminal)
        fprintf(stderr, "%zu messages are in %s\n", json_array_size(talk->messages), word);
    return EXIT_OK;
}

static int list_adapters(struct talk *talk) {
    json_t *result;
    const char *mine = json_string_value(json_object_get(talk->params, "adapter"));
    size_t i;
    const json_t *adapter;
    int rc = tool_ask(talk->tool, "adapter.list", NULL, &result);
    if (rc != EXIT_OK) return rc;
    json_array_foreach(json_object_get(result, "adapters"), i, adapter) {
        const char *name = json_string_value(json_object_get(adapter, "name"));
        bool chosen = mine ? name && !strcmp(mine, name)
                           : json_is_true(json_object_get(adapter, "default"));
        printf("%s %s\n", chosen ? "*" : " ", name ? name : "?");
    }
    if (json_array_size(json_object_get(result, "adapters")) == 0)
        fprintf(stderr, "no adapter is loaded\n");
    json_decref(result);
    return EXIT_OK;
}

static int do_adapter(struct talk *talk, const char *word) {
    if (!*word) return list_adapters(talk);
    json_t *name;
    int rc = text_to_json("adapter", word, strlen(word), &name);
    if (rc == EXIT_OK) json_object_set_new(talk->params, "adapter", name);
    return rc;
}

static int do_timings(struct talk *talk, const char *word) {
    (void)word;
    talk->timings = !talk->timings;
    return EXIT_OK;
}

static int do_help(struct talk *talk, const char *word) {
    (void)talk;
    (void)word;
    fputs("/reset            begin anew; the system message stays\n"
          "/system [TEXT]    begin anew with this system message, or show it\n"
          "/save FILE        append the conversation to FILE as a record of messages\n"
          "/adapter [NAME]   talk to this adapter from now on ('base': to none), or list them\n"
          "/timings          say after each answer how fast it came, or no longer\n"
          "/quit             end, as Ctrl-D\n"
          "A line that ends with a backslash goes on; \"\"\" alone begins and ends several lines;\n"
          "//text says /text. Ctrl-C ends an answer.\n",
          stderr);
    return EXIT_OK;
}

static const struct talk_command {
    const char *name;
    int (*run)(struct talk *talk, const char *word); /* NULL: ends the conversation */
} talk_commands[] = {
    {"reset", do_reset},     {"system", do_system}, {"save", do_save}, {"adapter", do_adapter},
    {"timings", do_timings}, {"help", do_help},     {"quit", NULL},    {"exit", NULL},
};
enum { N_TALK_COMMANDS = sizeof talk_commands / sizeof *talk_commands };

/* The command that a line is, and what stands behind its name; NULL when it is none. */
static const struct talk_command *find_command(const char *text, const char **word) {
    size_t size = strcspn(text + 1, " \t");
    *word = text + 1 + size;
    *word += strspn(*word, " \t");
    for (size_t i = 0; *text == '/' && i < N_TALK_COMMANDS; i++)
        if (strlen(talk_commands[i].name) == size && !memcmp(talk_commands[i].name, text + 1, size))
            return &talk_commands[i];
    return NULL;
}

static int unknown_command(const char *text) {
    const char *names[N_TALK_COMMANDS + 1] = {NULL};
    char name[32];
    for (size_t i = 0; i < N_TALK_COMMANDS; i++) names[i] = talk_commands[i].name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 1, " \t\n"), text + 1);
    const char *near = suggest(name, names);
    if (near) complain("there is no /%s; did you mean /%s?", name, near);
    else complain("there is no /%s; /help lists the commands, and //… says a text with a slash", name);
    return TPD_EXIT_USAGE;
}

/* --- the command ---------------------------------------------------------------------------- */

/* One line. *ends: it was the last. Outside a terminal a failure ends the conversation. */
static int take_line(struct talk *talk, const char *text, size_t size, bool *ends) {
    const char *word;
    if (size == 0) return EXIT_OK;
    if (*text == '/' && strlen(text) >= size) {
        char *line = strndup(text, size);
        if (!line) return out_of_memory();
        const struct talk_command *command = find_command(line, &word);
        int rc = EXIT_OK;
        if (command && !command->run) *ends = true;
        else if (command) rc = command->run(talk, word);
        else if (line[1] == '/') rc = say(talk, text + 1, size - 1);
        else if (talk->terminal) rc = unknown_command(line);
        else rc = say(talk, text, size);
        free(line);
        return rc;
    }
    return say(talk, text, size);
}

static int converse(struct talk *talk) {
    const char *text;
    size_t size;
    int rc = EXIT_OK;
    bool ends = false;
    while (!ends) {
        flush_output();
        enum lines_end end = lines_next(talk->lines, &text, &size);
        if (end == LINES_EOF) break;
        if (end == LINES_DROPPED) continue;
        rc = take_line(talk, text, size, &ends);
        if (talk->terminal && rc != TPD_EXIT_NO_DAEMON && rc != TPD_EXIT_IO) rc = EXIT_OK;
        if (rc != EXIT_OK) break;
    }
    if (talk->terminal && !ends && rc == EXIT_OK) putchar('\n');
    return rc;
}

/* $XDG_STATE_HOME/tpd/chat_history, or below ~/.local/state; NULL: none can be kept. */
static char *history_path(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL, *at;
    int n = state && *state == '/' ? asprintf(&path, "%s/tpd/chat_history", state)
            : home && *home == '/' ? asprintf(&path, "%s/.local/state/tpd/chat_history", home)
                                   : -1;
    if (n < 0) return NULL;
    for (at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            free(path);
            return NULL;
        }
        *at = '/';
    }
    return path;
}

static int talk_on(struct talk *talk, const struct args *args) {
    char *history = NULL;
    json_t *pong;
    int rc = tool_ask(talk->tool, "ping", NULL, &pong);
    if (rc != EXIT_OK) return rc;
    json_decref(pong);
    if (talk->terminal && !args_flag(args, "no-history")) history = history_path();
    talk->lines = lines_open(talk->terminal, history);
    free(history);
    if (!talk->lines) return TPD_EXIT_INTERNAL;
    if (talk->terminal) {
        interrupt_keep();
        if (!talk->tool->quiet)
            fprintf(stderr, "/help tells of commands; Ctrl-C ends an answer, Ctrl-D the talk\n");
    }
    rc = converse(talk);
    lines_close(talk->lines);
    return rc;
}

/* One question, one answer. */
static int ask_once(struct talk *talk, const struct args *args) {
    json_t *text;
    int rc = read_text_word(args, "message", &text);
    if (rc != EXIT_OK) return rc;
    rc = say(talk, json_string_value(text), json_string_length(text));
    json_decref(text);
    return rc;
}

int cmd_chat(struct tool *tool, const struct args *args) {
    const char *system = args_text(args, "system");
    struct talk talk = {.tool = tool,
                        .params = args->params,
                        .messages = json_array(),
                        .terminal = isatty(STDIN_FILENO) && tool->out_terminal,
                        .timings = args_flag(args, "timings")};
    int rc = talk.messages ? EXIT_OK : out_of_memory();
    if (rc == EXIT_OK && system) rc = set_system(&talk, system, strlen(system));
    if (rc == EXIT_OK) rc = args->n_words ? ask_once(&talk, args) : talk_on(&talk, args);
    json_decref(talk.messages);
    return rc;
}

/* --- tpctl template ------------------------------------------------------------------------- */

/* stdin: messages, or an object that has them. */
static int messages_from_stdin(json_t *params) {
    char *text;
    size_t size;
    json_error_t why;
    int rc = read_stdin(&text, &size);
    if (rc != EXIT_OK) return rc;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!value) {
        complain("stdin is no JSON at byte %d: %s", why.position, why.text);
        return TPD_EXIT_BAD_DATA;
    }
    if (json_is_array(value)) json_object_set(params, "messages", value);
    else json_object_update(params, value);
    json_decref(value);
    return EXIT_OK;
}

static int template_params(const struct args *args) {
    const char *system = args_text(args, "system");
    bool from_stdin = args->n_words == 0 || (args->n_words == 1 && !strcmp(args->words[0], "-"));
    json_t *text, *messages;
    if (args_flag(args, "no-prompt"))
        json_object_set_new(args->params, "add_generation_prompt", json_false());
    if (from_stdin && (args->n_words || !isatty(STDIN_FILENO)))
        return messages_from_stdin(args->params);
    int rc = read_text_word(args, "message", &text);
    if (rc != EXIT_OK) return rc;
    messages = json_array();
    if (system) rc = add_message(messages, "system", json_string(system));
    if (rc == EXIT_OK) rc = add_message(messages, "user", text);
    json_object_set_new(args->params, "messages", messages);
    return rc;
}

int cmd_template(struct tool *tool, const struct args *args) {
    json_t *result;
    int rc = template_params(args);
    if (rc == EXIT_OK) rc = tool_ask(tool, "template", args->params, &result);
    if (rc != EXIT_OK) return rc;
    const json_t *text = json_object_get(result, "text");
    if (tool->format == OUT_JSON) put_json(result);
    else put_string(tool, text);
    if (tool->format != OUT_JSON && tool->out_terminal) putchar('\n');
    json_decref(result);
    return EXIT_OK;
}
