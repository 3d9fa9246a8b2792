#include "cli/flags.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* ---- the table ---- */

typedef enum { BOOL, U16, U32, U64, REAL, TEXT, CHOICE } flag_type;

/* How a flag is treated. */
typedef enum {
    WORKS,
    NO_EFFECT, /* accepted; `help` says why nothing has to be done */
    ONLY,      /* only the values in `choices` are there yet; any other is refused with `refusal` */
    REFUSED,   /* known, not there yet: `refusal` says so */
} flag_state;

#define NAMES_MAX 3

typedef struct {
    const char *names[NAMES_MAX + 1]; /* the first is the documented one; without "--" */
    flag_type   type;
    flag_state  state;
    size_t      offset;     /* in td_launch_options; NO_OFFSET: the value is not kept */
    double      min, max;   /* numbers */
    const char *arg;        /* how help calls the value; NULL for BOOL */
    const char *choices;    /* "a|b|c"; for ONLY of any type. An entry "a=b" stores b for a */
    const char *by_default; /* shown in help; NULL: none to show */
    const char *help;
    const char *refusal; /* the sentence, after the flag's name */
} flag;

#define NO_OFFSET SIZE_MAX
#define E(member) offsetof(td_launch_options, engine.member)
#define S(member) offsetof(td_launch_options, server.member)
#define O(member) offsetof(td_launch_options, member)
#define SECTION(title) \
    { .names = {NULL}, .help = (title) }

#define NOT_YET "is not supported yet"
#define U32_TOP 4294967295.0
#define I31_TOP 2147483647.0

