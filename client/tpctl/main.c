/* tpctl: the table of commands, and the way from argv to an exit code. */
#include "tpctl.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct option_def global_options[] = {
    {"socket", 0, OPTION_TEXT, "PATH", NULL,
     "the daemon's socket (else $TPD_SOCKET, else the usual)"},
    {"json", 0, OPTION_FLAG, NULL, NULL, "print the result object alone, on one line"},
    {"plain", 0, OPTION_FLAG, NULL, NULL, "print tab-separated values"},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, "say nothing on success but the result itself"},
    {"deadline", 0, OPTION_DURATION, "TIME", NULL, "give up after TIME (30s, 5m, 1h30m): exit 124"},
    {"help", 'h', OPTION_FLAG, NULL, NULL, "print this help"},
    {"version", 'V', OPTION_FLAG, NULL, NULL, "print the version"},
    {0},
};

const struct command commands[] = {
    {"generate", "[PROMPT|-]", "Continue a text, printing it as it comes",
     "PROMPT is taken from stdin when it is '-', or when none is given and stdin is not a\n"
     "terminal; stdin is taken to the last byte, newline included. Ctrl-C ends the\n"
     "generation and keeps what has come (exit 130).",
     generate_options, cmd_generate},
    {"embed", "[TEXT|-]...", "Print the vectors of texts, each of length 1",
     "Without a text, every line of stdin is one.", embed_options, cmd_embed},
    {"chat", "[MESSAGE|-]", "Hold a conversation with the model",
     "On a terminal with line editing and history; Ctrl-C ends an answer, Ctrl-D the conversation.\n"
     "A line that ends with a backslash goes on; \"\"\" alone begins and ends several lines. Commands:\n"
     "  /reset            begin anew            /system [TEXT]  set or show what the model is told first\n"
     "  /save FILE        append the conversation to FILE as a record of messages\n"
     "  /adapter [NAME]   talk to an adapter, or list them        /timings  after each answer or not\n"
     "  /help  /quit      and //text says /text\n"
     "Elsewhere each line of stdin is a message. MESSAGE: one question, one answer; '-': all of stdin.",
     chat_options, cmd_chat},
    {"template", "[MESSAGE|-]", "Print what chat would give the model to read",
     "MESSAGE is what the user says, or with '-' and without a word stdin: a JSON array of messages, or\n"
     "an object with messages, tools and more, as 'chat' takes it.",
     template_options, cmd_template},
    {"score", "PROMPT COMPLETION", "Tell how likely a completion is after a prompt",
     "The completion may be '-' to read it from stdin.", score_options, cmd_score},
    {"tokenize", "[TEXT|-]", "Print the token ids of a text",
     "On a terminal and with --plain: a row of id and piece for each token. Into a pipe:\n"
     "the ids alone, which 'tpctl detokenize' takes.",
     tokenize_options, cmd_tokenize},
    {"detokenize", "[ID]…", "Print the text of token ids",
     "Without ids they are read from stdin: numbers between spaces, or a JSON array.", NULL,
     cmd_detokenize},
    {"finetune", "[DATA]", "Train an adapter on a file of examples, beside serving",
     "DATA holds a JSON record a line: {\"prompt\",\"completion\"}, {\"messages\"}, {\"text\"}\n"
     "and others. It must lie under the daemon's data_dir. With --wait the exit code tells\n"
     "how the job ended; Ctrl-C ends the waiting, not the job. At a --deadline the job is\n"
     "paused, and a later run with the same --once KEY resumes it with a deadline of its own.\n"
     "Every night from cron: --name N --once N --deadline 3h --since-last --activate --quiet",
     finetune_options, cmd_finetune},
    {"jobs list", "", "List fine-tune jobs, the newest first", NULL, NULL, cmd_jobs},
    {"jobs show", "[JOB]", "Show a job and what it asks for",
     "JOB is a number, or a name: then the newest of that name. Without it: the newest job.", NULL,
     cmd_jobs_show},
    {"jobs log", "[JOB]", "Print a job's events", NULL, jobs_log_options, cmd_jobs_log},
    {"jobs watch", "[JOB]", "Follow a job to its end; the exit code tells how it ended", NULL, NULL,
     cmd_jobs_watch},
    {"jobs plot", "[JOB]", "Draw a job's loss, in the terminal or as an SVG", NULL,
     jobs_plot_options, cmd_jobs_plot},
    {"jobs cancel", "JOB", "End a job for good", NULL, NULL, cmd_jobs_cancel},
    {"jobs pause", "JOB", "Stop a job so that it can go on later", NULL, NULL, cmd_jobs_pause},
    {"jobs resume", "JOB", "Let a paused job go on", NULL, NULL, cmd_jobs_resume},
    {"jobs rm", "JOB", "Forget an ended job with its log and checkpoints; its result stays", NULL,
     jobs_rm_options, cmd_jobs_rm},
    {"jobs", "[COMMAND]", "The same as 'jobs list'", NULL, NULL, cmd_jobs},
    {"status", "", "Show the model, its devices, and how busy they are", NULL, NULL, cmd_status},
    {"devices", "", "Show each rank's device, its memory, and how the devices reach each other",
     "Between GPUs: nvlink, pcie (both reach each other's memory), none (through pinned host memory), same\n"
     "device. Ranks on the CPU share its memory.",
     NULL, cmd_devices},
    {"top", "", "Watch requests, memory, tokens and the running job on one screen", NULL, top_options,
     cmd_top},
    {"bench", "[-- FLAG...]", "Measure how fast prompts are read and tokens made, for one and for many",
     "Speeds are of all requests of a batch together, mean and standard deviation of the repetitions, as\n"
     "a table in Markdown; --plain and --json for programs. The daemon that runs is measured, beside all\n"
     "else that it does; with --model a tpd of its own, which FLAGs are for:\n"
     "  tpctl bench -m model.gguf -b 1,8,16 -- --tp 2 --kv-type q8",
     bench_options, cmd_bench},
    {"model info", "", "Show what is loaded: architecture, shapes, bytes", NULL, NULL,
     cmd_model_info},
    {"model load", "[PATH]", "Load a model into a daemon that has none",
     "Without PATH, the one that was unloaded. PATH is a directory or a .gguf file, as the daemon sees it.\n"
     "Jobs that waited for another model are paused.",
     model_load_options, cmd_model_load},
    {"model unload", "", "Let live requests end and free the model's memory; the daemon stays",
     "Requests are then refused until 'tpctl model load'. A running job is saved and waits.",
     model_unload_options, cmd_model_unload},
    {"model merge", "ADAPTER OUT", "Write the model and an adapter as one model that needs no adapter",
     "ADAPTER is the name of one, or its directory. OUT, under the daemon's state_dir, must not exist;\n"
     "it becomes a Hugging Face directory: safetensors in the model's own type (quantised: bf16), its\n"
     "configuration and tokenizer. 'tpd merge MODEL ADAPTER OUT' does it without a daemon.",
     NULL, cmd_model_merge},
    {"tensors", "[NAME]", "List the model's tensors and who holds them; with NAME, share one",
     "With NAME the tensor is exported: other processes may map it, read-only and without a copy\n"
     "(docs/tensors.md), and what they need for that is printed.",
     NULL, cmd_tensors},
    {"plan", "[MODEL]", "Tell what it takes of each rank to serve a model, and to train it",
     "MODEL is a directory, a .gguf file or a config.json; without it, the model that is loaded.\n"
     "Weights are not read: the daemon runs its own code on a device that only counts.",
     plan_options, cmd_plan},
    {"metrics", "", "Print the daemon's counters as Prometheus reads them", NULL, NULL,
     cmd_metrics},
    {"ping", "", "Ask whether the daemon answers", NULL, NULL, cmd_ping},
    {"shutdown", "", "End the daemon, at once or with --drain after its live work", NULL,
     shutdown_options, cmd_shutdown},
    {"adapters list", "", "Show the adapters that are loaded and which one is the default", NULL, NULL,
     cmd_adapters_list},
    {"adapters load", "NAME", "Load an adapter, so that requests can name it", NULL,
     adapters_load_options, cmd_adapters_load},
    {"adapters unload", "NAME", "Let go of an adapter that nobody uses", NULL, NULL,
     cmd_adapters_unload},
    {"adapters activate", "NAME",
     "Make an adapter the default of requests that name none", "'base' names the model alone.", NULL,
     cmd_adapters_activate},
    {"adapters rollback", "[NAME]", "Make what was the default before the default again",
     "With NAME, that adapter returns to its version before.", NULL,
     cmd_adapters_rollback},
    {"adapters", "", "The same as 'adapters list'", NULL, NULL, cmd_adapters_list},
    {"help", "[COMMAND]", "Print this help, or that of a command", NULL, NULL, cmd_help},
    {0},
};

