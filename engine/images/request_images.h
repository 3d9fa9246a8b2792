/*
 * The images of a request's prompt: their keys, and which of their features its next rows read.
 *
 * A prompt reads features from when its rows come near an image until they are behind it. Where there is no room for all of
 * its next images, it goes as far as the first that has none; what it leaves makes room for the others.
 *
 * Engine thread only, but for open and close.
 */
#ifndef TD_ENGINE_IMAGES_REQUEST_IMAGES_H
#define TD_ENGINE_IMAGES_REQUEST_IMAGES_H

#include "engine/images/image_cache.h"
#include "model/step_rows.h"

typedef struct {
    td_image         **images;  /* [n] held */
    td_known_image   **known;   /* [n] likewise, between enter and leave; else NULL */
    td_sequence_image *in_rows; /* [n] what step rows are told of them; features NULL unless they are read */
    uint32_t           n;
    uint32_t           first_read, end_read; /* images whose features it reads */
} td_request_images;

/** @param images [n] copied and held. @return TD_ENOMEM. */
TD_NODISCARD td_status td_request_images_open(td_request_images *r, const td_prompt_image *images, size_t n);
void                   td_request_images_close(td_request_images *r); /* one that is all zero is fine */

/** Make the images known, and write their keys in the place of their tokens. @param keys [tokens of the prompt]
 * @return as td_image_cache_hold; leave undoes what was done. */
TD_NODISCARD td_status td_request_images_enter(td_request_images *r, td_image_cache *c, uint32_t *keys);
void                   td_request_images_leave(td_request_images *r, td_image_cache *c);

/**
 * Before rows [begin, end) of the prompt are given to steps: read the images in them, as far as there is room.
 * @return the index of the first that has room and is to be encoded now; n: none is.
 */
uint32_t td_request_images_prepare(td_request_images *r, td_image_cache *c, uint32_t begin, uint32_t end);

/** Tokens from n_computed to here can be computed: to the first image that lacks its features; UINT32_MAX: all can. */
uint32_t td_request_images_reach(const td_request_images *r, uint32_t n_computed);

/** Tokens before n_computed are computed: read what lies before no more. */
void td_request_images_pass(td_request_images *r, td_image_cache *c, uint32_t n_computed);

/** Whether the request is about to read an image. */
bool td_request_images_reads(const td_request_images *r, const td_known_image *k);

/** Read nothing any more: the request is retracted. */
void td_request_images_end(td_request_images *r, td_image_cache *c);

/** Tokens before the first image. */
static inline uint32_t td_request_images_first(const td_request_images *r) {
    return r->n ? r->in_rows[0].first : UINT32_MAX;
}

#endif