/* clang-format off: a flag a line */
static const flag FLAGS[] = {
    SECTION("Model"),
    {{"model-path", "model"},
     TEXT,
     WORKS,
     E(model_path),
     .arg = "DIR",
     .help = "Hugging Face folder of the model. Required."},
    {{"tokenizer-path"},
     TEXT,
     WORKS,
     E(tokenizer_path),
     .arg = "DIR",
     .by_default = "the model's folder",
     .help = "Folder with tokenizer.json or tiktoken.model."},
    {{"served-model-name"},
     TEXT,
     WORKS,
     S(served_model_name),
     .arg = "NAME",
     .by_default = "the last part of --model-path",
     .help = "The model's name in the API, or several: a,b,c."},
    {{"trust-remote-code"}, BOOL, NO_EFFECT, NO_OFFSET, .help = "Accepted; no code of a model folder is ever run."},
    {{"load-format"},
     CHOICE,
     WORKS,
     E(load_format),
     .arg = "FORMAT",
     .choices = "auto|safetensors|dummy",
     .by_default = "auto",
     .help = "dummy fills the shape of config.json with random weights."},
    {{"weight-loader-disable-mmap", "no-mmap"},
     BOOL,
     WORKS,
     E(copy_weights),
     .help = "Read packed weights into memory of the process instead of mapping their files (docs/checkpoints.md)."},
    {{"context-length"},
     U32,
     WORKS,
     E(context_length),
     .max = I31_TOP,
     .arg = "N",
     .by_default = "the model's",
     .help = "Longest prompt plus answer, in tokens."},
    {{"json-model-override-args"},
     TEXT,
     WORKS,
     E(model_override_json),
     .arg = "JSON",
     .help = "Object merged over config.json."},
    {{"chat-template"},
     TEXT,
     WORKS,
     E(chat_template),
     .arg = "FILE",
     .by_default = "the model's",
     .help = "Jinja template of the chat API."},
    {{"quantization"},
     CHOICE,
     ONLY,
     E(quantization),
     .arg = "FORMAT",
     .choices = "auto|none|w8a8_int8",
     .by_default = "auto",
     .help = "Numbers of everything but the routed experts; auto: w8a8_int8. none: weights as stored, f32 arithmetic.",
     .refusal = NOT_YET "; the formats are auto, none and w8a8_int8"},
    {{"expert-quantization", "requantize"},
     CHOICE,
     ONLY,
     E(expert_quantization),
     .arg = "FORMAT",
     .choices = "auto|none|int4|int4-channel=int4|int8|int4-g32|int4-g64|int4-g128|mxfp4|nvfp4",
     .by_default = "auto",
     .help = "Numbers of the routed experts (docs/quantisation.md); auto: what packed files hold, none when --quantization is none, the format that carries a "
             "quantised checkpoint exactly, else int4.",
     .refusal = NOT_YET "; the formats are auto, none, int4, int8, int4-g32, int4-g64, int4-g128, mxfp4 and nvfp4"},

    SECTION("Server"),
    {{"config"},
     TEXT,
     WORKS,
     O(config),
     .arg = "FILE.yaml",
     .help = "File of 'flag: value' lines; the command line wins over it. Examples: configs/launch/."},
    {{"host"},
     TEXT,
     WORKS,
     S(host),
     .arg = "HOST",
     .by_default = "127.0.0.1",
     .help = "Address to listen on; 0.0.0.0 for all."},
    {{"port"},
     U16,
     WORKS,
     S(port),
     .max = 65535,
     .arg = "PORT",
     .by_default = "30000",
     .help = "0 takes a free one. Taken before the model is loaded."},
    {{"api-key"},
     TEXT,
     WORKS,
     S(api_key),
     .arg = "KEY",
     .help = "Demand 'Authorization: Bearer KEY' everywhere but on /health. Better kept in a --config file than on the "
             "command line."},
    {{"cors-origin"},
     TEXT,
     WORKS,
     S(cors_origin),
     .arg = "ORIGIN",
     .by_default = "none",
     .help = "Origin whose pages may call from a browser; * for all."},
    {{"max-connections"},
     U32,
     WORKS,
     S(connections_max),
     .min = 1,
     .max = TD_SERVER_CONNECTIONS_MAX,
     .arg = "N",
     .by_default = "1024",
     .help = "Open HTTP connections; a few more are answered by a 503, and on /health and /metrics, and closed."},
    {{"idle-timeout"},
     U32,
     WORKS,
     S(idle_timeout_s),
     .min = 1,
     .max = 86400,
     .arg = "SECONDS",
     .by_default = "120",
     .help = "A connection that neither sends nor takes anything for so long is closed."},
    {{"request-timeout"},
     U32,
     WORKS,
     S(request_timeout_s),
     .min = 1,
     .max = 86400,
     .arg = "SECONDS",
     .by_default = "60",
     .help = "The headers of a request, and then its body, must be there within so long."},
    {{"stream-interval"},
     U32,
     WORKS,
     S(stream_interval),
     .min = 1,
     .max = 1024,
     .arg = "N",
     .by_default = "1",
     .help = "Tokens per event of a stream."},
    {{"max-stored-responses"},
     U32,
     WORKS,
     S(stored_responses_max),
     .max = 16384,
     .arg = "N",
     .by_default = "1024",
     .help = "Answers of /v1/responses kept for previous_response_id; the least recently used goes. 0 keeps none."},
    {{"stored-responses-mib"},
     U32,
     WORKS,
     S(stored_responses_mib),
     .min = 1,
     .max = 65536,
     .arg = "MIB",
     .by_default = "64",
     .help = "Room for these answers and what they were asked."},
    {{"enable-metrics"}, BOOL, NO_EFFECT, NO_OFFSET, .help = "Accepted; /metrics is always there."},
    {{"log-level"},
     CHOICE,
     WORKS,
     O(log_level),
     .arg = "LEVEL",
     .choices = "debug|info|warning|error",
     .by_default = "info",
     .help = "Least severe log lines to print."},
    {{"log-format"},
     CHOICE,
     WORKS,
     O(log_format),
     .arg = "FORMAT",
     .choices = "text|json",
     .by_default = "text",
     .help = "json writes each log line as one object, with its figures as members."},
    {{"log-requests"}, BOOL, WORKS, E(log_requests), .help = "Log each request's lengths and times."},
    {{"trace"},
     TEXT,
     WORKS,
     O(trace),
     .arg = "FILE",
     .help = "Write a timeline of device, expert threads, scheduler and HTTP for ui.perfetto.dev, 1 GiB at most (docs/tracing.md)."},
    {{"decode-log-interval"},
     U32,
     WORKS,
     E(decode_log_interval),
     .max = I31_TOP,
     .arg = "STEPS",
     .by_default = "40",
     .help = "Steps between lines with the load, the throughput and each tier's share of its bound; 0 for none."},
    {{"watchdog-timeout"},
     U32,
     WORKS,
     S(watchdog_s),
     .max = 86400,
     .arg = "SECONDS",
     .by_default = "300",
     .help = "When no step ends for so long while requests run, the log and /health (then 503) name the stuck step; 0 turns this off."},
    {{"shutdown-grace"},
     REAL,
     WORKS,
     O(shutdown_grace_s),
     .max = 86400,
     .arg = "SECONDS",
     .by_default = "30",
     .help = "Time that running requests get after SIGTERM, SIGINT or SIGHUP; a second signal ends it."},
    {{"skip-server-warmup"}, BOOL, WORKS, O(skip_warmup), .help = "Be ready without having measured what the threads can do or generated a token first."},
    {{"reasoning-parser"},
     CHOICE,
     ONLY,
     S(reasoning_parser),
     .arg = "NAME",
     .choices = "auto|none|deepseek-r1|deepseek-v3|qwen3|qwen3-thinking|glm45|kimi|kimi_k2|minimax|gpt-oss|deepseek_r1=deepseek-r1|harmony=gpt-oss",
     .by_default = "auto",
     .help = "How the model marks its reasoning, which is then the answer's reasoning_content. auto: by the chat template.",
     .refusal = NOT_YET "; none leaves the reasoning in the text"},
    {{"tool-call-parser"},
     CHOICE,
     ONLY,
     S(tool_call_parser),
     .arg = "NAME",
     .choices = "auto|none|deepseekv3|deepseekv31|deepseekv32|kimi_k2|qwen25|qwen3_coder|glm45|glm47|minimax-m2|hermes|llama3|mistral|gpt-oss|pythonic|"
                "deepseek_v3=deepseekv3|deepseek_v31=deepseekv31|deepseek_v32=deepseekv32|qwen=qwen25|qwen3=qwen25|glm=glm45|minimax_m2=minimax-m2|openai=gpt-oss|harmony=gpt-oss",
     .by_default = "auto",
     .help = "How the model writes tool calls, which then are the answer's tool_calls. auto: by the chat template.",
     .refusal = NOT_YET "; none leaves tool calls in the text"},
    {{"check"}, BOOL, WORKS, O(check), .help = "Check the flags, say what they amount to, and exit."},

    SECTION("Device"),
    {{"device"},
     CHOICE,
     ONLY,
     E(device),
     .arg = "DEVICE",
     .choices = "host|cpu=host|apart",
     .by_default = "host",
     .help = "Where everything but the routed experts runs; host is the CPU. apart is for tests: the host with a memory of its own.",
     .refusal = NOT_YET "; this build serves with --device host"},
    {{"attention-backend"},
     TEXT,
     WORKS,
     E(attention_backend),
     .arg = "NAME",
     .by_default = "the device's",
     .help = "One that the device does not have is replaced by its own, with a warning."},
    {{"kv-cache-dtype"},
     CHOICE,
     ONLY,
     E(kv_cache_dtype),
     .arg = "TYPE",
     .choices = "auto|bf16|bfloat16=bf16|f32|float32=f32",
     .by_default = "auto",
     .help = "Numbers of the KV cache. auto: f32 with --quantization none, else bf16: 16 bits a value, which the host device keeps as integers with a scale per row. The other one is refused.",
     .refusal = NOT_YET "; the types are auto, bf16 and f32"},
    {{"npu-threads"},
     U32,
     WORKS,
     E(npu_threads),
     .max = 1024,
     .arg = "N",
     .by_default = "0",
     .help = "Threads of its own for the host device, of all its cards together; 0 shares the expert threads, but apart, and each of several cards, has one at least."},
    {{"tensor-parallel-size", "tp-size", "tp"},
     U32,
     WORKS,
     E(tensor_parallel_size),
     .min = 1,
     .max = 64,
     .arg = "N",
     .by_default = "1",
     .help = "Cards that every layer is split over; it must divide the model's heads. The host device plays N cards, which is for tests: with N threads of its own (--npu-threads)."},

    SECTION("Experts on the CPU"),
    {{"cpu-weight-path", "kt-weight-path"},
     TEXT,
     WORKS,
     E(cpu_weight_path),
     .arg = "DIR",
     .by_default = "quantise while loading",
     .help = "Folder of packed experts, written by tandem quantize."},
    {{"cpuinfer", "kt-cpuinfer"},
     U32,
     WORKS,
     E(cpuinfer),
     .max = 1024,
     .arg = "N",
     .by_default = "0",
     .help = "Expert threads; 0 takes one per physical core, or as many as the cgroup leaves time, less --npu-threads."},
    {{"subpool-count", "kt-threadpool-count"},
     U32,
     WORKS,
     E(subpool_count),
     .max = 64,
     .arg = "N",
     .by_default = "0",
     .help = "Groups of expert threads; 0 makes one per NUMA node."},
    {{"num-gpu-experts", "kt-num-gpu-experts"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "N",
     .choices = "0",
     .by_default = "0",
     .help = "Routed experts kept on the device.",
     .refusal = NOT_YET "; all routed experts run on the CPU (0)"},
    {{"kt-method"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "NAME",
     .choices = "int4|INT4",
     .help = "Accepted for int4; the kernel is chosen by the CPU.",
     .refusal = NOT_YET "; the kernel is chosen by the CPU (int4)"},
    {{"enable-defer", "kt-enable-defer"},
     BOOL,
     WORKS,
     E(enable_defer),
     .by_default = "off",
     .help = "Add the output of each token's lightest experts one layer later, so that device and CPU overlap. It costs quality: docs/quantisation.md, \"What deferral costs\"."},
    {{"max-deferred-experts-per-token", "kt-max-deferred-experts-per-token"},
     U32,
     WORKS,
     E(max_deferred_experts_per_token),
     .max = 64,
     .arg = "N",
     .by_default = "1 with --enable-defer",
     .help = "Experts per token that are deferred, fewer than the model has per token; above 0 turns deferral on."},
    {{"disable-two-chunk-overlap"},
     BOOL,
     WORKS,
     E(disable_two_chunk_overlap),
     .help = "Do not split large steps into two halves, of which the device computes one while the CPU has the other's "
             "experts. Only --npu-threads splits; results are the same."},
    {{"enable-two-batch-overlap"},
     BOOL,
     NO_EFFECT,
     NO_OFFSET,
     .help = "Accepted; steps are split where it helps, unless --disable-two-chunk-overlap."},

    SECTION("Memory and scheduling"),
    {{"mem-fraction-static"},
     REAL,
     WORKS,
     E(mem_fraction_static),
     .min = 0.01,
     .max = 1,
     .arg = "SHARE",
     .by_default = "0.9",
     .help = "Share of the free memory for weights, working memory and KV cache."},
    {{"max-total-tokens"},
     U64,
     WORKS,
     E(max_total_tokens),
     .max = 1e12,
     .arg = "N",
     .by_default = "as many as fit",
     .help = "Tokens in the KV cache; by default not more than --max-running-requests of the longest context take."},
    {{"max-running-requests"},
     U32,
     WORKS,
     E(max_running_requests),
     .max = 65536,
     .arg = "N",
     .by_default = "0",
     .help = "Requests generated at once; 0 takes 32."},
    {{"max-queued-requests"},
     U32,
     WORKS,
     E(max_queued_requests),
     .max = 1048576,
     .arg = "N",
     .by_default = "0",
     .help = "Requests waiting, each choice counted; more get a 503. 0 takes 1024."},
    {{"chunked-prefill-size"},
     U32,
     WORKS,
     E(chunked_prefill_size),
     .min = -1,
     .max = I31_TOP,
     .arg = "N",
     .by_default = "8192",
     .help = "Prompt tokens per step, of all requests together; -1: as many as --max-prefill-tokens."},
    {{"max-prefill-tokens"},
     U32,
     WORKS,
     E(max_prefill_tokens),
     .min = 1,
     .max = I31_TOP,
     .arg = "N",
     .by_default = "16384",
     .help = "Upper bound of --chunked-prefill-size."},
    {{"enable-mixed-chunk"}, BOOL, NO_EFFECT, NO_OFFSET, .help = "Accepted; prompt chunks and decoding share steps by default."},
    {{"disable-mixed-chunk"},
     BOOL,
     WORKS,
     E(disable_mixed_chunk),
     .help = "Prompt chunks and decoding take turns instead of sharing steps."},
    {{"schedule-policy"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "POLICY",
     .choices = "fcfs",
     .by_default = "fcfs",
     .help = "Order of waiting requests.",
     .refusal = NOT_YET "; only fcfs is"},
    {{"page-size"},
     U32,
     ONLY,
     E(page_size),
     .max = 128,
     .min = 128,
     .arg = "N",
     .choices = "128",
     .by_default = "128",
     .help = "Tokens per KV page.",
     .refusal = NOT_YET "; only 128 is"},
    {{"disable-radix-cache"},
     BOOL,
     WORKS,
     E(disable_radix_cache),
     .help = "Keep no pages of earlier requests for later ones with the same beginning."},
    {{"random-seed"},
     U64,
     WORKS,
     E(random_seed),
     .max = 9007199254740992.0,
     .arg = "N",
     .by_default = "0",
     .help = "Seed of the requests that bring none."},

    SECTION("More than one machine, speculation"),
    {{"nnodes"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "N",
     .choices = "1",
     .by_default = "1",
     .help = "Machines that serve one model together.",
     .refusal = NOT_YET "; only 1 is"},
    {{"node-rank"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "N",
     .choices = "0",
     .by_default = "0",
     .help = "This machine's number.",
     .refusal = NOT_YET "; only 0 is"},
    {{"dist-init-addr"},
     TEXT,
     REFUSED,
     NO_OFFSET,
     .arg = "HOST:PORT",
     .help = "Where the machines meet.",
     .refusal = NOT_YET "; one machine serves a model"},
    {{"speculative-algorithm"}, TEXT, REFUSED, NO_OFFSET, .arg = "NAME", .help = "Draft tokens ahead.", .refusal = NOT_YET},
    {{"speculative-num-steps"}, TEXT, REFUSED, NO_OFFSET, .arg = "N", .help = "Draft steps.", .refusal = NOT_YET},
    {{"disaggregation-mode"},
     TEXT,
     ONLY,
     NO_OFFSET,
     .arg = "MODE",
     .choices = "null",
     .by_default = "null",
     .help = "Prefill and decode on machines of their own.",
     .refusal = NOT_YET},
    {{"disaggregation-transfer-backend"},
     TEXT,
     REFUSED,
     NO_OFFSET,
     .arg = "NAME",
     .help = "How KV pages travel.",
     .refusal = NOT_YET},
    {{"disaggregation-bootstrap-port"},
     TEXT,
     REFUSED,
     NO_OFFSET,
     .arg = "PORT",
     .help = "Where the machines meet.",
     .refusal = NOT_YET},

    SECTION("Other"),
    {{"help"}, BOOL, WORKS, O(help), .help = "Print this."},
    {{"help-markdown"}, BOOL, WORKS, O(help_markdown), .help = "Print this as docs/flags.md."},
};
/* clang-format on */

#define N_FLAGS (sizeof FLAGS / sizeof *FLAGS)

enum { NOT_GIVEN, GIVEN_IN_CONFIG, GIVEN };

/* ---- one value ---- */

/* The entry of "a|b=c|d" that value names: *stored is what it stands for. */
static bool find_choice(const char *choices, const char *value, const char **stored, size_t *len) {
    size_t n = strlen(value);
    for (const char *p = choices; *p;) {
        size_t      entry = strcspn(p, "|"), name = strcspn(p, "|=");
        const char *to = name < entry ? p + name + 1 : p;
        if (name == n && !strncmp(p, value, n)) {
            *stored = to;
            *len = (size_t)(p + entry - to);
            return true;
        }
        p += entry + (p[entry] == '|');
    }
    return false;
}

/* A copy that the options own. */
static char *keep_string(td_launch_options *o, const char *s, size_t n) {
    char **list = realloc(o->strings, (o->n_strings + 1) * sizeof *list);
    if (!list) return NULL;
    o->strings = list;
    char *copy = strndup(s, n);
    if (copy) list[o->n_strings++] = copy;
    return copy;
}

static td_status store_number(const flag *f, const char *value, void *to, td_error *err) {
    char  *end;
    double x;
    errno = 0;
    long long whole = 0;
    if (f->type == REAL) {
        x = strtod(value, &end);
    } else {
        whole = strtoll(value, &end, 10);
        x = (double)whole;
    }
    if (end == value || *end || errno || !isfinite(x))
        return td_fail(err, TD_EINVAL, "--%s needs %s, not '%.60s'", f->names[0],
                       f->type == REAL ? "a number" : "a whole number", value);
    if (x < f->min || x > f->max)
        return td_fail(err, TD_EINVAL, "--%s must be between %.15g and %.15g, not %.60s", f->names[0], f->min, f->max,
                       value);
    switch (f->type) {
        case U16: *(uint16_t *)to = (uint16_t)whole; break;
        case U32:
            *(uint32_t *)to = whole < 0 ? 0 : (uint32_t)whole;
            break; /* -1, where allowed, is another way to say off */
        case U64: *(uint64_t *)to = (uint64_t)whole; break;
        default: *(double *)to = x;
    }
    return TD_OK;
}

static td_status store(td_launch_options *o, const flag *f, const char *value, bool borrowed, td_error *err) {
    const char *text = value;
    size_t      len = strlen(value);
    if (f->state == REFUSED) return td_fail(err, TD_ENOTSUP, "--%s %s", f->names[0], f->refusal);
    if (f->choices && !find_choice(f->choices, value, &text, &len)) {
        if (f->state == ONLY) return td_fail(err, TD_ENOTSUP, "--%s %.60s %s", f->names[0], value, f->refusal);
        return td_fail(err, TD_EINVAL, "--%s must be one of %s, not '%.60s'", f->names[0], f->choices, value);
    }
    if (f->offset == NO_OFFSET) return TD_OK;
    void *to = (char *)o + f->offset;
    if (f->type != TEXT && f->type != CHOICE) return store_number(f, value, to, err);
    if (len == 0) return td_fail(err, TD_EINVAL, "--%s needs a value", f->names[0]);
    if (!borrowed || f->type == CHOICE) text = keep_string(o, text, len);
    if (!text) return td_fail(err, TD_ENOMEM, "out of memory");
    *(const char **)to = text;
    return TD_OK;
}

/* ---- a whole command line ---- */

static bool parse_bool(const char *value, bool *to) {
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    for (size_t i = 0; i < 3; i++) {
        if (!strcasecmp(value, yes[i])) return *to = true;
        if (!strcasecmp(value, no[i])) return !(*to = false);
    }
    return false;
}

static td_status set_bool(td_launch_options *o, const flag *f, bool on, td_error *err) {
    if (f->state == REFUSED && on) return td_fail(err, TD_ENOTSUP, "--%s %s", f->names[0], f->refusal);
    if (f->offset != NO_OFFSET) *(bool *)((char *)o + f->offset) = on;
    return TD_OK;
}

/* Every name of every flag, and the row of the table that it stands for. */
typedef struct {
    const char *names[N_FLAGS * NAMES_MAX];
    uint16_t    row[N_FLAGS * NAMES_MAX];
    size_t      n;
} flag_names;

static void list_names(flag_names *list) {
    list->n = 0;
    for (size_t i = 0; i < N_FLAGS; i++)
        for (size_t k = 0; FLAGS[i].names[k]; k++) {
            list->names[list->n] = FLAGS[i].names[k];
            list->row[list->n++] = (uint16_t)i;
        }
}

typedef struct {
    td_launch_options *options;
    flag_names         list;
} config_target;

static td_status from_config(void *user, size_t key, const char *value, td_error *err) {
    config_target     *target = user;
    td_launch_options *o = target->options;
    const char        *name = target->list.names[key];
    const flag        *f = &FLAGS[target->list.row[key]];
    if (f->offset == O(config) || f->offset == O(help) || f->offset == O(help_markdown) || f->offset == O(check))
        return td_fail(err, TD_EINVAL, "'%s' belongs on the command line", name);
    uint8_t *given = &o->given[f - FLAGS];
    if (*given == GIVEN_IN_CONFIG) return td_fail(err, TD_EINVAL, "'%s' is there twice", name);
    if (*given == GIVEN) return TD_OK; /* the command line wins */
    *given = GIVEN_IN_CONFIG;
    if (f->type != BOOL) return store(o, f, value, false, err);
    bool on;
    if (!parse_bool(value, &on)) return td_fail(err, TD_EINVAL, "'%s' must be true or false, not '%.60s'", name, value);
    return set_bool(o, f, on, err);
}

static struct option *long_options(const flag_names *list) {
    struct option *options = calloc(list->n + 1, sizeof *options);
    for (size_t i = 0; options && i < list->n; i++)
        options[i] = (struct option){list->names[i], FLAGS[list->row[i]].type == BOOL ? no_argument : required_argument, NULL,
                                     256 + list->row[i]};
    return options;
}

static td_status parse_line(td_launch_options *o, int argc, char **argv, const struct option *options, td_error *err) {
    optind = 0; /* GNU: start anew */
    opterr = 0; /* the sentences are ours */
    for (int c; (c = getopt_long(argc, argv, "-:h", options, NULL)) != -1;) {
        if (c == 'h') {
            o->help = true;
        } else if (c == 1) {
            return td_fail(err, TD_EINVAL, "'%.60s' is not a flag; flags start with --", optarg);
        } else if (c == ':') {
            return td_fail(err, TD_EINVAL, "%.60s needs a value", argv[optind - 1]);
        } else if (c == '?' && optopt >= 256) {
            return td_fail(err, TD_EINVAL, "--%s takes no value", FLAGS[optopt - 256].names[0]);
        } else if (c == '?') {
            return td_fail(err, TD_EINVAL, "there is no flag '%.60s'; 'tandem launch_server --help' lists them",
                           argv[optind - 1]);
        } else {
            const flag *f = &FLAGS[c - 256];
            TD_TRY(f->type == BOOL ? set_bool(o, f, true, err) : store(o, f, optarg, true, err));
            o->given[f - FLAGS] = GIVEN;
        }
    }
    if (optind < argc) return td_fail(err, TD_EINVAL, "'%.60s' is not a flag; flags start with --", argv[optind]);
    return TD_OK;
}

static td_status finish(td_launch_options *o, td_error *err) {
    if (o->engine.max_deferred_experts_per_token > 0) o->engine.enable_defer = true;
    o->server.tokenizer_path = o->engine.tokenizer_path;
    o->engine.measure_bounds = !o->skip_warmup;
    /* Accelerators bring backends to choose from; the host device has one, and it is called as the device is. */
    if (o->engine.attention_backend && strcmp(o->engine.attention_backend, o->engine.device) != 0) {
        td_warn("the attention backend '%s' is not there on device '%s'; using the device's own",
                o->engine.attention_backend, o->engine.device);
        o->engine.attention_backend = NULL;
    }
    if (!o->engine.model_path) return td_fail(err, TD_EINVAL, "--model-path is missing: the folder of the model to serve");
    return TD_OK;
}

td_status td_flags_parse(int argc, char **argv, td_launch_options *o, td_error *err) {
    *o = (td_launch_options){.shutdown_grace_s = 30, .log_level = "info", .log_format = "text"};
    td_engine_options_init(&o->engine);
    td_server_options_init(&o->server);
    o->given = calloc(N_FLAGS, 1);
    config_target target = {.options = o};
    list_names(&target.list);
    struct option *options = long_options(&target.list);
    td_status st = o->given && options ? parse_line(o, argc, argv, options, err) : td_fail(err, TD_ENOMEM, "out of memory");
    free(options);
    if (st != TD_OK || o->help || o->help_markdown) return st;
    if (o->config) TD_TRY(td_config_read(o->config, target.list.names, target.list.n, from_config, &target, err));
    return finish(o, err);
}

void td_launch_options_free(td_launch_options *o) {
    for (size_t i = 0; i < o->n_strings; i++) free(o->strings[i]);
    free(o->strings);
    free(o->given);
    *o = (td_launch_options){0};
}

/* ---- what the table prints ---- */

static const char *state_note(const flag *f) {
    return f->state == REFUSED ? "Not supported yet. " : "";
}

/* The names of "a|b=c" as "a, b", each between two of quote. */
static void print_choices(FILE *f, const char *choices, const char *quote) {
    for (const char *p = choices; *p;) {
        size_t entry = strcspn(p, "|"), name = strcspn(p, "|=");
        fprintf(f, "%s%s%.*s%s", p == choices ? "" : ", ", quote, (int)name, p, quote);
        p += entry + (p[entry] == '|');
    }
}

void td_flags_print_help(FILE *f) {
    fprintf(f, "usage: tandem launch_server --model-path DIR [flags]\n\nServes a model over OpenAI's HTTP API.\n");
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *g = &FLAGS[i];
        if (!g->names[0]) {
            fprintf(f, "\n%s\n", g->help);
            continue;
        }
        fprintf(f, "  ");
        for (size_t k = 0; g->names[k]; k++) fprintf(f, "%s--%s", k ? ", " : "", g->names[k]);
        fprintf(f, "%s%s\n        %s%s", g->arg ? " " : "", g->arg ? g->arg : "", state_note(g), g->help);
        if (g->by_default) fprintf(f, " (default: %s)", g->by_default);
        if (g->choices) {
            fprintf(f, "\n        Values: ");
            print_choices(f, g->choices, "");
        }
        fprintf(f, "\n");
    }
}

void td_flags_print_markdown(FILE *f) {
    fprintf(f,
            "# Flags of `tandem launch_server`\n\n"
            "Written by `tandem launch_server --help-markdown`; the table is in `cli/flags.c`.\n"
            "Any flag may also stand in a `--config FILE.yaml` as `flag: value` (switches as `true` or `false`; `_` may "
            "stand for `-`);\n"
            "the command line wins. A flag that is known but not supported yet, or a value of it, is refused with one "
            "sentence and exit\n"
            "status 2.\n");
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *g = &FLAGS[i];
        if (!g->names[0]) {
            fprintf(f, "\n## %s\n\n| flag | values | default | what it does |\n|---|---|---|---|\n", g->help);
            continue;
        }
        fprintf(f, "| ");
        for (size_t k = 0; g->names[k]; k++) fprintf(f, "%s`--%s`", k ? ", " : "", g->names[k]);
        fprintf(f, " | ");
        if (g->choices)
            print_choices(f, g->choices, "`");
        else if (g->type == BOOL)
            fprintf(f, "switch");
        else
            fprintf(f, "%s", g->arg);
        fprintf(f, " | %s | %s%s |\n", g->by_default ? g->by_default : "", state_note(g), g->help);
    }
}

void td_flags_write_json(const td_launch_options *o, td_jbuf *b) {
    td_jw_open(b, '{');
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *f = &FLAGS[i];
        if (!o->given[i] || f->offset == NO_OFFSET || f->offset == S(api_key)) continue;
        const void *at = (const char *)o + f->offset;
        td_jw_key(b, f->names[0]);
        switch (f->type) {
            case BOOL: td_jw_bool(b, *(const bool *)at); break;
            case U16: td_jw_int(b, *(const uint16_t *)at); break;
            case U32: td_jw_int(b, *(const uint32_t *)at); break;
            case U64: td_jw_int(b, (int64_t) * (const uint64_t *)at); break;
            case REAL: td_jw_real(b, *(const double *)at, 17); break;
            default: td_jw_str(b, *(const char *const *)at);
        }
    }
    td_jw_close(b, '}');
}
