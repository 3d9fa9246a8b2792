#include "fake_model.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/tier_meter.h"
#include "engine/step/sampler.h"
#include "model/model.h"
#include "tests/forms.h"

/* The image under way. */
typedef struct {
    uint32_t number, n, pieces_left;
    float   *features; /* NULL: none is */
} fake_image;

struct td_model {
    td_model_spec       spec;
    td_model_config     config;
    uint64_t           *kv;           /* [n_slots] */
    bool               *kv_generated; /* [n_slots] its token is one of an answer */
    uint32_t            n_slots;
    uint64_t           *row_hash;     /* [max_tok] of the last forward */
    uint32_t           *row_answered; /* [max_tok] how many tokens the answer has with the row's */
    uint32_t           *row_pos;      /* [max_tok] */
    uint64_t           *layer_hash;   /* [max_tok] of the MTP layer's rows, as row_hash */
    uint32_t            n_rows;
    const td_step_rows *aside;       /* of the pass in pieces that is under way; NULL: none is */
    uint32_t            pieces_left; /* of it */
    bool                gave_way;    /* its last piece did */
    const char         *harm;        /* the first rule that passes between its pieces broke; it is dropped, or this counts */
    uint8_t            *slot_seen;
    uint64_t           *window_kv; /* [n_window_slots] of layers with a window; NULL: the model has none */
    uint32_t            n_window_slots;
    fake_image          image;
    float              *logits;  /* [max_out, vocab] */
    uint64_t           *state;   /* [state_slots] hash of the history at a block's border; recurrent models */
    uint64_t           *open;    /* [open_slots, TD_STATE_BLOCK] KV of the rows since then */
    td_tier_meter       experts; /* a step is in it from its beginning */
};

typedef void (*wait_fn)(void);
static atomic_bool           g_images, g_hold_encodes;
static atomic_uint           g_encoded;
static atomic_int            g_fail_encodes;
static atomic_int            g_fail_forwards, g_fail_heads, g_fail_copies, g_fail_layers, g_fail_pieces;
static atomic_bool           g_pieces_wait, g_hold, g_nan, g_one_form, g_no_layer, g_lost, g_recurrent, g_windows;
static _Atomic float         g_layer_noise;
static _Atomic(wait_fn)      g_wait;
static _Atomic(const char *) g_complaint;
static atomic_uint           g_max_tok, g_delay_us, g_pieces, g_pieces_run, g_between;

void fake_fail_forwards(int n) {
    atomic_store(&g_fail_forwards, n);
}
void fake_images(bool yes) {
    atomic_store(&g_images, yes);
}
void fake_fail_encodes(int n) {
    atomic_store(&g_fail_encodes, n);
}
void fake_hold_encodes(bool hold) {
    atomic_store(&g_hold_encodes, hold);
}
uint32_t fake_encoded(void) {
    return atomic_load(&g_encoded);
}
void fake_fail_pieces(int n) {
    atomic_store(&g_fail_pieces, n);
}
void fake_fail_heads(int n) {
    atomic_store(&g_fail_heads, n);
}
void fake_fail_copies(int n) {
    atomic_store(&g_fail_copies, n);
}
void fake_fail_layers(int n) {
    atomic_store(&g_fail_layers, n);
}
void fake_lose(bool lost) {
    atomic_store(&g_lost, lost);
}
void fake_hold(bool hold) {
    atomic_store(&g_hold, hold);
}
void fake_wait(void (*wait)(void)) {
    atomic_store(&g_wait, wait);
}
void fake_delay(uint32_t us) {
    atomic_store(&g_delay_us, us);
}
void fake_pieces(uint32_t n) {
    atomic_store(&g_pieces, n);
}
void fake_pieces_wait(bool wait) {
    atomic_store(&g_pieces_wait, wait);
}
uint32_t fake_pieces_run(void) {
    return atomic_load(&g_pieces_run);
}
uint32_t fake_passes_between(void) {
    return atomic_load(&g_between);
}
void fake_give_nan(bool nan) {
    atomic_store(&g_nan, nan);
}
void fake_one_form(bool one) {
    atomic_store(&g_one_form, one);
}
void fake_recurrent(bool yes) {
    atomic_store(&g_recurrent, yes);
}
void fake_windows(bool yes) {
    atomic_store(&g_windows, yes);
}
void fake_has_no_layer(bool none) {
    atomic_store(&g_no_layer, none);
}
void fake_layer_noise(float most) {
    atomic_store(&g_layer_noise, most);
}
const char *fake_complaint(void) {
    return atomic_load(&g_complaint);
}
uint32_t fake_max_tok(void) {
    return atomic_load(&g_max_tok);
}

