/* Prompts with images against outputs that transformers computed (tests/data/golden/README.md), with --quantization none. */
#include <math.h>

#include "core/error.h"
#include "core/threads/chaos.h"
#include "golden_files.h"
#include "model/arch/config_file.h"
#include "model/vision.h"
#include "npu/host/host_npu.h"
#include "vision_reference.h"

#define FOLDER "qwen3_vl_moe_images"
#define TOKENS_MAX 256
#define IMAGES_MAX 4
#define MERGE 2              /* patches of a token, in rows and in columns */
#define LOGIT_TOLERANCE 5e-5 /* of the largest logit, as of test_golden */

typedef struct {
    const json_t     *json;
    uint32_t          ids[TOKENS_MAX], n, n_images;
    td_sequence_image images[IMAGES_MAX];
} prompt;

static prompt prompt_of(const json_t *json) {
    prompt        p = {.json = json};
    const json_t *images = json_object_get(json, "images"), *image;
    size_t        i;
    p.n = read_ids(json_object_get(json, "ids"), p.ids, TOKENS_MAX);
    p.n_images = (uint32_t)json_array_size(images);
    assert_true(p.n_images <= IMAGES_MAX);
    json_array_foreach(images, i, image) {
        const json_t *grid = json_object_get(image, "grid");
        p.images[i] = (td_sequence_image){.first = (uint32_t)json_integer_value(json_object_get(image, "first")),
                                          .rows = (uint32_t)json_integer_value(json_array_get(grid, 0)) / MERGE,
                                          .columns = (uint32_t)json_integer_value(json_array_get(grid, 1)) / MERGE};
    }
    return p;
}

/* An array of the prompt, of n values. */
static void *member(const prompt *p, const char *key, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "tests/data/golden/" FOLDER "/%s",
             json_string_value(json_object_get(json_object_get(p->json, key), "file")));
    return read_array(path, n, 4);
}

static model_piece piece_of(const prompt *p, uint32_t first, uint32_t n) {
    return (model_piece){.first = first, .n = n, .ids = p->ids + first, .images = p->images, .n_images = p->n_images};
}

/* Positions of rope are transformers', whole and where a chunk begins within an image; behind the prompt by its delta. */
TEST(positions) {
    AT_END(td_step_rows_close) td_step_rows rows;
    json_auto_t                            *manifest = read_manifest(FOLDER);
    const json_t                           *json;
    const uint32_t                          pages[TOKENS_MAX / TD_KV_PAGE + 1] = {0};
    size_t                                  index;
    OK(td_step_rows_open(&rows, TOKENS_MAX, 1, TOKENS_MAX, NULL));
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        const prompt           p = prompt_of(json);
        FREED uint32_t        *want = member(&p, "positions", (size_t)p.n * 3);
        const td_step_sequence seq = WITH(td_step_sequence, .pages = pages, .n_pages = TOKENS_MAX / TD_KV_PAGE + 1,
                                          .images = p.images, .n_images = p.n_images);
        for (uint32_t first = 0; first < p.n; first++) {
            td_step_rows_clear(&rows);
            td_step_rows_add(&rows, p.ids + first, first, p.n - first, &seq);
            assert_memory_equal(rows.rope_pos, want + 3 * first, (p.n - first) * 3 * sizeof *want);
        }
        td_step_rows_clear(&rows);
        td_step_rows_add(&rows, p.ids, p.n + 3, 1, &seq);
        for (int axis = 0; axis < 3; axis++)
            assert_int_equal(rows.rope_pos[axis],
                             (json_int_t)p.n + 3 + json_integer_value(json_object_get(p.json, "delta")));
    }
}

static void check_logits(const float *got, const float *want, size_t n, const char *what) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    print_message("    %s: largest difference %.2e of %.2f\n", what, worst, largest);
    assert_true(worst <= LOGIT_TOLERANCE * largest);
}

/* ---- the encoder's reference ----------------------------------------------------------------- */

#define MODEL "tests/data/golden/qwen3_vl_moe"
#define REFERENCE_TOLERANCE 2e-5 /* of the largest value: transformers' sums are in float32 */

