/*
 * The promise of docs/determinism.md: a request's tokens and log-probabilities are the same bits however it is served.
 *
 * usage: test_determinism MODEL PRECISION [REQUESTS [ROWS]]
 *   ROWS                      a pattern of rows' names, as "drafts*"
 *
 *   TD_TEST_ROWS=n            the rows that seed n draws; by default a sixth of the rows is drawn by a seed that is printed
 *   TD_TEST_FULL=1            all rows
 *   TD_TEST_SEED=n            another workload
 *   TD_CPU_MASK               another tier
 *   TD_TEST_DEVICE=NAME       on that device, against the reference of the host: rows that have a mark. npu and cuda, whose
 *                             sums have an order of their own, give the reference themselves. As stand-ins are slower still,
 *                             they take two of those rows, or those of ROWS, and four requests
 *   TD_TEST_SAMPLE=1          for an emulated processor: as few rows and requests as a stand-in's
 *   TD_TEST_CARDS=n           on so many cards, which give the reference, too
 *   TD_TEST_DEVICE_EXPERTS=1  everything with the routed experts on the device
 *   TD_TEST_RESIDENT=1        the rows, not the reference, with half of a layer's experts on the device; which ones is drawn
 *                             anew in each step with TD_CHAOS_RESIDENCY, else those of most use
 *   TD_TEST_RESIDENT=drop     the same of a quantised model, and what is on the device leaves host memory
 *
 * The reference is each request of a random workload alone, on a fresh engine with one thread, its prompt in one piece.
 * Then the workload runs once per row of VARIANTS and must give the same. A row also says what has to happen for it to
 * prove anything.
 */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/threads/chaos.h"
#include "model/arch/config_file.h"
#include "model/layer_caches.h"
#include "tandem_tools.h"
#include "tests/model/folder_files.h"
#include "tests/td_test.h"
#include "workload.h"

#define SEED_DEFAULT 20260711u
#define PLENTY_PAGES 256
#define SAMPLE_REQUESTS 4
#define NEVER UINT32_MAX

typedef struct {
    const char *name, *path;
    uint32_t    vocab;
    uint32_t    one_form_from; /* from this position on prompt and generated tokens are computed alike, or NEVER */
    bool        mtp;           /* it has a layer that drafts */
} model_row;

static const model_row MODELS[] = {
    {"tale", "models/tale-v3-14m", 4096, NEVER, true},
    {"v2_lite", "tests/data/golden/deepseek_v2_lite", 320, NEVER, false}, /* MLA, softmax router, YaRN */
    {"v3_yarn", "tests/data/golden/deepseek_v3_yarn", 320, NEVER,
     false}, /* MLA, query compression, sigmoid router with groups */
    {"v3_noqlora", "tests/data/golden/deepseek_v3_noqlora", 320, NEVER, true}, /* MLA, sigmoid router, layer that drafts */
    {"qwen3", "tests/data/golden/qwen3_moe", 320, 0, false},                   /* GQA, norms of queries and keys */
    {"qwen2", "tests/data/golden/qwen2_moe", 320, 0, false},                   /* GQA, biases, gated shared expert */
    {"glm4", "tests/data/golden/glm4_moe", 320, 0, true},                /* GQA that rotates half a head, biases and norms */
    {"glm4_lite", "tests/data/golden/glm4_moe_lite", 320, NEVER, false}, /* MLA, values wider than keys */
    {"minimax", "tests/data/golden/minimax_m2", 320, 0, false},          /* GQA, norms of whole rows of queries and keys */
    {"kimi_k25", "tests/data/golden/kimi_k25", 320, NEVER, false},       /* V3 under a prefix */
    {"gpt_oss", "tests/data/golden/gpt_oss", 320, 0, false},             /* windows, sinks, experts with biases */
    {"qwen3_next", "tests/data/golden/qwen3_next", 320, 0, true},        /* gated DeltaNet and attention */
    {"qwen3_5", "tests/data/golden/qwen3_5_moe", 320, 0, true},          /* the same in other tensors */
    {"kimi_linear", "tests/data/golden/kimi_linear", 320, NEVER, false}, /* KDA, and MLA without rope */
    {"deepseek_v4", "tests/data/golden/deepseek_v4", 320, 0, true},      /* streams, compressed rows, an indexer */
    {"deepseek_v32", "tests/data/golden/deepseek_v32", 320, 24, true},   /* MLA to keys that an indexer chooses */
    {"glm_dsa", "tests/data/golden/glm_moe_dsa", 320, 20, true},         /* the same, choices shared by layers */
    {"glm5_next", "tests/data/golden/glm5_next", 320, 27, true},         /* KDA, streams, keys of several tokens */
    {"gpt_oss_mxfp4", "tests/data/golden/gpt_oss_mxfp4", 320, 0,
     false}, /* the same from codes, and another order of layers */
};