static void complain(const char *text) {
    const char *none = NULL;
    atomic_compare_exchange_strong(&g_complaint, &none, text);
}

static bool take_failure(atomic_int *n) {
    int left = atomic_load(n);
    while (left > 0)
        if (atomic_compare_exchange_weak(n, &left, left - 1)) return true;
    return false;
}

/* ---- the arithmetic -------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t kv_of(uint32_t token, uint32_t pos, bool absorbed) {
    return mix((uint64_t)token << 33 | (uint64_t)pos << 1 | (absorbed && !atomic_load(&g_one_form)));
}
/* ---- images: the features of a token are its number in fake_logits, and beside it that number and a half ---- */

uint32_t fake_image_row(uint32_t number, uint32_t at) {
    return FAKE_VOCAB + number * 4096 + at;
}

const td_vision_config *td_model_vision(const td_model *m) {
    return m->spec.max_patches ? &m->config.vision : NULL;
}

td_status td_model_start_image(td_model *m, const float *pixels, uint32_t rows, uint32_t columns, float *features) {
    const size_t n = (size_t)rows * columns;
    for (size_t i = 0; i < n * td_vision_patch_values(&m->config.vision); i++)
        if (pixels[i] != pixels[0]) complain("other pixels than the image's");
    m->image = (fake_image){.number = (uint32_t)lroundf((pixels[0] + 1) * 127.5f),
                            .n = (uint32_t)n / 4,
                            .features = features,
                            .pieces_left = atomic_load(&g_pieces) ? atomic_load(&g_pieces) : 1};
    return TD_OK;
}

td_status td_model_run_image_piece(td_model *m, td_piece *piece) {
    fake_image *image = &m->image;
    if (!image->features) complain("no image is under way");
    while (atomic_load(&g_hold_encodes)) usleep(200);
    piece->ended = --image->pieces_left == 0;
    const bool fails = take_failure(&g_fail_encodes);
    for (uint32_t at = 0; piece->ended && !fails && at < image->n; at++) {
        image->features[at] = (float)fake_image_row(image->number, at);
        image->features[image->n + at] = image->features[at] + 0.5f;
    }
    if (piece->ended || fails) image->features = NULL;
    if (piece->ended && !fails) atomic_fetch_add(&g_encoded, 1);
    return fails ? TD_EDEVICE : TD_OK;
}

/* The token of a row, or what stands for it. */
static uint32_t token_of(const td_model *m, const td_step_rows *s, uint32_t row, bool of_prompt) {
    if (s->image_row[row] == TD_NO_IMAGE) {
        if (of_prompt && m->config.vision.depth && s->token[row] == FAKE_IMAGE_TOKEN)
            complain("a token of an image has no features");
        return s->token[row];
    }
    const td_image_row *image = &s->images[s->image_row[row]];
    if (image->features[image->of + image->at] != image->features[image->at] + 0.5f) complain("a tap has other rows");
    return (uint32_t)image->features[image->at];
}

static uint64_t history(uint64_t h, uint64_t kv) {
    return mix(h ^ kv);
}

static uint32_t g_says[FAKE_SAYS_MAX];
static size_t   g_n_says;