static vision_sizes read_sizes(void) {
    json_auto_t  *config = read_json(MODEL "/config.json");
    const json_t *v = json_object_get(config, "vision_config");
#define SIZE(key) (uint32_t) json_integer_value(json_object_get(v, key))
    const uint32_t patch = SIZE("patch_size");
    vision_sizes   s = {.depth = SIZE("depth"),
                        .hidden = SIZE("hidden_size"),
                        .heads = SIZE("num_heads"),
                        .inter = SIZE("intermediate_size"),
                        .out = SIZE("out_hidden_size"),
                        .side = (uint32_t)sqrt(SIZE("num_position_embeddings")),
                        .values = 2 * 3 * patch * patch};
#undef SIZE
    s.n_taps = read_ids(json_object_get(v, "deepstack_visual_indexes"), s.taps, VISION_TAPS_MAX);
    return s;
}

static void check_features(const float *got, const float *want, size_t n, const char *what) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    print_message("    %s: largest difference %.2e of %.2f\n", what, worst, largest);
    assert_true(worst <= REFERENCE_TOLERANCE * largest);
}

/* Pictures of odd shapes, those of one prompt one by one. */
TEST(the_encoders_reference_is_transformers) {
    json_auto_t         *manifest = read_manifest(FOLDER);
    const json_t        *json;
    const vision_sizes   s = read_sizes();
    td_checkpoint_files *files;
    size_t               index;
    OK(td_checkpoint_files_open(repo_path(MODEL), &files, NULL));
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        const prompt p = prompt_of(json);
        size_t       n = 0, at = 0;
        for (uint32_t i = 0; i < p.n_images; i++) n += (size_t)p.images[i].rows * p.images[i].columns;
        FREED float *pixels = member(&p, "pixels", n * MERGE * MERGE * s.values), *merged = member(&p, "merged", n * s.out),
                    *deepstack = member(&p, "deepstack", s.n_taps * n * s.out);
        for (uint32_t i = 0; i < p.n_images; i++) {
            const uint32_t rows = p.images[i].rows, columns = p.images[i].columns;
            const size_t   tokens = (size_t)rows * columns, values = tokens * s.out;
            FREED float   *got = malloc((1 + s.n_taps) * values * sizeof *got);
            assert_non_null(got);
            vision_reference(files, &s, pixels + at * MERGE * MERGE * s.values, rows * MERGE, columns * MERGE, got,
                             got + values);
            check_features(got, merged + at * s.out, values, "merged");
            for (uint32_t t = 0; t < s.n_taps; t++)
                check_features(got + (1 + t) * values, deepstack + (t * n + at) * s.out, values, "deepstack");
            at += tokens;
        }
    }
    td_checkpoint_files_close(files);
}

/* ---- the encoder ----------------------------------------------------------------------------- */

#define PATCHES_MAX 200

/* A device of one card, as model_run opens it. */
typedef struct {
    td_pool *pool;
    td_npu  *npu;
} device;

static device open_device(uint32_t threads, td_dtype act) {
    device          d;
    td_worker_place places[4] = {{.cpu = TD_CPU_ANY}, {.cpu = TD_CPU_ANY}, {.cpu = TD_CPU_ANY}, {.cpu = TD_CPU_ANY}};
    OK(td_pool_create(places, threads, &d.pool, NULL));
    const char         *name = getenv("TD_TEST_DEVICE");
    const td_npu_config c = {.act_dtype = act, .host = &(td_host_npu_config){.pool = d.pool, .own_threads = name != NULL}};
    OK(td_npu_open(name, &c, &d.npu, NULL));
    return d;
}

static void close_device(device *d) {
    d->npu->ops->close(d->npu);
    td_pool_destroy(d->pool);
}

/* @param cut after each operation, or its smallest part */
static td_status encode(td_vision *v, const float *pixels, uint32_t rows, uint32_t columns, float *features, bool cut,
                        td_error *err) {
    td_piece piece = {0};
    TD_TRY(td_vision_start(v, pixels, rows, columns, features, err));
    for (uint32_t n = 0; !piece.ended; n++) {
        piece = cut ? (td_piece){0} : (td_piece){.budget_s = INFINITY, .part_s = INFINITY};
        TD_TRY(td_vision_run(v, &piece, err));
        assert_true(piece.ended || cut || td_chaos_on());
        if (cut && piece.ended) assert_true(n > 30 || td_chaos_on());
    }
    return TD_OK;
}

