/* client/tpctl/tpctl.h: what the files of tpctl share.
 *
 * main.c has the table of commands and the way through a run; options.c reads the command line by
 * tables; help.c prints those tables; input.c reads prompts and ids, lines.c what is typed; output.c
 * and answer.c write; cmd_*.c are the commands. Results go to stdout, everything else to stderr. A command returns the exit code.
 * One thread; the SIGINT handler only calls tpd_cancel. */
#ifndef TPD_TPCTL_H
#define TPD_TPCTL_H

#include "tpd/client.h"

#include <stdbool.h>

/* Success of an exit code; the others are TPD_EXIT_…. */
enum { EXIT_OK = 0 };

enum option_kind {
    OPTION_FLAG,
    OPTION_INTEGER,
    OPTION_NUMBER,
    OPTION_TEXT,
    OPTION_TEXTS,   /* may come several times */
    OPTION_DURATION /* "90", "90s", "1h30m"; kept in milliseconds */
};

struct option_def {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* 0 = none */
    enum option_kind kind;
    const char *value; /* what the help calls its value; NULL for flags */
    const char *param; /* the method's parameter that it sets, or NULL */
    const char *help;
};

/* A command line, read. words are borrowed from argv. */
struct args {
    json_t *options; /* those without a param, by name; owned */
    json_t *params;  /* those with one, as the daemon takes them; owned */
    const char **words;
    int n_words;
};

enum out_format { OUT_HUMAN, OUT_PLAIN, OUT_JSON };

struct tool {
    enum out_format format;
    bool quiet, out_terminal, err_terminal, color;
    bool mid_line;      /* text of a generation stands on stdout without a newline at its end */
    const char *socket; /* NULL: the usual places */
    int64_t deadline_ms;
    bool deadline_is_news; /* a call that ends at the deadline says so itself */
    struct tpd_client *client; /* NULL until the first call */
};

struct command {
    const char *name;  /* one word or two */
    const char *words; /* its words, for the usage line */
    const char *summary;
    const char *details; /* further lines of its help, or NULL */
    const struct option_def *options;
    int (*run)(struct tool *tool, const struct args *args);
};

/* main.c */
extern const struct command commands[]; /* ended by a NULL name */
extern const struct option_def global_options[];
/* Connects when that was not done and calls; prints what goes wrong. Returns the exit code. When
 * the call is cut short by Ctrl-C or the deadline, *result may still hold a part. */
int tool_call(struct tool *tool, const char *method, json_t *params, tpd_notify_fn *notify,
              void *user, json_t **result);
/* The same for what is only of use whole: on failure *result is NULL. */
int tool_ask(struct tool *tool, const char *method, json_t *params, json_t **result);

/* From now on Ctrl-C does not end the program when no call is in flight; it is only remembered. */
void interrupt_keep(void);
/* Whether it came since it was last asked for. */
bool interrupt_seen(void);

/* options.c: all return false after saying on stderr what is wrong. */
bool args_init(struct args *args, int argc);
void args_free(struct args *args);
/* Reads the options at the start of argv[*i …] and stops at the first word. */
bool args_read_leading(struct args *args, int argc, char **argv, int *i);
/* Reads all that is left, options (the command's and the global ones) and words in any order. */
bool args_read_rest(struct args *args, const struct option_def *own, int argc, char **argv, int i);
bool args_flag(const struct args *args, const char *name);
const char *args_text(const struct args *args, const char *name); /* NULL when absent; borrowed */
int64_t args_integer(const struct args *args, const char *name, int64_t absent);
bool duration_read(const char *text, int64_t *ms);

/* help.c */
void help_overview(void);
void help_command(const struct command *command);
/* Whether commands of two words begin with this one, such as "model"; and their list. */
bool is_group(const char *word);
void help_group(const char *group);
/* The nearest of names (ended by NULL) to a mistyped word, or NULL when none is near. */
const char *suggest(const char *word, const char *const *names);

/* input.c: texts are malloc'ed and the caller's; size excludes the terminating NUL. Failures are
 * said on stderr; the functions return the exit code. */
int read_stdin(char **text, size_t *size);
int read_file(const char *path, char **text, size_t *size);
/* The command's text argument: its one word, or stdin for "-" and when there is no word and stdin
 * is not a terminal. *value becomes a JSON string, the caller's. */
int read_text_word(const struct args *args, const char *what, json_t **value);
/* A JSON string, refusing invalid UTF-8 with its byte offset. */
int text_to_json(const char *what, const char *text, size_t size, json_t **value);
/* Token ids: a JSON array, {"tokens": […]}, or integers between spaces and commas. */
int read_ids(const char *text, size_t size, json_t **ids);

/* output.c */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The result as one line of JSON. */
void put_json(const json_t *value);
/* Text of the model or the daemon: as it is into a pipe or file; on a terminal control characters
 * but newline and tab are shown, not obeyed. */