void fake_says(const uint32_t *tokens, size_t n) {
    g_n_says = n < FAKE_SAYS_MAX ? n : FAKE_SAYS_MAX;
    if (n) memcpy(g_says, tokens, g_n_says * sizeof *tokens);
}

/* Of a row behind which the answer has so many tokens. */
static void logits_of(uint64_t h, uint32_t answered, float *logits) {
    for (uint32_t v = 0; v < FAKE_VOCAB; v++) logits[v] = (float)(mix(h + v) >> 40) * 0x1p-21f; /* [0, 8) */
    if (h % 80 == 0) logits[FAKE_EOS] += 20;
    if (answered < g_n_says) logits[g_says[answered]] += 40;
    if (atomic_load(&g_nan)) logits[7] = NAN;
}

void fake_logits(const uint32_t *tokens, uint32_t n, uint32_t n_prompt, float *logits) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) h = history(h, kv_of(tokens[i], i, i >= n_prompt));
    logits_of(h, n > n_prompt ? n - n_prompt : 0, logits);
}

/* The layer knows what the model will say behind a generated token, except, of four times, once; or nearly. */
static void layer_logits_of(uint64_t h, uint32_t answered, float *logits) {
    float noise = atomic_load(&g_layer_noise);
    logits_of(h, answered, logits);
    if (noise > 0) {
        for (uint32_t v = 0; v < FAKE_VOCAB; v++) logits[v] += noise * (float)(mix(~h - v) >> 40) * 0x1p-24f;
    } else if (h % 4 == 0) {
        logits[h / 4 % FAKE_VOCAB] += 100;
    }
}

void fake_layer_logits(const uint32_t *tokens, uint32_t n, uint32_t n_prompt, float *logits) {
    uint64_t h = 0;
    assert(n > n_prompt);
    for (uint32_t i = 0; i < n; i++) h = history(h, kv_of(tokens[i], i, i >= n_prompt));
    layer_logits_of(h, n - n_prompt, logits);
}

/* ---- model.h --------------------------------------------------------------------------------- */

td_status td_model_open(const td_model_spec *spec, const td_model_probe *probe, td_npu *const *npus, td_pool *expert_pool,
                        td_model **out, td_error *err) {
    (void)probe, (void)npus, (void)expert_pool, (void)err;
    td_model *m = calloc(1, sizeof *m);
    m->spec = *spec;
    if (!m->spec.context_length) m->spec.context_length = FAKE_CONTEXT;
    m->spec.in_pieces = spec->in_pieces && atomic_load(&g_pieces) && !atomic_load(&g_recurrent);
    m->spec.aside_tok = m->spec.in_pieces ? (spec->max_tok - spec->max_running) / 2 : 0;
    m->config = WITH(td_model_config, .arch_name = "FakeForCausalLM", .vocab = FAKE_VOCAB, .bos_id = 0,
                     .eos_ids = {FAKE_EOS}, .n_eos = 1, .n_mtp_layers = !spec->without_mtp && !atomic_load(&g_no_layer),
                     .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN);
    if (atomic_load(&g_images)) {
        m->config.hidden = 1;
        m->config.vision =
            WITH(td_vision_config, .depth = 1, .n_taps = 1, .patch = FAKE_IMAGE_PATCH, .token = FAKE_IMAGE_TOKEN);
    } else {
        m->spec.max_patches = 0;
    }
    if (!atomic_load(&g_recurrent)) {
        m->spec.state_slots = m->spec.open_slots = 0;
    } else {
        m->spec.state_slots += (uint32_t)(spec->snapshot_bytes / FAKE_STATE_BYTES);
        m->state = calloc(m->spec.state_slots, sizeof *m->state);
        m->open = calloc((size_t)m->spec.open_slots * TD_STATE_BLOCK, sizeof *m->open);
    }
    m->spec.gives_windows = spec->gives_windows && atomic_load(&g_windows);
    m->row_hash = calloc(spec->max_tok, sizeof *m->row_hash);
    m->row_answered = calloc(spec->max_tok, sizeof *m->row_answered);
    m->row_pos = calloc(spec->max_tok, sizeof *m->row_pos);
    m->layer_hash = calloc(spec->max_tok, sizeof *m->layer_hash);
    m->logits = calloc((size_t)spec->max_out * FAKE_VOCAB, sizeof *m->logits);
    atomic_store(&g_max_tok, spec->max_tok);
    *out = m;
    return TD_OK;
}

