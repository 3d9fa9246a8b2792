/*
 * The engine thread's work per step outside of the model: the real engine over a model that does nothing.
 *
 *   bench_scheduler [streams] [steps] [first rows]
 *
 * So many streams (32) generate, half of them with stop strings, a quarter with log-probabilities. The time of a step is
 * then all that the engine does itself: requests and statistics, scheduling, sampling, detokenising, stop strings, events.
 * With a vocabulary of 256 sampling is next to nothing: that row is the cost of scheduling. The rows with real vocabularies
 * add the arithmetic over the logits. The last rows add what tool calls and structured output cost each step: a parser that
 * reads every answer, and a grammar that every answer follows.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench_time.h"
#include "core/error.h"
#include "core/log/log.h"
#include "engine/requests/waker.h"
#include "model/model.h"

#define CONTEXT 8192
#define PROMPT 100
#define ROUNDS 5
#define STREAMS_MAX 1024

/* ---- a model without arithmetic, in the place of model/ and npu/ ------------------------------ */

static uint32_t g_vocab;

struct td_model {
    td_model_spec   spec;
    td_model_config config;
    float          *logits; /* [max_out, vocab] */
};

td_status td_model_open(const td_model_spec *spec, const td_model_probe *probe, td_npu *const *npus, td_pool *pool,
                        td_model **out, td_error *err) {
    (void)probe, (void)npus, (void)pool;
    td_model *m = calloc(1, sizeof *m);
    if (m) m->logits = calloc((size_t)spec->max_out * g_vocab, sizeof *m->logits);
    if (!m || !m->logits) return td_fail(err, TD_ENOMEM, "out of memory");
    m->spec = *spec;
    m->spec.state_slots = m->spec.open_slots = 0;
    m->config = (td_model_config){.arch_name = "Null",
                                  .vocab = g_vocab,
                                  .bos_id = UINT32_MAX,
                                  .temperature = NAN,
                                  .top_p = NAN,
                                  .repetition_penalty = NAN};
    for (size_t i = 0; i < (size_t)spec->max_out * g_vocab; i++)
        m->logits[i] = (float)(i * 2654435761u >> 8 & 0xffff) * 0x1p-13f;
    *out = m;
    return TD_OK;
}

void td_model_close(td_model *m) {
    if (m) free(m->logits);
    free(m);
}

const td_model_config *td_model_get_config(const td_model *m) {
    return &m->config;
}
uint32_t td_model_one_form_from(const td_model *m) {
    return m ? UINT32_MAX : 0;
}
bool td_model_recurrent(const td_model *m) {
    return m && m->spec.state_slots;
}
const td_model_spec *td_model_get_spec(const td_model *m) {
    return &m->spec;
}
uint32_t td_model_context_length(const td_model *m) {
    return m ? CONTEXT : 0;
}
const char *td_model_expert_kernel(const td_model *m) {
    return m ? "none" : NULL;
}
const char *td_model_expert_quantization(const td_model *m) {
    return m ? "none" : NULL;
}
td_experts *td_model_get_experts(const td_model *m) {
    (void)m;
    return NULL;
}
void td_model_get_memory(const td_model *m, td_model_memory *memory) {
    *memory = (td_model_memory){.unified_memory = true, .kv_bytes_per_page = m ? 1 << 10 : 0};
}
void td_model_get_work(const td_model *m, td_model_work *out) {
    *out = (td_model_work){.expert_pairs = m != NULL};
}
const char *td_model_why(const td_model *m, td_status st) {
    return m ? td_status_text(st) : NULL;
}
bool td_model_is_lost(const td_model *m, td_error *why) {
    (void)m, (void)why;
    return false;
}
uint32_t td_model_get_cards(const td_model *m, td_card_stats out[TD_CARDS_MAX]) {
    (void)m;
    (void)out;
    return 0;
}
void td_model_describe(const td_model *m, char *text, size_t size) {
    snprintf(text, size, "%s", m ? "nothing" : "");
}
uint32_t td_model_window(const td_model *m) {
    return m ? 0 : 1;
}
void td_model_set_slots(td_model *m, uint32_t n_slots) {
    (void)m, (void)n_slots;
}
td_status td_model_load(td_model *m, uint32_t n_pages, td_error *err) {
    return m && n_pages ? TD_OK : td_fail(err, TD_EINVAL, "no pages");
}
td_status td_model_forward(td_model *m, const td_step_rows *rows, td_out_rows out, const float **logits) {
    if (out.n) *logits = m->logits;
    return rows->n_tok && out.n <= m->spec.max_out ? TD_OK : TD_EINVAL;
}

void td_model_start_pieces(td_model *m, const td_step_rows *rows) {
    (void)m, (void)rows;
}

void td_model_drop_pieces(td_model *m) {
    (void)m;
}

