/* A piece of work that may be left and gone on with: of a pass (pass_pieces.c), or of a picture's encoding (vision.c). */
#ifndef TD_MODEL_PIECE_H
#define TD_MODEL_PIECE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** What runs without other work between. */
typedef struct {
    double budget_s; /* the piece ends when so long has passed, or would have with the next operation: it is taken to take as
                         long as in the layer before. INFINITY: only when it is waited for */
    double part_s;   /* an operation that can go in parts goes in such as take about so long */
    const atomic_bool
          *waited_for; /* once another thread has set it, the piece ends before its next operation, or the experts' next
                          rows. NULL: never */
    double longest_s;  /* out: what the longest operation of the piece took */
    bool   ended;      /* out: all is computed */
    bool   gave_way;   /* out: it ended since it was waited for */
} td_piece;

bool td_piece_is_waited_for(const td_piece *p);

/** Whether the piece that began then ends before an operation that is foreseen to take next_s. */
bool td_piece_ends(const td_piece *p, uint64_t begin_ns, double next_s);

/** Of a clock of td_trace_now. */
double td_seconds_since(uint64_t begin_ns);

#endif
