#include "engine/images/request_images.h"

#include <stdlib.h>

td_status td_request_images_open(td_request_images *r, const td_prompt_image *images, size_t n) {
    *r = (td_request_images){0};
    if (!n) return TD_OK;
    r->images = calloc(n, sizeof *r->images);
    r->known = calloc(n, sizeof *r->known);
    r->in_rows = calloc(n, sizeof *r->in_rows);
    if (!r->images || !r->known || !r->in_rows) {
        td_request_images_close(r);
        return TD_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const td_image *image = r->images[i] = images[i].image;
        td_image_hold(r->images[i]);
        r->in_rows[i] = (td_sequence_image){
            .first = images[i].first, .rows = image->rows / image->rule.merge, .columns = image->cols / image->rule.merge};
    }
    r->n = (uint32_t)n;
    return TD_OK;
}

void td_request_images_close(td_request_images *r) {
    for (uint32_t i = 0; i < r->n; i++) td_image_release(r->images[i]);
    free(r->images);
    free(r->known);
    free(r->in_rows);
    *r = (td_request_images){0};
}

/* The token behind image i. */
static uint32_t end_of(const td_request_images *r, uint32_t i) {
    return r->in_rows[i].first + r->in_rows[i].rows * r->in_rows[i].columns;
}

td_status td_request_images_enter(td_request_images *r, td_image_cache *c, uint32_t *keys) {
    for (uint32_t i = 0; i < r->n; i++) {
        td_status st = td_image_cache_hold(c, r->images[i], &r->known[i]);
        if (st != TD_OK) return st;
        for (uint32_t at = r->in_rows[i].first; at < end_of(r, i); at++) keys[at] = r->known[i]->key;
    }
    return TD_OK;
}

void td_request_images_leave(td_request_images *r, td_image_cache *c) {
    td_request_images_end(r, c);
    for (uint32_t i = 0; i < r->n && r->known[i]; i++) {
        td_image_cache_let_go(c, r->known[i]);
        r->known[i] = NULL;
    }
}

uint32_t td_request_images_prepare(td_request_images *r, td_image_cache *c, uint32_t begin, uint32_t end) {
    td_request_images_pass(r, c, begin);
    while (r->end_read < r->n && r->in_rows[r->end_read].first < end && td_image_cache_begin_read(c, r->known[r->end_read]))
        r->end_read++;
    for (uint32_t i = r->first_read; i < r->end_read; i++) {
        if (!r->known[i]->encoded) return i;
        r->in_rows[i].features = r->known[i]->features;
    }
    return r->n;
}

uint32_t td_request_images_reach(const td_request_images *r, uint32_t n_computed) {
    for (uint32_t i = 0; i < r->n; i++)
        if (end_of(r, i) > n_computed && !r->in_rows[i].features) /* the prefix cache may have its first tokens */
            return r->in_rows[i].first > n_computed ? r->in_rows[i].first : n_computed;
    return UINT32_MAX;
}

/* Read image first_read no more. */
static void end_first(td_request_images *r, td_image_cache *c) {
    r->in_rows[r->first_read].features = NULL;
    td_image_cache_end_read(c, r->known[r->first_read++]);
}

void td_request_images_pass(td_request_images *r, td_image_cache *c, uint32_t n_computed) {
    while (r->first_read < r->end_read && end_of(r, r->first_read) <= n_computed) end_first(r, c);
    if (r->first_read < r->end_read) return;
    while (r->end_read < r->n && end_of(r, r->end_read) <= n_computed) r->end_read++; /* the prefix cache had them */
    r->first_read = r->end_read;
}

bool td_request_images_reads(const td_request_images *r, const td_known_image *k) {
    for (uint32_t i = r->first_read; i < r->end_read; i++)
        if (r->known[i] == k) return true;
    return false;
}

void td_request_images_end(td_request_images *r, td_image_cache *c) {
    while (r->first_read < r->end_read) end_first(r, c);
    r->first_read = r->end_read = 0;
}
