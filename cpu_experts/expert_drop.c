/* Experts that leave memory while they are somewhere else too, and come back from their packed file. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "cpu_experts/expert_state.h"
#include "cpu_experts/packed_io.h"

td_status td_expert_origin_open(td_experts *x, uint32_t layer, const char *path, td_error *err) {
    expert_origin *o = &x->origin[layer];
    int            fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    *o = (expert_origin){.fd = fd, .path = strdup(path), .expert = calloc(x->config.n_experts, sizeof *o->expert)};
    if (o->path && o->expert) return TD_OK;
    td_expert_origin_close(x, layer);
    return td_fail(err, TD_ENOMEM, "out of memory for the file of a layer's experts");
}

void td_expert_origin_close(td_experts *x, uint32_t layer) {
    expert_origin *o = &x->origin[layer];
    if (o->path || o->expert) close(o->fd);
    free(o->path);
    free(o->expert);
    *o = (expert_origin){0};
}

/* The piece that a shard has of an expert, and where it lies in the layer's file. */
static packed_span piece_of(const td_experts *x, uint32_t layer, uint32_t expert, uint32_t shard) {
    const size_t bytes = x->layout.shard[shard].expert.bytes;
    packed_span  p = {.offset = TD_FILE_BLOCK + expert * bytes,
                      .bytes = bytes,
                      .dst = (char *)expert_shard_data(x, layer, shard) + expert * bytes};
    for (uint32_t s = 0; s < shard; s++) p.offset += x->layout.shard[s].bytes;
    return p;
}

static uint64_t hash_expert(const td_experts *x, uint32_t layer, uint32_t expert) {
    uint64_t hash = 0;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        const packed_span p = piece_of(x, layer, expert, s);
        hash = XXH3_64bits_withSeed(p.dst, p.bytes, hash);
    }
    return hash;
}

/* Pages that other experts have a part of stay. */
static void give_back(const td_experts *x, uint32_t layer, uint32_t expert) {
    const size_t page = td_page_bytes();
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        const packed_span p = piece_of(x, layer, expert, s);
        const uintptr_t   first = td_round_up((uintptr_t)p.dst, page), end = ((uintptr_t)p.dst + p.bytes) / page * page;
        if (first < end) madvise((void *)first, end - first, MADV_DONTNEED); /* a failure costs memory only */
    }
}

uint64_t td_packed_drop_bytes(const td_packed_expert *p) {
    const size_t page = td_page_bytes();
    uint64_t     bytes = 0;
    for (uint32_t s = 0; s < p->n_pieces; s++)
        if (p->piece[s].bytes >= page) bytes += (p->piece[s].bytes - (page - 1)) / page * page;
    return bytes;
}

static droppable_expert *droppable(const td_experts *x, uint32_t layer, uint32_t expert) {
    assert(layer < x->config.n_layers && x->loaded[layer] && x->origin[layer].expert && expert < x->config.n_experts);
    return &x->origin[layer].expert[expert];
}

void td_experts_drop(td_experts *x, uint32_t layer, uint32_t expert) {
    droppable_expert *e = droppable(x, layer, expert);
    if (e->dropped) return;
    if (!e->hashed) e->hash = hash_expert(x, layer, expert);
    e->hashed = e->dropped = true;
    give_back(x, layer, expert);
}

td_status td_experts_read_again(td_experts *x, uint32_t layer, uint32_t expert, td_error *err) {
    const expert_origin *o = &x->origin[layer];
    droppable_expert    *e = droppable(x, layer, expert);
    td_status            st = TD_OK;
    if (!e->dropped) return TD_OK;
    for (uint32_t s = 0; s < x->layout.n_shards && st == TD_OK; s++)
        st = td_packed_read_piece(o->fd, o->path, piece_of(x, layer, expert, s), err);
    if (st == TD_OK && hash_expert(x, layer, expert) != e->hash)
        st = td_fail(err, TD_EFORMAT, "%s was changed: expert %u is not what it was", o->path, expert);
    e->dropped = st != TD_OK;
    if (e->dropped) give_back(x, layer, expert);
    return st;
}