void td_model_close(td_model *m) {
    if (!m) return;
    free(m->kv);
    free(m->state);
    free(m->open);
    free(m->row_hash);
    free(m->row_answered);
    free(m->row_pos);
    free(m->layer_hash);
    free(m->kv_generated);
    free(m->slot_seen);
    free(m->window_kv);
    free(m->logits);
    free(m);
}

const td_model_config *td_model_get_config(const td_model *m) {
    return &m->config;
}
uint32_t td_model_one_form_from(const td_model *m) {
    return m && atomic_load(&g_one_form) ? 0 : UINT32_MAX;
}
bool td_model_recurrent(const td_model *m) {
    return m->state != NULL;
}
uint32_t td_model_window(const td_model *m) {
    return m->spec.gives_windows ? FAKE_WINDOW : 0;
}
const td_model_spec *td_model_get_spec(const td_model *m) {
    return &m->spec;
}
uint32_t td_model_context_length(const td_model *m) {
    return m->spec.context_length;
}
const char *td_model_expert_kernel(const td_model *m) {
    return m ? "fake" : NULL;
}
const char *td_model_expert_quantization(const td_model *m) {
    return m ? "none" : NULL;
}
void td_model_get_work(const td_model *m, td_model_work *out) {
    *out = (td_model_work){.experts = td_tier_read(&m->experts)};
}
const char *td_model_why(const td_model *m, td_status st) {
    return m ? td_status_text(st) : NULL;
}
bool td_model_is_lost(const td_model *m, td_error *why) {
    (void)m;
    if (atomic_load(&g_lost)) td_fail(why, TD_ELOST, "card 7 is lost");
    return atomic_load(&g_lost);
}
uint32_t td_model_get_cards(const td_model *m, td_card_stats out[TD_CARDS_MAX]) {
    (void)m;
    (void)out;
    return 0;
}

td_experts *td_model_get_experts(const td_model *m) {
    (void)m;
    return NULL;
}

void td_model_describe(const td_model *m, char *text, size_t size) {
    (void)m;
    snprintf(text, size, "%s", atomic_load(&g_hold) ? "gqa of layer 2 on the device" : "");
}

void td_model_get_memory(const td_model *m, td_model_memory *memory) {
    *memory = (td_model_memory){.unified_memory = true,
                                .host_scratch_bytes = (uint64_t)m->spec.max_tok << 10,
                                .kv_bytes_per_page = FAKE_KV_PAGE_BYTES};
    if (m->spec.gives_windows)
        memory->windows =
            (td_window_cost){.page_bytes = FAKE_KV_PAGE_BYTES,
                             .least = 4 * m->spec.max_running + (m->spec.max_tok + TD_KV_PAGE - 1) / TD_KV_PAGE};
}

void td_model_set_slots(td_model *m, uint32_t n_slots) {
    (void)m, (void)n_slots;
}

td_status td_model_load(td_model *m, uint32_t n_pages, td_error *err) {
    m->n_slots = n_pages * TD_KV_PAGE;
    m->kv = calloc(m->n_slots, sizeof *m->kv);
    m->slot_seen = calloc(m->n_slots, 1);
    m->kv_generated = calloc(m->n_slots, sizeof *m->kv_generated);
    td_model_memory memory;
    td_model_get_memory(m, &memory);
    m->n_window_slots = td_window_count(memory.windows, n_pages) * TD_KV_PAGE;
    if (m->spec.gives_windows) m->window_kv = calloc(m->n_window_slots, sizeof *m->window_kv);
    return m->kv && m->slot_seen && m->kv_generated ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory");
}

