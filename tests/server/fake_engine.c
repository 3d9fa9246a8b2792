/*
 * An engine without a model, behind the same functions as the real one: for tests of the server alone.
 *
 * Tokens: 0 BOS, 1 EOS, 2 <|user|>, 3 <|assistant|>, 4 + b the byte b. The answer repeats the text of the last user turn (or
 * of the whole prompt), then ends with EOS; with ignore_eos it starts again. With a temperature above 0, letters change case
 * by the seed. Log-probabilities are -0.5 for a generated token, -1 for a prompt token, and 1 less for each further top one.
 *
 * Words in the prompt make trouble:
 *   !error     an error after 3 tokens
 *   !busy      the queue is full
 *   !slow      20 ms a token
 *   !flood     no pause at all
 *   !hang      no token ever
 *   !held      no token while the gate is shut
 *   !halfway   none but the first HALFWAY_TOKENS while the gate is shut
 *   !halt      none behind this word of the answer while the gate is shut
 *   !encode    tokenizing waits at the gate, or until it is stopped; !stuck: stopped or not
 *   !linger    the request runs, and what a call asks of the engine about it is done, LINGER_US before the call returns
 *   !lose      the card is lost after 3 tokens
 * So do words in the model's path:
 *   missing    no such folder
 *   slow       loading waits at the gate
 *   cold       the first token of all comes after 2 s, and not while the gate is shut
 *   images     the model takes images, of 4 tokens each or more: the token <|image|>, 260. Its template writes that for an
 *              image of any message but the assistant's, and refuses one of the system. In the answer "[n]" stands for an
 *              image of n tokens. Before an image is loaded, it waits at the gate
 *   blind      with images: the template knows no lists
 *   fuzz       with images: none is decoded
 * A grammar waits at the gate (gate.h), too, before it is ready.
 */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "image/image.h"
#include "tandem.h"
#include "tests/forms.h"
#include "tests/server/gate.h"
#include "text/tokenizer/encode_work.h"

#define VOCAB 260
#define IMAGE_TOKEN 260 /* where the model takes images */
#define BYTE_BASE 4u
#define TICK_US 1000
#define SLOW_TICKS 20
#define COLD_TICKS 2000
#define LINGER_US 500000
#define HALFWAY_TOKENS 3

static const char IMAGE[] = "<|image|>";
static bool       g_takes_images, g_is_blind; /* set before the engine's threads start */

static const char *const SPECIAL[BYTE_BASE] = {"<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"};

/* The same as an encoding does it. @return TD_ECANCELLED: it was stopped. */
static td_status encode_at_gate(void) {
    td_encode_work work = {0};
    td_status      st = TD_OK;
    if (gate_is_shut()) tell_gate();
    while (gate_is_shut() && (st = td_encode_work_ask(&work)) == TD_OK) usleep(1000);
    return st;
}

/* ---- tokenizer ---- */

struct td_tokenizer {
    int unused;
};
static struct td_tokenizer g_tokenizer;

static unsigned char g_bytes[256]; /* each byte in its place */
static void __attribute__((constructor)) fill_bytes(void) {
    for (unsigned i = 0; i < 256; i++) g_bytes[i] = (unsigned char)i;
}

td_status td_tokenizer_encode(const td_tokenizer *tok, const char *text, size_t n, bool parse_special, bool add_special,
                              uint32_t **ids, size_t *n_ids) {
    uint32_t *to = malloc((n + 1) * sizeof *to);
    size_t    k = 0;
    (void)tok;
    if (!to) return TD_ENOMEM;
    if (memmem(text, n, "!stuck", 6)) wait_at_gate();
    td_status st = memmem(text, n, "!encode", 7) ? encode_at_gate() : TD_OK;
    if (st != TD_OK) {
        free(to);
        return st;
    }
    if (add_special) to[k++] = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        for (uint32_t s = 0; parse_special && s < BYTE_BASE && !len; s++) {
            size_t m = strlen(SPECIAL[s]);
            if (n - i >= m && !memcmp(text + i, SPECIAL[s], m)) to[k++] = s, len = m;
        }
        if (!len && parse_special && g_takes_images && n - i >= strlen(IMAGE) && !memcmp(text + i, IMAGE, strlen(IMAGE)))
            to[k++] = IMAGE_TOKEN, len = strlen(IMAGE);
        if (!len) to[k++] = BYTE_BASE + (unsigned char)text[i], len = 1;
        i += len;
    }
    *ids = to;
    *n_ids = k;
    return TD_OK;
}

