/* tpctl top: a live screen of what the daemon is at. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct option_def top_options[] = {
    {"delay", 'd', OPTION_TEXT, "TIME", NULL, "between two looks (1s)"},
    {"times", 'n', OPTION_INTEGER, "N", NULL,
     "look N times and end (on a terminal until Ctrl-C, else once)"},
    {0},
};

enum { BAR = 30 };

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const json_t *part(const json_t *object, const char *key) {
    return json_object_get(object, key);
}

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* "[#####....]": used and, in another character, cached of all. */
static const char *bar(double used, double cached, double all, char out[BAR + 3]) {
    int full = all > 0 ? (int)(used / all * BAR + 0.5) : 0;
    int more = all > 0 ? (int)((used + cached) / all * BAR + 0.5) : 0;
    out[0] = '[';
    for (int i = 0; i < BAR; i++) out[i + 1] = i < full ? '#' : i < more ? '+' : '.';
    out[BAR + 1] = ']';
    out[BAR + 2] = '\0';
    return out;
}

static void put_head(const struct tool *tool, const json_t *s) {
    char up[32];
    printf("%stpd %s%s  %s, up %s, ", bold(tool), word(s, "version"), unbold(tool), word(s, "state"),
           seconds_text(number(s, "uptime_s"), up));
    const json_t *path = part(part(s, "model"), "path");
    if (!json_is_string(path)) {
        printf("no model\n\n");
        return;
    }
    put_string(tool, path);
    printf(" at tp %.0f\n\n", number(s, "tp"));
}

static void put_requests(const json_t *s) {
    char box[BAR + 3];
    const json_t *slots = part(s, "slots"), *kv = part(s, "kv"), *rate = part(s, "tokens_per_s");
    double busy = number(slots, "busy"), total = number(slots, "total");
    printf("requests   %s %.0f of %.0f live, %.0f waiting, %.0f connections\n",
           bar(busy, 0, total, box), busy, total, number(s, "queue"), number(s, "connections"));
    printf("KV blocks  %s %.0f of %.0f in use, %.0f cached\n",
           bar(number(kv, "used"), number(kv, "cached"), number(kv, "blocks"), box),
           number(kv, "used"), number(kv, "blocks"), number(kv, "cached"));
    printf("tokens/s   prompts %.0f, answers %.0f, training %.0f\n", number(rate, "prefill"),
           number(rate, "decode"), number(rate, "train"));
    printf("so far     %.0f requests (%.0f failed, %.0f cancelled), %.0f tokens read, %.0f made\n",
           number(part(s, "requests"), "total"), number(part(s, "requests"), "failed"),
           number(part(s, "requests"), "cancelled"), number(part(s, "tokens"), "prompt"),
           number(part(s, "tokens"), "completion"));
}

/* Where anything was guessed ahead, or can be by a draft model. */
static void put_guesses(const struct tool *tool, const json_t *s) {
    char box[BAR + 3];
    const json_t *draft = part(part(s, "model"), "draft");
    double drafted = number(part(s, "tokens"), "drafted"), accepted = number(part(s, "tokens"), "accepted");
    if (drafted == 0 && !json_is_string(draft)) return;
    printf("guesses    %s %.0f of %.0f came true", bar(accepted, 0, drafted, box), accepted, drafted);
    if (json_is_string(draft)) {
        printf(", draft model ");
        put_string(tool, draft);
    }
    putchar('\n');
}

static void put_ranks(const struct tool *tool, const json_t *s) {
    size_t i;
    json_t *device;
    json_array_foreach(part(s, "devices"), i, device) {
        char used[32], total[32], box[BAR + 3];
        const json_t *memory = part(device, "memory");
        printf("rank %-5.0f %s %s of %s  ", number(device, "rank"),
               bar(number(memory, "used"), 0, number(memory, "total"), box),
               bytes_text(number(memory, "used"), used), bytes_text(number(memory, "total"), total));
        put_string(tool, part(device, "name"));
        putchar('\n');
    }
}

static void put_job(const struct tool *tool, const json_t *s) {
    char box[BAR + 3];
    const json_t *job = part(s, "job");
    if (!json_is_object(job)) {
        printf("\nno job runs\n");
        return;
    }
    double step = number(job, "step"), steps = number(job, "steps");
    printf("\njob %-6.0f %s step %.0f of %.0f, ", number(job, "job"), bar(step, 0, steps, box), step,
           steps);
    if (json_is_number(part(job, "loss"))) printf("loss %.4f, ", number(job, "loss"));
    if (json_is_number(part(job, "eval_loss"))) printf("eval %.4f, ", number(job, "eval_loss"));
    put_string(tool, part(job, "name"));
    putchar('\n');
}

static void put_screen(const struct tool *tool, const json_t *status) {
    if (tool->out_terminal) fputs("\033[H\033[J", stdout);
    put_head(tool, status);
    put_requests(status);
    put_guesses(tool, status);
    putchar('\n');
    put_ranks(tool, status);
    put_job(tool, status);
}

static int look(struct tool *tool) {
    json_t *status;
    int rc = tool_ask(tool, "status", NULL, &status);
    if (rc != EXIT_OK) return rc;
    if (tool->format == OUT_JSON) put_json(status);
    else put_screen(tool, status);
    json_decref(status);
    return flush_output() == 0 ? EXIT_OK : finish_output();
}

int cmd_top(struct tool *tool, const struct args *args) {
    int64_t delay_ms = 1000, times = args_integer(args, "times", tool->out_terminal ? -1 : 1);
    const char *delay = args_text(args, "delay");
    if (delay && (!duration_read(delay, &delay_ms) || delay_ms < 50)) {
        complain("--delay wants a time from 50ms on, as 2s, not \"%s\"", delay);
        return TPD_EXIT_USAGE;
    }
    for (int64_t i = 0; times < 0 || i < times; i++) {
        struct timespec pause = {delay_ms / 1000, delay_ms % 1000 * 1000000};
        if (i > 0) nanosleep(&pause, NULL);
        if (i > 0 && !tool->out_terminal && tool->format != OUT_JSON) putchar('\n');
        int rc = look(tool);
        if (rc != EXIT_OK) return rc;
    }
    return EXIT_OK;
}
