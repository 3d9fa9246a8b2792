#include "npu/ascend/ascend_block.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_kind.h"
#include "npu/ascend/ascend_stream.h"
#include "npu/block_weights.h"

#define TOK_MAX ((uint32_t)1 << 17)

static const td_ascend_block_kind *const KINDS[TD_BLOCK_COUNT] = {
    [TD_BLOCK_EMBED] = &td_ascend_embed,     [TD_BLOCK_NORM] = &td_ascend_norm,
    [TD_BLOCK_LINEAR] = &td_ascend_linear,   [TD_BLOCK_MLA] = &td_ascend_mla,
    [TD_BLOCK_GQA] = &td_ascend_gqa,         [TD_BLOCK_MLP] = &td_ascend_mlp,
    [TD_BLOCK_ROUTER] = &td_ascend_router,   [TD_BLOCK_EXPERTS] = &td_ascend_experts,
    [TD_BLOCK_HEAD] = &td_ascend_head,       [TD_BLOCK_TOP] = &td_ascend_top,
    [TD_BLOCK_COMBINE] = &td_ascend_combine, [TD_BLOCK_ALL_REDUCE] = &td_ascend_all_reduce,
};

/* ---- scratch ----------------------------------------------------------------------------------- */

/* Rope rows of a step, cos and sin, for all of its attentions. */
static size_t rope_bytes(const td_block_desc *desc) {
    size_t dim = desc->kind == TD_BLOCK_MLA ? TD_ASCEND_MLA_ROPE : desc->kind == TD_BLOCK_GQA ? desc->gqa.head_dim : 0;
    return 2 * td_round_up(desc->max_tok * dim * sizeof(td_bf16), TD_ASCEND_ALIGNMENT);
}

size_t td_ascend_block_scratch_bytes(td_npu *base, const td_block_desc *desc) {
    td_ascend_places at;
    (void)base;
    return TD_ASCEND_WORKSPACE_BYTES + rope_bytes(desc) + KINDS[desc->kind]->place(desc, &at);
}

/* ---- life -------------------------------------------------------------------------------------- */

/* Which cuts the steps of the device's attentions have. @param by 1 or -1. */
static void count_cut(td_ascend_npu *d, td_ascend_cut_key key, int by) {
    size_t at = 0;
    while (at < TD_ASCEND_CUTS_MAX && !(d->cuts[at].refs && !memcmp(&d->cuts[at].key, &key, sizeof key))) at++;
    for (size_t i = 0; at == TD_ASCEND_CUTS_MAX && by > 0 && i < TD_ASCEND_CUTS_MAX; i++)
        if (!d->cuts[i].refs) at = i;
    if (!key.most || at == TD_ASCEND_CUTS_MAX) return;
    d->cuts[at].key = key;
    d->cuts[at].refs += (size_t)by;
}

td_status td_ascend_block_create(td_npu *base, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = NULL;
    TD_TRY(td_block_check(desc, TOK_MAX, err));
    TD_TRY(td_block_check_slotless(desc, err));
    TD_TRY(td_block_check_stateless(desc, err));
    const td_ascend_block_kind *kind = KINDS[desc->kind];
    TD_TRY(td_card_enter(&d->base));
    if (kind->check) TD_TRY(kind->check(d, desc, err));
    TD_TRY(td_block_check_weights(desc, err));
    td_npu_block *b = calloc(1, sizeof *b);
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for a block");
    b->desc = *desc;
    b->kind = kind;
    td_status st = kind->prepare ? kind->prepare(d, b, err) : TD_OK;
    if (st != TD_OK) {
        free(b);
        return st;
    }
    size_t bytes = kind->place(desc, &b->at), rope = rope_bytes(desc);
    if (bytes > d->block_bytes) d->block_bytes = bytes;
    if (rope > d->rope_bytes) d->rope_bytes = rope;
    count_cut(d, b->cut, 1);
    *out = b;
    return TD_OK;
}

void td_ascend_block_destroy(td_npu *base, td_npu_block *b) {
    if (b) count_cut((td_ascend_npu *)base, b->cut, -1);
    free(b);
}