/* For the signal handler alone: the client whose call Ctrl-C cancels. */
static struct tpd_client *volatile live_client;

static volatile sig_atomic_t interrupts, interrupt_new, interrupts_kept;

/* The second Ctrl-C of a call does not wait for anything: not for the daemon, not for a pipe that is
 * full. */
static void on_interrupt(int signal) {
    (void)signal;
    interrupt_new = 1;
    if (live_client ? interrupts++ > 0 : !interrupts_kept) _exit(TPD_EXIT_INTERRUPTED);
    if (live_client) tpd_cancel(live_client);
}

void interrupt_keep(void) {
    interrupts_kept = 1;
}

bool interrupt_seen(void) {
    bool seen = interrupt_new;
    interrupt_new = 0;
    return seen;
}

static void set_signals(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a failed write: finish_output */
}

static void report(const struct tpd_error *error) {
    const json_t *retry = json_object_get(error->data, "retry_after_s");
    if (json_is_number(retry))
        complain("%s (try again in %g s)", error->message, json_number_value(retry));
    else complain("%s", error->message);
}

int tool_call(struct tool *tool, const char *method, json_t *params, tpd_notify_fn *notify,
              void *user, json_t **result) {
    struct tpd_error error = {0};
    struct tpd_options options = {.socket = tool->socket, .timeout_ms = tool->deadline_ms};
    *result = NULL;
    int rc = tool->client ? 0 : tpd_connect(&tool->client, &options, &error);
    if (rc == 0) {
        interrupts = 0;
        live_client = tool->client;
        rc = tpd_stream(tool->client, method, params, notify, user, result, &error);
        live_client = NULL;
    }
    if (rc == 0) return EXIT_OK;
    int exit_code = error.exit_code;
    /* Whoever pressed Ctrl-C knows; the terminal's "^C" gets a line of its own. */
    if (exit_code == TPD_EXIT_DEADLINE && !tool->deadline_is_news) {
        /* the command says what that means */
    } else if (exit_code != TPD_EXIT_INTERRUPTED) {
        if (tool->mid_line && tool->out_terminal) putchar('\n');
        tool->mid_line = false;
        report(&error);
    } else if (tool->err_terminal && !tool->mid_line) fputc('\n', stderr);
    tpd_error_clear(&error);
    return exit_code;
}