typedef struct {
    const char *name, *quantization;
    uint32_t    deferred;
    const char *kv; /* numbers of the cache; NULL: the precision's own */
} precision_row;

static const precision_row PRECISIONS[] = {
    {"none", "none", 0, NULL},           {"none_deferred", "none", 1, NULL},
    {"w8a8", "w8a8_int8", 0, NULL},      {"w8a8_deferred", "w8a8_int8", 1, NULL},
    {"kv_int8", "w8a8_int8", 0, "int8"},
};

typedef struct {
    const char *what;
    run_kind    kind;
    uint32_t    chunk;    /* 0: 512 */
    uint32_t    cpuinfer; /* 0: 2 */
    uint32_t    subpools; /* 0: 1 */
    uint32_t    npu_threads;
    uint32_t    max_running; /* 0: 32 */
    uint32_t    pages;       /* of KV; 0: PLENTY_PAGES */
    uint32_t    requests;    /* only the first; 0: all */
    bool        no_cache;    /* of prefixes */
    bool        whole_steps; /* no two-chunk overlap */
    bool        drafts;      /* for models with an MTP layer */
    bool        in_turns;    /* prompts and generating requests do not share steps */
    bool        in_pieces;   /* prompts that take long are computed piece by piece, others between the pieces */
    bool        priorities, must_retract, must_hit, must_evict, must_jump;
    bool        on_any_device; /* not only on the host */
    bool        resident;      /* some of the experts on the device (TD_TEST_RESIDENT) */
    bool        streams;       /* others pass through its memory (TD_TEST_RESIDENT=streams) */
} variant;

#define FEW 8 /* requests, where a step is slow: more threads than cores, or very small steps */

