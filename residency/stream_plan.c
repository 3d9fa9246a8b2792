#include "residency/stream_plan.h"

#include <math.h>

double td_stream_time(const td_stream_shape *s, const td_stream_speeds *v, uint32_t n_tok, uint32_t n_streamed) {
    const double pairs = (double)n_tok * s->top_k, on_card = (double)(s->n_resident + n_streamed) / s->n_experts;
    const double chosen = 1 - pow(1 - (double)s->top_k / s->n_experts, n_tok); /* of the experts */
    const double link = n_streamed * v->upload * (s->n_layers + 1) / s->n_layers, card = pairs * on_card * v->card_row;
    const double cpu = fmax(pairs * (1 - on_card) * v->cpu_row, chosen * (1 - on_card) * s->n_experts * v->cpu_read);
    return fmax(link, fmax(card, cpu));
}

uint32_t td_stream_share(const td_stream_shape *s, const td_stream_speeds *v, uint32_t n_tok) {
    const double without = td_stream_time(s, v, n_tok, 0);
    double       best = without * TD_STREAM_GAIN;
    uint32_t     share = 0;
    if ((uint64_t)n_tok * s->top_k < (uint64_t)TD_STREAM_ROWS * s->n_experts) return 0;
    for (uint32_t n = 1; n <= s->n_most; n++) {
        const double t = td_stream_time(s, v, n_tok, n);
        if (t >= best) continue;
        best = t;
        share = n;
    }
    return share;
}

uint32_t td_stream_crossover(const td_stream_shape *s, const td_stream_speeds *v, uint32_t max_tok) {
    uint32_t below = 0, from = max_tok;
    if (!td_stream_share(s, v, max_tok)) return 0;
    while (from - below > 1) {
        const uint32_t n = below + (from - below) / 2;
        if (td_stream_share(s, v, n))
            from = n;
        else
            below = n;
    }
    return from;
}
