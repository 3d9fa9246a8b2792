/*
 * Routing traces that are made up, with the locality of real ones: an expert's logit for a token is
 *   -s ln(rank) + sigma u + nu z
 * and a token chooses the top_k experts with the largest logits of a layer. rank is a random order of a layer's experts. u
 * and z are Gaussian processes of unit variance: u, the topic, has a memory of tau tokens; z has correlation rho from one
 * token to the next. Ranks alone (a Zipf distribution) would have no locality, and would favour a policy that keeps the same
 * experts for ever.
 */
#ifndef TD_BENCH_ROUTING_GENERATOR_H
#define TD_BENCH_ROUTING_GENERATOR_H

#include "residency/routing_trace.h"

typedef struct {
    const char *name;
    uint32_t    n_experts, top_k;
    double      s, sigma, tau, rho, nu;
} td_routing_kind;

/* The overlap of the choices of two tokens 1, 2, 8 and 32 tokens apart is .38 .30 .25 .22 in the first kind. It was fitted
 * to public traces of Qwen3-30B-A3B and Gemma-4-26B-A4B, with .38 .29 .27 .24. The second kind was fitted to a flatter
 * trace: .16 .08 .05. The third one is of tokens, one of 512 a step: .31 .23 .18 .13. Where routers are random, tokens that
 * differ share a few experts by chance, so the experts of such a text are nearly as local as those of the first kind. */
static const td_routing_kind TD_ROUTING_LOCAL = {"128 experts, 6 a token", 128, 6, 0.5, 1.2, 150, 0.35, 1.2};
static const td_routing_kind TD_ROUTING_FLAT = {"512 experts, 10 a token", 512, 10, 0.2, 0.8, 150, 0.35, 1.6};
static const td_routing_kind TD_ROUTING_TOKENS = {"tokens of a text", 512, 1, 0.5, 1.6, 150, 0.35, 1.0};

/** A layer of such a trace, token by token, and what chooses. */
typedef struct {
    const td_routing_kind *kind;
    uint64_t               seed, token; /* token: the next one */
    uint32_t               layer;
    double                *bias;  /* [n_experts] -s ln(rank) */
    double                *u, *z; /* [n_experts] of the last token */
    double                *logit; /* [n_experts] */
} td_routing_layer;

/** @param kind borrowed @return TD_ENOMEM. */
TD_NODISCARD td_status td_routing_layer_open(const td_routing_kind *kind, uint64_t seed, uint32_t layer,
                                             td_routing_layer *out, td_error *err);
void                   td_routing_layer_close(td_routing_layer *y); /* zeroed before, or closed, is fine */
void                   td_routing_layer_begin(td_routing_layer *y); /* from the first token again */
/** @param ids [top_k], the largest logits first. @return the last of these logits */
double td_routing_layer_next(td_routing_layer *y, uint16_t *ids);

/** The same seed gives the same trace on a machine. @param out td_routing_trace_close it. @return TD_ENOMEM. */
TD_NODISCARD td_status td_routing_generate(const td_routing_kind *kind, uint32_t n_layers, uint32_t n_tok, uint64_t seed,
                                           td_routing_trace *out, td_error *err);

#endif