/* Every picture of the manifest, by an encoder that has had others before: [pictures] malloc'd features of each. Backwards each
 * goes in pieces. */
static size_t encode_all(td_dtype act, uint32_t threads, bool backwards, float *features[], const vision_sizes *s) {
    AT_END(close_device) device d = open_device(threads, act);
    json_auto_t                *manifest = read_manifest(FOLDER);
    const json_t               *json;
    td_model_config             c;
    td_checkpoint_files        *files;
    td_vision                  *v;
    size_t                      index, n = 0;
    td_error                    err = {0};
    struct {
        float   *pixels; /* the prompt's, at its first picture */
        size_t   at;
        uint32_t rows, columns;
    } pictures[16];
    OK(td_model_config_read(repo_path(MODEL), NULL, &c, NULL));
    OK(td_checkpoint_files_open(repo_path(MODEL), &files, NULL));
    if (td_vision_open(d.npu, act, &c, files, PATCHES_MAX, &v, &err) != TD_OK) fail_msg("%s", err.text);
    td_checkpoint_files_close(files);
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        const prompt p = prompt_of(json);
        size_t       tokens = 0;
        for (uint32_t i = 0; i < p.n_images; i++) tokens += (size_t)p.images[i].rows * p.images[i].columns;
        float *pixels = member(&p, "pixels", tokens * MERGE * MERGE * s->values);
        size_t at = 0;
        for (uint32_t i = 0; i < p.n_images; i++, n++) {
            pictures[n].pixels = pixels;
            pictures[n].at = at;
            pictures[n].rows = p.images[i].rows * MERGE;
            pictures[n].columns = p.images[i].columns * MERGE;
            at += (size_t)pictures[n].rows * pictures[n].columns * s->values;
        }
    }
    for (size_t k = 0; k < n; k++) {
        const size_t i = backwards ? n - 1 - k : k,
                     tokens = (size_t)pictures[i].rows * pictures[i].columns / (MERGE * MERGE);
        features[i] = malloc((1 + s->n_taps) * tokens * s->out * sizeof(float));
        OK(encode(v, pictures[i].pixels + pictures[i].at, pictures[i].rows, pictures[i].columns, features[i], backwards,
                  &err));
    }
    assert_int_equal(td_vision_start(v, pictures[0].pixels, 3, 2, features[0], &err), TD_EINVAL);
    assert_int_equal(td_vision_start(v, pictures[0].pixels, PATCHES_MAX, 2, features[0], &err), TD_EINVAL);
    td_vision_close(v);
    for (size_t i = 0; i < n; i++)
        if (pictures[i].at == 0) free(pictures[i].pixels);
    return n;
}

/* @param mean, worst of the difference, of the largest value. */
static void check_pictures(float *const features[], const vision_sizes *s, double mean, double worst) {
    json_auto_t  *manifest = read_manifest(FOLDER);
    const json_t *json;
    size_t        index, n = 0;
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        const prompt p = prompt_of(json);
        size_t       tokens = 0, at = 0;
        for (uint32_t i = 0; i < p.n_images; i++) tokens += (size_t)p.images[i].rows * p.images[i].columns;
        FREED float *merged = member(&p, "merged", tokens * s->out),
                    *deep = member(&p, "deepstack", s->n_taps * tokens * s->out);
        for (uint32_t i = 0; i < p.n_images; i++, n++) {
            const size_t own = (size_t)p.images[i].rows * p.images[i].columns;
            double       sum = 0, most = 0, largest = 0;
            for (uint32_t k = 0; k <= s->n_taps; k++) {
                const float *want = k ? deep + ((k - 1) * tokens + at) * s->out : merged + at * s->out,
                            *got = features[n] + k * own * s->out;
                for (size_t j = 0; j < own * s->out; j++) {
                    const double off = fabs((double)got[j] - (double)want[j]);
                    sum += off;
                    most = fmax(most, off);
                    largest = fmax(largest, fabs((double)want[j]));
                }
            }
            sum /= (double)((1 + s->n_taps) * own * s->out);
            print_message("    %u x %u: mean difference %.2e, largest %.2e of %.2f\n", p.images[i].rows, p.images[i].columns,
                          sum, most, largest);
            assert_true(sum <= mean * largest && most <= worst * largest);
            at += own;
        }
    }
}