void put_text(const struct tool *tool, const char *text, size_t size);
void put_string(const struct tool *tool, const json_t *string);
/* One field of a table: tab, newline, backslash and control characters escaped. */
void put_field(const char *text, size_t size);
/* A text in double quotes with the escapes of JSON. */
void put_quoted(const json_t *string);
/* Lists of {id, token, logprob, top}, those of a prompt first (or NULL): a row for each token with
 * its alternatives. */
void put_logprobs(const struct tool *tool, const json_t *prompt, const json_t *list);
/* An object as a table, or with --plain as rows of path and value. */
void put_object(const struct tool *tool, const json_t *object);
/* 1536 → "1.5 KiB" */
const char *bytes_text(double bytes, char buf[32]);
/* 1500000 → "1.5 M" */
const char *count_text(double n, char buf[32]);
/* 93784 → "1d 2h 3m" */
const char *seconds_text(double seconds, char buf[32]);
/* Around a heading on a terminal; "" elsewhere. */
const char *bold(const struct tool *tool);
const char *unbold(const struct tool *tool);
/* fflush(stdout), which keeps the reason of the first failure for finish_output. */
int flush_output(void);
/* Flushes stdout. EXIT_OK, or EXIT 74 with a complaint unless the reader has just gone away. */
int finish_output(void);

/* answer.c: the text of a generation, printed as it comes. */
struct answer {
    struct tool *tool;
    bool began; /* something was printed */
};
void answer_put(struct answer *answer, const json_t *text);
int answer_on_token(void *user, const char *method, const json_t *params);
/* Complains of a generation that the daemon ended for a reason of its own. */
int answer_outcome(const json_t *result);

/* watch.c */
/* finetune.watch with a live line on a terminal; then job_outcome. params: {"job", …}. */
int job_watch(struct tool *tool, json_t *params);
/* Says what became of an ended job. Returns the exit code. */
int job_outcome(const struct tool *tool, const json_t *job);
/* "job 3 (nightly) is running, step 12/100, loss 2.1" */
void job_put_line(const struct tool *tool, const json_t *job);

/* cmd_jobs.c */
/* Sets params.job by the command's one word (or, when it may be absent, to the newest job). */
int job_choose(struct tool *tool, const struct args *args, bool or_newest);
/* All events of params.job from params.after on: {"job", "events", …}. Changes params. */
int job_read_log(struct tool *tool, json_t *params, json_t **log);

/* cmd_*.c */
extern const struct option_def generate_options[], chat_options[], template_options[], embed_options[],
    top_options[], bench_options[], score_options[], tokenize_options[],
    shutdown_options[], finetune_options[], plan_options[], jobs_log_options[], jobs_plot_options[], jobs_rm_options[];
/* cmd_finetune.c: "lora.r=8" into a job. Returns the exit code. */
int job_set_key(json_t *job, const char *setting);
int cmd_bench(struct tool *tool, const struct args *args);
int cmd_finetune(struct tool *tool, const struct args *args);
int cmd_jobs(struct tool *tool, const struct args *args);
int cmd_jobs_show(struct tool *tool, const struct args *args);
int cmd_jobs_log(struct tool *tool, const struct args *args);
int cmd_jobs_watch(struct tool *tool, const struct args *args);
int cmd_jobs_plot(struct tool *tool, const struct args *args);
int cmd_jobs_cancel(struct tool *tool, const struct args *args);
int cmd_jobs_pause(struct tool *tool, const struct args *args);
int cmd_jobs_resume(struct tool *tool, const struct args *args);
int cmd_jobs_rm(struct tool *tool, const struct args *args);
int cmd_generate(struct tool *tool, const struct args *args);
int cmd_embed(struct tool *tool, const struct args *args);
int cmd_top(struct tool *tool, const struct args *args);
int cmd_chat(struct tool *tool, const struct args *args);
int cmd_template(struct tool *tool, const struct args *args);
int cmd_score(struct tool *tool, const struct args *args);
int cmd_tokenize(struct tool *tool, const struct args *args);
int cmd_detokenize(struct tool *tool, const struct args *args);
int cmd_plan(struct tool *tool, const struct args *args);
int cmd_status(struct tool *tool, const struct args *args);
int cmd_devices(struct tool *tool, const struct args *args);
int cmd_model_info(struct tool *tool, const struct args *args);
extern const struct option_def model_load_options[], model_unload_options[];
int cmd_model_load(struct tool *tool, const struct args *args);
int cmd_model_unload(struct tool *tool, const struct args *args);
int cmd_model_merge(struct tool *tool, const struct args *args);
int cmd_tensors(struct tool *tool, const struct args *args);
int cmd_metrics(struct tool *tool, const struct args *args);
int cmd_ping(struct tool *tool, const struct args *args);
int cmd_shutdown(struct tool *tool, const struct args *args);
int cmd_help(struct tool *tool, const struct args *args);
extern const struct option_def adapters_load_options[];
int cmd_adapters_list(struct tool *tool, const struct args *args);
int cmd_adapters_load(struct tool *tool, const struct args *args);
int cmd_adapters_unload(struct tool *tool, const struct args *args);
int cmd_adapters_activate(struct tool *tool, const struct args *args);
int cmd_adapters_rollback(struct tool *tool, const struct args *args);

#endif