td_status td_model_run_piece(td_model *m, td_piece *piece) {
    (void)m, (void)piece;
    return TD_ENOTSUP; /* the spec has no passes in pieces */
}

const td_vision_config *td_model_vision(const td_model *m) {
    (void)m;
    return NULL;
}
td_status td_model_start_image(td_model *m, const float *pixels, uint32_t rows, uint32_t columns, float *features) {
    (void)m, (void)pixels, (void)rows, (void)columns, (void)features;
    return TD_ENOTSUP;
}
td_status td_model_run_image_piece(td_model *m, td_piece *piece) {
    (void)m, (void)piece;
    return TD_ENOTSUP;
}
td_status td_model_head(td_model *m, td_out_rows out, const float **logits) {
    *logits = m->logits;
    return out.n <= m->spec.max_out ? TD_OK : TD_EINVAL;
}

td_status td_model_mtp(td_model *m, const uint32_t *next_token) {
    return m && next_token ? TD_OK : TD_EINVAL;
}
td_status td_model_mtp_head(td_model *m, td_out_rows out, const float **logits) {
    return td_model_head(m, out, logits);
}

/* Nobody keeps pages here. */
uint64_t td_model_source_hash(const td_model *m) {
    return m != NULL;
}
size_t td_model_page_bytes(const td_model *m) {
    return m != NULL;
}
td_status td_model_prepare_page_copies(td_model *m, td_error *err) {
    return m ? TD_OK : td_fail(err, TD_EINVAL, "no model");
}
td_status td_model_read_page(td_model *m, uint32_t page, void *to) {
    return m && to && page == 0 ? TD_OK : TD_EINVAL;
}
td_status td_model_write_page(td_model *m, uint32_t page, const void *from) {
    return m && from && page == 0 ? TD_OK : TD_EINVAL;
}

static void null_caps(td_npu *d, td_npu_caps *out) {
    *out = (td_npu_caps){.text = "none", .unified_memory = d != NULL};
}
static void null_close(td_npu *d) {
    (void)d;
}

static const td_npu_ops OPS = {.name = "null", .caps = null_caps, .close = null_close};

static td_status null_open(const td_npu_config *config, td_npu **out, td_error *err) {
    static td_npu null = {.ops = &OPS};
    *out = &null;
    return config ? TD_OK : td_fail(err, TD_EINVAL, "no device");
}

static const td_backend NULL_BACKEND = {.name = "host", .open = null_open};
const td_backend *const td_backends[] = {&NULL_BACKEND, NULL};

/* ---- the measurement -------------------------------------------------------------------------- */

typedef struct {
    const char *what;
    uint32_t    vocab;
    double      temperature, top_p;
    bool        parsed;  /* each stream's text goes through a parser of tool calls and reasoning */
    bool        grammar; /* each stream's text is of GRAMMAR */
} row;

/* Objects without end, as a JSON schema makes them: a request stops only where nothing can follow. */
static const char GRAMMAR[] =
    "root ::= (\"{\\\"name\\\": \\\"\" [a-zA-Z ]{1,12} \"\\\", \\\"count\\\": \" [1-9] [0-9]{0,5} \"}\\n\")*";

static const row ROWS[] = {
    {"all but sampling (vocabulary 256, greedy)", 256, 0, 1, false, false},
    {"with sampling: vocabulary 4096, greedy", 4096, 0, 1, false, false},
    {"with sampling: vocabulary 129280, greedy", 129280, 0, 1, false, false},
    {"with sampling: vocabulary 129280, temperature 0.8, top-p 0.95", 129280, 0.8, 0.95, false, false},
    {"vocabulary 4096, greedy, every answer parsed for tool calls and reasoning", 4096, 0, 1, true, false},
    {"vocabulary 4096, greedy, every answer of a grammar", 4096, 0, 1, false, true},
};

static atomic_uint g_unfinished;

static void on_part(void *user, const td_answer_event *e) {
    *(size_t *)user += e->len;
}