size_t td_tokenizer_tokens_min(const td_tokenizer *tok, size_t len) {
    (void)tok;
    (void)len;
    return 0;
}

/* Length of the whole character at s, 0 for an invalid or unfinished one (the fake trusts continuation bytes). */
static size_t char_len(const unsigned char *s, size_t n) {
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 0;
    if (len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return len;
}

td_status td_tokenizer_decode(const td_tokenizer *tok, const uint32_t *ids, size_t n, bool skip_special, char **text,
                              size_t *len) {
    unsigned char *raw = malloc(n * 16 + 1);
    char          *out = malloc(n * 48 + 1);
    size_t         m = 0, k = 0;
    (void)tok;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == IMAGE_TOKEN && g_takes_images) {
            if (!skip_special) m += (size_t)(stpcpy((char *)raw + m, IMAGE) - (char *)(raw + m));
            continue;
        }
        if (ids[i] >= VOCAB) {
            free(raw);
            free(out);
            return TD_EINVAL;
        }
        if (ids[i] >= BYTE_BASE)
            raw[m++] = (unsigned char)(ids[i] - BYTE_BASE);
        else if (!skip_special)
            m += (size_t)(stpcpy((char *)raw + m, SPECIAL[ids[i]]) - (char *)(raw + m));
    }
    for (size_t i = 0; i < m;) {
        size_t c = char_len(raw + i, m - i);
        if (c)
            memcpy(out + k, raw + i, c), k += c;
        else
            memcpy(out + k, "\xef\xbf\xbd", 3), k += 3;
        i += c ? c : 1;
    }
    out[k] = 0;
    free(raw);
    *text = out;
    *len = k;
    return TD_OK;
}

const char *td_tokenizer_token(const td_tokenizer *tok, uint32_t id, size_t *len, bool *special) {
    (void)tok;
    if (g_takes_images && id == IMAGE_TOKEN) {
        *special = true;
        *len = strlen(IMAGE);
        return IMAGE;
    }
    *special = id < BYTE_BASE;
    *len = *special ? strlen(SPECIAL[id]) : 1;
    return id >= VOCAB ? NULL : *special ? SPECIAL[id] : (const char *)&g_bytes[id - BYTE_BASE];
}

size_t td_tokenizer_vocab_size(const td_tokenizer *tok) {
    (void)tok;
    return VOCAB + g_takes_images;
}

const char *td_tokenizer_bos(const td_tokenizer *tok) {
    return tok ? SPECIAL[0] : NULL;
}
const char *td_tokenizer_eos(const td_tokenizer *tok) {
    return tok ? SPECIAL[1] : NULL;
}

/* ---- chat template ---- */

struct td_chat_template {
    char source[4096]; /* of --chat-template FILE; only the server's choice of parsers looks at it */
};
static struct td_chat_template g_template;

const char *td_chat_template_source(const td_chat_template *tmpl) {
    return tmpl->source;
}

static void read_template(const char *path) {
    FILE *f = path ? fopen(path, "rb") : NULL;
    if (!f) return;
    g_template.source[fread(g_template.source, 1, sizeof g_template.source - 1, f)] = 0;
    fclose(f);
}

static void write_part(FILE *f, const json_t *part, bool of_assistant) {
    const char *text = json_string_value(json_object_get(part, "text"));
    if (text)
        fwrite(text, 1, json_string_length(json_object_get(part, "text")), f);
    else if (!of_assistant)
        fputs(IMAGE, f);
}