static const char *broken_rule(const td_model *m, const td_step_rows *s) {
    const td_step_rows *a = s;
    if (s->n_tok < 1 || s->n_tok > m->spec.max_tok) return "n_tok out of range";
    if (s->n_seq < 1 || a->seq_start[0] != 0 || a->seq_start[s->n_seq] != s->n_tok) return "sequences do not cover the rows";
    for (uint32_t q = 0; q < s->n_seq; q++) {
        uint32_t begin = a->seq_start[q], end = a->seq_start[q + 1];
        if (end <= begin) return "empty sequence";
        if (a->kv_len[q] != a->pos[end - 1] + 1) return "kv_len is not the last position + 1";
        if (a->kv_len[q] > m->spec.context_length) return "longer than the context";
        if ((a->kv_len[q] - 1) / TD_KV_PAGE >= s->block_stride) return "block table too short";
        for (uint32_t r = begin; r < end; r++) {
            if (a->token[r] >= FAKE_VOCAB) return "token outside the vocabulary";
            if (a->pos[r] != a->pos[begin] + (r - begin)) return "positions are not consecutive";
            uint32_t page = a->block_table[(size_t)q * s->block_stride + a->pos[r] / TD_KV_PAGE];
            if (a->slot[r] != page * TD_KV_PAGE + a->pos[r] % TD_KV_PAGE || a->slot[r] >= m->n_slots)
                return "slot is not in the block table";
            if (m->slot_seen[a->slot[r]]++) return "two rows write one slot";
            if (m->window_kv && a->window_slot[r] >= m->n_window_slots) return "a row has no slot in its window";
        }
    }
    return NULL;
}

/* A sequence's rows by its state: a block's border writes state_out, rows behind it lie in the open block. */
static const char *follow_state(td_model *m, const td_step_rows *a, uint32_t q) {
    uint32_t  begin = a->seq_start[q], first = a->pos[begin], in = a->state_in[q], slot = a->state_out[q];
    uint64_t *open = m->open + (size_t)a->state_open[q] * TD_STATE_BLOCK, h = 0;
    if (a->state_open[q] >= m->spec.open_slots) return "there is no such open block";
    if (in == TD_STATE_NONE ? first >= TD_STATE_BLOCK : in >= m->spec.state_slots) return "there is no such state";
    if (in != TD_STATE_NONE) h = m->state[in];
    for (uint32_t p = first / TD_STATE_BLOCK * TD_STATE_BLOCK; p < first; p++) h = history(h, open[p % TD_STATE_BLOCK]);
    for (uint32_t r = begin; r < a->seq_start[q + 1]; r++) {
        open[a->pos[r] % TD_STATE_BLOCK] = m->kv[a->slot[r]];
        h = history(h, m->kv[a->slot[r]]);
        if (h != m->row_hash[r]) return "the state is not that of the tokens before";
        if ((a->pos[r] + 1) % TD_STATE_BLOCK) continue;
        if (slot >= m->spec.state_slots) return "there is no slot for the next state";
        m->state[slot] = h;
    }
    return NULL;
}

/* Layers with a window read the rows of their own pages; what those before it have is not looked at. */
static const char *read_windows(const td_model *m, const td_step_rows *a, uint32_t q) {
    const uint32_t *table = a->block_table + (size_t)q * a->block_stride,
                   *windows = a->window_table + (size_t)q * a->block_stride;
    const uint32_t first = a->pos[a->seq_start[q]];
    for (uint32_t p = first >= FAKE_WINDOW ? first - FAKE_WINDOW + 1 : 0; p < a->kv_len[q]; p++) {
        uint32_t at = p % TD_KV_PAGE, page = p / TD_KV_PAGE;
        if (windows[page] >= m->n_window_slots / TD_KV_PAGE) return "a page of the window is not there";
        if (m->window_kv[windows[page] * TD_KV_PAGE + at] != m->kv[table[page] * TD_KV_PAGE + at])
            return "the window has other rows";
    }
    return NULL;
}