static const variant VARIANTS[] = {
    {"one after another", .kind = RUN_ONE_BY_ONE, .must_jump = true},
    {"all at once", .kind = RUN_TOGETHER},
    {"joining and leaving", .kind = RUN_STAGGERED},
    {"among others, some cancelled", .kind = RUN_AMONG_OTHERS, .on_any_device = true},
    {"warm prefix cache", .kind = RUN_AGAIN, .must_hit = true},
    {"warm prefix cache that is too small", .kind = RUN_AGAIN, .pages = 12, .chunk = 100, .must_evict = true,
     .on_any_device = true},
    {"warm prefix cache, a device thread", .kind = RUN_AGAIN, .npu_threads = 1, .cpuinfer = 1, .chunk = 64,
     .must_hit = true},
    {"no prefix cache", .no_cache = true, .on_any_device = true},
    {"prompts and answers in turns", .in_turns = true, .chunk = 60, .kind = RUN_STAGGERED, .on_any_device = true},
    {"five at a time", .max_running = 5},
    {"chunks of 1", .chunk = 1, .requests = FEW},
    {"chunks of 7", .chunk = 7, .kind = RUN_STAGGERED, .on_any_device = true},
    {"chunks of 37", .chunk = 37},
    {"chunks of 128", .chunk = 128},
    {"chunks of 129", .chunk = 129, .kind = RUN_STAGGERED},
    {"chunks of 8192", .chunk = 8192},
    {"one thread", .cpuinfer = 1},
    {"three threads, three subpools", .cpuinfer = 3, .subpools = 3, .requests = 2 * FEW},
    {"four threads, two subpools", .cpuinfer = 4, .subpools = 2, .requests = 2 * FEW, .on_any_device = true},
    {"a device thread", .npu_threads = 1, .cpuinfer = 1},
    {"a device thread, joining and leaving", .npu_threads = 1, .cpuinfer = 1, .chunk = 37, .kind = RUN_STAGGERED,
     .on_any_device = true},
    {"a device thread, steps in halves", .npu_threads = 1, .cpuinfer = 1, .chunk = 600, .no_cache = true,
     .on_any_device = true},
    {"a device thread, no step in halves", .npu_threads = 1, .cpuinfer = 1, .whole_steps = true},
    {"two device threads, two subpools", .npu_threads = 2, .cpuinfer = 2, .subpools = 2, .chunk = 64, .requests = FEW},
    {"too few pages", .pages = WORKLOAD_PAGES_TIGHT, .must_retract = true},
    {"too few pages, no prefix cache", .pages = WORKLOAD_PAGES_TIGHT, .no_cache = true, .must_retract = true},
    {"too few pages, in turns", .pages = WORKLOAD_PAGES_TIGHT, .in_turns = true, .must_retract = true},
    {"too few pages, small chunks, a device thread", .pages = WORKLOAD_PAGES_TIGHT, .chunk = 50, .npu_threads = 1,
     .cpuinfer = 1, .must_retract = true, .on_any_device = true},
    {"drafts, one after another", .drafts = true, .kind = RUN_ONE_BY_ONE, .on_any_device = true},
    {"drafts, joining and leaving", .drafts = true, .kind = RUN_STAGGERED, .on_any_device = true},
    {"drafts, too few pages, small chunks", .drafts = true, .pages = WORKLOAD_PAGES_TIGHT, .chunk = 50, .must_retract = true,
     .on_any_device = true},
    {"drafts, warm prefix cache, a device thread", .drafts = true, .kind = RUN_AGAIN, .npu_threads = 1, .cpuinfer = 1,
     .chunk = 64, .must_hit = true},
    {"in pieces", .in_pieces = true, .kind = RUN_STAGGERED},
    {"in pieces, among others, in turns", .in_pieces = true, .in_turns = true, .kind = RUN_AMONG_OTHERS},
    {"in pieces, warm prefix cache", .in_pieces = true, .kind = RUN_AGAIN, .must_hit = true},
    {"in pieces, too few pages", .in_pieces = true, .pages = WORKLOAD_PAGES_TIGHT, .must_retract = true},
    {"in pieces, drafts", .in_pieces = true, .drafts = true, .kind = RUN_STAGGERED},
    {"in pieces, a device thread", .in_pieces = true, .npu_threads = 1, .cpuinfer = 1, .kind = RUN_STAGGERED,
     .on_any_device = true},
    {"priorities", .priorities = true, .max_running = 6, .kind = RUN_STAGGERED},
    {"priorities, too few pages", .priorities = true, .pages = WORKLOAD_PAGES_TIGHT, .chunk = 37, .must_retract = true,
     .on_any_device = true},
};
#define N_VARIANTS (sizeof VARIANTS / sizeof *VARIANTS)

static const model_row     *g_model;
static const precision_row *g_precision;
static workload             g_workload;
static uint32_t             g_requests = WORKLOAD_REQUESTS;
static const char          *g_rows; /* a pattern of their names, or NULL */
static probe               *g_reference[WORKLOAD_REQUESTS];
static const char          *g_device = "host"; /* of all but the reference */
static char                 g_quantised[64];   /* the model's folder, where it is not the repository's */
/* Cards give the reference themselves: their sums have an order of their own. */
static const char *g_reference_device = "host";

static td_model_config config_of(const char *path) {
    td_model_config c;
    td_error        err = {0};
    if (td_model_config_read(path, NULL, &c, &err) != TD_OK) fail_msg("%s", err.text);
    return c;
}

/* Half of a layer's, and as many as a token chooses. */
static uint32_t some_experts(const char *path) {
    const td_model_config c = config_of(path);
    return c.top_k > c.n_experts / 2 ? c.top_k : c.n_experts / 2;
}

static bool drops_experts(void) {
    const char *resident = getenv("TD_TEST_RESIDENT");
    return resident && !strcmp(resident, "drop");
}