/* In f32 it is transformers', in any order of pictures, on any threads and in any pieces with the same bits. With
 * bf16 activations its rows are f32 still, and attention's products alone are of 16 bits. */
TEST(the_encoder_is_transformers) {
    static const struct {
        td_dtype act;
        double   mean, worst;
    } CASES[] = {{TD_DT_F32, 1e-6, 2e-5}, {TD_DT_BF16, 3e-5, 3e-4}};
    const vision_sizes s = read_sizes();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        float       *features[2][16];
        const size_t n = encode_all(CASES[i].act, 1, false, features[0], &s);
        encode_all(CASES[i].act, 3, true, features[1], &s);
        check_pictures(features[0], &s, CASES[i].mean, CASES[i].worst);
        json_auto_t  *manifest = read_manifest(FOLDER);
        const json_t *json;
        size_t        index, k = 0;
        json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
            const prompt p = prompt_of(json);
            for (uint32_t m = 0; m < p.n_images; m++, k++)
                assert_memory_equal(features[0][k], features[1][k],
                                    (1 + s.n_taps) * (size_t)p.images[m].rows * p.images[m].columns * s.out * sizeof(float));
        }
        for (size_t m = 0; m < n; m++) free(features[0][m]), free(features[1][m]);
    }
}

/* Nothing is read but the encoder's own tensors, and what it takes is what was planned. */
TEST(an_encoder_takes_what_was_planned) {
    if (!getenv("TD_TEST_DEVICE")) skip(); /* a device that counts its memory */
    AT_END(close_device) device d = open_device(1, TD_DT_BF16);
    td_model_config             c;
    td_checkpoint_files        *files;
    td_vision                  *v;
    td_npu_caps                 before, after;
    OK(td_model_config_read(repo_path(MODEL), NULL, &c, NULL));
    OK(td_checkpoint_files_open(repo_path(MODEL), &files, NULL));
    d.npu->ops->caps(d.npu, &before);
    OK(td_vision_open(d.npu, TD_DT_BF16, &c, files, PATCHES_MAX, &v, NULL));
    d.npu->ops->caps(d.npu, &after);
    td_vision_memory m;
    td_vision_measure(d.npu, TD_DT_BF16, &c, PATCHES_MAX, &m);
    const uint64_t taken = before.memory_free - after.memory_free, planned = m.weight_bytes + m.device_bytes;
    print_message("    %llu bytes taken, %llu planned\n", (unsigned long long)taken, (unsigned long long)planned);
    assert_true(taken > 0 && taken <= planned);
    td_vision_close(v);
    d.npu->ops->caps(d.npu, &after);
    assert_true(after.memory_free == before.memory_free);
    td_checkpoint_files_close(files);
}

/* ---- the language model ---------------------------------------------------------------------- */

/* Transformers' features become those of the prompt's images. @return memory of malloc, theirs */
static float *give_features(prompt *p, const vision_sizes *s) {
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < p->n_images; i++) n += (size_t)p->images[i].rows * p->images[i].columns;
    FREED float *merged = member(p, "merged", n * s->out), *deepstack = member(p, "deepstack", s->n_taps * n * s->out);
    float       *all = malloc((1 + s->n_taps) * n * s->out * sizeof *all), *to = all;
    assert_non_null(all);
    for (uint32_t i = 0; i < p->n_images; i++) {
        const size_t own = (size_t)p->images[i].rows * p->images[i].columns, values = own * s->out;
        p->images[i].features = to;
        for (uint32_t k = 0; k <= s->n_taps; k++, to += values)
            memcpy(to, (k ? deepstack + (k - 1) * n * s->out : merged) + at * s->out, values * sizeof *to);
        at += own;
    }
    return all;
}

static void open_model(model_run *r) {
    model_run_open(r, &WITH(model_run_options, .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 1, .max_len = TOKENS_MAX));
}

