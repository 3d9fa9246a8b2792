/*
 * A forward pass that goes in pieces.
 *
 * DESIGN. A pass is a list of operations. What goes from one to the next lies in rows of the blocks' buffers and of the
 * bridge's slots: the residual stream, what a layer has deferred, chosen keys. A pass in pieces has rows of its own there,
 * behind those of all other steps, and step arrays of its own. So it may be left between two operations, and other passes
 * run from begin to end. A block that takes long goes in parts (td_block_part), between which the pass may be left too:
 * attention over many keys, which costs least when many rows meet them together. Nothing is captured, since a captured pass
 * cannot be left: each operation is enqueued as it is, and waited for, so that the clock tells what it has taken. With rows
 * enough that a pass is worth leaving, that costs next to nothing.
 *
 * A pass that goes in two halves does so here, too: the device computes one half while the experts have the other. What they
 * have when the pass is left is collected at once, ahead of its place. So a piece ends when its last operation has run and
 * the experts have done what they were given. Both are foreseen: a block, or its part, takes as long as the last one of its
 * kind, and so does a hand-over.
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

/* ---- what operations take ---------------------------------------------------------------------- */

/* The clock of a piece; seconds from its begin. */
typedef struct {
    uint64_t begin_ns;
    double   now_s;
    double   experts_s; /* when they will have done what is open, as far as can be foreseen */
} piece_clock;

static double later(double a, double b) {
    return a > b ? a : b;
}

/* When the experts will have done what is open, if one hand-over more is. */
static double experts_with_another(const td_piece_pace *pace, const piece_clock *clock) {
    return later(clock->experts_s, clock->now_s) + pace->handover_s;
}

/* A block or its part has run. @param n_tok its rows. */
static void note_block(td_model *m, td_block_kind kind, uint32_t n_tok, double took_s, piece_clock *clock, td_piece *piece) {
    td_pass_pieces *pass = &m->pieces;
    m->pace.took_s[kind] = took_s;
    piece->longest_s = later(piece->longest_s, took_s);
    if (!m->async_experts) clock->experts_s += took_s; /* on the same threads */
    pass->block_s += took_s;
    if (pass->cursor.part.n > 1) return;
    m->pace.row_s[kind] = pass->block_s / n_tok;
    pass->block_s = 0;
}

static void note_collected(td_model *m, piece_clock *clock, td_piece *piece) {
    const td_program_cursor *at = &m->pieces.cursor;
    m->pace.handover_s = td_bridge_ticket_s(m->bridge);
    clock->experts_s = clock->now_s + (at->n_submitted - at->n_collected) * m->pace.handover_s;
    piece->longest_s = later(piece->longest_s, m->pace.handover_s);
}

/* The parts of a block that would take so long: a piece has room for several. */
static uint32_t parts_of(const td_piece *piece, double block_s) {
    const double part_s = piece->budget_s / PARTS_A_PIECE;
    return block_s < part_s * PARTS_MAX ? 1 + (uint32_t)(block_s / part_s) : PARTS_MAX;
}

/* Whether the piece ends before an operation, since it would take too long with it. */
static bool ends_before(const td_op *next, const td_piece_pace *pace, const piece_clock *clock, const td_piece *piece) {
    if (td_chaos_seeded()) return td_chaos_cuts();
    const double block_s = next->kind == TD_OP_BLOCK ? pace->took_s[next->block.desc.kind] : 0;
    const double experts_s = next->kind == TD_OP_SUBMIT ? experts_with_another(pace, clock) : clock->experts_s;
    return later(clock->now_s + block_s, experts_s) > piece->budget_s;
}

/* ---- running ----------------------------------------------------------------------------------- */

void td_model_start_pieces(td_model *m, const td_step_rows *rows) {
    assert(rows->n_tok >= 1 && rows->n_tok <= m->spec.aside_tok);
    m->pieces = (td_pass_pieces){.rows = rows, .bucket = td_step_buf_fill(&m->cards->aside, rows, NULL, NULL, 0)};
}

static td_status run_operation(td_card_model *c, const td_op *op, uint32_t n_tok, piece_clock *clock, td_piece *piece) {
    td_model          *m = c->model;
    td_pass_pieces    *pass = &m->pieces;
    td_program_cursor *at = &pass->cursor;
    const uint32_t     n_collected = at->n_collected;
    const double       before_s = clock->now_s;
    if (!at->part.n && op->kind == TD_OP_BLOCK && op->block.has_parts)
        at->part =
            (td_block_part){.n = parts_of(piece, m->pace.row_s[op->block.desc.kind] * n_tok), .between = c->act.between};
    TD_TRY(td_program_enqueue_next(&c->program[TD_PASS_FORWARD], c->npu, c->stream, pass->bucket, at));
    TD_TRY(c->npu->ops->stream_sync(c->npu, c->stream));
    clock->now_s = 1e-9 * (double)(td_trace_now() - clock->begin_ns);
    if (op->kind == TD_OP_BLOCK) note_block(m, op->block.desc.kind, n_tok, clock->now_s - before_s, clock, piece);
    if (op->kind == TD_OP_SUBMIT) clock->experts_s = experts_with_another(&m->pace, clock);
    if (at->n_collected > n_collected) note_collected(m, clock, piece);
    return TD_OK;
}

/* Collect what the experts have, and wait for it. */
static td_status leave(td_card_model *c, piece_clock *clock, td_piece *piece) {
    td_pass_pieces *pass = &c->model->pieces;
    if (pass->cursor.n_collected == pass->cursor.n_submitted) return TD_OK;
    TD_TRY(td_program_enqueue_collects(&c->program[TD_PASS_FORWARD], c->stream, pass->bucket, &pass->cursor));
    TD_TRY(c->npu->ops->stream_sync(c->npu, c->stream));
    note_collected(c->model, clock, piece);
    return TD_OK;
}

static td_status run_operations(td_card_model *c, td_piece *piece) {
    const td_program *p = &c->program[TD_PASS_FORWARD];
    td_pass_pieces   *pass = &c->model->pieces;
    piece_clock       clock = {.begin_ns = td_trace_now()};
    const td_step    *step;
    const td_op      *op = td_program_next(p, pass->bucket, &pass->cursor, &step);
    piece->longest_s = 0;
    if (!pass->uploaded) TD_TRY(td_step_buf_enqueue_upload(&c->aside, pass->bucket, c->stream));
    pass->uploaded = true;
    do {
        TD_TRY(run_operation(c, op, step->host.counts->n_tok, &clock, piece));
        op = td_program_next(p, pass->bucket, &pass->cursor, &step);
    } while (op && !ends_before(op, &c->model->pace, &clock, piece));
    piece->ended = !op;
    return leave(c, &clock, piece);
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
    td_status st = run_operations(c, piece), synced = c->npu->ops->stream_sync(c->npu, c->stream);
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