/* A pass that fails may have written all that it was to write. */
static td_status fail_forward(td_model *m, const td_step_rows *s) {
    for (uint32_t q = 0; m->state && q < s->n_seq; q++) {
        uint32_t first = s->pos[s->seq_start[q]];
        if (first / TD_STATE_BLOCK != s->kv_len[q] / TD_STATE_BLOCK) m->state[s->state_out[q]] = 0;
        memset(m->open + (size_t)s->state_open[q] * TD_STATE_BLOCK, 0, TD_STATE_BLOCK * sizeof *m->open);
    }
    return TD_EDEVICE;
}

/* The pass between the pieces of another. */
static const char *broken_rule_between(const td_model *m, const td_step_rows *s) {
    if (s->n_tok > m->spec.max_tok - m->spec.aside_tok) return "rows of a pass in pieces are written over";
    for (uint32_t r = 0; r < s->n_tok; r++)
        for (uint32_t k = 0; k < m->aside->n_tok; k++)
            if (s->slot[r] == m->aside->slot[k]) return "a slot of a pass in pieces is written";
    return NULL;
}

void td_model_start_pieces(td_model *m, const td_step_rows *rows) {
    if (rows->n_tok < 1 || rows->n_tok > m->spec.aside_tok || rows->n_seq > TD_ASIDE_SEQ)
        complain("too much for a pass in pieces");
    m->aside = rows;
    m->harm = NULL;
    m->pieces_left = atomic_load(&g_pieces);
    m->gave_way = false;
}

void td_model_drop_pieces(td_model *m) {
    m->aside = NULL;
}

td_status td_model_run_piece(td_model *m, td_piece *piece) {
    const td_step_rows *rows = m->aside;
    if (!rows) complain("there is no pass in pieces");
    if (m->harm) complain(m->harm);
    atomic_fetch_add(&g_pieces_run, 1);
    if (piece->waited_for && m->gave_way) complain("two pieces in a row give way");
    while (atomic_load(&g_pieces_wait) && piece->waited_for && !atomic_load(piece->waited_for)) usleep(200);
    piece->longest_s = 0.001;
    piece->ended = --m->pieces_left == 0;
    piece->gave_way = m->gave_way = !piece->ended && piece->waited_for && atomic_load(piece->waited_for);
    td_status st = TD_OK;
    if (piece->ended) {
        m->aside = NULL;
        st = td_model_forward(m, rows, (td_out_rows){0}, NULL);
    }
    if (st == TD_OK && take_failure(&g_fail_pieces)) st = TD_EDEVICE;
    if (st != TD_OK) m->aside = NULL;
    return st;
}

static bool generates(const td_step_rows *s) {
    for (uint32_t q = 0; q < s->n_seq; q++)
        if (s->absorbed[q]) return true;
    return false;
}