/* Rope by rows and columns alone: the embeddings of placeholders are looked up. */
TEST(logits_by_positions) {
    AT_END(model_run_close) model_run r;
    json_auto_t                      *manifest = read_manifest(FOLDER);
    const json_t                     *json;
    size_t                            index;
    open_model(&r);
    size_t vocab = td_model_get_config(r.model)->vocab;
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        const prompt p = prompt_of(json);
        FREED float *want = member(&p, "logits_looked_up", p.n * vocab), *got = malloc(p.n * vocab * sizeof *got),
                    *chunk = malloc(p.n * vocab * sizeof *chunk);
        model_piece whole = piece_of(&p, 0, p.n);
        model_run_forward(&r, &whole, 1);
        model_run_logits(&r, p.n, got);
        check_logits(got, want, p.n * vocab, "whole");
        for (uint32_t len = 1; len <= 5; len += 4)
            for (uint32_t at = 0; at < p.n; at += len) {
                model_piece piece = piece_of(&p, at, p.n - at < len ? p.n - at : len);
                model_run_forward(&r, &piece, 1);
                model_run_logits(&r, piece.n, chunk);
                assert_memory_equal(chunk, got + at * vocab, piece.n * vocab * sizeof *got);
            }
    }
}

#define STEP_MAX 256

/* A way in which a prompt goes through the model. */
typedef struct {
    const char *what;
    uint32_t    len; /* rows of a chunk; 0: all */
    bool        in_pieces;
} way;

static const way WAYS[] = {{"whole", 0, false}, {"token by token", 1, false},  {"chunks", 3, false},
                           {"pieces", 0, true}, {"chunks in pieces", 7, true}, {"large chunks", 64, false}};

/* Another sequence, between two operations of a pass in pieces. */
static void run_between(model_run *r) {
    const uint32_t    ids[3] = {7, 2, 9}; /* with a placeholder that stands for no image */
    const model_piece text = {.seq = 1, .n = 3, .ids = ids};
    OK(td_model_forward(r->model, (model_run_fill(r, &text, 1, &r->rows), &r->rows), (td_out_rows){0}, NULL));
}

static void run_in_pieces(model_run *r, const model_piece *chunk, td_step_rows *aside) {
    model_run_fill(r, chunk, 1, aside);
    td_model_start_pieces(r->model, aside);
    td_piece piece = {0};
    for (uint32_t n = 1; !piece.ended; n++) {
        piece = (td_piece){.budget_s = 0}; /* one operation */
        OK(td_model_run_piece(r->model, &piece));
        if (!piece.ended && n % 7 == 1) run_between(r); /* before anything else has run but the embedding, and later */
    }
}

/* Logits of all tokens: [p->n, vocab]. */
static void run_prompt(model_run *r, const prompt *p, const way *w, td_step_rows *aside, float *out) {
    const size_t vocab = td_model_get_config(r->model)->vocab;
    uint32_t     most = td_model_get_spec(r->model)->aside_tok;
    if (!w->in_pieces || most > p->n) most = p->n;
    if (w->len && w->len < most) most = w->len;
    for (uint32_t at = 0; at < p->n; at += most) {
        const model_piece chunk = piece_of(p, at, p->n - at < most ? p->n - at : most);
        if (w->in_pieces)
            run_in_pieces(r, &chunk, aside);
        else
            model_run_forward(r, &chunk, 1);
        model_run_logits(r, chunk.n, out + at * vocab);
    }
}

typedef struct {
    const char *what;
    bool        w8a8;
    uint32_t    deferred, npu_threads, overlap_min_tok;
} model_form;

