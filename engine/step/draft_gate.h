/*
 * Whether drafting pays.
 *
 * DESIGN. A drafted step verifies a second row per sequence, and the MTP layer runs behind it. With the experts on the CPU
 * each row reads experts of its own, so that a step may cost more than its accepted drafts bring. What it costs depends on
 * the batch, so the gate keeps books by the number of sequences, in powers of two:
 *
 *   plain    seconds of a step without drafts, the layer not counted
 *   drafted  seconds of a step with drafts, the layer not counted
 *   on       seconds of a step while drafting is on, layer and all, and the tokens that it gives each sequence
 *   gain     tokens per second with drafting, of those without: tokens / on over 1 / plain
 *
 * Averages are exponential, so that they follow the machine; a step that took far longer than usual counts as twice the
 * average, and one of half the average starts it anew. While a class is on, one step in TD_DRAFT_PLAIN_EVERY goes
 * without drafts, which measures `plain`; the layer runs then too, so that no row of its cache is missing. A class whose
 * gain is below 1 is off: neither drafts nor layer. After a while it is tried again, and after twice as long each time that
 * the trial fails. A draft is verified only if its probability is above what drafted steps cost more than plain ones.
 *
 * Times are given, never taken: the same numbers give the same decisions. What the gate says changes no token.
 */
#ifndef TD_ENGINE_STEP_DRAFT_GATE_H
#define TD_ENGINE_STEP_DRAFT_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define TD_DRAFT_CLASSES 13     /* 1, 2-3, 4-7, ... 4096 sequences */
#define TD_DRAFT_PLAIN_EVERY 32 /* steps of a class, of which one goes without drafts */
#define TD_DRAFT_TRIAL 16       /* steps after which a class is judged */
#define TD_DRAFT_TRIAL_LEAST 4  /* steps after which a class is judged where the gain is below TD_DRAFT_HOPELESS */
#define TD_DRAFT_HOPELESS 0.75
#define TD_DRAFT_WAIT_MIN 512   /* steps that a class is off at first */
#define TD_DRAFT_WAIT_MAX 16384 /* steps that a class is off at most */

typedef struct {
    bool     off;
    uint32_t n_steps;                  /* since it is on */
    uint32_t n_plain, n_drafted, n_on; /* in the averages */
    uint32_t waits, left;              /* steps that it is off for, and is still */
    double   plain_s, drafted_s, on_s, on_tokens;
} td_draft_class;

typedef struct {
    bool           always; /* it is never closed, nor are steps without drafts measured: gain stays 1 */
    td_draft_class classes[TD_DRAFT_CLASSES];
} td_draft_gate;

/** A step that held one row of every sequence, and drafts of some. */
typedef struct {
    uint32_t n_seq, n_drafts; /* drafts: 0 .. n_seq */
    uint32_t n_tokens;        /* that it gave */
    double   step_s, layer_s; /* the layer's: 0, it did not run */
} td_draft_step;

void td_draft_gate_open(td_draft_gate *g, bool always);

/** Whether the MTP layer is to run behind a step of so many sequences, n_seq >= 1. */
bool td_draft_gate_is_on(const td_draft_gate *g, uint32_t n_seq);

/** Whether the layer is on for so many sequences, or fewer, so that a request which is beside them may draft some time. */
bool td_draft_gate_is_on_up_to(const td_draft_gate *g, uint32_t n_seq);

/** Whether the next step of so many sequences is to have drafts: not while it is off, nor when plain steps are measured. */
bool td_draft_gate_drafts(const td_draft_gate *g, uint32_t n_seq);

/** The least probability of a draft that is verified beside so many sequences. */
double td_draft_gate_threshold(const td_draft_gate *g, uint32_t n_seq);

void td_draft_gate_observe(td_draft_gate *g, const td_draft_step *s);

/** Of so many sequences; 1 until it is measured. */
double td_draft_gate_gain(const td_draft_gate *g, uint32_t n_seq);

#endif
