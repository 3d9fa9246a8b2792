/* Pictures of requests, made ready on any thread; and between steps what the encoder makes of them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "engine/engine_impl.h"

#define RULE_BYTES ((size_t)1 << 20)
#define PATH_BYTES 4096

/* ---- how the model wants its pictures -------------------------------------------------------- */

/* One of the two files that may say it. */
static td_status read_rule_file(const char *folder, const char *name, td_image_rule *out, td_error *err) {
    char   path[PATH_BYTES], *text = NULL;
    size_t len;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_BYTES) return TD_ENOTFOUND;
    TD_TRY(td_file_read(path, RULE_BYTES, &text, &len, err));
    td_status st = td_image_rule_parse(text, len, out, err);
    free(text);
    return st == TD_OK ? st : td_fail_within(err, "%s", name);
}

void td_images_read_rule(td_engine *e) {
    const char *folder = e->model_path;
    td_error    why = {0};
    if (!e->config.model.max_patches) {
        snprintf(e->images.why_not, sizeof e->images.why_not, "max-image-tokens is 0");
        return;
    }
    td_status st = read_rule_file(folder, "preprocessor_config.json", &e->images.rule, &why);
    if (st == TD_ENOTFOUND) st = read_rule_file(folder, "processor_config.json", &e->images.rule, &why);
    const td_image_rule *rule = &e->images.rule;
    const uint64_t       largest = st == TD_OK ? rule->max / (rule->patch * rule->patch) : 0;
    if (e->config.model.max_patches > largest) e->config.model.max_patches = (uint32_t)largest;
    if (st == TD_OK) return;
    snprintf(e->images.why_not, sizeof e->images.why_not, "%.200s",
             st == TD_ENOTFOUND ? "its folder has no preprocessor_config.json" : why.text);
}