/* In every way the bits are those of the whole prompt. @param golden whether they are transformers', too */
static void check_with_images(const model_form *f, bool golden) {
    AT_END(model_run_close) model_run       r;
    AT_END(td_step_rows_close) td_step_rows aside;
    const vision_sizes                      s = read_sizes();
    json_auto_t                            *manifest = read_manifest(FOLDER);
    const json_t                           *json;
    size_t                                  index;
    model_run_open(
        &r, &WITH(model_run_options, .path = MODEL, .experts = f->w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16, .w8a8 = f->w8a8,
                  .max_deferred = f->deferred, .npu_threads = f->npu_threads, .overlap_min_tok = f->overlap_min_tok,
                  .max_tok = STEP_MAX, .max_patches = PATCHES_MAX, .in_pieces = true, .n_seq = 2, .max_len = TOKENS_MAX));
    OK(td_step_rows_open(&aside, STEP_MAX, TD_ASIDE_SEQ, TOKENS_MAX, NULL));
    const td_model_spec *spec = td_model_get_spec(r.model);
    assert_int_equal(spec->max_patches, PATCHES_MAX);
    const size_t vocab = td_model_get_config(r.model)->vocab;
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        prompt       p = prompt_of(json);
        FREED float *features = give_features(&p, &s), *want = member(&p, "logits", p.n * vocab),
                    *first = malloc(p.n * vocab * sizeof *first), *got = malloc(p.n * vocab * sizeof *got);
        for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
            if (WAYS[i].in_pieces && !spec->in_pieces) continue;
            run_prompt(&r, &p, &WAYS[i], &aside, i ? got : first);
            if (i && memcmp(got, first, p.n * vocab * sizeof *got))
                fail_msg("%s, %s: other bits than those of the whole prompt", f->what, WAYS[i].what);
        }
        if (golden) check_logits(first, want, p.n * vocab, "with images");
    }
}

/* With the features that transformers has: its logits. */
TEST(logits_with_images) {
    check_with_images(&(model_form){.what = "f32"}, true);
    check_with_images(&(model_form){.what = "halves", .npu_threads = 1, .overlap_min_tok = 5}, true);
}

/* Where it is not transformers' model, each way has the same bits still. */
TEST(the_same_bits_in_every_way) {
    static const model_form FORMS[] = {{"deferred in halves", false, 1, 1, 5}, {"8 bits, deferred", true, 1, 0, 0}};
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) check_with_images(&FORMS[i], false);
}

/* Every other picture goes in pieces, between which a text runs; one is begun and dropped before it. */
static void encode_with_company(model_run *r, uint32_t i, const float *pixels, const td_sequence_image *m, float *features) {
    const uint32_t rows = m->rows * MERGE, columns = m->columns * MERGE;
    td_piece       piece = {0};
    if (i % 2) {
        piece = (td_piece){.budget_s = (double)INFINITY, .part_s = (double)INFINITY};
        OK(td_model_start_image(r->model, pixels, rows, columns, features));
        OK(td_model_run_image_piece(r->model, &piece));
        assert_true(piece.ended);
        run_between(r);
        return;
    }
    OK(td_model_start_image(r->model, pixels, rows, columns, features));
    OK(td_model_run_image_piece(r->model, &piece));
    OK(td_model_start_image(r->model, pixels, rows, columns, features));
    for (uint32_t n = 0; !piece.ended; n++) {
        piece = (td_piece){0};
        OK(td_model_run_image_piece(r->model, &piece));
        if (n % 5 == 0) run_between(r);
    }
}

/* A picture goes in, and transformers' logits come out: the model's own encoder, whichever card computes the rest. */
TEST(a_picture_in_and_logits_out) {
    AT_END(model_run_close) model_run r;
    json_auto_t                      *manifest = read_manifest(FOLDER);
    const json_t                     *json;
    const vision_sizes                s = read_sizes();
    size_t                            index;
    model_run_open(&r, &WITH(model_run_options, .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 2, .max_len = TOKENS_MAX,
                             .max_patches = PATCHES_MAX));
    const size_t            vocab = td_model_get_config(r.model)->vocab;
    const td_vision_config *v = td_model_vision(r.model);
    assert_true(v && v->depth == s.depth && v->token == 2);
    json_array_foreach(json_object_get(manifest, "prompts"), index, json) {
        prompt p = prompt_of(json);
        size_t tokens = 0, at = 0;
        for (uint32_t i = 0; i < p.n_images; i++) tokens += (size_t)p.images[i].rows * p.images[i].columns;
        FREED float *pixels = member(&p, "pixels", tokens * MERGE * MERGE * s.values),
                    *features = malloc((1 + s.n_taps) * tokens * s.out * sizeof *features),
                    *want = member(&p, "logits", p.n * vocab), *got = malloc(p.n * vocab * sizeof *got);
        for (uint32_t i = 0; i < p.n_images; i++) {
            td_sequence_image *m = &p.images[i];
            float             *to = features + (1 + s.n_taps) * at * s.out;
            encode_with_company(&r, i, pixels + at * MERGE * MERGE * s.values, m, to);
            m->features = to;
            at += (size_t)m->rows * m->columns;
        }
        const model_piece whole = piece_of(&p, 0, p.n);
        model_run_forward(&r, &whole, 1);
        model_run_logits(&r, p.n, got);
        check_logits(got, want, p.n * vocab, "from pixels");
    }
    assert_int_equal(td_model_start_image(r.model, NULL, 3, 2, NULL), TD_EINVAL);
    assert_non_null(strstr(td_model_why(r.model, TD_EINVAL), "of even sides and at most 200 patches"));
}

