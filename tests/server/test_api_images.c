/* A request's images, with an engine that decodes none: what their memory counts for, and where their tokens go. */
#include <stdlib.h>

#include "core/error.h"
#include "image/image.h"
#include "server/request/api_images.h"
#include "tests/td_test.h"

static const td_engine_info INFO = {.image_token = 9};
static uint32_t             g_tokens;  /* of the next image */
static td_error             g_refusal; /* of the next image, unless its status is TD_OK */
static int                  g_live;    /* images that somebody holds */

td_status __wrap_td_engine_load_image(td_engine *e, const char *text, size_t len, td_image **out, td_error *err);
void      __wrap_td_image_release(td_image *image);
void      __real_td_image_release(td_image *image);

td_status __wrap_td_engine_load_image(td_engine *e, const char *text, size_t len, td_image **out, td_error *err) {
    (void)e, (void)text, (void)len;
    if (g_refusal.status != TD_OK) return td_fail(err, g_refusal.status, "%s", g_refusal.text);
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    atomic_init(&(*out)->refs, 1);
    (*out)->rule.merge = (*out)->rows = 1;
    (*out)->cols = g_tokens;
    g_live++;
    return TD_OK;
}

void __wrap_td_image_release(td_image *image) {
    g_live -= image != NULL; /* nobody here holds one twice */
    __real_td_image_release(image);
}

/* Add an image and load it. */
static td_status load(td_api_images *all, uint32_t tokens, td_api_image_counts *counts, bool keeps, td_api_error *err) {
    json_t *source = json_string("AAAA");
    OK(td_api_images_add(all, &INFO, "image", source, err));
    json_decref(source);
    g_tokens = tokens;
    return td_api_images_load(all, NULL, counts, keeps, err);
}

TEST(tokens_take_the_places) {
    static const uint32_t given[] = {1, 9, 2, 9, 9}, wanted[] = {1, 9, 9, 9, 2, 9, 9, 9};
    td_api_image_counts   counts = {0};
    td_api_images         all = {0};
    td_api_error          err;
    uint32_t             *ids = malloc(sizeof given);
    td_prompt_image      *places = NULL;
    size_t                n = 5, n_places;
    memcpy(ids, given, sizeof given);
    for (uint32_t i = 0; i < 4; i++) OK(load(&all, (const uint32_t[]){7, 3, 2, 1}[i], &counts, true, &err));
    OK(td_api_images_place(&all, 2, 2, 9, &ids, &n, &n_places, &places));
    assert_int_equal(n_places, 3); /* for two images: nothing has changed */
    assert_int_equal(n, 5);
    assert_memory_equal(ids, given, sizeof given);
    OK(td_api_images_place(&all, 1, 3, 9, &ids, &n, &n_places, &places)); /* the first is of a prompt before */
    assert_int_equal(n, 8);
    assert_memory_equal(ids, wanted, sizeof wanted);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(places[i].first, ((const uint32_t[]){1, 5, 7})[i]);
        assert_ptr_equal(places[i].image, all.at[1 + i].image);
    }
    free(ids);
    free(places);
    td_api_images_free(&all);
    assert_int_equal(g_live, 0);
}

/* What requests hold is bounded, for all of them together, and until they end. */
TEST(memory_is_bounded) {
    const uint32_t      half = TD_API_IMAGE_TOKENS_HELD_MAX / 2;
    td_api_image_counts counts = {0};
    td_api_images       one = {0}, other = {0}, counted = {0};
    td_api_error        err;
    OK(load(&one, half, &counts, true, &err));
    OK(load(&other, half, &counts, true, &err));
    assert_int_equal(load(&other, 2, &counts, true, &err), TD_EINVAL);
    assert_int_equal(err.http, 503);
    assert_string_equal(err.code, "queue_full");
    OK(load(&counted, 2, &counts, false, &err)); /* holds nothing */
    assert_int_equal(g_live, 3);
    td_api_images_given(&one); /* the engine's now: still counted */
    assert_int_equal(g_live, 2);
    assert_int_equal(counts.held, 2 * (size_t)half + 2);
    td_api_images_free(&one);
    OK(load(&counted, 2, &counts, true, &err));
    td_api_images_free(&other);
    td_api_images_free(&counted);
    assert_int_equal(g_live, 0);
    assert_int_equal(counts.held, 0);
    assert_int_equal(counts.loaded, 5);
}

/* Whose fault it is decides the answer, and the sentence names the field where it is the sender's. */
TEST(refusals) {
    static const struct {
        td_status   status;
        int         http;
        const char *says;
    } ROWS[] = {{TD_EFORMAT, 400, "'image' cannot be used: why."},
                {TD_ENOTSUP, 400, "'image' cannot be used: why."},
                {TD_ELIMIT, 400, "'image' cannot be used: why."},
                {TD_ENOMEM, 500, "why"},
                {TD_EIO, 500, "why"}};
    td_api_image_counts counts = {0};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        td_api_images all = {0};
        td_api_error  err;
        g_refusal = (td_error){ROWS[i].status, "why"};
        assert_int_equal(load(&all, 1, &counts, true, &err), TD_EINVAL);
        assert_int_equal(err.http, ROWS[i].http);
        assert_string_equal(err.message, ROWS[i].says);
        td_api_images_free(&all);
    }
    g_refusal = (td_error){0};
    assert_int_equal(counts.refused, sizeof ROWS / sizeof *ROWS);
    assert_int_equal(counts.held, 0);
}
