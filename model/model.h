/*
 * A model: configuration, checkpoint, weights on both tiers, and the layer program that runs them.
 *
 * Life: td_model_open reads config.json and the checkpoint's index and checks every name and shape (no weight is read);
 * td_model_get_memory tells what it will take; td_model_load takes it; td_model_forward runs one step.
 */
#ifndef TD_MODEL_MODEL_H
#define TD_MODEL_MODEL_H

#include "model/layer_caches.h"
#include "model/memory_plan.h"
#include "model/model_probe.h"
#include "model/model_spec.h"
#include "model/piece.h"
#include "model/step_rows.h"
#include "residency/resident_experts.h"

typedef struct td_outline td_outline; /* model/program.h */

/**
 * Read config.json and the checkpoint's index, and settle the spec (td_model_get_spec). No weight is read.
 * @param spec  copied; model/model_spec.h says how long what it points to is read.
 * @param probe copied; NULL while serving.
 * @param npus  [spec->n_cards] opened cards of one backend, borrowed until close; the array itself is not kept.
 * @param expert_pool borrowed until close.
 * @return TD_EINVAL, TD_ENOTSUP, TD_EFORMAT, TD_EIO, TD_ENOTFOUND with a sentence, TD_ENOMEM.
 */
TD_NODISCARD td_status td_model_open(const td_model_spec *spec, const td_model_probe *probe, td_npu *const *npus,
                                     td_pool *expert_pool, td_model **out, td_error *err);
void                   td_model_close(td_model *m);

/** Of 4-bit experts that are all on the device: columns that share a scale; else 0. */
uint32_t td_model_device_expert_group(const td_model *m);
/** With device_experts TD_GPU_EXPERTS_AUTO, before td_model_load: how many of a layer's experts each card has room for; 0,
 * or with all cards at least the model's top_k. Until then the memory is that of the slots_most. */
void td_model_set_slots(td_model *m, uint32_t n_slots);

const td_model_spec   *td_model_get_spec(const td_model *m); /* as settled; the model's own, until close */
const td_model_config *td_model_get_config(const td_model *m);
uint32_t               td_model_context_length(const td_model *m);
uint32_t               td_model_one_form_from(const td_model *m); /* see td_layer_caches_one_form_from */
bool                   td_model_recurrent(const td_model *m);     /* see td_layer_caches_recurrent */
uint32_t               td_model_window(const td_model *m);        /* see td_layer_caches_window */
td_experts *td_model_get_experts(const td_model *m); /* after load, for measuring: may be run while no step is; NULL: none */
void        td_model_get_memory(const td_model *m, td_model_memory *memory);
/** The bytes of all memories together. */
static inline uint64_t td_model_memory_bytes(const td_model_memory *p, uint32_t n_pages) {
    return p->npu_weight_bytes + p->encoder_weight_bytes + p->encoder_scratch_bytes + p->slots * p->slot_bytes +
           p->device_scratch_bytes + p->state_bytes + td_model_kv_bytes(p, n_pages) + td_model_host_experts(p) +
           p->host_scratch_bytes;
}
/** What a forward pass enqueues on the first card, without building it; after open. Free with td_outline_free. */
TD_NODISCARD td_status td_model_outline(const td_model *m, uint32_t n_halves, td_outline *out, td_error *err);
uint32_t td_model_halves(const td_model *m, uint32_t n_tok); /* 2 if a step of so many rows goes through in halves, else 1 */
/** Bytes per row that a layer's hand-over copies each way, if device and host have two memories. */
void td_model_handover_bytes(const td_model *m, size_t *to_host, size_t *to_device);
/** The experts' format as people call it; static. */
const char *td_model_expert_quantization(const td_model *m);
const char *td_model_expert_kernel(const td_model *m); /* after load */

/* ---- images ---- */

/** The encoder of a model that takes images; NULL: it is served for text alone (td_model_spec.max_patches). After open. */
const td_vision_config *td_model_vision(const td_model *m);

/**
 * Begin to encode a picture, on the first card; nothing is computed yet. One that has not ended is dropped. From the thread of
 * the passes, between passes. Between its pieces passes may run, those in pieces too. The features have the same bits wherever
 * it is cut.
 * @param pixels, rows, columns, features as td_vision_start (model/vision.h): the caller's until the last piece has ended;
 *        features are written by then.
 * @return TD_EINVAL for a picture of odd sides, or of more than max_patches; TD_ENOMEM, TD_EDEVICE. td_model_why has a sentence.
 */
TD_NODISCARD td_status td_model_start_image(td_model *m, const float *pixels, uint32_t rows, uint32_t columns,
                                            float *features);
/** Compute the next operations, one at the least. @return as td_model_start_image; the picture is dropped then. */
TD_NODISCARD td_status td_model_run_image_piece(td_model *m, td_piece *piece);

/** What the tiers have done since load, and the (token, expert) pairs. Any thread. */
typedef struct {
    td_tier_work        device, experts;
    uint64_t            expert_pairs, deferred_pairs;
    uint64_t            link_down_bytes, link_up_bytes; /* down: to the device; up: from it; 0 with unified memory */
    td_residency_counts residency;                      /* its slots are 0 if no experts move */
} td_model_work;