/* ---- launching --------------------------------------------------------------------------------- */

/* The step in the list, with the cut, made when it is new there. Outside of captures the list begins anew when it is full. */
static td_status find_step(td_npu_stream *s, const td_step *step, const td_npu_block *b, td_ascend_step **out) {
    td_ascend_npu   *d = td_ascend_of(s);
    td_ascend_steps *l = s->base.capture ? &s->base.capture->steps : &s->steps;
    for (size_t i = 0; i < l->n; i++)
        if (td_ascend_step_is(l->at[i], step) && (!b->cut.most || td_ascend_step_has(l->at[i], b->cut))) {
            *out = l->at[i];
            return TD_OK;
        }
    if (l->n == TD_ASCEND_STEPS_MAX) {
        if (s->base.capture) {
            td_err("a graph has more than %d steps", TD_ASCEND_STEPS_MAX);
            return TD_EINVAL;
        }
        TD_TRY(td_card_stream_sync(&d->base.npu, s));
        td_ascend_steps_close(d, l);
    }
    /* A graph's blocks read one step. Blocks that are enqueued one by one may be under way when the first attention comes: it
     * has arrays of its own. */
    const bool all = s->base.capture && b->desc.kind != TD_BLOCK_HEAD && b->desc.kind != TD_BLOCK_TOP;
    TD_TRY(td_ascend_step_open(d, step, b->cut, all, out));
    l->at[l->n++] = *out;
    return TD_OK;
}

static td_status begin_run(td_npu_stream *s, const td_npu_block *b, td_ascend_step *made, td_ascend_run *r) {
    td_ascend_npu *d = td_ascend_of(s);
    TD_TRY(td_card_arena_grow(&d->base, &d->base.scratch, d->rope_bytes + d->block_bytes + TD_ASCEND_ALIGNMENT, NULL));
    *r = (td_ascend_run){.d = d,
                         .s = s,
                         .stream = s->stream,
                         .step = &made->step,
                         .made = made,
                         .rope = d->base.scratch.at,
                         .scratch = d->base.scratch.at + d->rope_bytes};
    if (b->cut.most) r->cut = td_ascend_step_cut(made, b->cut);
    if (b->gate_up) {
        const td_experts_desc *x = &b->desc.experts;
        r->route = td_ascend_step_route(d, made, x->n_experts, x->top_k, TD_ASCEND_EXPERT_ROWS);
        if (!r->route) return TD_ENOMEM;
    }
    return TD_OK;
}

td_status td_ascend_enqueue(td_npu *base, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    td_ascend_npu  *d = (td_ascend_npu *)base;
    td_ascend_step *made;
    td_ascend_run   r;
    bool            changed;
    TD_TRY(td_card_enter(&d->base));
    TD_TRY(td_block_check_step(&b->desc, step));
    TD_TRY(find_step(s, step, b, &made));
    if (b->n_tokens && b->n_tokens < made->n_tokens) made->n_tokens = b->n_tokens;
    if (b->n_positions && b->n_positions < made->n_positions) made->n_positions = b->n_positions;
    TD_TRY(begin_run(s, b, made, &r));
    if (!s->base.capture) {
        made->rope = NULL;
        TD_TRY(td_ascend_step_fill(d, made, &changed));
    }
    b->kind->launch(&r, b);
    return r.status;
}

/* ---- graphs ------------------------------------------------------------------------------------ */

/* Give an attention the lengths of its step, in the order of the stream `on`. */
static td_status update(td_npu_stream *s, td_acl_stream on, const td_ascend_attention *a) {
    const td_acl *acl = td_ascend_of(s)->acl;
    td_ascend_run r;
    TD_TRY(begin_run(s, a->block, a->step, &r));
    r.stream = on;
    r.workspace_at = a->workspace_at;
    r.workspace_most = a->workspace_bytes ? a->workspace_bytes : 1;
    TD_TRY(td_ascend_queued(td_ascend_of(s), "aclmdlRICaptureTaskUpdateBegin",
                            acl->aclmdlRICaptureTaskUpdateBegin(on, a->group)));
    a->block->kind->attend(&r, a->block);
    td_status ended =
        td_ascend_queued(td_ascend_of(s), "aclmdlRICaptureTaskUpdateEnd", acl->aclmdlRICaptureTaskUpdateEnd(on));
    return r.status != TD_OK ? r.status : ended;
}

