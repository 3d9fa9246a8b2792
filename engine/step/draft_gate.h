/*
 * The draft gate decides whether drafting pays. A draft is what the MTP (multi-token prediction) layer takes for the next
 * token; the next step verifies it (step_draft.c).
 *
 * DESIGN. A drafted step verifies a second row per sequence, and the MTP layer runs behind it. With the experts on the CPU
 * each row reads experts of its own, so a step may cost more than its accepted drafts bring. The cost depends on the number
 * of sequences. The gate keeps averages for each class of it, in powers of two:
 *
 *   plain    seconds of a step without drafts, the layer not counted
 *   drafted  seconds of a step with drafts, the layer not counted
 *   on       seconds of a step while drafting is on, layer and all
 *   tokens   tokens that such a step gives each sequence
 *   gain     tokens per second with drafting over those without: (tokens / on) / (1 / plain)
 *
 * Averages are exponential, so that they follow the machine. A step that took far longer than usual counts as twice the
 * average, and one below half the average starts it anew. While a class is on, one step in TD_DRAFT_PLAIN_EVERY goes
 * without drafts, which measures `plain`; the layer runs then too, so that no row of its cache is missing. A class whose
 * gain is below 1 is off: neither drafts nor layer. After a while it is tried again, and after twice as long each time that
 * the trial fails. A draft is verified only if its probability is at least drafted / plain - 1.
 *
 * The gate reads no clock: the same times give the same decisions. What the gate says changes no token.
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
    uint32_t n_steps;                  /* since the class is on */
    uint32_t n_plain, n_drafted, n_on; /* steps in each average */
    uint32_t waits, left;              /* steps that the class is off for when it goes off, and how many are left */
    double   plain_s, drafted_s, on_s, on_tokens;
} td_draft_class;

typedef struct {
    bool           always; /* drafting is always on, and nothing is measured: the gain stays 1 */
    td_draft_class classes[TD_DRAFT_CLASSES];
} td_draft_gate;

/** A step that held one row of every sequence, and drafts of some. */
typedef struct {
    uint32_t n_seq, n_drafts; /* drafts: 0 .. n_seq */
    uint32_t n_tokens;        /* that the step gave */
    double   step_s, layer_s; /* layer_s: 0 if the layer did not run */
} td_draft_step;

void td_draft_gate_open(td_draft_gate *g, bool always);

/** Whether the MTP layer is to run behind a step of so many sequences, n_seq >= 1. */
bool td_draft_gate_is_on(const td_draft_gate *g, uint32_t n_seq);

/** Whether drafting is on for n_seq sequences, or for any smaller number: then a prompt beside them may draft some time. */
bool td_draft_gate_is_on_up_to(const td_draft_gate *g, uint32_t n_seq);

/** Whether the next step of so many sequences is to have drafts: not while it is off, nor when plain steps are measured. */
bool td_draft_gate_drafts(const td_draft_gate *g, uint32_t n_seq);

/** The least probability of a draft that is verified beside so many sequences. */
double td_draft_gate_threshold(const td_draft_gate *g, uint32_t n_seq);

void td_draft_gate_observe(td_draft_gate *g, const td_draft_step *s);

/** The gain for so many sequences; 1 until it is measured. */
double td_draft_gate_gain(const td_draft_gate *g, uint32_t n_seq);

#endif
