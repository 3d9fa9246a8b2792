#include "residency/routing_trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"

#define MAGIC "TDROUTES"
#define VERSION 1

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little endian");
_Static_assert(sizeof(td_routing_header) == 32, "no padding");

td_routing_header td_routing_header_of(uint32_t n_layers, uint32_t n_experts, uint32_t top_k, uint64_t n_tok) {
    td_routing_header h = {.version = VERSION, .n_layers = n_layers, .n_experts = n_experts, .top_k = top_k, .n_tok = n_tok};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

static td_status check_header(const td_routing_header *h, uint64_t bytes, const char *name, td_error *err) {
    if (bytes < sizeof *h || memcmp(h->magic, MAGIC, sizeof h->magic))
        return td_fail(err, TD_EFORMAT, "%s is not a routing trace", name);
    if (h->version != VERSION)
        return td_fail(err, TD_EFORMAT, "%s has version %u of the format, this program reads %d", name, h->version, VERSION);
    if (!h->n_layers || h->n_layers > TD_ROUTING_LAYERS_MAX || !h->n_experts || h->n_experts >= UINT16_MAX || !h->top_k ||
        h->top_k > TD_ROUTING_TOP_K_MAX || h->top_k > h->n_experts || !h->n_tok)
        return td_fail(err, TD_EFORMAT, "%s is damaged: %llu tokens, %u layers, %u experts, %u per token", name,
                       (unsigned long long)h->n_tok, h->n_layers, h->n_experts, h->top_k);
    uint64_t rows, token = (uint64_t)h->n_layers * h->top_k * sizeof(uint16_t);
    if (__builtin_mul_overflow(h->n_tok, token, &rows) || rows != bytes - sizeof *h)
        return td_fail(err, TD_EFORMAT, "%s is damaged: its %llu bytes are not those of %llu tokens", name,
                       (unsigned long long)bytes, (unsigned long long)h->n_tok);
    return TD_OK;
}

static bool is_choice(const uint16_t *ids, uint32_t top_k, uint32_t n_experts) {
    for (uint32_t k = 0; k < top_k; k++) {
        if (ids[k] >= n_experts) return false;
        for (uint32_t other = 0; other < k; other++)
            if (ids[other] == ids[k]) return false;
    }
    return true;
}

td_status td_routing_trace_parse(const void *data, uint64_t bytes, const char *name, td_routing_trace *out, td_error *err) {
    const td_routing_header *h = data;
    TD_TRY(check_header(h, bytes, name, err));
    td_routing_trace t = {.n_layers = h->n_layers,
                          .n_experts = h->n_experts,
                          .top_k = h->top_k,
                          .n_tok = h->n_tok,
                          .ids = (const uint16_t *)(h + 1)};
    for (uint64_t token = 0; token < t.n_tok; token++)
        for (uint32_t l = 0; l < t.n_layers; l++)
            if (!is_choice(td_routing_ids(&t, token, l), t.top_k, t.n_experts))
                return td_fail(err, TD_EFORMAT, "%s is damaged: in layer %u token %llu does not choose %u of %u experts",
                               name, l, (unsigned long long)token, t.top_k, t.n_experts);
    *out = t;
    return TD_OK;
}

static td_status read_open(FILE *f, const char *path, td_routing_trace *out, td_error *err) {
    struct stat s;
    if (fstat(fileno(f), &s) != 0 || !S_ISREG(s.st_mode)) return td_fail(err, TD_EFORMAT, "%s is not a regular file", path);
    uint64_t bytes = (uint64_t)s.st_size;
    if (bytes > TD_ROUTING_BYTES_MAX)
        return td_fail(err, TD_EFORMAT, "%s has %llu bytes: too many for a routing trace", path, (unsigned long long)bytes);
    void *memory = malloc(bytes + 1);
    if (!memory) return td_fail(err, TD_ENOMEM, "out of memory for %s", path);
    td_status st = fread(memory, 1, bytes, f) == bytes ? td_routing_trace_parse(memory, bytes, path, out, err)
                                                       : td_fail(err, TD_EIO, "cannot read %s", path);
    if (st == TD_OK)
        out->memory = memory;
    else
        free(memory);
    return st;
}

td_status td_routing_trace_read(const char *path, td_routing_trace *out, td_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    td_status st = read_open(f, path, out, err);
    fclose(f);
    return st;
}

void td_routing_trace_close(td_routing_trace *t) {
    free(t->memory);
    *t = (td_routing_trace){0};
}