/* Bring the graph's steps to the device. @param fresh its attentions have the lengths of these steps already. */
static td_status fill_steps(td_npu_stream *s, td_npu_graph *g, bool *fresh) {
    *fresh = g->applied && g->failures == s->failures;
    for (size_t i = 0; i < g->steps.n; i++) {
        bool changed;
        TD_TRY(td_ascend_step_fill(td_ascend_of(s), g->steps.at[i], &changed));
        *fresh &= !changed;
    }
    return TD_OK;
}

static td_status run_graph(td_npu_stream *s, td_npu_graph *g) {
    td_ascend_npu *d = td_ascend_of(s);
    if (g->group) TD_TRY(td_ascend_stream_enter(s, g->group));
    td_acl_status code = d->acl->aclmdlRIExecuteAsync(g->graph, s->stream);
    if (g->group) td_ascend_group_leave(g->group, d);
    return td_ascend_queued(d, "aclmdlRIExecuteAsync", code);
}

/* All at once on the stream that runs the graph next: they come after its former run and before this one. */
static td_status update_before(td_npu_stream *s, td_npu_graph *g, bool fresh) {
    for (size_t i = 0; i < g->n_attentions && !fresh; i++) TD_TRY(update(s, s->stream, &g->attentions[i]));
    return TD_OK;
}

/* A run that was stopped may have left events set, for which the next one would not wait. */
static td_status reset_events(td_npu_stream *s, td_npu_graph *g) {
    td_ascend_npu *d = td_ascend_of(s);
    if (g->failures == s->failures) return TD_OK;
    for (size_t i = 0; i < g->n_attentions; i++)
        TD_TRY(td_ascend_queued(d, "aclrtResetEvent", d->acl->aclrtResetEvent(g->attentions[i].ready, s->updates)));
    return td_ascend_queued(d, "aclrtSynchronizeStream", d->acl->aclrtSynchronizeStream(s->updates));
}

/* While the graph runs, which waits for each event where its attention comes. Its former run is over, as the steps' contract
 * has it. Events are recorded behind an update that failed, too: else the run would wait for ever. The failure is told, so
 * that nobody reads what it computes with an earlier step's lengths. */
static td_status update_beside(td_npu_stream *s, td_npu_graph *g, bool fresh) {
    td_ascend_npu *d = td_ascend_of(s);
    td_status      st = TD_OK;
    s->updated = true;
    for (size_t i = 0; i < g->n_attentions; i++) {
        const td_ascend_attention *a = &g->attentions[i];
        if (!fresh && st == TD_OK) st = update(s, s->updates, a);
        if (td_ascend_queued(d, "aclrtRecordEvent", d->acl->aclrtRecordEvent(a->ready, s->updates)) == TD_OK) continue;
        (void)td_ascend_done(d, "aclrtStreamAbort", d->acl->aclrtStreamAbort(s->stream), NULL);
        return TD_EDEVICE;
    }
    return st;
}

td_status td_ascend_graph_launch(td_npu_stream *s, td_npu_graph *g) {
    bool fresh, beside = s->updates && g->n_attentions;
    TD_TRY(fill_steps(s, g, &fresh));
    g->applied = false;
    if (beside) TD_TRY(reset_events(s, g));
    g->failures = s->failures;
    if (!beside) TD_TRY(update_before(s, g, fresh));
    TD_TRY(run_graph(s, g));
    if (beside) TD_TRY(update_beside(s, g, fresh));
    g->applied = true;
    return TD_OK;
}

/* bf16; MLA's rows are filled up to what its attention takes. */
size_t td_ascend_kv_page_bytes(td_npu *base, td_kv_rows what, size_t n) {
    (void)base;
    if (what != TD_KV_HEAD) n = what == TD_KV_LATENT ? TD_ASCEND_MLA_LATENT : TD_ASCEND_MLA_ROPE;
    return TD_KV_PAGE * n * sizeof(td_bf16);
}