static td_answer_parser *open_parser(void) {
    static size_t            bytes; /* what comes out of the parsers goes nowhere */
    td_answer_parser        *p;
    td_error                 err = {0};
    td_answer_parser_options o = {.tool_format = "qwen25", .reasoning_format = "qwen3", .on_event = on_part, .user = &bytes};
    if (td_answer_parser_new(&o, &p, &err) == TD_OK) return p;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

/* @param user the stream's parser, or NULL */
static void on_event(void *user, const td_event *e) {
    if (user && td_answer_parser_feed(user, e->text, e->text_len) != TD_OK) abort();
    if (e->finish != TD_FINISH_NONE) atomic_fetch_sub(&g_unfinished, 1);
}

static td_request *submit(td_engine *e, const row *r, uint32_t i, uint32_t n_tokens, td_answer_parser *parser,
                          td_grammar *grammar) {
    static const char *const stop[] = {"\n\nObservation:", "</answer>"};
    td_request_params        p;
    td_request              *request;
    td_error                 err = {0};
    uint32_t                 ids[PROMPT];
    for (uint32_t k = 0; k < PROMPT; k++) ids[k] = 10 + (i * 7 + k) % 200;
    td_request_params_init(&p);
    p.prompt = ids;
    p.n_prompt = PROMPT;
    p.max_tokens = n_tokens;
    p.ignore_eos = true;
    p.sampling.temperature = r->temperature;
    p.sampling.top_p = r->top_p;
    p.stop = stop;
    p.n_stop = i % 2 ? 2 : 0;
    p.logprobs = i % 4 == 0;
    p.grammar = grammar;
    p.on_event = on_event;
    p.user = parser;
    if (td_engine_submit(e, &p, &request, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return request;
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wait for `steps` more steps of generating. @param us, cpu_us microseconds a step: by the clock, and of the process's
 * threads together. */
static void time_steps(td_engine *e, uint64_t steps, double *us, double *cpu_us) {
    td_engine_stats s;
    td_engine_get_stats(e, &s);
    uint64_t first = s.steps_decode;
    double   begin = td_now_s(), cpu = cpu_s();
    while (s.steps_decode < first + steps) {
        usleep(2000);
        td_engine_get_stats(e, &s);
    }
    *us = 1e6 * (td_now_s() - begin) / (double)(s.steps_decode - first);
    *cpu_us = 1e6 * (cpu_s() - cpu) / (double)(s.steps_decode - first);
}

/* Prints the medians of the rounds. */
static void run(const row *r, uint32_t streams, uint32_t steps) {
    td_engine_options o;
    td_engine        *e;
    td_error          err = {0};
    td_request       *requests[STREAMS_MAX];
    td_answer_parser *parsers[STREAMS_MAX] = {0};
    td_grammar       *grammar = NULL;
    g_vocab = r->vocab;
    td_engine_options_init(&o);
    o.model_path = "models/tale-v3-14m"; /* for its tokenizer */
    o.max_running_requests = streams;
    o.max_queued_requests = streams;
    o.max_total_tokens = (uint64_t)streams * CONTEXT;
    o.decode_log_interval = 0;
    if (td_engine_open(&o, &e, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    atomic_store(&g_unfinished, streams);
    if (r->grammar && td_grammar_compile(TD_GRAMMAR_EBNF, GRAMMAR, strlen(GRAMMAR), &grammar, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (uint32_t i = 0; i < streams; i++) {
        if (r->parsed) parsers[i] = open_parser();
        requests[i] = submit(e, r, i, CONTEXT, parsers[i], grammar);
    }
    td_engine_stats s;
    do {
        usleep(1000);
        td_engine_get_stats(e, &s);
    } while (s.running < streams || s.prefill_requests);
    double us[ROUNDS], cpu_us[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) time_steps(e, steps, &us[i], &cpu_us[i]);
    printf("%9.1f %9.1f  %s\n", bench_median(us, ROUNDS), bench_median(cpu_us, ROUNDS), r->what);
    fflush(stdout);
    for (uint32_t i = 0; i < streams; i++) td_request_cancel(requests[i]);
    while (atomic_load(&g_unfinished)) usleep(1000);
    for (uint32_t i = 0; i < streams; i++) td_request_release(requests[i]);
    td_engine_close(e, 0);
    for (uint32_t i = 0; i < streams; i++) td_answer_parser_free(parsers[i]);
    td_grammar_release(grammar);
}

int main(int argc, char **argv) {
    const uint32_t n_rows = sizeof ROWS / sizeof *ROWS;
    uint32_t       streams = argc > 1 ? (uint32_t)atoi(argv[1]) : 32, steps = argc > 2 ? (uint32_t)atoi(argv[2]) : 300;
    uint32_t       rows = argc > 3 ? (uint32_t)atoi(argv[3]) : n_rows;
    if (streams < 1 || streams > STREAMS_MAX || steps < 1 || steps * (ROUNDS + 1) > CONTEXT - PROMPT || rows < 1 ||
        rows > n_rows) {
        fprintf(stderr,
                "usage: bench_scheduler [streams: 1 to %d] [steps: 1 to %d] [first rows: 1 to %u]; run it in the root of "
                "the repository\n",
                STREAMS_MAX, (CONTEXT - PROMPT) / (ROUNDS + 1), n_rows);
        return 2;
    }
    td_log_set_level(TD_LOG_ERROR);
    printf("%u streams, microseconds a step by the clock and of CPU time, medians of %d x %u steps\n", streams, ROUNDS,
           steps);
    for (size_t i = 0; i < rows; i++) run(&ROWS[i], streams, steps);
    return 0;
}