td_status td_model_forward(td_model *m, const td_step_rows *s, td_out_rows out, const float **logits) {
    const td_step_rows *a = s;
    usleep(atomic_load(&g_delay_us));
    atomic_fetch_add(&m->experts.bytes, FAKE_STEP_BYTES);
    atomic_fetch_add(&m->experts.int8_ops, (uint64_t)FAKE_TOKEN_OPS * s->n_tok);
    atomic_fetch_add(&m->experts.busy_ns, FAKE_STEP_NS);
    while (atomic_load(&g_hold)) usleep(200);
    wait_fn wait = atomic_load(&g_wait);
    if (wait && generates(s)) wait();
    memset(m->slot_seen, 0, m->n_slots);
    const char *rule = broken_rule(m, s);
    if (m->aside) atomic_fetch_add(&g_between, 1);
    if (m->aside && !m->harm) m->harm = broken_rule_between(m, s);
    if (rule) {
        complain(rule);
        return TD_EINVAL;
    }
    m->n_rows = 0;
    for (uint32_t q = 0; q < s->n_seq; q++)
        for (uint32_t r = a->seq_start[q]; r < a->seq_start[q + 1]; r++) {
            m->kv_generated[a->slot[r]] = a->absorbed[q];
            m->kv[a->slot[r]] = kv_of(token_of(m, a, r, !a->absorbed[q]), a->pos[r], a->absorbed[q]);
            if (m->window_kv) m->window_kv[a->window_slot[r]] = m->kv[a->slot[r]];
            if (take_failure(&g_fail_forwards)) return fail_forward(m, s); /* in the middle of its writes */
        }
    for (uint32_t q = 0; q < s->n_seq; q++) {
        const uint32_t *table = a->block_table + (size_t)q * s->block_stride;
        uint64_t        h = 0;
        uint32_t        first = a->pos[a->seq_start[q]], answered = 0;
        for (uint32_t p = 0; p < a->kv_len[q]; p++) {
            uint32_t slot = table[p / TD_KV_PAGE] * TD_KV_PAGE + p % TD_KV_PAGE;
            h = history(h, m->kv[slot]);
            answered += m->kv_generated[slot];
            if (p < first) continue;
            m->row_hash[a->seq_start[q] + p - first] = h;
            m->row_answered[a->seq_start[q] + p - first] = answered;
            m->row_pos[a->seq_start[q] + p - first] = p;
        }
        rule = m->state ? follow_state(m, a, q) : NULL;
        if (m->window_kv && !rule) rule = read_windows(m, a, q);
        if (rule) {
            complain(rule);
            return TD_EINVAL;
        }
    }
    m->n_rows = s->n_tok;
    return out.n ? td_model_head(m, out, logits) : TD_OK;
}

/* A row as it comes from a device of its own: of those that are not among the best, -inf. Ties go to the lower id. */
static void leave_best(float *row, td_out_logprobs *l) {
    uint32_t best[TD_MODEL_TOP], n = 0, many = 0;
    float    least = 7; /* most rows have enough above it: this is called often */
    float    kept[TD_MODEL_TOP], asked = l->wanted && l->id < FAKE_VOCAB ? row[l->id] : 0;
    l->log_sum = l->wanted ? td_log_sum_of(row, FAKE_VOCAB) : (double)NAN;
    for (uint32_t id = 0; id < FAKE_VOCAB; id++) many += row[id] >= least;
    if (many < TD_MODEL_TOP) least = -INFINITY;
    for (uint32_t id = 0; id < FAKE_VOCAB; id++) {
        if (row[id] < least) continue;
        if (n == TD_MODEL_TOP && !(row[id] > row[best[n - 1]])) continue;
        uint32_t at = n < TD_MODEL_TOP ? n++ : n - 1;
        for (; at > 0 && row[id] > row[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = id;
    }
    for (uint32_t i = 0; i < n; i++) kept[i] = row[best[i]];
    for (uint32_t id = 0; id < FAKE_VOCAB; id++) row[id] = -INFINITY;
    for (uint32_t i = 0; i < n; i++) row[best[i]] = kept[i];
    if (l->wanted && l->id < FAKE_VOCAB) row[l->id] = asked;
}

td_status td_model_head(td_model *m, td_out_rows out, const float **logits) {
    const uint32_t *rows = out.row, n_rows = out.n;
    if (n_rows < 1 || n_rows > m->spec.max_out) complain("n_rows out of range");
    if (take_failure(&g_fail_heads)) return TD_EDEVICE;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i] >= m->n_rows) complain("row outside the step");
        logits_of(m->row_hash[rows[i]], m->row_answered[rows[i]], m->logits + (size_t)i * FAKE_VOCAB);
        bool comes_short = m->row_hash[rows[i]] % 4 == 0; /* a quarter of those that may: it takes longer */
        if (comes_short && out.best && out.best[i] && !atomic_load(&g_nan))
            leave_best(m->logits + (size_t)i * FAKE_VOCAB, &out.logprobs[i]);
    }
    *logits = m->logits;
    return TD_OK;
}

