/*
 * Which routed experts lie in the device's memory: the decision alone. It is told what the routers chose, and answers with
 * swaps: this expert in, that one out. Nothing here moves a byte, waits, or looks at a clock: the same calls give the same
 * swaps.
 *
 * Every MoE layer has the same number of slots, each for one of its experts. An expert is absent, loading or resident; a
 * slot is taken from the swap on that gives it to an expert, until a later swap gives it to another.
 *
 * DESIGN. Each expert has a count of its uses, in which a use from n tokens ago weighs 2^(-n / TD_RESIDENCY_HALF_LIFE): LRFU
 * (Lee et al., IEEE Transactions on Computers 50(12), 2001). Such a count is also how often the expert will be used in the
 * next TD_RESIDENCY_HALF_LIFE / ln 2 tokens, if it goes on like that. So a swap pays if the count of the expert that comes
 * exceeds that of the one that goes by what an upload costs, in uses. An empty slot goes to the best absent expert that was
 * used at all. Layers do not share slots: that would win up to 1.2 points of hits (docs/residency.md) and need slots of one
 * size. No call loops over all experts for each token: instead of old uses losing weight, new ones gain it.
 *
 * A prompt has many more tokens than are decoded at its side, and would push out what decoding needs. Of a prompt's rows in
 * a step the last TD_RESIDENCY_PROMPT_ROWS count, as much as decoded ones: what comes next is most like them.
 *
 * A policy belongs to one thread at a time.
 */
#ifndef TD_RESIDENCY_RESIDENCY_POLICY_H
#define TD_RESIDENCY_RESIDENCY_POLICY_H

#include <stdbool.h>

#include "tandem.h"

#define TD_RESIDENCY_HALF_LIFE 24 /* tokens */
/** Of each prompt and step. As many as a half-life: so they weigh as much as all tokens before them. */
#define TD_RESIDENCY_PROMPT_ROWS TD_RESIDENCY_HALF_LIFE
/** An upload reads an expert from the host's memory once, as a use on the CPU does: where that memory binds, it costs a
 * use. */
#define TD_RESIDENCY_UPLOAD_COST 1.0F

#define TD_RESIDENCY_NO_EXPERT UINT16_MAX

typedef struct {
    uint32_t n_layers;    /* MoE layers, 1 or more */
    uint32_t n_experts;   /* of a layer, below TD_RESIDENCY_NO_EXPERT */
    uint32_t top_k;       /* experts that a token chooses in a layer, 1..n_experts */
    uint32_t n_slots;     /* of a layer, top_k..n_experts */
    float    upload_cost; /* in uses, 0 or more */
    bool     goes_later;  /* who goes in a swap is leaving until td_residency_policy_end_leave; else absent at once */
} td_residency_config;

typedef enum {
    TD_EXPERT_ABSENT,
    TD_EXPERT_LOADING,
    TD_EXPERT_RESIDENT,
    TD_EXPERT_LEAVING,
    TD_EXPERT_STAYS, /* resident for good */
} td_expert_state;

/** One expert comes, one goes. */
typedef struct {
    uint32_t layer;
    uint16_t in;
    uint16_t out; /* TD_RESIDENCY_NO_EXPERT: the slot is empty */
} td_residency_swap;

typedef struct td_residency_policy td_residency_policy;

/**
 * No expert is resident, and none has been used.
 * @param c copied.
 * @return TD_EINVAL for sizes outside the ranges above, TD_ENOMEM.
 */
TD_NODISCARD td_status td_residency_policy_open(const td_residency_config *c, td_residency_policy **out, td_error *err);

/**
 * The same for tests of determinism: swaps are drawn at random and pay nothing. In every step it has some, and then no more.
 * The same seed and calls give the same swaps.
 */
TD_NODISCARD td_status td_residency_policy_open_chaos(const td_residency_config *c, uint64_t seed, td_residency_policy **out,
                                                      td_error *err);
void                   td_residency_policy_close(td_residency_policy *p); /* NULL is fine */

/**
 * A new step begins: what rows of the last one chose may go. Who asks for swaps right after it, before anything is counted,
 * finds them while prompts are computed too. A chunk of a prompt chooses nearly all experts, and none of those goes in its
 * own step.
 */
void td_residency_policy_begin_step(td_residency_policy *p);

/**
 * What rows of one sequence chose in the present step. From now on until the next begin_step, none of these experts goes.
 * @param layer  MoE layer, below n_layers.
 * @param ids    [n_tok, top_k] experts, each below n_experts; read during the call only.
 * @param prompt rows of a prompt, in their order.
 */
void td_residency_policy_count(td_residency_policy *p, uint32_t layer, uint32_t n_tok, const uint16_t *ids, bool prompt);

/**
 * The next upload to start: the one that wins most. The caller's budget is how often it asks. After true, out->in is loading
 * and out->out absent, or leaving with goes_later; td_residency_policy_end_upload must follow, with goes_later after
 * td_residency_policy_end_leave where an expert goes.
 * @param out never with an expert as out->out that is loading, or that the present step chose.
 * @return false: nothing pays.
 */
bool td_residency_policy_next(td_residency_policy *p, td_residency_swap *out);

/** An upload that td_residency_policy_next began has ended: the expert is resident, or, if it failed, absent as if never
 * used. */
void td_residency_policy_end_upload(td_residency_policy *p, uint32_t layer, uint16_t expert, bool failed);

/** The expert that a swap lets go, with goes_later, has left. Or it cannot: then it stays for good, and the one that should
 * have come is absent again, with no upload to end. */
void td_residency_policy_end_leave(td_residency_policy *p, const td_residency_swap *s, bool stays);

/** A layer that is held has no swaps: its experts stay where they are until it is let go. */
void td_residency_policy_hold(td_residency_policy *p, uint32_t layer, bool held);

/** Before the first step: an absent expert is resident, in a slot that was empty. */
void td_residency_policy_place(td_residency_policy *p, uint32_t layer, uint16_t expert);

td_expert_state td_residency_policy_state(const td_residency_policy *p, uint32_t layer, uint16_t expert);

/** The count of an expert's uses, as of the layer's last token. */
float td_residency_policy_uses(const td_residency_policy *p, uint32_t layer, uint16_t expert);

#endif
