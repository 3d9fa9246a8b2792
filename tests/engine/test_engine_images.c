/*
 * Requests with images, over the fake model: every answer is the plain loop's, whatever shares the step, the prefix cache and
 * the room for what the encoder makes. An image is encoded once while it is remembered.
 */
#include <unistd.h>

#include "core/math/rng.h"
#include "engine/images/image_cache.h"
#include "fake_model.h"
#include "image/image.h"
#include "probe_check.h"
#include "tests/model/folder_files.h"
#include "tests/td_test.h"

#define CHUNK 64
#define RUNNING 6
#define MOST_TOKENS 100 /* of an image */
#define IMAGES_MAX 8

static char g_folder[] = "/tmp/tandem_images_XXXXXX";
BEFORE_ALL {
    static const char *const FILES[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"};
    static const char        RULE[] =
        "{\"image_processor_type\": \"Qwen2VLImageProcessorFast\", \"patch_size\": 2, \"merge_size\": 2, "
        "\"temporal_patch_size\": 2, \"size\": {\"shortest_edge\": 16, \"longest_edge\": 65536}}";
    char path[256];
    assert_non_null(mkdtemp(g_folder));
    copy_files(TD_SOURCE_DIR "/models/tale-v3-14m", g_folder, FILES, sizeof FILES / sizeof *FILES);
    snprintf(path, sizeof path, "%s/preprocessor_config.json", g_folder);
    write_file(path, RULE, strlen(RULE));
    fake_images(true);
    if (getenv("TD_TEST_PIECES")) fake_pieces(3);
    fake_recurrent(getenv("TD_TEST_RECURRENT") != NULL);
    fake_windows(getenv("TD_TEST_WINDOWS") != NULL);
}

AFTER_ALL {
    remove_folder(g_folder);
}

/* @param cached_tokens that the encoder's rows of images have room for. */
static td_engine_options options(uint64_t kv_tokens, uint32_t cached_tokens) {
    td_engine_options o = engine_options(kv_tokens, CHUNK, RUNNING);
    o.model_path = g_folder;
    o.max_image_tokens = MOST_TOKENS;
    o.image_cache_gib = (double)(cached_tokens * FAKE_IMAGE_TOKEN_BYTES) / (1 << 30);
    if (getenv("TD_TEST_PIECES")) o.max_step_ms = 1;
    return o;
}

static td_engine *open_with(uint64_t kv_tokens, uint32_t cached_tokens) {
    const td_engine_options o = options(kv_tokens, cached_tokens);
    return engine_open(&o);
}

/* rows x columns tokens, whose bytes are all the number. */
static td_image *image_of(uint8_t number, uint32_t rows, uint32_t columns) {
    td_image *image = calloc(1, sizeof *image);
    assert_non_null(image);
    atomic_init(&image->refs, 1);
    image->rule = WITH(td_image_rule, .sizing = TD_IMAGE_QWEN, .patch = FAKE_IMAGE_PATCH, .merge = 2, .frames = 2,
                       .mean = {0.5f, 0.5f, 0.5f}, .std = {0.5f, 0.5f, 0.5f});
    image->rows = 2 * rows;
    image->cols = 2 * columns;
    const size_t bytes = (size_t)image->rows * image->cols * FAKE_IMAGE_PATCH * FAKE_IMAGE_PATCH * 3;
    image->rgb = malloc(bytes);
    assert_non_null(image->rgb);
    memset(image->rgb, number, bytes);
    memcpy(image->hash, (uint32_t[]){number, rows, columns}, 3 * sizeof(uint32_t));
    return image;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* A prompt that is put together. */
typedef struct {
    uint32_t        ids[FAKE_CONTEXT], n;
    td_prompt_image images[IMAGES_MAX];
    uint32_t        n_images;
} prompt;

static void add_text(prompt *p, uint32_t n, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++) p->ids[p->n++] = (uint32_t)(td_rng_u64(78, seed, i) % (FAKE_IMAGE_TOKEN - 10)) + 2;
}

static void add_image(prompt *p, uint8_t number, uint32_t rows, uint32_t columns) {
    p->images[p->n_images++] = (td_prompt_image){.first = p->n, .image = image_of(number, rows, columns)};
    for (uint32_t i = 0; i < rows * columns; i++) p->ids[p->n++] = FAKE_IMAGE_TOKEN;
}

/* The probe of a prompt, which stays the test's until end_prompt. */
static probe *probe_of(const prompt *p, uint32_t max_tokens) {
    probe *asked = probe_new(p->ids, p->n, max_tokens);
    asked->params.images = p->images;
    asked->params.n_images = p->n_images;
    return asked;
}

static void end_prompt(prompt *p) {
    for (uint32_t i = 0; i < p->n_images; i++) td_image_release(p->images[i].image);
}

/* Text, a large image and a small one, text. */
static prompt two_images(uint8_t first, uint8_t second) {
    prompt p = {0};
    add_text(&p, 30, 1);
    add_image(&p, first, 10, 9);
    add_text(&p, 3, 2);
    add_image(&p, second, 2, 5);
    add_text(&p, 40, 3);
    return p;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void ask(td_engine *e, const prompt *p) {
    probe *asked = probe_of(p, 20);
    probe_submit(e, asked);
    probe_finish(e, asked);
}

TEST(answers_are_the_plain_loops) {
    AT_END(end_engine) td_engine *e = open_with(4096, 1000);
    AT_END(end_prompt) prompt     p = two_images(7, 8);
    const uint32_t                before = fake_encoded();
    ask(e, &p);
    assert_int_equal(fake_encoded() - before, 2);
    td_engine_stats s = idle_stats(e);
    assert_true(s.images.encoded == 2 && s.images.tokens == 100 && s.images.cache_bytes == 100 * FAKE_IMAGE_TOKEN_BYTES);
}

/* The same tokens behind other images are another prompt; the same images come from the caches. */
TEST(images_are_told_apart) {
    AT_END(end_engine) td_engine *e = open_with(4096, 1000);
    AT_END(end_prompt) prompt     p = two_images(7, 8), q = two_images(9, 8);
    const uint32_t                before = fake_encoded();
    ask(e, &p);
    const uint64_t cached = idle_stats(e).cached_tokens;
    ask(e, &q);
    assert_int_equal(fake_encoded() - before, 3);
    if (!getenv("TD_TEST_RECURRENT")) assert_true(idle_stats(e).cached_tokens - cached < 30);
    ask(e, &p);
    assert_int_equal(fake_encoded() - before, 3);
    if (!getenv("TD_TEST_RECURRENT")) assert_true(idle_stats(e).cached_tokens - cached >= 128);
}

/* Behind pages that the prefix cache has, the encoder is not needed, though its rows are gone. */
TEST(a_cached_prompt_needs_no_encoder) {
    AT_END(end_engine) td_engine *e = open_with(4096, MOST_TOKENS);
    prompt                        p = {0}, other = {0};
    add_image(&p, 20, 10, 10);
    add_text(&p, 60, 1);
    add_image(&other, 21, 10, 10);
    add_text(&other, 10, 1);
    ask(e, &p);
    ask(e, &other); /* its rows take the room */
    const uint32_t before = fake_encoded();
    ask(e, &p);
    assert_int_equal(fake_encoded(), before);
    end_prompt(&p);
    end_prompt(&other);
}

/* A prompt goes as far as there is room for its images. */
TEST(room_for_one_image_is_enough) {
    AT_END(end_engine) td_engine *e = open_with(4096, MOST_TOKENS);
    prompt                        p = {0};
    for (uint8_t i = 0; i < 5; i++) {
        add_image(&p, 30 + i % 4, 10, 10 - i);
        add_text(&p, 5, i);
    }
    ask(e, &p);
    assert_true(idle_stats(e).images.evictions >= 4);
    end_prompt(&p);
}

/* The prefix cache ends within an image, and others have all the room: it waits for them. */
TEST(no_room_behind_a_cached_part_of_an_image) {
    AT_END(end_engine) td_engine *e = open_with(4096, 2 * MOST_TOKENS);
    prompt                        p = {0}, others[3] = {0};
    probe                        *asked[3];
    td_engine_step                step = {0};
    add_text(&p, 60, 1);
    add_image(&p, 70, 10, 8);
    add_text(&p, 8, 1);
    ask(e, &p);
    for (uint8_t i = 0; i < 3; i++) {
        add_text(&others[i], 3, 5 + i);
        add_image(&others[i], 71 + i, 10, 10);
        add_text(&others[i], 3, 5);
        if (i == 0) ask(e, &others[i]); /* its rows take the room of p's image */
    }
    fake_hold_encodes(true);
    asked[0] = probe_of(&others[1], 5);
    probe_submit(e, asked[0]);
    while (step.phase != TD_STEP_ENCODING) td_engine_get_step(e, &step);
    asked[1] = probe_of(&others[2], 5);
    probe_submit(e, asked[1]);
    asked[2] = probe_of(&p, 5);
    probe_submit(e, asked[2]);
    fake_hold_encodes(false);
    for (uint32_t i = 0; i < 3; i++) probe_finish(e, asked[i]);
    for (uint32_t i = 0; i < 3; i++) end_prompt(&others[i]);
    end_prompt(&p);
}

/* Many at a time, with few images among them, retracted for want of pages. */
TEST(random_requests) {
    enum { N = 40 };
    AT_END(end_engine) td_engine *e = open_with(1400, 2 * MOST_TOKENS);
    static prompt                 prompts[N];
    probe                        *probes[N];
    memset(prompts, 0, sizeof prompts);
    for (uint32_t i = 0; i < N; i++) {
        prompt *p = &prompts[i];
        for (uint32_t k = 0; k < td_rng_u64(79, i, 0) % 4; k++) {
            add_text(p, (uint32_t)(td_rng_u64(79, i, 10 + k) % 40), (uint32_t)(td_rng_u64(79, i, 20 + k) % 3));
            const uint8_t number = (uint8_t)(td_rng_u64(79, i, 30 + k) % 5);
            add_image(p, number, 2 + number, 10 - number);
        }
        add_text(p, 1 + (uint32_t)(td_rng_u64(79, i, 1) % 50), i % 3);
        probes[i] = probe_of(p, 1 + (uint32_t)(td_rng_u64(79, i, 2) % 60));
        probe_submit(e, probes[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        if (i % 7 == 3) td_request_cancel(probes[i]->request);
        probe_finish(e, probes[i]);
        end_prompt(&prompts[i]);
    }
}

TEST(an_encoder_that_fails_is_tried_again) {
    AT_END(end_engine) td_engine *e = open_with(4096, 1000);
    AT_END(end_prompt) prompt     p = two_images(40, 41);
    fake_fail_encodes(1);
    ask(e, &p);
}

/* Who waits for the image that fails is ended, and nobody else. */
TEST(an_image_that_fails_twice_ends_its_requests_only) {
    AT_END(end_engine) td_engine *e = open_with(4096, 1000);
    prompt                        p = two_images(42, 43), q = two_images(44, 43), text = {0};
    add_text(&text, 20, 5);
    probe *stream = probe_of(&text, 400), *failing[2] = {probe_of(&p, 5), probe_of(&p, 5)}, *other = probe_of(&q, 5);
    stream->params.ignore_eos = true;
    probe_submit(e, stream);
    fake_hold_encodes(true);
    probe_submit(e, failing[0]);
    td_engine_step step = {0};
    while (step.phase != TD_STEP_ENCODING) td_engine_get_step(e, &step);
    probe_submit(e, failing[1]);
    probe_submit(e, other);
    fake_fail_encodes(2);
    fake_hold_encodes(false);
    probe_wait(failing[0]);
    assert_int_equal(failing[0]->finish, TD_FINISH_ERROR);
    assert_non_null(strstr(failing[0]->error.text, "could not be encoded"));
    probe_free(failing[0]);
    probe_finish(e, failing[1]); /* it came into no step yet: the third try succeeds */
    probe_finish(e, other);
    probe_finish(e, stream);
    end_prompt(&p);
    end_prompt(&q);
}

TEST(cancelled_while_it_waits) {
    AT_END(end_engine) td_engine *e = open_with(4096, MOST_TOKENS);
    AT_END(end_prompt) prompt     p = two_images(50, 51), q = two_images(52, 51);
    probe                        *first = probe_of(&p, 5), *second = probe_of(&q, 5);
    td_engine_step                step = {0};
    fake_hold_encodes(true);
    probe_submit(e, first);
    while (step.phase != TD_STEP_ENCODING) td_engine_get_step(e, &step);
    probe_submit(e, second);
    td_request_cancel(first->request);
    fake_hold_encodes(false);
    probe_wait(first);
    assert_int_equal(first->finish, TD_FINISH_ABORT);
    probe_free(first);
    probe_finish(e, second);
}

static void assert_refused(td_engine *e, const prompt *p, const char *says) {
    td_error err = {0};
    probe   *asked = probe_of(p, 5);
    assert_int_not_equal(td_engine_submit(e, &asked->params, &asked->request, &err), TD_OK);
    if (!strstr(err.text, says)) fail_msg("%s", err.text);
    probe_free(asked);
}

TEST(images_and_their_tokens_must_agree) {
    AT_END(end_engine) td_engine *e = open_with(4096, 1000);
    AT_END(end_prompt) prompt     p = two_images(60, 61);
    prompt                        bad = p;
    bad.images[1].first++;
    assert_refused(e, &bad, "which stands for an image, and there is none");
    bad = p;
    bad.ids[bad.images[0].first] = 5;
    assert_refused(e, &bad, "which stands for number 1");
    bad = p;
    bad.n_images = 1;
    assert_refused(e, &bad, "which stands for an image, and there is none");
    bad = p;
    bad.images[0] = p.images[1], bad.images[1] = p.images[0];
    assert_refused(e, &bad, "which stands for an image, and there is none");
    bad = p;
    bad.n = bad.images[1].first + 5;
    assert_refused(e, &bad, "number 2 is not behind the others, within the prompt");
    bad = p;
    bad.images[1].first = UINT32_MAX;
    assert_refused(e, &bad, "number 2 is not behind the others");
}

TEST(options_that_do_not_fit_are_refused) {
    td_engine        *e;
    td_error          err = {0};
    td_engine_options o = options(4096, MOST_TOKENS - 1);
    assert_int_equal(td_engine_open(&o, &e, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "does not hold the largest image"));
    o = options(4096, 1000);
    o.max_image_tokens = 70000;
    assert_int_equal(td_engine_open(&o, &e, &err), TD_EINVAL);
    o.max_image_tokens = 0; /* then the same prompt is refused */
    AT_END(end_engine) td_engine *text = engine_open(&o);
    AT_END(end_prompt) prompt     p = two_images(1, 2);
    td_image                     *image;
    td_engine_info                info;
    assert_refused(text, &p, "served for text only");
    assert_int_equal(td_engine_load_image(text, "", 0, &image, &err), TD_ENOTSUP);
    td_engine_get_info(text, &info);
    assert_int_equal(info.image_token, UINT32_MAX);
}

/* ---- the cache alone ------------------------------------------------------------------------- */

TEST(a_key_is_given_once) {
    td_image_cache *c = calloc(1, sizeof *c);
    td_known_image *k[3];
    td_image       *image = image_of(1, 2, 2), *other = image_of(2, 2, 2);
    td_image_cache_open(c, 1000, 10);
    OK(td_image_cache_hold(c, image, &k[0]));
    OK(td_image_cache_hold(c, image, &k[1]));
    OK(td_image_cache_hold(c, other, &k[2]));
    assert_ptr_equal(k[0], k[1]);
    assert_true(k[0]->key >= TD_IMAGE_KEY && k[2]->key >= TD_IMAGE_KEY && k[0]->key != k[2]->key);
    const uint32_t key = k[0]->key;
    for (int i = 0; i < 3; i++) td_image_cache_let_go(c, k[i]);
    for (uint32_t i = 0; i < TD_IMAGES_KEPT - 1; i++) { /* `other` is forgotten last: it was let go last */
        td_image *next = image_of(3, 2, 2);
        memcpy(next->hash + 16, &i, sizeof i);
        OK(td_image_cache_hold(c, next, &k[1]));
        td_image_cache_let_go(c, k[1]);
        td_image_release(next);
    }
    OK(td_image_cache_hold(c, other, &k[2]));
    OK(td_image_cache_hold(c, image, &k[0]));
    assert_int_not_equal(k[0]->key, key);
    c->next_key = (uint64_t)UINT32_MAX + 1;
    td_image *late = image_of(4, 2, 2);
    assert_int_equal(td_image_cache_hold(c, late, &k[1]), TD_ELIMIT);
    td_image_cache_let_go(c, k[0]);
    td_image_cache_let_go(c, k[2]);
    td_image_cache_close(c);
    td_image_release(image);
    td_image_release(other);
    td_image_release(late);
    free(c);
}