void td_model_get_work(const td_model *m, td_model_work *out);

/** Figures of the model's cards. Any thread; may wait for the devices' drivers. @return how many; 0: the device is the
 * host. */
uint32_t td_model_get_cards(const td_model *m, td_card_stats out[TD_CARDS_MAX]);

/**
 * Whether a card can do nothing any more in this process. Any thread. @param why may be NULL; receives TD_ELOST and a
 * sentence.
 */
bool td_model_is_lost(const td_model *m, td_error *why);

/** Why the last pass failed, for people: the sentence of a card, or the text of its status if no card gave one. From the
 * thread of the passes. @return valid until the next pass. */
const char *td_model_why(const td_model *m, td_status st);

/** What the tiers are in right now, for people: "mla of layer 12 on the device, experts of layer 11". Any thread. */
void td_model_describe(const td_model *m, char *text, size_t size);

/** Load the weights and allocate n_pages of KV. Logs progress. */
TD_NODISCARD td_status td_model_load(td_model *m, uint32_t n_pages, td_error *err);

/**
 * Run the layers for the rows of a step, and the head for some of them. The rows' KV is written, and their last hidden
 * states are kept for td_model_head and td_model_mtp. Synchronous. From one thread at a time.
 * @param rows [1..max_tok rows]; must stay as they are until the next forward.
 * @param logits out: [out.n, vocab] f32 on the host, the model's, valid until the next call; untouched with out.n 0.
 * @return TD_EDEVICE when a device operation failed; the KV of the rows is then undefined.
 */
TD_NODISCARD td_status td_model_forward(td_model *m, const td_step_rows *rows, td_out_rows out, const float **logits);

/* ---- a pass in pieces (pass_pieces.c) ---- */

/**
 * Begin a forward pass that goes in pieces, with spec.in_pieces; nothing runs yet. Between its pieces other passes may run,
 * each from begin to end: their rows are at most spec.max_tok - spec.aside_tok, and their sequences are others. The results
 * are those of td_model_forward, wherever the pass is cut. One that has not ended is dropped.
 * @param rows at most spec.aside_tok, TD_ASIDE_SEQ sequences; the caller's, unchanged while the pass is of use.
 */
void td_model_start_pieces(td_model *m, const td_step_rows *rows);
/** Drop the pass that has been started and not ended, if there is one: nothing is kept for it any more. */
void td_model_drop_pieces(td_model *m);

/**
 * Compute the next operations, one at the least. Once the last piece has ended, and until another forward, td_model_head and
 * td_model_mtp are over its rows.
 * @return as td_model_forward; the pass is dropped then.
 */
TD_NODISCARD td_status td_model_run_piece(td_model *m, td_piece *piece);

/**
 * Copies of pages of the KV cache, all layers of all cards, to keep them elsewhere. From the thread of the passes, between
 * passes; synchronous.
 */
size_t                 td_model_page_bytes(const td_model *m);
TD_NODISCARD td_status td_model_prepare_page_copies(td_model *m, td_error *err); /* after load, before the first copy */
TD_NODISCARD td_status td_model_read_page(td_model *m, uint32_t page, void *to);
TD_NODISCARD td_status td_model_write_page(td_model *m, uint32_t page,
                                           const void *from); /* TD_EDEVICE: the page's content is undefined */

/** A hash of what the checkpoint holds: names, shapes and samples of the values. Before load; 0: random weights. */
uint64_t td_model_source_hash(const td_model *m);

/** Logits of more rows of the last forward, as td_model_forward's. */
TD_NODISCARD td_status td_model_head(td_model *m, td_out_rows out, const float **logits);

/**
 * The multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437 section 2.2) over the rows of the last forward: row i is
 * fed next_token[i] and predicts the token after it. Its KV goes to the same slots of its own cache. td_model_mtp_head
 * gives logits of its rows.
 * @return TD_ENOTSUP when the model has no MTP layer.
 */
TD_NODISCARD td_status td_model_mtp(td_model *m, const uint32_t *next_token);
TD_NODISCARD td_status td_model_mtp_head(td_model *m, td_out_rows out, const float **logits);

/**
 * With spec.layers: run these layers on hidden states. Of the step's rows the positions and slots count, the tokens do not.
 * For the MTP layer the tokens are the next ones, and `in` is the residual stream behind the main model.
 * @param in, out [n_tok, hidden] of the activations' type, on the host; the residual stream before and after the layers.
 * They may be the same.
 */
TD_NODISCARD td_status td_model_run_layers(td_model *m, const td_step_rows *rows, const void *in, void *out);

/** The layer and role of one of the model's weights, for td_host_npu_config.rows_tap. @return false: it is not the
 * model's. */
bool td_model_find_weight(const td_model *m, const td_npu_weight *w, uint32_t *layer, td_role *role);

/** The routed experts of the last forward, with probe.keep_routing: ids and weights [n_tok, top_k] of MoE layer `layer`
 * (MTP's is the last). */
void td_model_get_routing(const td_model *m, uint32_t layer, const uint16_t **ids, const float **weights);

#endif
