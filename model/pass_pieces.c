/*
 * A forward pass that goes in pieces.
 *
 * DESIGN. A pass is a list of operations. What goes from one to the next lies in rows of the blocks' buffers and of the
 * bridge's slots: the residual stream, what a layer has deferred, chosen keys. A pass in pieces has rows of its own there,
 * behind those of all other steps, and step arrays of its own. So it may be left between two operations where nothing is
 * handed over, and other passes run from begin to end. A block that takes long goes in parts (td_block_part), between which
 * the pass may be left too: attention over many keys, which costs least when many rows meet them together. Only devices that run what is enqueued at once have such passes: no
 * capture is needed, and the clock tells what each operation has taken.
 *
 * To the bridge a piece is a pass that breaks off behind its last hand-over.
 */
#include <assert.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/threads/chaos.h"
#include "model/model.h"
#include "model/model_state.h"

#define PARTS_A_PIECE 8
#define PARTS_MAX 64 /* of a block */

void td_model_start_pieces(td_model *m, const td_step_rows *rows) {
    assert(rows->n_tok >= 1 && rows->n_tok <= m->spec.aside_tok);
    m->pieces = (td_pass_pieces){.rows = rows, .bucket = td_step_buf_fill(&m->cards->aside, rows, NULL, NULL, 0)};
}

static uint32_t kind_of(const td_op *op) {
    if (op->kind == TD_OP_BLOCK) return op->block.desc.kind;
    return op->kind == TD_OP_SUBMIT ? TD_PACE_HANDOVER : TD_PACE_NONE;
}

/* Whether the piece ends here, where so long has passed. */
static bool ends(const td_piece *piece, double passed_s, double next_s) {
    return td_chaos_on() ? td_chaos_cuts() : passed_s + next_s > piece->budget_s;
}

/* The parts of a block that would take so long: a piece has room for several. */
static uint32_t parts_of(const td_piece *piece, double block_s) {
    const double part_s = piece->budget_s / PARTS_A_PIECE;
    return block_s < part_s * PARTS_MAX ? 1 + (uint32_t)(block_s / part_s) : PARTS_MAX;
}

static td_status run_next(td_card_model *c, td_pass_pieces *pass, const td_piece *piece) {
    td_piece_pace    *pace = &c->model->pace;
    const td_program *p = &c->program[TD_PASS_FORWARD];
    td_block_part    *part = &pass->cursor.part;
    const uint64_t    begin = td_trace_now();
    const uint32_t    at = pass->cursor.at, n_tok = pass->rows->n_tok, kind = kind_of(&p->ops[at]);
    if (!part->n && p->ops[at].kind == TD_OP_BLOCK && p->ops[at].block.has_parts)
        *part = (td_block_part){.n = parts_of(piece, pace->row_s[kind] * n_tok), .between = c->act.between};
    TD_TRY(td_program_enqueue_next(p, c->npu, c->stream, &pass->bucket->whole, &pass->cursor));
    pace->took_s[kind] = 1e-9 * (double)(td_trace_now() - begin);
    pass->block_s += pace->took_s[kind];
    if (pass->cursor.at == at) return TD_OK;
    pace->row_s[kind] = pass->block_s / n_tok;
    pass->block_s = 0;
    return TD_OK;
}

static td_status run_operations(td_card_model *c, td_pass_pieces *pass, td_piece *piece) {
    const td_program *p = &c->program[TD_PASS_FORWARD];
    const double     *took_s = c->model->pace.took_s;
    const uint64_t    begin = td_trace_now();
    double            passed_s;
    piece->longest_s = 0;
    do {
        const uint32_t kind = kind_of(&p->ops[pass->cursor.at]);
        TD_TRY(run_next(c, pass, piece));
        passed_s = 1e-9 * (double)(td_trace_now() - begin);
        if (took_s[kind] > piece->longest_s) piece->longest_s = took_s[kind];
        piece->ended = pass->cursor.at == p->n;
    } while (!piece->ended && !ends(piece, passed_s, took_s[kind_of(&p->ops[pass->cursor.at])]));
    return TD_OK;
}

td_status td_model_run_piece(td_model *m, td_piece *piece) {
    td_card_model  *c = m->cards;
    td_pass_pieces *now = &m->pieces;
    td_bridge_pass  pass = td_program_pass(&c->program[TD_PASS_FORWARD], now->bucket);
    assert(now->rows);
    pass.order += now->cursor.n_submitted;
    pass.n_tickets -= now->cursor.n_submitted;
    c->bucket = now->bucket;
    c->error.text[0] = 0;
    td_pool_hold(m->expert_pool);
    if (m->bridge) td_bridge_begin_pass(m->bridge, &pass);
    td_status st = run_operations(c, now, piece), synced = c->npu->ops->stream_sync(c->npu, c->stream);
    td_status ticket = m->bridge ? td_bridge_end_pass(m->bridge) : TD_OK;
    td_pool_release(m->expert_pool);
    if (st == TD_OK) st = synced == TD_OK ? ticket : synced;
    if (st == TD_OK && piece->ended) {
        m->rows = now->rows;
        m->rows_aside = true;
    }
    if (st != TD_OK || piece->ended) *now = (td_pass_pieces){0};
    return st;
}
