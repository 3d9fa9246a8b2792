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
 * A pass that goes in two halves does so here, too: the device computes one half while the experts have the other. Both stop
 * in time. A block, or its part, is taken to take as long as the last one of its kind, and is left to the next piece if that
 * is too long. While another thread waits for the piece (td_piece.waited_for), any operation is. The experts compute as many
 * rows at a time as end by then (td_bridge_pass.until_ns), and the next piece hands the others over again. To the bridge a
 * piece is a pass.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "model/model.h"
#include "model/model_state.h"

#define PARTS_MAX 256 /* of a block */

/* ---- what operations take ---------------------------------------------------------------------- */

/* A block of so many rows has run, or a part of it. */
static void note_block(td_model *m, td_piece_pace *pace, const td_block_part *part, uint32_t n_tok, double took_s,
                       td_piece *piece) {
    td_pass_pieces *pass = &m->pieces;
    td_piece_pace_note(pace, part, n_tok, took_s);
    if (took_s > piece->longest_s) piece->longest_s = took_s;
    pass->block_s += took_s;
    if (pass->cursor.part.n > 1) return;
    td_piece_pace_note_block(pace, n_tok, pass->block_s);
    pass->block_s = 0;
}

/* Whether the piece ends before an operation over so many rows, since it would take too long with it. */
static bool ends_before(const td_op *next, uint32_t n_tok, const td_model *m, const td_piece *piece) {
    const double block_s =
        next->kind == TD_OP_BLOCK ? td_piece_pace_foreseen(&m->pace[next->block.pace], &m->pieces.cursor.part, n_tok) : 0;
    return td_piece_ends(piece, m->pieces.begin_ns, block_s);
}

/* ---- running ----------------------------------------------------------------------------------- */

void td_model_drop_pieces(td_model *m) {
    if (m->pieces.rows && m->resident) td_resident_hold(m->resident, NULL, 0);
    m->pieces = (td_pass_pieces){0};
}

void td_model_start_pieces(td_model *m, const td_step_rows *rows) {
    assert(rows->n_tok >= 1 && rows->n_tok <= m->spec.aside_tok);
    td_model_drop_pieces(m);
    m->pieces = (td_pass_pieces){.rows = rows, .bucket = td_step_buf_fill(&m->cards->aside, rows, NULL, NULL, 0)};
    td_card_model_fill_images(m->cards, rows, m->pieces.bucket->whole.first_row);
}

/* A piece that has no end does nothing twice for the sake of parts. */
static uint32_t parts_of(const td_card_model *c, const td_op *block, uint32_t n_tok, const td_piece *piece) {
    const td_parts_wanted wanted = {
        .n = td_piece_pace_parts(&c->model->pace[block->block.pace], n_tok, piece->part_s, PARTS_MAX),
        .at_a_cost = !isinf(piece->budget_s),
    };
    return c->npu->ops->block_parts(c->npu, &block->block.desc, n_tok, wanted, &(size_t){0});
}

static td_status run_operation(td_card_model *c, const td_op *op, uint32_t n_tok, td_piece *piece) {
    td_model          *m = c->model;
    td_pass_pieces    *pass = &m->pieces;
    td_program_cursor *at = &pass->cursor;
    const uint64_t     begin_ns = td_trace_now();
    if (!at->part.n && op->kind == TD_OP_BLOCK && op->block.has_parts)
        at->part = (td_block_part){.n = parts_of(c, op, n_tok, piece), .between = c->act.between};
    const td_block_part part = at->part;
    TD_TRY(td_program_enqueue_next(&c->program[TD_PASS_FORWARD], c->npu, c->stream, pass->bucket, at));
    TD_TRY(c->npu->ops->stream_sync(c->npu, c->stream));
    if (op->kind == TD_OP_BLOCK) note_block(m, &m->pace[op->block.pace], &part, n_tok, td_seconds_since(begin_ns), piece);
    return TD_OK;
}

/* What the piece before has left for this one. */
static td_status go_on(td_card_model *c) {
    td_pass_pieces *pass = &c->model->pieces;
    if (!pass->uploaded) {
        TD_TRY(td_step_buf_enqueue_upload(&c->aside, pass->bucket, c->stream));
        TD_TRY(td_card_model_enqueue_images(c, pass->rows, pass->bucket->whole.first_row));
    }
    pass->uploaded = true;
    if (c->model->resident) TD_TRY(td_resident_enqueue_table(c->model->resident, 0, c->stream));
    TD_TRY(td_program_enqueue_again(&c->program[TD_PASS_FORWARD], c->stream, pass->bucket, &pass->cursor));
    return c->npu->ops->stream_sync(c->npu, c->stream);
}

