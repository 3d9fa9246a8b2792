/*
 * The images of a request: found in its body, made ready by the engine one by one, and put into the prompt where it has
 * their places.
 *
 * To make an image ready takes a process of the engine's and up to half a minute (td_engine_load_image). So a reader of a
 * body only collects what stands for an image, and a text thread loads one image at a time, so that requests with many
 * images and those with few take turns.
 */
#ifndef TD_SERVER_REQUEST_API_IMAGES_H
#define TD_SERVER_REQUEST_API_IMAGES_H

#include <jansson.h>
#include <stdatomic.h>

#include "server/api/api_error.h"
#include "tandem.h"

#define TD_API_IMAGES_MAX 1000 /* of a request; vLLM takes 999, OpenAI 1500, Anthropic 600 */

/* Memory that images hold until their requests end: of all requests, in tokens. A token stands for 32 x 32 pixels at most
 * in the models that are served, 3 KiB; so this is 1 GiB. */
#define TD_API_IMAGE_TOKENS_HELD_MAX (((size_t)1 << 30) / 3072)

typedef struct {
    json_t   *source;                  /* a string, data URL or base64; a reference; NULL once it is loaded */
    char      param[TD_API_PARAM_MAX]; /* the field that it came in */
    td_image *image;                   /* a reference; NULL: not loaded, or only counted */
    uint32_t  tokens;                  /* of the prompt that stand for it, once it is loaded */
} td_api_image;

/** Of all requests of a server. Zero-initialise. Relaxed: counts. */
typedef struct {
    atomic_size_t        held; /* tokens of images that requests hold, or the engine for them */
    atomic_uint_fast64_t loaded, refused, tokens,
        ns; /* since the start: images, also those of no use; tokens, time of both */
} td_api_image_counts;

/** Zero-initialise. */
typedef struct {
    td_api_image  *at; /* [n], owned, in the order of their places */
    size_t         n, room;
    size_t         n_loaded;     /* the first ones are */
    size_t         source_bytes; /* of all sources */
    size_t         tokens;       /* of those that are loaded */
    const char    *places;       /* static: what errors call the field that has the places; NULL: "prompt", or "messages" */
    bool           has_detail;   /* one asks for a 'detail', and a warning has said that it has no effect */
    atomic_size_t *held;         /* tokens of all requests' images, of which held_tokens are these; NULL: none are */
    size_t         held_tokens;
} td_api_images;

void td_api_images_free(td_api_images *all);

static inline bool td_api_images_left(const td_api_images *all) {
    return all->n_loaded < all->n;
}

/** Add an image that the field param has as source. @return refused where the model takes none, where the source is no
 * string or an address of the network, and where there are too many. */
TD_NODISCARD td_status td_api_images_add(td_api_images *all, const td_engine_info *info, const char *param, json_t *source,
                                         td_api_error *err);

/** Load the next image, of which there is one. @param keeps it is for a prompt, and held until td_api_images_free; else only
 * counted. */
TD_NODISCARD td_status td_api_images_load(td_api_images *all, td_engine *engine, td_api_image_counts *counts, bool keeps,
                                          td_api_error *err);

/** The engine has them: let go of the images, which still count as held, because the engine may need them until the request
 * ends. */
void td_api_images_given(td_api_images *all);

/**
 * Put n loaded images, from first on, into a prompt: each token `token` of *ids becomes as many as the image has.
 * @param ids    malloc'd, [*n_ids], replaced.
 * @param places receives where they are, malloc'd, [n]; NULL: not wanted.
 * @return TD_OK with *n_places other than n, and nothing changed, if the prompt has so many places.
 */
TD_NODISCARD td_status td_api_images_place(const td_api_images *all, size_t first, size_t n, uint32_t token, uint32_t **ids,
                                           size_t *n_ids, size_t *n_places, td_prompt_image **places);

#endif
