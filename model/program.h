/*
 * Programs: what a card runs, a list of operations on the device stream.
 *
 * A program is built once for each pass. What it enqueues is described by the families (layer_verbs.h) and here, around the
 * layers: architectures differ in the blocks that they describe, not in code that runs them. It is cut into stages. A step
 * that goes through whole takes them one after the other. Of a step in two halves both take each stage before the next one
 * begins (A.0 B.0 A.1 B.1 ...), so that the device has work while the CPU tier does a half's experts. The blocks are the
 * same: a half is a step of its own over other rows of the same buffers.
 */
#ifndef TD_MODEL_PROGRAM_H
#define TD_MODEL_PROGRAM_H

#include "model/operations.h"
#include "model/step_buf.h"

/** What runs as one. The heads read rows of the last pass over the layers, step->out_row, and fill act.logits, and with
 * top_k act.top. */
typedef enum {
    TD_PASS_FORWARD, /* the layers, after the embedding where wanted: leaves the residual stream in act.x */
    TD_PASS_HEAD,
    TD_PASS_MTP, /* the MTP layer: reads act.x, leaves its residual stream in act.mtp_x */
    TD_PASS_MTP_HEAD,
    TD_PASSES,
} td_pass_kind;

typedef struct {
    td_op           *ops; /* [n], the last one is TD_OP_STAGE */
    uint32_t         n;
    td_bridge_port **order[TD_HALVES]; /* the ports in the order of their submits: of a whole step, of one in halves */
    uint32_t         n_tickets[TD_HALVES];
} td_program;

/** Whether there is such a pass: heads and the MTP layer's only with the whole model. */
bool td_program_has_pass(const td_program_spec *s, td_pass_kind kind);
/** Describe a pass and create its blocks. @param out zeroed on failure; free with td_program_free. */
TD_NODISCARD td_status td_program_build(const td_program_spec *s, td_pass_kind kind, td_program *out, td_error *err);

/** The most that one of the blocks of all passes needs. */
typedef struct {
    size_t scratch; /* of all blocks together */
    size_t between; /* between its parts, of a step in pieces */
} td_program_bytes;

/** @param s without buffers will do; so below. */
TD_NODISCARD td_status td_program_measure(const td_program_spec *s, td_program_bytes *out, td_error *err);

/** An operation of a pass, for `tandem plan`. */
typedef struct {
    td_op_kind    kind;  /* BLOCK, SUBMIT, COLLECT */
    uint32_t      half;  /* that it is for; TD_OUTLINE_WHOLE: the whole step */
    td_block_desc block; /* of BLOCK */
} td_outline_op;

#define TD_OUTLINE_WHOLE UINT32_MAX

typedef struct td_outline {
    td_outline_op *ops; /* [n] */
    uint32_t       n;
} td_outline;

/** What a forward pass, layers and head, enqueues, in that order, of a step that goes through whole or in halves. Nothing is
 * built. @param n_halves 1, or s->max_halves. Free with td_outline_free. */
TD_NODISCARD td_status td_program_outline(const td_program_spec *s, uint32_t n_halves, td_outline *out, td_error *err);
void                   td_outline_free(td_outline *o);

/** How a pass is enqueued. */
typedef struct {
    bool streamed; /* with the operations of streamed passes */
    bool captured; /* the stream is being captured */
} td_pass_form;

/** Enqueue it for a bucket: in halves where the bucket has them and the program has ports for them. */
TD_NODISCARD td_status td_program_enqueue(const td_program *p, td_npu *d, td_npu_stream *s, const td_step_bucket *bucket,
                                          td_pass_form form);

/** A place in the order in which operations are enqueued: before its first one, all zeroes. */
typedef struct {
    uint32_t stage, at; /* operations: where the stage under way begins, and the next one */
    uint32_t half;
} td_program_walk;

/** How far a pass that goes piece by piece has come; zeroes at its begin. */
typedef struct {
    td_program_walk walk;
    uint32_t        n_submitted, n_collected; /* hand-overs; those between are open */
    uint32_t        done[TD_BRIDGE_OPEN_MAX]; /* rows of the open ones whose sums are there, from a piece before */
    td_block_part   part;                     /* of the operation that comes next; n at most 1: it goes whole */
} td_program_cursor;

/** The operation that comes next, the program's; NULL: all were enqueued. @param step out, the whole or the half's. */
const td_op *td_program_next(const td_program *p, const td_step_bucket *bucket, const td_program_cursor *cursor,
                             const td_step **step);
/** Enqueue it, or its next part: in halves as td_program_enqueue. */
TD_NODISCARD td_status td_program_enqueue_next(const td_program *p, td_npu *d, td_npu_stream *s,
                                               const td_step_bucket *bucket, td_program_cursor *cursor);
/** Hand over again what was open when the pass was left. Behind that the pass goes on. */
TD_NODISCARD td_status td_program_enqueue_again(const td_program *p, td_npu_stream *s, const td_step_bucket *bucket,
                                                const td_program_cursor *cursor);

/** What the bridge is told of a pass over the bucket. */
td_bridge_pass td_program_pass(const td_program *p, const td_step_bucket *bucket);
void           td_program_free(td_npu *d, td_program *p);

#endif
