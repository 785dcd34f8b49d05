#include "model/rope.h"

#include <math.h>

static double mscale_of(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Llama 3: long waves are slowed by factor, short ones are left, those between are blended. */
static double llama3_freq(const struct rope_config *r, double freq) {
    double wave = 2 * M_PI / freq;
    double low_wave = r->original_len / r->low_freq_factor;
    double high_wave = r->original_len / r->high_freq_factor;
    if (wave < high_wave) return freq;
    if (wave > low_wave) return freq / r->factor;
    double smooth = (r->original_len / wave - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * freq / r->factor + smooth * freq;
}

/* YaRN (arXiv 2309.00071): the dimension that turns `rotations` times within the original length. */
static double yarn_dim(const struct rope_config *r, int32_t head_dim, double rotations) {
    return head_dim * log(r->original_len / (rotations * 2 * M_PI)) / (2 * log(r->base));
}

static double yarn_freq(const struct rope_config *r, int32_t head_dim, int32_t i, double freq) {
    double low = yarn_dim(r, head_dim, r->beta_fast), high = yarn_dim(r, head_dim, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, head_dim - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return freq / r->factor * ramp + freq * (1 - ramp);
}

static double yarn_scale(const struct rope_config *r) {
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return mscale_of(r->factor, r->mscale) / mscale_of(r->factor, r->mscale_all_dim);
    return mscale_of(r->factor, 1);
}

void rope_inv_freq(const struct model_config *config, const float *factors, float *inv_freq,
                   float *scale) {
    const struct rope_config *r = &config->rope;
    *scale = r->kind == ROPE_YARN ? (float)yarn_scale(r) : 1.0f;
    for (int32_t i = 0; i < config->head_dim / 2; i++) {
        double freq = 1 / pow(r->base, 2.0 * i / config->head_dim);
        switch (r->kind) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: break;
        case ROPE_LINEAR: freq /= r->factor; break;
        case ROPE_LLAMA3: freq = llama3_freq(r, freq); break;
        case ROPE_YARN: freq = yarn_freq(r, config->head_dim, i, freq); break;
        }
        inv_freq[i] = (float)(factors ? freq / factors[i] : freq);
    }
}
