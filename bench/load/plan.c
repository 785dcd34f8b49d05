#include "load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool mix_read(struct mix *mix, const char *text) {
    mix->n = 0;
    while (*text && mix->n < MIX_MAX) {
        char *end;
        long tokens = strtol(text, &end, 10);
        double weight = 1;
        if (end == text || tokens < 1 || tokens > 1 << 20) return false;
        if (*end == ':') {
            text = end + 1;
            weight = strtod(text, &end);
            if (end == text || !(weight > 0 && weight < 1e9)) return false;
        }
        mix->part[mix->n].tokens = (int)tokens;
        mix->part[mix->n++].weight = weight;
        if (*end == '\0') return true;
        if (*end != ',') return false;
        text = end + 1;
    }
    return false;
}

/* splitmix64: a number from a counter, the same on every machine. */
static uint64_t scramble(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* In (0, 1]. */
static double draw(uint64_t *state) {
    return (double)((scramble((*state)++) >> 11) + 1) * 0x1p-53;
}

static int mix_draw(const struct mix *mix, uint64_t *state) {
    double sum = 0;
    for (int i = 0; i < mix->n; i++) sum += mix->part[i].weight;
    double x = draw(state) * sum;
    for (int i = 0; i < mix->n; i++)
        if ((x -= mix->part[i].weight) <= 0) return mix->part[i].tokens;
    return mix->part[mix->n - 1].tokens;
}

struct planned *plan_draw(const struct plan_spec *spec, size_t *n) {
    uint64_t state = scramble(spec->seed);
    size_t room = 256;
    struct planned *plan = malloc(room * sizeof *plan);
    *n = 0;
    for (double at = 0; plan;) {
        at -= log(draw(&state)) / spec->rate;
        if (at >= spec->seconds) return plan;
        if (*n == room) {
            struct planned *more = realloc(plan, 2 * room * sizeof *plan);
            if (!more) break;
            plan = more;
            room *= 2;
        }
        struct planned *p = &plan[*n];
        p->at_s = at;
        p->n_prompt = mix_draw(&spec->prompt, &state);
        p->n_output = mix_draw(&spec->output, &state);
        p->seed = scramble(spec->seed ^ scramble(++*n));
    }
    free(plan);
    return NULL;
}

int plan_id(const struct planned *planned, int i, int vocab) {
    return (int)(scramble(planned->seed + (uint64_t)i) % (uint64_t)vocab);
}
