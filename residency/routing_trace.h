/*
 * A routing trace: which experts the routers chose for every token of a text, in every MoE layer. Nothing of the text.
 *
 *   header  td_routing_header, 32 bytes, little endian
 *   ids     u16 [n_tok, n_layers, top_k]
 *
 * Tokens stand in the order of the text. `tandem trace-routing` writes such a file, `tandem bench residency` replays it.
 * Every byte read is checked: what is not exactly such a file is refused.
 */
#ifndef TD_RESIDENCY_ROUTING_TRACE_H
#define TD_RESIDENCY_ROUTING_TRACE_H

#include "tandem.h"

#define TD_ROUTING_LAYERS_MAX 4096
#define TD_ROUTING_TOP_K_MAX 256
#define TD_ROUTING_BYTES_MAX ((uint64_t)1 << 34)

typedef struct {
    char     magic[8]; /* "TDROUTES" */
    uint32_t version;
    uint32_t n_layers, n_experts, top_k; /* MoE layers, experts of a layer, experts that a token chooses in it */
    uint64_t n_tok;
} td_routing_header;

typedef struct {
    uint32_t        n_layers, n_experts, top_k;
    uint64_t        n_tok;
    const uint16_t *ids;    /* [n_tok, n_layers, top_k], each below n_experts; of a token and layer all different */
    void           *memory; /* malloc'd, of a trace that was read or made; NULL: ids are borrowed */
} td_routing_trace;

/** What a token chose in a layer. @return [top_k] */
static inline const uint16_t *td_routing_ids(const td_routing_trace *t, uint64_t token, uint32_t layer) {
    return t->ids + (token * t->n_layers + layer) * t->top_k;
}

/** The header of a file; the rows that follow are the writer's. */
td_routing_header td_routing_header_of(uint32_t n_layers, uint32_t n_experts, uint32_t top_k, uint64_t n_tok);

/**
 * The bytes of a file.
 * @param data [bytes] 8-byte aligned, borrowed by out.
 * @param name for messages.
 * @return TD_EFORMAT.
 */
TD_NODISCARD td_status td_routing_trace_parse(const void *data, uint64_t bytes, const char *name, td_routing_trace *out,
                                              td_error *err);

/** @return TD_EIO, TD_ENOMEM, TD_EFORMAT. */
TD_NODISCARD td_status td_routing_trace_read(const char *path, td_routing_trace *out, td_error *err);
void                   td_routing_trace_close(td_routing_trace *t);

#endif