static td_status run_operations(td_card_model *c, td_piece *piece) {
    td_model         *m = c->model;
    const td_program *p = &c->program[TD_PASS_FORWARD];
    td_pass_pieces   *pass = &m->pieces;
    const uint32_t    first = pass->cursor.n_collected;
    const td_step    *step;
    const td_op      *op = td_program_next(p, pass->bucket, &pass->cursor, &step);
    TD_TRY(go_on(c));
    do {
        if (op->kind == TD_OP_COLLECT && !td_bridge_await_sums(m->bridge, pass->cursor.n_collected - first)) return TD_OK;
        TD_TRY(run_operation(c, op, step->host.counts->n_tok, piece));
        op = td_program_next(p, pass->bucket, &pass->cursor, &step);
    } while (op && !ends_before(op, step->host.counts->n_tok, m, piece));
    piece->ended = !op;
    return TD_OK;
}

/* The pass's tickets from the first that is not collected. */
static td_bridge_pass bridge_pass(const td_model *m, const td_piece *piece) {
    const td_pass_pieces    *pass = &m->pieces;
    const td_program_cursor *at = &pass->cursor;
    td_bridge_pass           out = td_program_pass(&m->cards->program[TD_PASS_FORWARD], pass->bucket);
    out.order += at->n_collected;
    out.n_tickets -= at->n_collected;
    out.until_ns = isinf(piece->budget_s) ? UINT64_MAX : pass->begin_ns + (uint64_t)(1e9 * piece->budget_s);
    out.waited_for = piece->waited_for;
    out.part_ns = (uint64_t)(1e9 * piece->part_s);
    memcpy(out.done, at->done, sizeof out.done);
    return out;
}

/* ---- resident experts -------------------------------------------------------------------------- */

static void begin_resident(const td_model *m) {
    const td_pass_pieces *pass = &m->pieces;
    if (!m->resident) return;
    if (pass->uploaded)
        td_resident_go_on(m->resident);
    else
        td_resident_begin_pass(m->resident, pass->bucket->whole.first_row);
}

/* Layers whose router has run, and whose experts have not all been added: those of hand-overs that are open, and one that is
 * about to be. */
static void hold_open_layers(const td_model *m) {
    const td_pass_pieces *pass = &m->pieces;
    const td_program     *p = &m->cards->program[TD_PASS_FORWARD];
    const td_bridge_pass  all = td_program_pass(p, pass->bucket);
    const td_step        *step;
    const td_op          *next = td_program_next(p, pass->bucket, &pass->cursor, &step);
    const uint32_t        end = pass->cursor.n_submitted + (next && next->kind == TD_OP_SUBMIT);
    uint32_t              layer[TD_BRIDGE_OPEN_MAX + 1], n = 0;
    for (uint32_t i = pass->cursor.n_collected; i < end; i++) layer[n++] = td_bridge_port_layer(all.order[i]);
    td_resident_hold(m->resident, layer, n);
}

/* @param ok the piece ended well */
static void end_resident(const td_model *m, const td_piece *piece, bool ok) {
    if (!m->resident) return;
    if (ok && !piece->ended) {
        hold_open_layers(m);
        return;
    }
    td_resident_hold(m->resident, NULL, 0);
    td_resident_end_pass(m->resident, ok ? &m->pieces.bucket->whole : NULL);
}

/* ---- a piece ------------------------------------------------------------------------------------ */

td_status td_model_run_piece(td_model *m, td_piece *piece) {
    td_card_model     *c = m->cards;
    td_pass_pieces    *now = &m->pieces;
    td_program_cursor *at = &now->cursor;
    const uint32_t     first = at->n_collected;
    assert(now->rows);
    now->begin_ns = td_trace_now();
    piece->longest_s = 0;
    piece->ended = piece->gave_way = false;
    c->bucket = now->bucket;
    c->error.text[0] = 0;
    td_pool_hold(m->expert_pool);
    const td_bridge_pass pass = bridge_pass(m, piece);
    begin_resident(m);
    if (m->bridge) td_bridge_begin_pass(m->bridge, &pass);
    td_status st = run_operations(c, piece), synced = c->npu->ops->stream_sync(c->npu, c->stream);
    td_status ticket = m->bridge ? td_bridge_end_pass(m->bridge) : TD_OK;
    td_pool_release(m->expert_pool);
    if (st == TD_OK) st = synced == TD_OK ? ticket : synced;
    for (uint32_t i = 0; m->bridge && i < TD_BRIDGE_OPEN_MAX; i++)
        at->done[i] = td_bridge_rows_done(m->bridge, at->n_collected - first + i);
    piece->gave_way = !piece->ended && td_piece_is_waited_for(piece);
    end_resident(m, piece, st == TD_OK);
    if (st == TD_OK && piece->ended) {
        m->rows = now->rows;
        m->rows_aside = true;
    }
    if (st != TD_OK || piece->ended) *now = (td_pass_pieces){0};
    return st;
}
