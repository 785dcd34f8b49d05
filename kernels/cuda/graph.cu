/* Steps that come again: their operations captured as a CUDA graph, and launched as one.
 *
 * The first step of a key runs as it is, so that scratch memory is as large as it will be; the second one
 * is captured; then the graph is launched. It holds addresses, so whatever is freed, or moved as scratch
 * memory is, takes all graphs with it. TPD_CUDA_GRAPHS=0 does without. */
#include "kernels/cuda/cuda.h"

#include <cstdlib>

static void entry_clear(struct cuda_graph *g) {
    if (g->ready) cudaGraphExecDestroy(g->ready);
    *g = {};
}

void cuda_graphs_forget(struct cuda_context *c) {
    struct cuda_graphs *graphs = &c->graphs;
    for (int i = 0; i < graphs->n; i++) entry_clear(&graphs->of[i]);
    graphs->n = 0;
}

static struct cuda_graph *find(struct cuda_graphs *graphs, uint64_t key) {
    for (int i = 0; i < graphs->n; i++)
        if (graphs->of[i].key == key) return &graphs->of[i];
    return nullptr;
}

static bool wanted(const struct cuda_graphs *graphs) {
    static const char *const setting = getenv("TPD_CUDA_GRAPHS");
    return !graphs->broken && !(setting && *setting == '0');
}

enum replay cuda_replay_state(struct kctx *base, uint64_t key) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_graphs *graphs = &c->graphs;
    if (!wanted(graphs) || kctx_failed(base)) return REPLAY_PLAIN;
    const struct cuda_graph *g = find(graphs, key);
    if (g) return g->ready ? REPLAY_RUN : REPLAY_RECORD;
    if (graphs->n == GRAPHS_MAX) cuda_graphs_forget(c);
    graphs->of[graphs->n++] = {key, nullptr};
    return REPLAY_PLAIN;
}

void cuda_replay_begin(struct kctx *base, uint64_t key) {
    if (!cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    struct cuda_graph *g = find(&c->graphs, key);
    if (!g) cuda_refuse(c, "a step is recorded that nobody asked about");
    else if (cuda_check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                        "capturing a step")) {
        if (g->ready) cudaGraphExecDestroy(g->ready);
        g->ready = nullptr;
        c->graphs.recording = g;
    }
}

/* Without a graph nothing is lost: this step and all others run as they are. */
void cuda_replay_end(struct kctx *base) {
    struct cuda_context *c = cuda_of(base);
    struct cuda_graph *g = c->graphs.recording;
    if (!g) return;
    cudaGraph_t graph = nullptr;
    c->graphs.recording = nullptr;
    cudaError_t rc = cudaStreamEndCapture(c->stream, &graph);
    if (rc == cudaSuccess) rc = cudaGraphInstantiate(&g->ready, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (rc == cudaSuccess) return;
    cudaGetLastError();
    g->ready = nullptr;
    c->graphs.broken = true;
}

void cuda_replay_run(struct kctx *base, uint64_t key) {
    if (!cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    const struct cuda_graph *g = find(&c->graphs, key);
    if (!g || !g->ready) cuda_refuse(c, "a step is run that was not recorded");
    else cuda_check(c, cudaGraphLaunch(g->ready, c->stream), "launching a graph");
}
