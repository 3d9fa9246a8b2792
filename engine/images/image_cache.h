/*
 * The images that requests have brought: a number for each, and what the encoder has made of them while there is room.
 *
 * DESIGN. The prefix cache finds pages by their tokens, but all tokens of all images are the same. So every image has a key
 * that no other image gets from this engine, and no token is: its tokens go by that key. Equal pixels have equal keys as long
 * as the image is known: while a request holds it, and then until TD_IMAGES_KEPT others have been let go. An image that
 * comes again later has a new key, and is computed again.
 *
 * Features are what the encoder makes, rows for each token of the image. They are large, so they have a bound of their own.
 * Of those that no prompt is about to read, the ones read longest ago make room first.
 *
 * Engine thread only.
 */
#ifndef TD_ENGINE_IMAGES_IMAGE_CACHE_H
#define TD_ENGINE_IMAGES_IMAGE_CACHE_H

#include "image/image.h"

#define TD_IMAGES_KEPT 4096      /* that are known though no request holds them */
#define TD_IMAGE_KEY 0x80000000u /* the first key of an image */
#define TD_IMAGE_BUCKETS 4096

/** An image that is known. Anybody may read the members. */
typedef struct td_known_image {
    uint8_t                hash[TD_IMAGE_HASH_BYTES];
    uint32_t               key, n_tokens;
    uint32_t               n_holders, n_readers; /* that hold it; that are about to read its features */
    float                 *features; /* [1 + taps, n_tokens, hidden] as td_sequence_image has them; NULL: no room */
    bool                   encoded;  /* the features are there */
    uint64_t               used;     /* when a holder or a reader last left, in such events */
    struct td_known_image *chain;    /* the next in its bucket */
} td_known_image;

typedef struct {
    td_known_image *buckets[TD_IMAGE_BUCKETS]; /* chains, by hash */
    size_t          token_bytes;               /* of the features of a token */
    uint64_t        bytes, bytes_max;          /* of features */
    uint32_t        n_unheld, n_read;          /* known images without holders, and with readers */
    uint64_t        next_key, events;
    uint64_t        evictions; /* of features, since open */
} td_image_cache;

/** @param bytes_max room for the features of one image at least. @param token_bytes of the features of a token. */
void td_image_cache_open(td_image_cache *c, uint64_t bytes_max, size_t token_bytes);
void td_image_cache_close(td_image_cache *c); /* one that is all zero is fine */

/** Hold an image. @return TD_ENOMEM; TD_ELIMIT: all keys are given away. */
TD_NODISCARD td_status td_image_cache_hold(td_image_cache *c, const td_image *image, td_known_image **out);
void                   td_image_cache_let_go(td_image_cache *c, td_known_image *k);

/** Be about to read the features of an image that is held: they stay, or have room. @return false: there is no room now. */
bool td_image_cache_begin_read(td_image_cache *c, td_known_image *k);
void td_image_cache_end_read(td_image_cache *c, td_known_image *k);

/** One more holder and reader of an image that has a reader: who encodes it. */
void td_image_cache_join(td_known_image *k);

#endif
