#include "daemon/quantise.h"

#include "base/log.h"
#include "model/quant.h"

struct watcher {
    const struct server *server;
    int64_t said_ns; /* when progress was last told */
};

static bool stopped(void *user) {
    const struct watcher *w = user;
    return atomic_load(&w->server->abandon_loading);
}

static void progress(void *user, double part) {
    static const int64_t every_ns = 5000000000;
    struct watcher *w = user;
    int64_t now = clock_ns();
    if (now - w->said_ns < every_ns) return;
    w->said_ns = now;
    log_info("quantising: %.0f %% done", 100 * part);
}

int quantise_opened(const struct server *server, const struct daemon_config *want, struct model *model,
                    int threads, struct error *e) {
    enum quant quant = (enum quant)quant_from_name(want->quant);
    struct quant_report report;
    if (quant == QUANT_NONE) return 0;
    if (want->init >= 0)
        return error_set(e, ERR_CONFIG, "quant and init cannot be together: new weights are trained by full "
                                        "fine-tuning, which quantised ones do not allow");
    struct watcher watcher = {.server = server, .said_ns = clock_ns()};
    const struct quant_options options = {.threads = threads,
                                          .cache_dir = server->quant_dir,
                                          .stopped = stopped,
                                          .progress = progress,
                                          .user = &watcher};
    double before = (double)model_weight_bytes(model);
    int64_t start = clock_ns();
    int err = model_quantise(model, quant, &options, &report, e);
    if (err) return err;
    double ms = (double)(clock_ns() - start) / 1e6;
    if (report.cached)
        log_info("quantised weights (%s, %.1f MB) mapped from %s in %.1f ms", quant_name(quant),
                 (double)report.bytes / 1e6, server->quant_dir, ms);
    else
        log_info("quantised to %s in %.0f ms: %.1f MB became %.1f MB", quant_name(quant), ms, before / 1e6,
                 (double)report.bytes / 1e6);
    if (report.wide)
        log_warn("%zu matrices stay as they are (%s the first): their rows are not whole groups",
                 report.wide, report.first_wide);
    return 0;
}