td_status td_chat_template_render_value(const td_chat_template *tmpl, const json_t *doc, const char *bos, const char *eos,
                                        char **text, size_t *text_len, td_error *err) {
    json_t *messages = json_object_get(doc, "messages"), *m;
    char   *out = NULL;
    size_t  i;
    FILE   *f = open_memstream(&out, text_len);
    (void)tmpl;
    fputs(bos ? bos : "", f);
    td_status st = TD_OK;
    json_array_foreach(messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role")),
                   *content = json_string_value(json_object_get(m, "content"));
        bool assistant = !strcmp(role, "assistant");
        if (!strcmp(role, "tool") && i == 0) st = td_fail(err, TD_EINVAL, "a conversation cannot start with a tool");
        fprintf(f, "%s%s", assistant ? "<|assistant|>" : "<|user|>", !strcmp(role, "system") ? "[system]" : "");
        const json_t *parts = g_takes_images && !g_is_blind ? json_object_get(m, "content") : NULL, *part;
        size_t        k;
        if (json_is_array(parts) && !strcmp(role, "system"))
            st = td_fail(err, TD_EINVAL, "System message cannot contain images.");
        json_array_foreach(parts, k, part) write_part(f, part, assistant);
        if (!json_is_array(parts))
            fwrite(content ? content : "[null]", 1, content ? json_string_length(json_object_get(m, "content")) : 6, f);
        if (assistant) fputs(eos ? eos : "", f);
    }
    if (json_object_get(doc, "tools")) fprintf(f, "[tools:%zu]", json_array_size(json_object_get(doc, "tools")));
    const char *suffix = json_string_value(json_object_get(json_object_get(doc, "chat_template_kwargs"), "suffix"));
    if (suffix) fputs(suffix, f);
    if (json_is_true(json_object_get(doc, "add_generation_prompt"))) fputs("<|assistant|>", f);
    fclose(f);
    if (st != TD_OK)
        free(out);
    else
        *text = out;
    return st;
}

/* ---- engine ---- */

struct td_request {
    td_request       *next;
    td_engine        *engine;
    td_request_params p;
    uint32_t         *prompt, *reply;
    size_t            n_reply;
    td_prompt_image  *images;
    char             *stop[TD_STOP_MAX];
    char             *text; /* all generated bytes */
    size_t            text_len, text_sent;
    uint64_t          seed;
    uint32_t          done;
    unsigned          pause, ticks; /* ticks per token */
    int               refs;         /* the caller's handle, the engine's list */
    bool              cancelled, running, hang, held, halfway, error, linger, loses;
    double            begin_s; /* monotonic clock */
};

struct td_engine {
    td_engine_options o;
    char              path[256];
    bool              has_template;
    pthread_mutex_t   lock;
    pthread_t         thread;
    td_request       *list;
    bool              stop, flushed, lost;
    td_engine_stats   stats;
    uint64_t          submitted;
    td_image_loader  *images; /* NULL: the model takes none, or none is decoded */
};

void td_engine_options_init(td_engine_options *o) {
    *o = WITH(td_engine_options, .load_format = "auto", .device = "host", .quantization = "auto",
              .expert_quantization = "auto", .kv_cache_dtype = "auto", .mem_fraction_static = 0.9, .page_size = 128,
              .chunked_prefill_size = 8192, .max_prefill_tokens = 16384, .decode_log_interval = 40);
}