td_status td_model_mtp(td_model *m, const uint32_t *next_token) {
    if (!m->config.n_mtp_layers) complain("there is no MTP layer");
    for (uint32_t r = 0; r < m->n_rows; r++) {
        if (next_token[r] >= FAKE_VOCAB) complain("next token outside the vocabulary");
        m->layer_hash[r] = history(m->row_hash[r], kv_of(next_token[r], m->row_pos[r] + 1, true));
    }
    return take_failure(&g_fail_layers) ? TD_EDEVICE : TD_OK;
}

td_status td_model_mtp_head(td_model *m, td_out_rows out, const float **logits) {
    if (out.n < 1 || out.n > m->spec.max_out) complain("n_rows out of range");
    if (take_failure(&g_fail_layers)) return TD_EDEVICE;
    for (uint32_t i = 0; i < out.n; i++) {
        uint32_t r = out.row[i];
        float   *to = m->logits + (size_t)i * FAKE_VOCAB;
        if (r >= m->n_rows) complain("row outside the step");
        layer_logits_of(m->layer_hash[r], m->row_answered[r] + 1, to);
    }
    *logits = m->logits;
    return TD_OK;
}

/* A page as it is copied: its slots' hashes, and which of them are of answers. */
size_t td_model_page_bytes(const td_model *m) {
    return TD_KV_PAGE * (sizeof *m->kv + sizeof *m->kv_generated);
}

uint64_t td_model_source_hash(const td_model *m) {
    return m->config.vocab;
}

td_status td_model_prepare_page_copies(td_model *m, td_error *err) {
    (void)m, (void)err;
    return TD_OK;
}

td_status td_model_read_page(td_model *m, uint32_t page, void *to) {
    if (take_failure(&g_fail_copies)) return TD_EDEVICE;
    memcpy(to, m->kv + (size_t)page * TD_KV_PAGE, TD_KV_PAGE * sizeof *m->kv);
    memcpy((char *)to + TD_KV_PAGE * sizeof *m->kv, m->kv_generated + (size_t)page * TD_KV_PAGE,
           TD_KV_PAGE * sizeof *m->kv_generated);
    return TD_OK;
}

td_status td_model_write_page(td_model *m, uint32_t page, const void *from) {
    bool fails = take_failure(&g_fail_copies);
    memcpy(m->kv + (size_t)page * TD_KV_PAGE, from, TD_KV_PAGE * sizeof *m->kv / (fails ? 2 : 1));
    if (fails) return TD_EDEVICE;
    memcpy(m->kv_generated + (size_t)page * TD_KV_PAGE, (const char *)from + TD_KV_PAGE * sizeof *m->kv,
           TD_KV_PAGE * sizeof *m->kv_generated);
    return TD_OK;
}

/* ---- npu.h: the only backend ------------------------------------------------------ */

static void fake_caps(td_npu *d, td_npu_caps *out) {
    (void)d;
    *out = (td_npu_caps){.text = "fake", .unified_memory = true};
}
static void fake_close(td_npu *d) {
    free(d);
}

static const td_npu_ops fake_ops = {.name = "fake", .caps = fake_caps, .close = fake_close};

static td_status fake_open(const td_npu_config *config, td_npu **out, td_error *err) {
    (void)config;
    *out = calloc(1, sizeof **out);
    if (!*out) return td_fail(err, TD_ENOMEM, "out of memory");
    (*out)->ops = &fake_ops;
    return TD_OK;
}

static const td_backend FAKE = {
    .name = "host", .aliases = (const char *const[]){"cpu", NULL}, .help = "the CPU", .open = fake_open};
const td_backend *const td_backends[] = {&FAKE, NULL};