/* Pictures have no more patches than the encoder has room for. */
static td_status limit_rule(td_engine *e, const td_vision_config *c, td_error *err) {
    td_image_rule *rule = &e->images.rule;
    const uint64_t most = (uint64_t)e->images.max_patches * rule->patch * rule->patch;
    if (rule->sizing != TD_IMAGE_QWEN || rule->patch != c->patch || rule->merge != TD_VISION_MERGE ||
        rule->frames != TD_VISION_FRAMES)
        return td_fail(err, TD_ENOTSUP, "its image processor does not fit its encoder");
    if (rule->min > most)
        return td_fail(err, TD_EINVAL, "max-image-tokens is %u, and the smallest picture of this model has %" PRIu64,
                       e->images.max_patches / (TD_VISION_MERGE * TD_VISION_MERGE),
                       rule->min / (rule->patch * rule->patch * TD_VISION_MERGE * TD_VISION_MERGE));
    if (rule->max > most) rule->max = most;
    return TD_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static td_status open_images(td_engine *e, const td_vision_config *c, td_error *err) {
    td_engine_images      *i = &e->images;
    const td_model_config *config = td_model_get_config(e->placed.model);
    const size_t           token_bytes = (1 + (size_t)c->n_taps) * config->hidden * sizeof(float);
    const uint64_t         largest = (uint64_t)i->max_patches / (TD_VISION_MERGE * TD_VISION_MERGE) * token_bytes;
    const td_image_options options = td_image_default_options();
    TD_TRY(limit_rule(e, c, err));
    if (e->config.drafts) return td_fail(err, TD_ENOTSUP, "it drafts (speculative-algorithm), which images do not go with");
    if (e->config.image_cache_bytes < largest)
        return td_fail(err, TD_EINVAL,
                       "image-cache-gib %.2f does not hold the largest image, of %.2f GiB (max-image-tokens)",
                       (double)e->config.image_cache_bytes / (1 << 30), (double)largest / (1 << 30));
    i->pixels = malloc((size_t)i->max_patches * td_vision_patch_values(c) * sizeof *i->pixels);
    if (!i->pixels) return td_fail(err, TD_ENOMEM, "out of memory for the pixels of an image");
    td_image_cache_open(&i->cache, e->config.image_cache_bytes, token_bytes);
    return td_image_loader_open(&options, &i->loader, err);
}

td_status td_images_open(td_engine *e, td_error *err) {
    const td_vision_config *c = td_model_vision(e->placed.model);
    td_engine_images       *i = &e->images;
    td_error                why = {0};
    i->max_patches = td_model_get_spec(e->placed.model)->max_patches;
    if (!c || !i->max_patches) {
        const td_vision_config *wanted = &td_model_get_config(e->placed.model)->vision;
        if (wanted->depth && i->why_not[0]) td_warn("the model is served for text only: %s", i->why_not);
        return TD_OK;
    }
    td_status st = open_images(e, c, &why);
    if (st == TD_ENOTSUP) {
        snprintf(i->why_not, sizeof i->why_not, "%.250s", why.text);
        td_warn("the model is served for text only: %s", i->why_not);
        return TD_OK;
    }
    if (st == TD_OK)
        td_info("images: at most %u tokens each, and %.2f GiB for what the encoder makes of them",
                i->max_patches / (TD_VISION_MERGE * TD_VISION_MERGE), (double)i->cache.bytes_max / (1 << 30));
    return st == TD_OK ? st : td_fail(err, st, "%s", why.text);
}

void td_images_close(td_engine *e) {
    td_images_leave(e);
    td_image_cache_close(&e->images.cache);
    td_image_loader_close(e->images.loader);
    free(e->images.pixels);
}

/* ---- use ------------------------------------------------------------------------------------- */

td_status td_engine_load_image(td_engine *e, const char *text, size_t len, td_image **out, td_error *err) {
    const td_engine_images *i = &e->images;
    td_image               *image;
    if (!i->loader) return td_fail(err, TD_ENOTSUP, "the model is served for text only, and takes no images");
    TD_TRY(td_image_load_text(i->loader, &i->rule, text, len, &image, err));
    if ((uint64_t)image->rows * image->cols > i->max_patches) { /* one that is very long and narrow */
        td_fail(err, TD_ELIMIT, "the picture has %u tokens when it is resized; at most %u are taken", td_image_tokens(image),
                i->max_patches / (TD_VISION_MERGE * TD_VISION_MERGE));
        td_image_release(image);
        return TD_ELIMIT;
    }
    *out = image;
    return TD_OK;
}

td_image_counts td_images_counts(const td_engine *e) {
    td_image_counts c = e->images.counts;
    c.cache_bytes = e->images.cache.bytes;
    c.cache_bytes_max = e->images.cache.bytes_max;
    c.evictions = e->images.cache.evictions;
    return c;
}

/* ---- the image under way --------------------------------------------------------------------- */

void td_images_leave(td_engine *e) {
    td_engine_images *i = &e->images;
    td_known_image   *k = i->under_way;
    if (!k) return;
    i->under_way = NULL;
    td_image_cache_end_read(&i->cache, k);
    td_image_cache_let_go(&i->cache, k);
}

bool td_images_unwanted(const td_engine *e) {
    return e->images.under_way && e->images.under_way->n_readers == 1;
}

static void take_next(td_engine *e) {
    td_engine_images        *i = &e->images;
    const td_scheduled_image next = e->scheduler.image;
    td_image_cache_join(next.known);
    i->under_way = next.known;
    i->rows = next.image->rows;
    i->cols = next.image->cols;
    i->begun = i->failed = i->gave_way = false;
    td_image_patches(next.image, 0, (size_t)i->rows * i->cols, i->pixels);
}

static td_status try_piece(td_engine *e, td_piece *piece) {
    td_engine_images *i = &e->images;
    if (!i->begun) TD_TRY(td_model_start_image(e->placed.model, i->pixels, i->rows, i->cols, i->under_way->features));
    i->begun = true;
    return td_model_run_image_piece(e->placed.model, piece);
}

static void warn_of_retry(const td_engine *e, td_status st) {
    td_warn("an image of %u tokens cannot be encoded (%s): trying once more", e->images.under_way->n_tokens,
            td_model_why(e->placed.model, st));
}

td_status td_images_run_piece(td_engine *e) {
    td_engine_images *i = &e->images;
    td_piece          piece = td_scheduler_image_piece(&e->scheduler, i->gave_way, &e->waker->awake);
    const uint64_t    begin = td_trace_begin();
    const double      begin_s = td_now_s();
    td_stats_phase(&e->stats, TD_STEP_ENCODING, NULL);
    if (!i->under_way) take_next(e);
    td_status st = try_piece(e, &piece);
    if (st != TD_OK && !td_model_is_lost(e->placed.model, NULL) && !i->failed) {
        warn_of_retry(e, st);
        i->failed = true;
        i->begun = false;
        st = try_piece(e, &piece);
    }
    i->gave_way = piece.gave_way;
    i->counts.pieces++;
    i->counts.ns += (uint64_t)(1e9 * (td_now_s() - begin_s));
    td_trace_end(begin, &(td_trace_label){TD_TRACE_ENGINE, "encode image", {"tokens"}, {i->under_way->n_tokens}});
    if (st != TD_OK || !piece.ended) return st;
    i->counts.encoded++;
    i->counts.tokens += i->under_way->n_tokens;
    i->under_way->encoded = true;
    td_images_leave(e);
    return TD_OK;
}