int tool_ask(struct tool *tool, const char *method, json_t *params, json_t **result) {
    int rc = tool_call(tool, method, params, NULL, NULL, result);
    if (rc == EXIT_OK) return EXIT_OK;
    json_decref(*result);
    *result = NULL;
    return rc;
}

/* "'tpctl model info', 'tpctl model load'": the commands that begin with this word of n bytes. */
static void list_commands(const char *word, size_t n, char *out, size_t size) {
    size_t at = 0;
    *out = '\0';
    for (const struct command *c = commands; c->name; c++)
        if (!strncmp(c->name, word, n) && c->name[n] == ' ' && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s'tpctl %s'", at ? ", " : "", c->name);
}

/* The command that argv[*i …] names, one word or two; leaves *i behind it. */
static const struct command *find_command(int argc, char **argv, int *i) {
    for (const struct command *c = commands; c->name; c++) {
        size_t first = strcspn(c->name, " ");
        if (strlen(argv[*i]) != first || memcmp(argv[*i], c->name, first)) continue;
        if (!c->name[first]) {
            *i += 1;
            return c;
        }
        if (*i + 1 < argc && !strcmp(argv[*i + 1], c->name + first + 1)) {
            *i += 2;
            return c;
        }
    }
    return NULL;
}

static int unknown_command(const char *word, const char *next) {
    const char *names[sizeof commands / sizeof *commands];
    char whole[64], all[512];
    size_t n = 0, size = strlen(word);
    for (const struct command *c = commands; c->name; c++) {
        if (!strncmp(c->name, word, size) && c->name[size] == ' ') {
            list_commands(word, size, all, sizeof all);
            complain(next ? "'tpctl %s' does not know '%s'; there is %s"
                          : "'tpctl %s' needs a second word%.0s: %s",
                     word, next ? next : "", all);
            return TPD_EXIT_USAGE;
        }
        names[n++] = c->name;
    }
    names[n] = NULL;
    snprintf(whole, sizeof whole, next ? "%s %s" : "%s", word, next);
    const char *near = suggest(whole, names);
    if (!near) near = suggest(word, names);
    if (near) complain("unknown command '%s'; did you mean '%s'?", word, near);
    else complain("unknown command '%s'; 'tpctl help' lists them", word);
    return TPD_EXIT_USAGE;
}

int cmd_help(struct tool *tool, const struct args *args) {
    (void)tool;
    if (args->n_words == 0) {
        help_overview();
        return EXIT_OK;
    }
    int i = 0;
    const struct command *command = find_command(args->n_words, (char **)args->words, &i);
    if (!command && args->n_words == 1 && is_group(args->words[0])) {
        help_group(args->words[0]);
        return EXIT_OK;
    }
    if (!command) return unknown_command(args->words[0], args->n_words > 1 ? args->words[1] : NULL);
    help_command(command);
    return EXIT_OK;
}

static void tool_set(struct tool *tool, const struct args *args) {
    tool->format = args_flag(args, "json")    ? OUT_JSON
                   : args_flag(args, "plain") ? OUT_PLAIN
                                              : OUT_HUMAN;
    tool->quiet = args_flag(args, "quiet");
    tool->socket = args_text(args, "socket");
    tool->deadline_ms = args_integer(args, "deadline", 0);
    tool->out_terminal = isatty(STDOUT_FILENO);
    tool->err_terminal = isatty(STDERR_FILENO);
    const char *no_color = getenv("NO_COLOR");
    tool->color = tool->out_terminal && !(no_color && *no_color);
}

static bool asks_help(const char *word) {
    return word && (!strcmp(word, "--help") || !strcmp(word, "-h"));
}

static int run(int argc, char **argv, struct tool *tool, struct args *args) {
    int i = 1;
    if (!args_read_leading(args, argc, argv, &i)) return TPD_EXIT_USAGE;
    if (args_flag(args, "version")) {
        puts("tpctl " TPD_CLIENT_VERSION);
        return EXIT_OK;
    }
    if (i == argc) {
        if (args_flag(args, "help")) {
            help_overview();
            return EXIT_OK;
        }
        complain("no command; 'tpctl help' lists them");
        return TPD_EXIT_USAGE;
    }
    int word = i;
    const struct command *command = find_command(argc, argv, &i);
    if (!command && is_group(argv[word]) && (args_flag(args, "help") || asks_help(argv[word + 1]))) {
        help_group(argv[word]);
        return EXIT_OK;
    }
    if (!command) return unknown_command(argv[word], word + 1 < argc ? argv[word + 1] : NULL);
    if (!args_read_rest(args, command->options, argc, argv, i)) return TPD_EXIT_USAGE;
    if (args_flag(args, "help")) {
        help_command(command);
        return EXIT_OK;
    }
    tool_set(tool, args);
    if (!*command->words && args->n_words) {
        complain("'tpctl %s' takes no words, so '%s' makes no sense", command->name,
                 args->words[0]);
        return TPD_EXIT_USAGE;
    }
    return command->run(tool, args);
}

/* A closed stdin, stdout or stderr stays taken, so that our socket cannot become one of them and
 * get what is printed. Reading and writing there still fail. */
static void hold_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    struct tool tool = {.deadline_is_news = true};
    struct args args;
    hold_standard_files();
    set_signals();
    if (!args_init(&args, argc)) return TPD_EXIT_BUSY;
    int rc = run(argc, argv, &tool, &args);
    int written = finish_output();
    tpd_close(tool.client);
    args_free(&args);
    return rc ? rc : written;
}
