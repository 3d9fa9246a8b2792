/*
 * How many of a layer's experts pass through the device's memory in a step of a prompt, and from which step on that pays:
 * arithmetic over measured speeds, without a clock.
 *
 * DESIGN. A layer of a step takes as long as the slowest of three that work at once:
 *   link   the uploads of the streamed experts
 *   card   the (token, expert) pairs of resident and streamed experts
 *   CPU    all others: their pairs, or their weights read once, whichever takes longer
 * All experts are taken to be chosen equally often. The first layer's uploads have nothing to hide behind: they count once
 * more, over all layers.
 */
#ifndef TD_RESIDENCY_STREAM_PLAN_H
#define TD_RESIDENCY_STREAM_PLAN_H

#include <stdint.h>

/** Streaming has to take so little of the time without it: speeds are measured, and change. */
#define TD_STREAM_GAIN 0.9

/** Rows of an expert, on average, that a streamed step has at least. With fewer, most uploads would be of experts that
 * hardly a row chose; steps without prompts are such. */
#define TD_STREAM_ROWS 8

/** Seconds; all above 0. Several cards share uploads and pairs: what one of them takes, by their number. */
typedef struct {
    double upload;   /* of an expert, while others are uploaded at its side */
    double card_row; /* of a pair of many on the device */
    double cpu_row;  /* of a pair on the CPU, where an expert has many rows */
    double cpu_read; /* of an expert on the CPU, where it has few */
} td_stream_speeds;

typedef struct {
    uint32_t n_layers, n_experts, top_k;
    uint32_t n_resident; /* experts of a layer that are on the device anyway */
    uint32_t n_most;     /* experts of a layer that may be streamed: at most n_experts - n_resident */
} td_stream_shape;

/** Seconds of a layer's experts in a step of n_tok rows, of which n_streamed experts are streamed. */
double td_stream_time(const td_stream_shape *s, const td_stream_speeds *v, uint32_t n_tok, uint32_t n_streamed);

/** How many experts of a layer to stream in a step of n_tok rows; 0: it does not pay. */
uint32_t td_stream_share(const td_stream_shape *s, const td_stream_speeds *v, uint32_t n_tok);

/** The least rows from which on streaming pays, up to max_tok; 0: there are none. */
uint32_t td_stream_crossover(const td_stream_shape *s, const td_stream_speeds *v, uint32_t max_tok);

#endif