/* The model with packed experts, for experts that are read again. */
static void quantise_model(void) {
    td_error            err = {0};
    td_quantize_options q = WITH(td_quantize_options, .output_path = g_quantised, .quantization = "w8a8_int8",
                                 .expert_quantization = "auto", .subpool_count = 1, .threads = 2);
    char                path[512], folder[] = "/tmp/test_determinism.XXXXXX";
    snprintf(path, sizeof path, TD_SOURCE_DIR "/%s", g_model->path);
    q.model_path = path;
    if (!mkdtemp(folder)) fail_msg("no folder in /tmp");
    snprintf(g_quantised, sizeof g_quantised, "%s", folder);
    if (td_quantize(&q, &err) != TD_OK) fail_msg("%s", err.text);
}

static td_engine *open_engine_on(const char *device, const variant *v) {
    char              path[512];
    td_engine_options o;
    td_engine        *e;
    td_error          err = {0};
    const char       *cards = getenv("TD_TEST_CARDS");
    td_engine_options_init(&o);
    snprintf(path, sizeof path, TD_SOURCE_DIR "/%s", g_model->path);
    o.model_path = *g_quantised ? g_quantised : path;
    o.device = device;
    o.tokenizer_path = TD_SOURCE_DIR "/models/tale-v3-14m"; /* the others have none; any gives text to compare */
    o.quantization = g_precision->quantization;
    if (g_precision->kv) o.kv_cache_dtype = g_precision->kv;
    o.enable_defer = g_precision->deferred > 0;
    o.max_deferred_experts_per_token = g_precision->deferred;
    o.decode_log_interval = 0;
    o.chunked_prefill_size = v->chunk ? v->chunk : 512;
    o.cpuinfer = v->cpuinfer ? v->cpuinfer : 2;
    o.subpool_count = v->subpools ? v->subpools : 1;
    o.npu_threads = v->npu_threads;
    if (cards) o.tensor_parallel_size = (uint32_t)strtoul(cards, NULL, 10);
    if (getenv("TD_TEST_DEVICE_EXPERTS")) o.num_gpu_experts = config_of(path).n_experts;
    o.disable_radix_cache = v->no_cache;
    o.disable_two_chunk_overlap = v->whole_steps;
    o.disable_mixed_chunk = v->in_turns;
    if (v->in_pieces) o.max_step_ms = 1;
    if (v->drafts) o.speculative_algorithm = "NEXTN";
    o.speculative_always = v->drafts;
    if (v->resident) o.num_gpu_experts = some_experts(path);
    o.stream_experts = v->streams;
    if (v->resident && drops_experts()) o.expert_memory = "drop";
    o.max_running_requests = v->max_running ? v->max_running : WORKLOAD_REQUESTS;
    o.max_total_tokens = 128 * (uint64_t)(v->pages ? v->pages : PLENTY_PAGES);
    if (td_engine_open(&o, &e, &err) != TD_OK) fail_msg("%s", err.text);
    return e;
}

static td_engine *open_engine(const variant *v) {
    variant     with = *v;
    const char *resident = getenv("TD_TEST_RESIDENT");
    with.resident = resident != NULL;
    with.streams = resident && !strcmp(resident, "streams");
    return open_engine_on(g_device, &with);
}

/* One run of a row: every request's bits. @return how many requests found their beginning in the cache. */
static uint64_t run_once(const variant *v, td_engine_stats *s) {
    workload   w = g_workload;
    probe     *probes[WORKLOAD_REQUESTS];
    td_engine *e = open_engine(v);
    uint32_t   n = v->requests && v->requests < g_requests ? v->requests : g_requests;
    w.priorities = v->priorities;
    workload_run(&w, e, v->kind, probes, n);
    td_engine_get_stats(e, s);
    td_engine_close(e, 0);
    uint64_t n_hit = 0;
    for (uint32_t i = 0; i < n; i++) {
        workload_check_same(g_reference[i], probes[i], i);
        if (workload_is_first(i)) n_hit += probes[i]->last.cached_tokens;
    }
    workload_free(probes, n);
    print_message("    %" PRIu64 " steps with prompt tokens, %" PRIu64 " without, %" PRIu64 " retractions, %" PRIu64
                  " of %" PRIu64 " prompt tokens from the cache\n",
                  s->steps_prefill, s->steps_decode, s->retractions, s->cached_tokens, s->prompt_tokens);
    if (v->in_pieces) print_message("    %" PRIu64 " pieces\n", s->pieces);
    if (v->drafts)
        print_message("    %" PRIu64 " of %" PRIu64 " drafts accepted, gain %.2f\n", s->drafts_accepted, s->drafts_verified,
                      s->draft_gain);
    return n_hit;
}

