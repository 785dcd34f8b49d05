#include "daemon/offline_quantize.h"

#include "base/thread.h"
#include "daemon/json_out.h"
#include "daemon/offline.h"
#include "model/quant.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: tpd quantize IN OUT q8|q4 [--json]\n\n"
    "Writes the model IN (f32, f16 or bf16 weights) in groups of 8 or 4 bits: a .gguf file becomes the\n"
    "file OUT, a Hugging Face directory the directory OUT. Either is served with tpd --model OUT.\n";

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static bool stopped(void *user) {
    (void)user;
    return interrupted;
}

static void progress(void *user, double part) {
    (void)user;
    fprintf(stderr, "\r%3.0f %%%s", 100 * part, part < 1 ? "" : "\n");
}

static void print_report(const struct quant_report *r, const char *out, const char *quant, double before,
                         bool as_json) {
    if (as_json) {
        json_t *json = json_pack("{s:o, s:s, s:I, s:I, s:I, s:I}", "path", json_text(out, strlen(out)),
                                 "quant", quant, "tensors", (json_int_t)r->tensors, "quantised",
                                 (json_int_t)r->quantised, "wide", (json_int_t)r->wide, "bytes",
                                 (json_int_t)r->bytes);
        json_dumpf(json, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(json);
        return;
    }
    printf("%s: %zu tensors (%zu quantised), %s, %.1f MB became %.1f MB\n", out, r->tensors, r->quantised,
           quant, before / 1e6, (double)r->bytes / 1e6);
    if (r->wide)
        printf("note: %zu matrices stay as they are (%s the first): their rows are not whole groups\n",
               r->wide, r->first_wide);
}

static int run(const char *in, const char *out, enum quant quant, bool as_json, struct error *e) {
    struct model *model = NULL;
    struct quant_report report;
    struct core_set cores;
    core_set_allowed(&cores);
    const struct quant_options options = {.threads = cores.n,
                                          .stopped = stopped,
                                          .progress = isatty(STDERR_FILENO) ? progress : NULL};
    int err = model_open(&model, in, e);
    if (!err) err = model_quantise_to(model, quant, out, &options, &report, e);
    if (!err) print_report(&report, out, quant_name(quant), (double)model_weight_bytes(model), as_json);
    model_free(model);
    return err;
}

static int misused(const char *format, const char *what) {
    fprintf(stderr, format, what);
    fputs(usage, stderr);
    return EXIT_USAGE;
}

int offline_quantize(int argc, char **argv) {
    const char *words[3] = {0};
    int n = 0;
    bool as_json = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) as_json = true;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        } else if (argv[i][0] == '-' || n == 3) return misused("tpd: unexpected \"%s\"\n", argv[i]);
        else words[n++] = argv[i];
    }
    if (n != 3 || !*words[0] || !*words[1])
        return misused("tpd: %s\n", "IN, OUT and q8 or q4 are needed");
    int quant = quant_from_name(words[2]);
    if (quant <= QUANT_NONE) return misused("tpd: \"%s\" is neither q8 nor q4\n", words[2]);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    struct error e = {0};
    if (run(words[0], words[1], (enum quant)quant, as_json, &e) != 0) return offline_fail(&e);
    return offline_end(0);
}
