#include "image/image.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "image/base64.h"
#include "image/image_process.h"
#include "image/sha256.h"

#define THIS_PROGRAM "/proc/self/exe"
#define TIME_MAX_MS 600000

struct td_image_loader {
    td_image_options options;
    char            *program;
    pthread_mutex_t  lock; /* of: */
    uint32_t         running;
    pthread_cond_t   ended; /* a process has */
};

td_image_options td_image_default_options(void) {
    return (td_image_options){
        .workers = 2, .bytes_max = 64 << 20, .pixels_max = 100000000, .memory_bytes = 3ull << 29, .time_ms = 30000};
}

static bool is_within(uint64_t value, uint64_t low, uint64_t high) {
    return value >= low && value <= high;
}

td_status td_image_loader_open(const td_image_options *o, td_image_loader **out, td_error *err) {
    if (!is_within(o->workers, 1, TD_IMAGE_WORKERS_MAX) || !is_within(o->bytes_max, 1, TD_IMAGE_SIZE_MAX) ||
        !is_within(o->pixels_max, 1, TD_IMAGE_SIZE_MAX) || !is_within(o->memory_bytes, 1, 1ull << 46) ||
        !is_within(o->time_ms, 1, TIME_MAX_MS))
        return td_fail(err, TD_EINVAL, "a limit of the image loader is out of range");
    td_image_loader *l = calloc(1, sizeof *l);
    if (l) l->program = strdup(o->program ? o->program : THIS_PROGRAM);
    if (!l || !l->program) {
        free(l);
        return td_fail(err, TD_ENOMEM, "out of memory for the image loader");
    }
    l->options = *o;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->ended, NULL);
    *out = l;
    return TD_OK;
}

void td_image_loader_close(td_image_loader *l) {
    if (!l) return;
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->lock);
    free(l->program);
    free(l);
}

/* ---- a place among the processes ---- */

static void take_place(td_image_loader *l) {
    pthread_mutex_lock(&l->lock);
    while (l->running == l->options.workers) pthread_cond_wait(&l->ended, &l->lock);
    l->running++;
    pthread_mutex_unlock(&l->lock);
}

static void leave_place(td_image_loader *l) {
    pthread_mutex_lock(&l->lock);
    l->running--;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->lock);
}

/* ---- a picture ---- */

static td_image *image_new(const td_image_rule *rule, const td_picture *canvas) {
    td_image *image = calloc(1, sizeof *image);
    if (!image) return NULL;
    *image = (td_image){
        .rule = *rule, .rows = canvas->height / rule->patch, .cols = canvas->width / rule->patch, .rgb = canvas->rgb};
    atomic_init(&image->refs, 1);
    return image;
}

static void name_content(td_image *image) {
    const uint32_t numbers[3] = {image->rule.patch, image->rows, image->cols};
    td_sha256      s;
    td_sha256_begin(&s);
    for (int i = 0; i < 3; i++) {
        const uint8_t bytes[4] = {(uint8_t)numbers[i], (uint8_t)(numbers[i] >> 8), (uint8_t)(numbers[i] >> 16),
                                  (uint8_t)(numbers[i] >> 24)};
        td_sha256_add(&s, bytes, sizeof bytes);
    }
    td_sha256_add(&s, image->rgb, (size_t)image->rows * image->cols * image->rule.patch * image->rule.patch * 3);
    td_sha256_end(&s, image->hash);
}

td_status td_image_load(td_image_loader *l, const td_image_rule *rule, const uint8_t *bytes, size_t n, td_image **out,
                        td_error *err) {
    const td_image_options *o = &l->options;
    td_image_question       q = {.memory_bytes = o->memory_bytes, .pixels_max = o->pixels_max, .bytes = n, .rule = *rule};
    td_picture              canvas = {0};
    if (n > o->bytes_max)
        return td_fail(err, TD_ELIMIT, "the picture's file has %zu bytes; at most %" PRIu64 " are taken", n, o->bytes_max);
    take_place(l);
    td_status s = td_image_process_ask(l->program, o->time_ms, &q, bytes, &canvas, err);
    leave_place(l);
    if (s != TD_OK) return s;
    td_image *image = image_new(rule, &canvas);
    if (!image) {
        free(canvas.rgb);
        return td_fail(err, TD_ENOMEM, "out of memory for a picture");
    }
    name_content(image);
    *out = image;
    return TD_OK;
}

/* ---- texts ---- */

static bool begins_with(const char *text, size_t len, const char *word) {
    return len >= strlen(word) && !strncasecmp(text, word, strlen(word));
}

/* The base64 of a text: all of it, or what follows the comma of a data URL. */
static td_status find_base64(const char **text, size_t *len, td_error *err) {
    const char *comma = memchr(*text, ',', *len);
    if (!begins_with(*text, *len, "data:")) {
        if (memchr(*text, ':', *len))
            return td_fail(err, TD_ENOTSUP, "a picture comes as a data URL or as base64, and not by another URL");
        return TD_OK;
    }
    if (!comma) return td_fail(err, TD_EFORMAT, "the data URL has no comma");
    const size_t media = (size_t)(comma - *text);
    if (media < strlen("data:;base64") || strncasecmp(comma - strlen(";base64"), ";base64", strlen(";base64")))
        return td_fail(err, TD_ENOTSUP, "the data URL is not in base64");
    *len -= media + 1;
    *text = comma + 1;
    return TD_OK;
}

td_status td_image_load_text(td_image_loader *l, const td_image_rule *rule, const char *text, size_t len, td_image **out,
                             td_error *err) {
    uint8_t *bytes;
    size_t   n;
    TD_TRY(find_base64(&text, &len, err));
    TD_TRY(td_base64_decode(text, len, l->options.bytes_max, &bytes, &n, err));
    td_status s = td_image_load(l, rule, bytes, n, out, err);
    free(bytes);
    return s;
}

/* ---- use of one ---- */

void td_image_hold(td_image *image) {
    atomic_fetch_add_explicit(&image->refs, 1, memory_order_relaxed);
}

void td_image_release(td_image *image) {
    if (!image || atomic_fetch_sub_explicit(&image->refs, 1, memory_order_acq_rel) != 1) return;
    free(image->rgb);
    free(image);
}

uint32_t td_image_tokens(const td_image *image) {
    return image->rows * image->cols / (image->rule.merge * image->rule.merge);
}