/* What the encoder takes is in the model's memory, on a line of its own; without images there is none. */
TEST(memory_of_images) {
    td_model_memory memory[2];
    td_npu_caps     caps;
    uint64_t        taken[2] = {0};
    for (int k = 0; k < 2; k++) {
        AT_END(model_run_close) model_run r;
        model_run_open(&r, &WITH(model_run_options, .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 1, .w8a8 = true,
                                 .max_len = TOKENS_MAX, .max_patches = k ? PATCHES_MAX : 0));
        td_model_get_memory(r.model, &memory[k]);
        assert_int_equal(td_model_vision(r.model) != NULL, k);
        r.npu->ops->caps(r.npu, &caps);
        taken[k] = caps.memory_total - caps.memory_free;
    }
    const uint64_t encoder = memory[1].encoder_weight_bytes + memory[1].encoder_scratch_bytes,
                   rows = memory[1].device_scratch_bytes - memory[0].device_scratch_bytes;
    assert_true(memory[0].encoder_weight_bytes == 0 && memory[0].encoder_scratch_bytes == 0);
    assert_true(memory[1].encoder_weight_bytes > 0 && memory[1].encoder_scratch_bytes > 0 && rows > 0);
    assert_true(td_model_memory_bytes(&memory[1], 1) >= td_model_memory_bytes(&memory[0], 1) + encoder + rows);
    if (getenv("TD_TEST_DEVICE")) /* a device that counts its memory */
        assert_true(taken[1] > taken[0] && taken[1] - taken[0] <= encoder + rows);
}

/* An encoder that is not served, or is not in the checkpoint, leaves a model of text. */
TEST(text_without_the_encoder) {
    static const char *const OVERRIDES[] = {"{\"vision_config\": {\"hidden_act\": \"gelu\"}}", "{\"vision_config\": null}",
                                            "{\"vision_config\": {\"intermediate_size\": 60}}",
                                            "{\"vision_config\": {\"depth\": 5}}"};
    for (size_t i = 0; i < sizeof OVERRIDES / sizeof *OVERRIDES; i++) {
        AT_END(model_run_close) model_run r;
        model_run_open(&r, &WITH(model_run_options, .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 2,
                                 .override_json = OVERRIDES[i], .max_len = TOKENS_MAX, .max_patches = PATCHES_MAX));
        assert_null(td_model_vision(r.model));
        run_between(&r);
    }
}

/* Without images a model that takes them has the bits of one that does not. */
TEST(text_is_as_it_was) {
    float       *logits[2];
    json_auto_t *manifest = read_manifest(FOLDER);
    const prompt p = prompt_of(json_array_get(json_object_get(manifest, "prompts"), 1));
    size_t       vocab = 0;
    for (int k = 0; k < 2; k++) {
        AT_END(model_run_close) model_run r;
        model_run_open(&r, &WITH(model_run_options, .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 1,
                                 .max_len = TOKENS_MAX, .max_patches = k ? PATCHES_MAX : 0));
        vocab = td_model_get_config(r.model)->vocab;
        logits[k] = malloc(p.n * vocab * sizeof(float));
        const model_piece whole = piece_of(&p, 0, p.n);
        model_run_forward(&r, &whole, 1);
        model_run_logits(&r, p.n, logits[k]);
    }
    assert_memory_equal(logits[0], logits[1], p.n * vocab * sizeof(float));
    free(logits[0]);
    free(logits[1]);
}