void td_request_params_init(td_request_params *p) {
    *p = (td_request_params){
        .max_tokens = 16, .skip_special_tokens = true, .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
}

static void unref_locked(td_request *r) {
    if (--r->refs) return;
    for (size_t i = 0; i < r->p.n_stop; i++) free(r->stop[i]);
    for (size_t i = 0; i < r->p.n_images; i++) td_image_release(r->images[i].image);
    free(r->images);
    free(r->prompt);
    free(r->reply);
    free(r->text);
    free(r);
}

static void fill_logprobs(td_position_logprobs *lp, uint32_t id, float logprob, uint32_t n_top) {
    *lp = (td_position_logprobs){.id = id, .logprob = logprob, .n_top = n_top};
    for (uint32_t k = 0; k < n_top; k++) lp->top[k] = (td_token_logprob){(id + k) % VOCAB, -0.5f - (float)k};
}

static void count_finish(td_engine_stats *s, td_finish finish) {
    s->requests_stopped += finish == TD_FINISH_STOP;
    s->requests_length += finish == TD_FINISH_LENGTH;
    s->requests_aborted += finish == TD_FINISH_ABORT;
    s->requests_failed += finish == TD_FINISH_ERROR;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const td_error LOST = {TD_ELOST, "card 3 is lost: nobody knows why"};

/* One token; true when it was the last. Text is sent in whole characters, and held back while a stop string may come. */
static bool step(td_request *r) {
    td_event             e = {.prompt_tokens = (uint32_t)r->p.n_prompt, .stop_token = UINT32_MAX};
    td_position_logprobs lp, *prompt_lp = NULL;
    td_error             error;
    uint32_t             token = 1;
    bool                 first = r->done == 0;
    if (first && r->p.prompt_logprobs) {
        prompt_lp = calloc(r->p.n_prompt, sizeof *prompt_lp);
        for (size_t i = 0; i < r->p.n_prompt; i++)
            fill_logprobs(&prompt_lp[i], r->prompt[i], i ? -1.0f : NAN, i ? r->p.n_top_logprobs : 0);
        e.prompt_logprobs = prompt_lp;
        e.n_prompt_logprobs = r->p.n_prompt;
    }
    if (r->loses && r->done == 3) r->engine->lost = true;
    if (r->engine->lost || (r->error && r->done == 3)) {
        error = r->engine->lost ? LOST : (td_error){TD_EDEVICE, "the fake device broke"};
        e.finish = TD_FINISH_ERROR;
        e.error = &error;
    } else if (r->p.max_tokens == 0) {
        e.finish = TD_FINISH_LENGTH;
    } else {
        if (r->p.ignore_eos && r->n_reply)
            token = r->reply[r->done % r->n_reply];
        else if (r->done < r->n_reply)
            token = r->reply[r->done];
        unsigned char byte = token >= BYTE_BASE ? (unsigned char)(token - BYTE_BASE) : 0;
        bool          letter = (byte | 32) >= 'a' && (byte | 32) <= 'z';
        if (letter && r->p.sampling.temperature > 0 && td_rng_u64(r->seed, 0, r->done) & 1) token = BYTE_BASE + (byte ^ 32);
        for (size_t i = 0; i < r->p.sampling.n_bias; i++)
            if (r->p.sampling.bias[i] >= 100) token = r->p.sampling.bias_ids[i];
        r->done++;
        if (token >= BYTE_BASE) r->text[r->text_len++] = (char)(token - BYTE_BASE);
        if (token == 1 && !r->p.ignore_eos && r->done > r->p.min_tokens) e.finish = TD_FINISH_STOP, e.stop_token = 1;
        for (size_t i = 0; i < r->p.n_stop_ids; i++)
            if (token == r->p.stop_ids[i]) e.finish = TD_FINISH_STOP, e.stop_token = token;
        e.tokens = &token;
        e.n_tokens = 1;
        e.age_s = now_s() - r->begin_s;
        fill_logprobs(&lp, token, -0.5f, r->p.n_top_logprobs);
        if (r->p.logprobs) e.logprobs = &lp;
        r->engine->stats.generation_tokens++;
        r->engine->stats.expert_pairs += 8;
        r->engine->stats.experts.bytes += 1000;
        r->engine->stats.experts.int8_ops += 5000;
        r->engine->stats.experts.busy_ns += 2000000;
        r->engine->stats.device.bytes += 3000;
        r->engine->stats.device.int8_ops += 700;
        r->engine->stats.device.f32_ops += 70;
    }
    size_t limit = r->text_len, hold = 0;
    for (size_t i = 0; i < r->p.n_stop; i++) {
        size_t n = strlen(r->stop[i]);
        char  *at = memmem(r->text, r->text_len, r->stop[i], n);
        if (n - 1 > hold) hold = n - 1;
        if (!at) continue;
        limit = (size_t)(at - r->text) + (r->p.include_stop ? n : 0);
        e.finish = TD_FINISH_STOP;
        e.stop_reason = r->stop[i];
    }
    if (e.finish == TD_FINISH_NONE && r->done >= r->p.max_tokens) e.finish = TD_FINISH_LENGTH;
    if (e.finish == TD_FINISH_NONE) limit = limit - r->text_sent > hold ? limit - hold : r->text_sent;
    size_t whole = r->text_sent;
    for (size_t c; whole < limit && (c = char_len((unsigned char *)r->text + whole, limit - whole)) > 0;) whole += c;
    e.text = r->text + r->text_sent;
    e.text_len = whole > r->text_sent ? whole - r->text_sent : 0;
    r->text_sent = whole;
    e.completion_tokens = r->done;
    if (r->cancelled) e.finish = TD_FINISH_ABORT;
    count_finish(&r->engine->stats, e.finish);
    r->p.on_event(r->p.user, &e);
    free(prompt_lp);
    return e.finish != TD_FINISH_NONE;
}

static void abort_request(td_request *r) {
    td_event e = {.finish = TD_FINISH_ABORT, .stop_token = UINT32_MAX};
    e.text = r->text + r->text_sent; /* what was held back */
    e.text_len = r->text_len - r->text_sent;
    e.prompt_tokens = (uint32_t)r->p.n_prompt;
    e.completion_tokens = r->done;
    count_finish(&r->engine->stats, e.finish);
    r->p.on_event(r->p.user, &e);
}

static uint32_t max_running(const td_engine *e) {
    return e->o.max_running_requests ? e->o.max_running_requests : 64;
}
static uint32_t max_queued(const td_engine *e) {
    return e->o.max_queued_requests ? e->o.max_queued_requests : 1024;
}

/* Whether its next token comes when the gate is open only. */
static bool is_held(const td_request *r) {
    bool at_halt = r->text_len >= 5 && !memcmp(r->text + r->text_len - 5, "!halt", 5);
    return r->held || at_halt || (r->halfway && r->done >= HALFWAY_TOKENS);
}

static void *run(void *arg) {
    td_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        uint32_t max = max_running(e), running = 0;
        bool     flood = false, hung = false;
        for (td_request **at = &e->list; *at;) {
            td_request *r = *at;
            bool        last = false;
            r->running = running < max;
            running += r->running;
            flood = flood || !r->pause;
            hung = hung || (r->running && r->hang && !r->cancelled);
            if (r->cancelled) {
                abort_request(r);
                last = true;
            } else if (e->lost || (r->running && !r->hang && !(is_held(r) && gate_is_shut()) &&
                                   (!r->pause || ++r->ticks % r->pause == 0))) {
                last = step(r);
            }
            if (last) {
                *at = r->next;
                unref_locked(r);
            } else {
                at = &r->next;
            }
        }
        e->stats.steps_decode += running > 0 && !hung;
        pthread_mutex_unlock(&e->lock);
        if (!flood) usleep(TICK_US);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

td_status td_engine_check(const td_engine_options *o, td_error *err) {
    if (strstr(o->model_path, "missing")) return td_fail(err, TD_ENOTFOUND, "%s: no such folder", o->model_path);
    return TD_OK;
}

td_status td_engine_open(const td_engine_options *o, td_engine **out, td_error *err) {
    TD_TRY(td_engine_check(o, err));
    if (strstr(o->model_path, "slow")) wait_at_gate();
    td_engine *e = calloc(1, sizeof *e);
    e->o = *o;
    strncpy(e->path, o->model_path, sizeof e->path - 1);
    read_template(o->chat_template);
    g_takes_images = strstr(o->model_path, "images");
    g_is_blind = strstr(o->model_path, "blind");
    if (g_takes_images && !strstr(o->model_path, "fuzz")) {
        td_image_options with = td_image_default_options();
        TD_TRY(td_image_loader_open(&with, &e->images, err));
    }
    e->has_template = !o->chat_template || strcmp(o->chat_template, "none") != 0;
    e->stats.ttft = (td_histogram){.n = 3, .bound_s = {0.01, 0.1, 1}, .count = {1, 2, 0, 1}, .sum_s = 2.5};
    e->stats.tpot = e->stats.queue_time = e->stats.e2e = e->stats.ttft;
    pthread_mutex_init(&e->lock, NULL);
    pthread_create(&e->thread, NULL, run, e);
    *out = e;
    return TD_OK;
}

void td_engine_close(td_engine *e, double grace_s) {
    (void)grace_s;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    bool left = e->list != NULL;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    if (left) abort(); /* the server promises to have ended all */
    pthread_mutex_destroy(&e->lock);
    td_image_loader_close(e->images);
    free(e);
}

/* An image that is not decoded: one token. */
static td_image *undecoded(void) {
    td_image *image = calloc(1, sizeof *image);
    atomic_init(&image->refs, 1);
    image->rule.merge = image->rows = image->cols = 2;
    return image;
}

td_status td_engine_load_image(td_engine *e, const char *text, size_t len, td_image **out, td_error *err) {
    /* Sides in whole blocks of 32 pixels, and 64 of them at least. */
    static const td_image_rule RULE = {.sizing = TD_IMAGE_QWEN,
                                       .patch = 16,
                                       .merge = 2,
                                       .frames = 2,
                                       .min = 4096,
                                       .max = 1 << 24,
                                       .mean = {0.5f, 0.5f, 0.5f},
                                       .std = {0.5f, 0.5f, 0.5f}};
    if (!g_takes_images) return td_fail(err, TD_ENOTSUP, "the model is served for text only, and takes no images");
    wait_at_gate();
    if (e->images) return td_image_load_text(e->images, &RULE, text, len, out, err);
    if (len == 0) return td_fail(err, TD_EFORMAT, "no image");
    *out = undecoded();
    return TD_OK;
}

void td_engine_get_info(const td_engine *e, td_engine_info *info) {
    *info = WITH(
        td_engine_info, .architecture = "Fake", .model_type = "fake", .model_path = e->path, .device = "fake",
        .quantization = "none", .expert_quantization = "none", .expert_kernel = "none", .vocab_size = VOCAB + g_takes_images,
        .context_length = e->o.context_length ? e->o.context_length : 4096, .max_total_tokens = 1 << 20,
        .kv_page_tokens = 128, .image_token = g_takes_images ? IMAGE_TOKEN : UINT32_MAX, .weight_bytes = (uint64_t)3 << 30,
        .expert_weight_bytes = (uint64_t)2 << 30, .kv_bytes = (uint64_t)1 << 29, .scratch_bytes = 1 << 20,
        .max_running_requests = max_running(e), .max_queued_requests = max_queued(e),
        .chunked_prefill_size = e->o.chunked_prefill_size, .device_bounds = {e->o.measure_bounds ? 30e9 : 0, 1e12, 1e11},
        .expert_bounds = {e->o.measure_bounds ? 60e9 : 0, 2e12, 2e11}, .n_expert_nodes = 2,
        .expert_nodes = {{0, 0.75}, {1, 0.25}}, .default_temperature = 0, .default_top_p = NAN,
        .default_repetition_penalty = NAN);
}

const td_tokenizer *td_engine_tokenizer(const td_engine *e) {
    return strstr(e->path, "notok") ? NULL : &g_tokenizer;
}
const td_chat_template *td_engine_chat_template(const td_engine *e) {
    return e->has_template ? &g_template : NULL;
}

void td_engine_flush_cache(td_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->flushed = true;
    pthread_mutex_unlock(&e->lock);
}

void td_engine_get_stats(td_engine *e, td_engine_stats *s) {
    pthread_mutex_lock(&e->lock);
    e->stats.running = e->stats.queued = 0;
    e->stats.kv_tokens_used = e->stats.queued_tokens = 0;
    for (td_request *r = e->list; r; r = r->next) {
        if (r->running)
            e->stats.running++, e->stats.kv_tokens_used += r->p.n_prompt + r->done;
        else
            e->stats.queued++, e->stats.queued_tokens += r->p.n_prompt;
    }
    e->stats.kv_tokens_total = 1 << 20;
    e->stats.kv_tokens_cached = e->flushed ? 0 : 512;
    e->stats.has_drafts = true;
    e->stats.drafts_verified = 10;
    e->stats.drafts_accepted = 6;
    e->stats.drafted_steps = 5;
    e->stats.drafted_seqs = 12;
    e->stats.drafted_tokens = 18;
    e->stats.draft_gain = 1.25;
    e->stats.residency = (td_residency_counts){.hits = 62,
                                               .misses = 38,
                                               .uploads = 9,
                                               .failed = 1,
                                               .upload_bytes = 9000,
                                               .upload_ns = 250000000,
                                               .resident = 14,
                                               .slots = 16,
                                               .drops = true,
                                               .reads = 5,
                                               .unread = 2,
                                               .dropped_bytes = 14000,
                                               .streamed = 25,
                                               .stream = {.steps = 4,
                                                          .uploads = 64,
                                                          .failed = 2,
                                                          .upload_bytes = 64000,
                                                          .upload_ns = 500000000,
                                                          .slots = 128,
                                                          .share = 48,
                                                          .crossover = 700}};
    e->stats.images = (td_image_counts){
        .encoded = 3, .tokens = 12, .ns = 1500000000, .cache_bytes = 7000, .cache_bytes_max = 9000, .evictions = 1};
    e->stats.has_page_store = true;
    e->stats.page_store =
        WITH(td_page_store_stats, .up = true, .pages_out = 11, .pages_in = 7, .pages_bad = 1, .pages_unsent = 2,
             .lookups = 9, .lookups_late = 3, .lookups_refused = 4, .failures = 5, .out_s = 0.5, .in_s = 0.25,
             .page_bytes = 1000, .buffers_used = 6, .buffers = 8, .lookups_open = 1);
    *s = e->stats;
    pthread_mutex_unlock(&e->lock);
}

bool td_engine_is_lost(td_engine *e, td_error *why) {
    pthread_mutex_lock(&e->lock);
    bool lost = e->lost;
    pthread_mutex_unlock(&e->lock);
    if (lost && why) *why = LOST;
    return lost;
}

uint32_t td_engine_get_cards(td_engine *e, td_card_stats out[TD_CARDS_MAX]) {
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < 2; i++)
        out[i] = WITH(td_card_stats, .memory_total = (uint64_t)32 << 30, .memory_free = ((uint64_t)7 << 30) + i,
                      .launches = 5 * e->stats.steps_decode + i, .captures = 3, .replays = 2 * e->stats.steps_decode,
                      .failures = i, .temperature_c = 40.5 + i, .streamed_bytes = 32000, .streamed_ns = 250000000 * (1 + i));
    pthread_mutex_unlock(&e->lock);
    return 2;
}

/* A request that hangs does so in an operation of the device. */
void td_engine_get_step(td_engine *e, td_engine_step *s) {
    *s = (td_engine_step){.phase = TD_STEP_NONE};
    pthread_mutex_lock(&e->lock);
    s->number = e->stats.steps_decode;
    for (td_request *r = e->list; r; r = r->next) {
        if (!r->running || !r->hang) continue;
        *s = (td_engine_step){.phase = TD_STEP_FORWARD, .number = e->stats.steps_decode + 1, .sequences = 1, .seconds = 7};
        s->tokens = (uint32_t)r->p.n_prompt;
        strcpy(s->where, "mla of layer 3 on the device");
    }
    pthread_mutex_unlock(&e->lock);
}

/* Add the bytes for an image, which its token and the next ones of it stand for. @return how many they are. */
static size_t reply_to_image(td_request *r, size_t at, size_t *n) {
    char   text[32];
    size_t k = 0;
    while (k < r->p.n_images && r->images[k].first != at) k++;
    if (k == r->p.n_images) abort(); /* the server promises that images have these tokens, and nothing else has */
    uint32_t tokens = td_image_tokens(r->images[k].image);
    for (size_t i = at; i < at + tokens; i++)
        if (i >= r->p.n_prompt || r->prompt[i] != IMAGE_TOKEN) abort();
    snprintf(text, sizeof text, "[%u]", tokens);
    for (const char *c = text; *c; c++) r->reply[(*n)++] = BYTE_BASE + (unsigned char)*c;
    return tokens;
}

static void make_reply(td_request *r) {
    size_t from = 0, n = 0, step;
    for (size_t i = 0; i < r->p.n_prompt; i++)
        if (r->prompt[i] == 2) from = i + 1;
    for (size_t i = from; i < r->p.n_prompt && (r->prompt[i] >= BYTE_BASE || i == 0); i += step) {
        step = 1;
        if (r->prompt[i] == IMAGE_TOKEN)
            step = reply_to_image(r, i, &n);
        else if (r->prompt[i] >= BYTE_BASE)
            r->reply[n++] = r->prompt[i];
    }
    r->n_reply = n;
}

static bool says(const td_request *r, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0, k; i + n <= r->p.n_prompt; i++) {
        for (k = 0; k < n && r->prompt[i + k] == BYTE_BASE + (uint32_t)(unsigned char)word[k];) k++;
        if (k == n) return true;
    }
    return false;
}

static td_request *make_request(td_engine *e, const td_request_params *p) {
    td_request *r = calloc(1, sizeof *r);
    r->engine = e;
    r->p = *p;
    r->refs = 2;
    r->begin_s = now_s();
    r->prompt = malloc(p->n_prompt * sizeof *r->prompt);
    r->reply = malloc((p->n_prompt + 16 * p->n_images) * sizeof *r->reply);
    r->images = malloc((p->n_images + 1) * sizeof *r->images);
    for (size_t i = 0; i < p->n_images; i++) td_image_hold((r->images[i] = p->images[i]).image);
    r->text = malloc(p->max_tokens + 1);
    memcpy(r->prompt, p->prompt, p->n_prompt * sizeof *r->prompt);
    for (size_t i = 0; i < p->n_stop; i++) r->stop[i] = strdup(p->stop[i]);
    if (p->sampling.n_bias) { /* the caller's arrays end with the call */
        static uint32_t ids[1024];
        static float    bias[1024];
        memcpy(ids, p->sampling.bias_ids, p->sampling.n_bias * sizeof *ids);
        memcpy(bias, p->sampling.bias, p->sampling.n_bias * sizeof *bias);
        r->p.sampling.bias_ids = ids;
        r->p.sampling.bias = bias;
    }
    make_reply(r);
    r->pause = says(r, "!flood") ? 0 : says(r, "!slow") ? SLOW_TICKS : 1;
    bool warm_up = strstr(e->path, "cold") && !e->stats.requests_total;
    if (warm_up) r->pause = COLD_TICKS;
    r->held = warm_up || says(r, "!held");
    r->halfway = says(r, "!halfway");
    r->hang = says(r, "!hang");
    r->error = says(r, "!error");
    r->linger = says(r, "!linger");
    r->loses = says(r, "!lose");
    return r;
}

td_status td_engine_prepare_grammar(td_engine *e, td_grammar *g, td_error *err) {
    (void)e, (void)g, (void)err;
    wait_at_gate();
    return TD_OK; /* the text follows no grammar here */
}

td_status td_engine_submit_all(td_engine *e, const td_request_params *p, size_t n, td_request **out, td_error *err) {
    for (size_t i = 0; i < n; i++)
        if (p[i].n_prompt + p[i].max_tokens > 1 << 20) return td_fail(err, TD_EINVAL, "prompt: too long for the fake");
    bool busy = false, linger = false;
    if (td_engine_is_lost(e, err)) {
        memset(out, 0, n * sizeof *out);
        return TD_ELOST;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = make_request(e, &p[i]);
        busy = busy || says(out[i], "!busy");
        linger = linger || out[i]->linger;
    }
    pthread_mutex_lock(&e->lock);
    td_request **at = &e->list;
    uint32_t     held = 0;
    for (; *at; at = &(*at)->next) held++;
    busy = busy || held + n > max_running(e) + max_queued(e);
    for (size_t i = 0; i < n; i++) {
        td_request *r = out[i];
        if (busy) {
            r->refs = 1;
            unref_locked(r);
            out[i] = NULL;
            continue;
        }
        r->seed = p[i].sampling.has_seed ? p[i].sampling.seed : ++e->submitted * 7919;
        e->stats.requests_total++;
        e->stats.prompt_tokens += p[i].n_prompt;
        *at = r;
        at = &r->next;
    }
    pthread_mutex_unlock(&e->lock);
    if (linger) usleep(LINGER_US);
    return busy ? td_fail(err, TD_EBUSY, "the queue is full: %u requests wait", held) : TD_OK;
}

td_status td_engine_submit(td_engine *e, const td_request_params *p, td_request **out, td_error *err) {
    return td_engine_submit_all(e, p, 1, out, err);
}

void td_request_cancel(td_request *r) {
    pthread_mutex_lock(&r->engine->lock);
    r->cancelled = true;
    pthread_mutex_unlock(&r->engine->lock);
    if (r->linger) usleep(LINGER_US);
}

void td_request_release(td_request *r) {
    td_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    unref_locked(r);
    pthread_mutex_unlock(&e->lock);
}