static bool is_card(void) {
    return !strcmp(g_device, "npu") || !strcmp(g_device, "cuda");
}

/* Whether the model's passes can: model.c says which ones cannot. */
static bool goes_in_pieces(void) {
    char path[4096];
    snprintf(path, sizeof path, TD_SOURCE_DIR "/%s", g_model->path);
    td_model_config c = config_of(path);
    const char     *resident = getenv("TD_TEST_RESIDENT");
    bool            elsewhere = is_card() || getenv("TD_TEST_CARDS") || (resident && !strcmp(resident, "streams"));
    return !elsewhere && !td_layer_caches_recurrent(&c, td_all_layers(&c));
}

static void same_bits(void **state) {
    const variant  *v = *state;
    td_engine_stats s;
    uint64_t        n_hit = run_once(v, &s);
    if (v->drafts) assert_true(s.drafts_verified > 0);
    if (v->drafts && !strcmp(g_model->name, "tale")) /* its layer is trained; few requests' drafts are too few for a share */
        assert_true(g_requests > SAMPLE_REQUESTS ? 3 * s.drafts_accepted > s.drafts_verified : s.drafts_accepted > 0);
    if (v->drafts && !strncmp(g_model->name, "qwen3_", 6) && g_requests > SAMPLE_REQUESTS) /* a few are right */
        assert_true(s.drafts_accepted > 0);
    if (v->must_retract) assert_true(s.retractions > 0);
    if (v->in_pieces && !goes_in_pieces()) assert_int_equal(s.pieces, 0);
    if (v->in_pieces && goes_in_pieces() && g_requests > SAMPLE_REQUESTS && v->kind != RUN_STAGGERED)
        assert_true(s.pieces > 0); /* whether staggered requests meet others depends on the machine's speed */
    if (v->must_hit) assert_true(n_hit > 0);
    if (v->must_evict) assert_true(s.cache_evictions > 0);
    if (v->must_jump) assert_true(s.generation_tokens > s.steps_prefill + s.steps_decode); /* requests share no step here */
    if (v->no_cache) assert_int_equal(s.cached_tokens, 0);
    if (g_precision->deferred) assert_true(s.experts_deferred > 0);
    if (getenv("TD_TEST_RESIDENT")) assert_true(s.residency.hits > 0 && s.residency.misses > 0 && s.residency.uploads > 0);
    if (s.residency.stream.slots) assert_true(s.residency.streamed > 0 && s.residency.stream.failed == 0);
    if (drops_experts()) assert_true(s.residency.reads > 0 && s.residency.unread == 0 && s.residency.dropped_bytes > 0);
}

/*
 * A generated text sent back as part of a prompt: are its tokens scored with the same bits? With GQA yes, there is one way
 * to compute a token. MLA has two, for prompt and generated tokens, and the answers agree to rounding; without quantisation
 * that is about 1e-6 of a logit. Rows that choose their keys have one.
 */
static void generated_text_as_a_prompt(void **state) {
    (void)state;
    td_engine *e = open_engine(&(variant){0});
    uint32_t   n_equal = 0, n_all = 0, n_alike = 0, n_alike_equal = 0;
    double     worst = 0;
    for (uint32_t i = 0; i < g_requests; i++) {
        const probe *was = g_reference[i];
        if (!was->params.logprobs) continue;
        size_t          n = was->params.n_prompt, all = n + was->n_tokens;
        FREED uint32_t *ids = malloc(all * sizeof *ids);
        memcpy(ids, was->prompt, n * sizeof *ids);
        memcpy(ids + n, was->tokens, was->n_tokens * sizeof *ids);
        probe *p = probe_new(ids, all, 0);
        p->params.prompt_logprobs = true;
        probe_submit(e, p);
        probe_wait(p);
        assert_int_equal(p->n_prompt_logprobs, all);
        for (size_t k = 0; k < was->n_tokens; k++, n_all++) {
            double d = fabs((double)p->prompt_logprobs[n + k].logprob - (double)was->logprobs[k].logprob);
            n_equal += d == 0;
            n_alike += n >= g_model->one_form_from;
            n_alike_equal += n >= g_model->one_form_from && d == 0;
            worst = fmax(worst, d);
        }
        probe_free(p);
    }
    td_engine_close(e, 0);
    print_message("    %u of %u tokens have the same log-probability to the last bit, the largest difference is %.1e\n",
                  n_equal, n_all, worst);
    if (!strcmp(g_precision->quantization, "none")) assert_true(worst < 1e-3);
    assert_int_equal(n_alike_equal, n_alike);
    if (g_model->one_form_from != NEVER) assert_true(n_alike > 0);
}

