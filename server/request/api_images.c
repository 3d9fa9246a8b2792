#include "server/request/api_images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"

void td_api_images_free(td_api_images *all) {
    for (size_t i = 0; i < all->n; i++) {
        json_decref(all->at[i].source);
        td_image_release(all->at[i].image);
    }
    free(all->at);
    if (all->held) atomic_fetch_sub_explicit(all->held, all->held_tokens, memory_order_relaxed);
    *all = (td_api_images){0};
}

/* Whether a text begins as an address of the network or of a file does: a name and "://". */
static bool is_address(const char *text, size_t len) {
    size_t n = 0;
    while (n < len && n < 16 && ((text[n] | 32) >= 'a' && (text[n] | 32) <= 'z')) n++;
    return len - n >= 3 && !memcmp(text + n, "://", 3);
}

static td_status check(const td_api_images *all, const td_engine_info *info, const char *param, const json_t *source,
                       td_api_error *err) {
    if (info->image_token == UINT32_MAX)
        return td_api_bad(err, param, "'%s' is an image, and this model is served for text only.", param);
    if (!json_is_string(source))
        return td_api_bad(err, param, "'%s' must be a string: a data URL (data:image/png;base64,…), or base64.", param);
    if (is_address(json_string_value(source), json_string_length(source)))
        return td_api_bad(err, param,
                          "'%s' is an address, and this server fetches nothing: send the image as a data URL "
                          "(data:image/png;base64,…).",
                          param);
    if (all->n == TD_API_IMAGES_MAX)
        return td_api_bad(err, param, "The request has more than %d images.", TD_API_IMAGES_MAX);
    return TD_OK;
}

td_status td_api_images_add(td_api_images *all, const td_engine_info *info, const char *param, json_t *source,
                            td_api_error *err) {
    TD_TRY(check(all, info, param, source, err));
    if (all->n == all->room) {
        size_t        room = all->room ? 2 * all->room : 4;
        td_api_image *at = realloc(all->at, room * sizeof *at);
        if (!at) return td_api_no_memory(err);
        all->at = at;
        all->room = room;
    }
    td_api_image *image = &all->at[all->n++];
    *image = (td_api_image){.source = json_incref(source)};
    snprintf(image->param, sizeof image->param, "%s", param);
    all->source_bytes += json_string_length(source);
    return TD_OK;
}

/* ---- loading ---- */

static td_status refuse(const td_api_image *image, td_status st, const td_error *cause, td_api_error *err) {
    if (st == TD_EFORMAT || st == TD_ENOTSUP || st == TD_ELIMIT)
        return td_api_bad(err, image->param, "'%s' cannot be used: %.350s.", image->param, cause->text);
    return td_api_from_status(err, st, cause, image->param);
}

/* Count the tokens of an image as held. @return false: there is no room. */
static bool hold(td_api_images *all, atomic_size_t *held, size_t tokens) {
    size_t before = atomic_fetch_add_explicit(held, tokens, memory_order_relaxed);
    all->held = held;
    all->held_tokens += tokens;
    return before + tokens <= TD_API_IMAGE_TOKENS_HELD_MAX;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void count_load(td_api_image_counts *counts, uint64_t begin_ns, const td_image *image) {
    atomic_fetch_add_explicit(&counts->ns, now_ns() - begin_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(image ? &counts->loaded : &counts->refused, 1, memory_order_relaxed);
    if (image) atomic_fetch_add_explicit(&counts->tokens, td_image_tokens(image), memory_order_relaxed);
}

td_status td_api_images_load(td_api_images *all, td_engine *engine, td_api_image_counts *counts, bool keeps,
                             td_api_error *err) {
    td_api_image *next = &all->at[all->n_loaded];
    const char   *text = json_string_value(next->source);
    td_error      cause = {0};
    td_image     *image = NULL;
    uint64_t      begin_ns = now_ns();
    td_status     st = td_engine_load_image(engine, text, json_string_length(next->source), &image, &cause);
    count_load(counts, begin_ns, image);
    if (st != TD_OK) return refuse(next, st, &cause, err);
    json_decref(next->source);
    next->source = NULL;
    next->tokens = td_image_tokens(image);
    all->tokens += next->tokens;
    all->n_loaded++;
    if (!keeps) {
        td_image_release(image);
        return TD_OK;
    }
    next->image = image;
    if (!hold(all, &counts->held, next->tokens))
        return td_api_fail(err, 503, "queue_full", "Requests hold as many images as there is memory for.");
    return TD_OK;
}

void td_api_images_given(td_api_images *all) {
    for (size_t i = 0; i < all->n; i++) {
        td_image_release(all->at[i].image);
        all->at[i].image = NULL;
    }
}

/* ---- places ---- */

static size_t count(const uint32_t *ids, size_t n, uint32_t id) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += ids[i] == id;
    return found;
}

td_status td_api_images_place(const td_api_images *all, size_t first, size_t n, uint32_t token, uint32_t **ids,
                              size_t *n_ids, size_t *n_places, td_prompt_image **places) {
    size_t more = 0, at = 0;
    *n_places = count(*ids, *n_ids, token);
    if (*n_places != n || n == 0) return TD_OK;
    for (size_t i = 0; i < n; i++) more += all->at[first + i].tokens;
    uint32_t        *to = malloc((*n_ids - n + more) * sizeof *to);
    td_prompt_image *list = places ? malloc(n * sizeof *list) : NULL;
    if (!to || (places && !list)) {
        free(to);
        free(list);
        return TD_ENOMEM;
    }
    for (size_t i = 0, k = first; i < *n_ids; i++) {
        if ((*ids)[i] != token) {
            to[at++] = (*ids)[i];
            continue;
        }
        const td_api_image *image = &all->at[k];
        if (list) list[k - first] = (td_prompt_image){(uint32_t)at, image->image};
        for (uint32_t t = 0; t < image->tokens; t++) to[at++] = token;
        k++;
    }
    free(*ids);
    *ids = to;
    *n_ids = at;
    if (places) *places = list;
    return TD_OK;
}
