#include "engine/step/draft_gate.h"

#include <assert.h>

#include "engine/step/time_average.h"

#define STEP_WEIGHT (1.0 / 16) /* least weight of the newest step in the averages of plain and of drafted steps */
#define ON_WEIGHT (1.0 / 64)   /* the same for `on` and `tokens`: accepted drafts come by chance */
#define PLAIN_FIRST 4          /* steps of a class go without drafts before the first that has some */

static uint32_t class_of(uint32_t n_seq) {
    uint32_t c = 0;
    assert(n_seq >= 1);
    while (n_seq >>= 1) c++;
    return c < TD_DRAFT_CLASSES ? c : TD_DRAFT_CLASSES - 1;
}

void td_draft_gate_open(td_draft_gate *g, bool always) {
    *g = (td_draft_gate){.always = always};
    for (uint32_t i = 0; i < TD_DRAFT_CLASSES; i++) g->classes[i].waits = TD_DRAFT_WAIT_MIN;
}

bool td_draft_gate_is_on(const td_draft_gate *g, uint32_t n_seq) {
    return !g->classes[class_of(n_seq)].off;
}

bool td_draft_gate_is_on_up_to(const td_draft_gate *g, uint32_t n_seq) {
    bool on = false;
    for (uint32_t c = 0; c <= class_of(n_seq); c++) on |= !g->classes[c].off;
    return on;
}

static bool drafts(const td_draft_class *c) {
    return !c->off && c->n_steps >= PLAIN_FIRST && c->n_steps % TD_DRAFT_PLAIN_EVERY != 0;
}

bool td_draft_gate_drafts(const td_draft_gate *g, uint32_t n_seq) {
    return g->always || drafts(&g->classes[class_of(n_seq)]);
}

/* A second row is worth its time when the chance of a token more is above the share of time more. */
double td_draft_gate_threshold(const td_draft_gate *g, uint32_t n_seq) {
    const td_draft_class *c = &g->classes[class_of(n_seq)];
    if (!c->n_plain || !c->n_drafted || c->plain_s <= 0) return 0;
    double more = c->drafted_s / c->plain_s - 1;
    return more > 0 ? more : 0;
}

static double gain_of(const td_draft_class *c) {
    return c->n_plain && c->n_on && c->on_s > 0 ? c->on_tokens * c->plain_s / c->on_s : 1;
}

double td_draft_gate_gain(const td_draft_gate *g, uint32_t n_seq) {
    return gain_of(&g->classes[class_of(n_seq)]);
}

static void judge(td_draft_class *c) {
    double gain = gain_of(c);
    bool   hopeless = c->n_on >= TD_DRAFT_TRIAL_LEAST && gain < TD_DRAFT_HOPELESS;
    if (c->n_on < TD_DRAFT_TRIAL && !hopeless) return;
    if (gain >= 1) {
        c->waits = TD_DRAFT_WAIT_MIN;
        return;
    }
    c->off = true;
    c->left = c->waits;
    if (c->waits < TD_DRAFT_WAIT_MAX) c->waits *= 2;
}

void td_draft_gate_observe(td_draft_gate *g, const td_draft_step *s) {
    td_draft_class *c = &g->classes[class_of(s->n_seq)];
    if (g->always) return;
    if (c->off) {
        if (--c->left == 0) *c = (td_draft_class){.waits = c->waits};
        return;
    }
    bool measures = !drafts(c);
    c->n_steps++;
    if (s->n_drafts == 0)
        td_average_follow_time(&c->plain_s, c->n_plain++, s->step_s, STEP_WEIGHT);
    else
        td_average_follow_time(&c->drafted_s, c->n_drafted++, s->step_s, STEP_WEIGHT);
    if (measures || (s->n_drafts == 0 && s->layer_s == 0)) return; /* a measuring step, or no request that could draft */
    td_average_follow(&c->on_tokens, c->n_on, (double)s->n_tokens / s->n_seq, ON_WEIGHT);
    td_average_follow_time(&c->on_s, c->n_on++, s->step_s + s->layer_s, ON_WEIGHT);
    judge(c);
}