/*
 * The next turn of a chat: prompt, answer and some more, on an engine that has answered the first turn and has its pages
 * in the prefix cache, and on a fresh engine.
 */
static void next_turn_of_a_chat(void **state) {
    (void)state;
    enum { TURNS = 16, MORE = 20 };
    probe     *cold[TURNS], *warm[TURNS];
    uint32_t   n = g_requests < TURNS ? g_requests : TURNS, ids[WORKLOAD_PROMPT_MAX + WORKLOAD_TOKENS_MAX + MORE];
    td_engine *used = open_engine(&(variant){.cpuinfer = 1});
    workload_run(&g_workload, used, RUN_TOGETHER, warm, n);
    workload_free(warm, n);
    td_engine *fresh = open_engine(&(variant){.cpuinfer = 1, .no_cache = true});
    for (uint32_t i = 0; i < n; i++) {
        const probe *was = g_reference[i];
        uint32_t     k = (uint32_t)was->params.n_prompt;
        memcpy(ids, was->prompt, k * sizeof *ids);
        memcpy(ids + k, was->tokens, was->n_tokens * sizeof *ids);
        k += (uint32_t)was->n_tokens;
        for (uint32_t j = 0; j < MORE; j++) ids[k++] = was->prompt[j % was->params.n_prompt];
        cold[i] = probe_new(ids, k, 10);
        warm[i] = probe_new(ids, k, 10);
        cold[i]->params.logprobs = warm[i]->params.logprobs = true;
        probe_submit(fresh, cold[i]);
        probe_submit(used, warm[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        probe_wait(cold[i]);
        probe_wait(warm[i]);
        workload_check_same(cold[i], warm[i], i);
    }
    td_engine_stats s;
    td_engine_get_stats(used, &s);
    print_message("    %" PRIu64 " of %" PRIu64 " prompt tokens from the cache\n", s.cached_tokens, s.prompt_tokens);
    assert_true(s.cached_tokens > 0);
    td_engine_close(used, 0);
    td_engine_close(fresh, 0);
    workload_free(cold, n);
    workload_free(warm, n);
}

static int make_reference(void **state) {
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    if (drops_experts()) quantise_model();
    for (uint32_t i = 0; i < g_requests; i++) {
        td_engine *e = open_engine_on(g_reference_device, &(variant){.cpuinfer = 1});
        g_reference[i] = workload_request(&g_workload, i);
        probe_submit(e, g_reference[i]);
        probe_wait(g_reference[i]);
        td_engine_close(e, 0);
        if (g_reference[i]->finish == TD_FINISH_ERROR) fail_msg("request %u: %s", i, g_reference[i]->error.text);
    }
    return 0;
}

static int free_reference(void **state) {
    (void)state;
    workload_free(g_reference, g_requests);
    if (*g_quantised) remove_folder(g_quantised);
    return 0;
}

static bool read_arguments(int argc, char **argv) {
    for (size_t i = 0; argc > 2 && i < sizeof MODELS / sizeof *MODELS; i++)
        if (!strcmp(argv[1], MODELS[i].name)) g_model = &MODELS[i];
    for (size_t i = 0; argc > 2 && i < sizeof PRECISIONS / sizeof *PRECISIONS; i++)
        if (!strcmp(argv[2], PRECISIONS[i].name)) g_precision = &PRECISIONS[i];
    if (argc > 3) g_requests = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 4) g_rows = argv[4];
    return g_model && g_precision && g_requests >= 1 && g_requests <= WORKLOAD_REQUESTS;
}

static bool is_sample(void) {
    return (is_card() || getenv("TD_TEST_SAMPLE")) && !getenv("TD_TEST_FULL");
}

/* As many requests as a sample has need not fill the KV pages, nor hit the cache, nor have a grammar. */
static bool needs_many(const variant *v) {
    return v->must_retract || v->must_evict || v->must_hit || v->must_jump;
}

/* Drafts need the layer; with random delays (TD_CHAOS_SEED) only what has threads to get in each other's way, and what
 * is cut by them. */
static bool exists(const variant *v) {
    if (needs_many(v) && g_requests <= SAMPLE_REQUESTS) return false;
    return (!v->drafts || g_model->mtp) && (!td_chaos_on() || v->npu_threads > 0 || v->in_pieces);
}

/* A row that this command may run: drawn or not. */
static bool is_candidate(const variant *v) {
    bool marked_only = (is_sample() || strcmp(g_device, "host") != 0) && !getenv("TD_TEST_FULL");
    return exists(v) && (!g_rows || fnmatch(g_rows, v->what, 0) == 0) && (!marked_only || v->on_any_device);
}

/* Mark the rows that run. @return how many there are. */
static size_t select_rows(bool selected[N_VARIANTS], uint64_t rows_seed) {
    bool   all = g_rows || getenv("TD_TEST_FULL");
    size_t n = 0;
    for (size_t i = 0; i < N_VARIANTS; i++) n += selected[i] = is_candidate(&VARIANTS[i]);
    size_t keep = all ? n : is_sample() || n < 12 ? 2 : n / 6;
    for (uint32_t draw = 0; n > keep; n--, draw++) { /* one that is drawn goes */
        size_t at = td_rng_u64(rows_seed, 1, draw) % n, i = 0;
        for (;; i++)
            if (selected[i] && at-- == 0) break;
        selected[i] = false;
    }
    return n;
}

static void every_draw_has_two_rows(void **state) {
    (void)state;
    for (uint64_t rows_seed = 0; rows_seed < 100; rows_seed++) {
        bool   selected[N_VARIANTS];
        size_t n = 0;
        select_rows(selected, rows_seed);
        for (size_t i = 0; i < N_VARIANTS; i++) n += selected[i];
        assert_true(n >= 2);
    }
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[N_VARIANTS + 3];
    bool              selected[N_VARIANTS];
    size_t            n = 0;
    const char       *seed = getenv("TD_TEST_SEED"), *device = getenv("TD_TEST_DEVICE"), *rows = getenv("TD_TEST_ROWS");
    const uint64_t    rows_seed = rows ? strtoull(rows, NULL, 10) : (uint64_t)time(NULL);
    if (!read_arguments(argc, argv)) {
        fprintf(stderr, "usage: test_determinism MODEL PRECISION [REQUESTS [ROWS]]\n");
        return 2;
    }
    if (device) g_device = device;
    if (is_card() || getenv("TD_TEST_CARDS")) g_reference_device = g_device;
    bool few = is_sample();
    if (few && g_requests > SAMPLE_REQUESTS) g_requests = SAMPLE_REQUESTS;
    g_workload = (workload){.seed = seed ? strtoull(seed, NULL, 10) : SEED_DEFAULT, .vocab = g_model->vocab};
    print_message("model %s, precision %s, device %s, %u requests, TD_TEST_SEED=%" PRIu64 "\n", g_model->name,
                  g_precision->name, g_device, g_requests, g_workload.seed);
    const bool   drawn = !g_rows && !getenv("TD_TEST_FULL");
    const size_t n_rows = select_rows(selected, rows_seed);
    if (drawn) print_message("a sample of %zu rows: TD_TEST_ROWS=%" PRIu64 "\n", n_rows, rows_seed);
    for (size_t i = 0; i < N_VARIANTS; i++)
        if (selected[i])
            tests[n++] =
                (struct CMUnitTest){.name = VARIANTS[i].what, .test_func = same_bits, .initial_state = (void *)&VARIANTS[i]};
    if (n == 0) {
        fprintf(stderr, "no row that runs here is named %s\n", g_rows ? g_rows : "*");
        return 2;
    }
    if (drawn) tests[n++] = (struct CMUnitTest)cmocka_unit_test(every_draw_has_two_rows);
    if (!td_chaos_on() && !few && !g_rows) {
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(next_turn_of_a_chat);
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(generated_text_as_a_prompt);
    }
    return _cmocka_run_group_tests("determinism", tests, n, make_reference, free_reference);
}
