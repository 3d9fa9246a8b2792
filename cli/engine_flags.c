#include "cli/engine_flags.h"

#include <assert.h>
#include <string.h>

#include "cli/device_flag.h"
#include "core/log/log.h"
#include "npu/npu.h"

#define E(member) offsetof(td_engine_options, member)
#define TITLE(text) \
    { .names = {NULL}, .help = text }

#define MODEL (TD_IN_LAUNCH | TD_IN_PERPLEXITY | TD_IN_EVAL)
#define SERVING (TD_IN_LAUNCH | TD_IN_EVAL)
#define LAUNCH TD_IN_LAUNCH
#define THREADS (MODEL | TD_IN_TOPO)
#define PLAN TD_IN_PLAN

#define I31_TOP 2147483647.0

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    TITLE("Model"),
    {{"model-path", "model", "m"}, TD_FLAG_TEXT, E(model_path), .in = MODEL, .arg = "DIR",
     .basic = true, .help = "Hugging Face folder of the model, or one that tandem quantize wrote. Required."},
    {{"tokenizer-path"}, TD_FLAG_TEXT, E(tokenizer_path), .in = MODEL, .arg = "DIR", .by_default = "the model's folder",
     .help = "Folder with tokenizer.json or tiktoken.model."},
    {{"trust-remote-code"}, TD_FLAG_SWITCH, TD_FLAG_NOWHERE, .in = LAUNCH, .by_default = "off",
     .help = "Accepted; no code of a model folder is ever run."},
    {{"load-format"}, TD_FLAG_TEXT, E(load_format), .in = LAUNCH, .arg = "FORMAT",
     .choices = TD_CHOICES("auto", "safetensors", "dummy"), .by_default = "auto",
     .help = "dummy fills the shape of config.json with random weights."},
    {{"weight-loader-disable-mmap", "no-mmap"}, TD_FLAG_SWITCH, E(copy_weights), .in = LAUNCH,
     .help = "Read packed weights into memory of the process instead of mapping their files (docs/checkpoints.md)."},
    {{"context-length", "max-model-len", "ctx-size", "c"}, TD_FLAG_U32, E(context_length), .in = MODEL | PLAN, .max = I31_TOP, .arg = "N",
     .basic = true, .by_default = "the model's", .help = "Longest prompt plus answer, in tokens."},
    {{"json-model-override-args", "hf-overrides"}, TD_FLAG_TEXT, E(model_override_json), .in = MODEL | PLAN, .arg = "JSON",
     .help = "Object merged over config.json."},
    {{"chat-template", "chat-template-file"}, TD_FLAG_TEXT, E(chat_template), .in = LAUNCH, .arg = "FILE", .by_default = "the model's",
     .help = "Jinja template of the chat API."},
    {{"quantization"}, TD_FLAG_TEXT, E(quantization), .in = MODEL | PLAN, .arg = "FORMAT",
     .choices = TD_CHOICES("auto", "none", "w8a8_int8"), .by_default = "auto",
     .help = "Numbers of everything but the routed experts; auto: w8a8_int8. none: weights as stored, f32 arithmetic.",
     .refusal = TD_NOT_YET "; the formats are auto, none and w8a8_int8"},
    {{"expert-quantization", "requantize"}, TD_FLAG_TEXT, E(expert_quantization), .in = MODEL | PLAN, .arg = "FORMAT",
     .choices = TD_CHOICES("auto", "none", "int4", "int4-channel=int4", "int8", "int4-g32", "int4-g64", "int4-g128", "mxfp4",
                           "nvfp4"), .by_default = "auto",
     .help = "Numbers of the routed experts (docs/quantisation.md); auto: what packed files hold, none when --quantization "
             "is none, the format that carries a quantised checkpoint exactly, else int4.",
     .refusal = TD_NOT_YET "; the formats are auto, none, int4, int8, int4-g32, int4-g64, int4-g128, mxfp4 and nvfp4"},

    TITLE("Device"),
    {{"device"}, TD_FLAG_TEXT, E(device), .in = MODEL | TD_IN_DOCTOR | TD_IN_TOPO, .arg = "DEVICE",
     .basic = true, .choices = td_device_flag_texts.choices, .by_default = "host", .help = td_device_flag_texts.help,
     .refusal = td_device_flag_texts.refusal},
    {{"base-gpu-id"}, TD_FLAG_U32, E(base_gpu_id), .in = MODEL | TD_IN_TOPO, .max = 1023, .arg = "N", .by_default = "0",
     .help = "The first card, of those that the process sees; the host has none."},
    {{"attention-backend"}, TD_FLAG_TEXT, E(attention_backend), .in = LAUNCH, .arg = "NAME", .by_default = "the device's",
     .help = "One that the device does not have is replaced by its own, with a warning."},
    {{"kv-cache-dtype"}, TD_FLAG_TEXT, E(kv_cache_dtype), .in = MODEL | PLAN, .arg = "TYPE",
     .choices = TD_CHOICES("auto", "bf16", "bfloat16=bf16", "int16=bf16", "int8", "f32", "float32=f32"), .by_default = "auto",
     .help = "Numbers of the KV cache. auto: f32 with --quantization none, else bf16: 16 bits a value, which the host "
             "device keeps as integers with a scale per row. int8: 8 bits a value, on the host alone, and not with "
             "--quantization none (docs/quantisation.md). What does not fit is refused.",
     .refusal = TD_NOT_YET "; the types are auto, bf16, int8 and f32"},
    {{"npu-threads"}, TD_FLAG_U32, E(npu_threads), .in = LAUNCH | TD_IN_TOPO, .max = 1024, .arg = "N", .by_default = "0",
     .help = "Threads of its own for the host device, of all its cards together; 0 shares the expert threads, but apart, "
             "and each of several cards, has one at least."},
    {{"tensor-parallel-size", "tp-size", "tp"}, TD_FLAG_U32, E(tensor_parallel_size), .in = LAUNCH | PLAN, .min = 1, .max = 64,
     .arg = "N", .by_default = "1",
     .help = "Cards that every layer is split over; it must divide the model's heads. The host device plays N cards, which "
             "is for tests: with N threads of its own (--npu-threads).", .sglang = "tp_size"},

    TITLE("Experts on the CPU"),
    {{"cpu-weight-path", "kt-weight-path"}, TD_FLAG_TEXT, E(cpu_weight_path), .in = MODEL, .arg = "DIR",
     .by_default = "quantise while loading", .help = "Folder of packed experts, written by tandem quantize.",
     .sglang = "kt_weight_path"},
    {{"cpuinfer", "kt-cpuinfer", "threads", "t"}, TD_FLAG_U32, E(cpuinfer), .in = THREADS, .max = 1024, .arg = "N", .by_default = "0",
     .basic = true, .help = "Expert threads; 0 takes one per physical core, or as many as the cgroup leaves time, less --npu-threads "
     "and, beside a card, two for its driver.",
     .sglang = "kt_cpuinfer"},
    {{"subpool-count", "kt-threadpool-count"}, TD_FLAG_U32, E(subpool_count), .in = THREADS, .max = 64, .arg = "N",
     .by_default = "0", .help = "Groups of expert threads; 0 makes one per NUMA node.", .sglang = "kt_threadpool_count"},
    {{"num-gpu-experts", "kt-num-gpu-experts"}, TD_FLAG_U32_AUTO, E(num_gpu_experts), .in = MODEL | PLAN, .max = 2048,
     .arg = "N", .by_default = "0",
     .help = "Routed experts of a layer that the device keeps. All of the layer's: the CPU has none. Fewer: those of most "
             "use, which changes while it runs (docs/residency.md). auto: of these as many as fit beside weights and KV cache.",
     .sglang = "kt_num_gpu_experts"},
    {{"stream-experts"}, TD_FLAG_SWITCH, E(stream_experts), .in = MODEL | PLAN, .by_default = "off",
     .help = "With --num-gpu-experts, fewer than all: in steps with many prompt rows, the other experts pass through the "
             "device's memory where that is faster (docs/residency.md). It has room for two layers of them."},
    {{"expert-memory"}, TD_FLAG_TEXT, E(expert_memory), .in = MODEL | PLAN, .arg = "HOW", .choices = TD_CHOICES("keep", "drop"),
     .by_default = "keep",
     .help = "Where --num-gpu-experts moves experts: keep has all of them in host memory too; drop only those that are not on "
             "the device, which come back from --cpu-weight-path's files.",
     .refusal = "use keep or drop"},
    {{"kt-method"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "NAME", .choices = TD_CHOICES("int4", "INT4"),
     .help = "Accepted for int4; the kernel is chosen by the CPU.",
     .refusal = TD_NOT_YET "; the kernel is chosen by the CPU (int4)"},
    {{"enable-defer", "kt-enable-defer"}, TD_FLAG_SWITCH, E(enable_defer), .in = MODEL | PLAN, .by_default = "off",
     .help = "Add the output of each token's lightest experts one layer later, so that device and CPU overlap. It costs "
             "quality: docs/quantisation.md, \"What deferral costs\"."},
    {{"max-deferred-experts-per-token", "kt-max-deferred-experts-per-token"}, TD_FLAG_U32, E(max_deferred_experts_per_token),
     .in = MODEL | PLAN, .max = 64, .arg = "N", .by_default = "1 with --enable-defer",
     .help = "Experts per token that are deferred, fewer than the model has per token; above 0 turns deferral on.",
     .sglang = "kt_max_deferred_experts_per_token"},
    {{"disable-two-chunk-overlap"}, TD_FLAG_SWITCH, E(disable_two_chunk_overlap), .in = LAUNCH | PLAN,
     .help = "Do not split large steps into two halves, of which the device computes one while the CPU has the other's "
             "experts. Only --npu-threads splits; results are the same."},
    {{"enable-two-batch-overlap"}, TD_FLAG_SWITCH, TD_FLAG_NOWHERE, .in = LAUNCH,
     .help = "Accepted; steps are split where it helps, unless --disable-two-chunk-overlap."},

    TITLE("Memory and scheduling"),
    {{"mem-fraction-static", "gpu-memory-utilization"}, TD_FLAG_REAL, E(mem_fraction_static), .in = MODEL | PLAN, .min = 0.01, .max = 1, .arg = "SHARE",
     .by_default = "0.9", .help = "Share of the free memory for weights, working memory and KV cache."},
    {{"max-total-tokens"}, TD_FLAG_U64, E(max_total_tokens), .in = SERVING | PLAN, .max = 1e12, .arg = "N",
     .basic = true, .by_default = "as many as fit",
     .help = "Tokens in the KV cache; by default not more than --max-running-requests of the longest context take."},
    {{"max-running-requests", "max-num-seqs", "parallel", "np"}, TD_FLAG_U32, E(max_running_requests), .in = SERVING | PLAN, .max = 65536, .arg = "N",
     .basic = true, .by_default = "0", .help = "Requests generated at once; 0 takes 32."},
    {{"max-queued-requests"}, TD_FLAG_U32, E(max_queued_requests), .in = LAUNCH, .max = 1048576, .arg = "N",
     .by_default = "0", .help = "Requests waiting, each choice counted; more get a 503. 0 takes 1024."},
    {{"chunked-prefill-size", "max-num-batched-tokens"}, TD_FLAG_U32, E(chunked_prefill_size), .in = LAUNCH | PLAN, .min = -1, .max = I31_TOP, .arg = "N",
     .by_default = "8192", .help = "Prompt tokens per step, of all requests together; -1: as many as --max-prefill-tokens."},
    {{"max-prefill-tokens"}, TD_FLAG_U32, E(max_prefill_tokens), .in = LAUNCH | PLAN, .min = 1, .max = I31_TOP, .arg = "N",
     .by_default = "16384", .help = "Upper bound of --chunked-prefill-size."},
    {{"max-step-ms"}, TD_FLAG_U32, E(max_step_ms), .in = LAUNCH, .max = 3600000, .arg = "MS", .by_default = "500",
     .help = "Milliseconds of a step beside other requests: prompts get as many tokens as fit, some 256 at least (docs/server.md). 0: no limit."},
    {{"enable-mixed-chunk"}, TD_FLAG_SWITCH, TD_FLAG_NOWHERE, .in = LAUNCH,
     .help = "Accepted; prompt chunks and decoding share steps by default."},
    {{"disable-mixed-chunk"}, TD_FLAG_SWITCH, E(disable_mixed_chunk), .in = LAUNCH,
     .help = "Prompt chunks and decoding take turns instead of sharing steps."},
    {{"schedule-policy"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "POLICY", .choices = TD_CHOICES("fcfs"),
     .by_default = "fcfs", .help = "Order of waiting requests.", .refusal = TD_NOT_YET "; only fcfs is"},
    {{"page-size"}, TD_FLAG_U32, E(page_size), .in = LAUNCH, .min = 128, .max = 128, .arg = "N",
     .choices = TD_CHOICES("128"), .by_default = "128", .help = "Tokens per KV page.", .refusal = TD_NOT_YET "; only 128 is"},
    {{"state-snapshots-gib"}, TD_FLAG_REAL, E(state_snapshots_gib), .in = SERVING | PLAN, .min = 0, .max = 4096, .arg = "GIB",
     .by_default = "1",
     .help = "Memory for states of recurrent layers (Qwen3-Next, Qwen3.5, Kimi-Linear, GLM-5.3) and of compressed rows (DeepSeek-V4), "
             "kept at the ends of prompts and answers so that the next turn of a chat goes on from there. 0: every prompt is "
             "computed from its beginning."},
    {{"max-image-tokens"}, TD_FLAG_U32, E(max_image_tokens), .in = SERVING | PLAN, .max = 65536, .arg = "N", .by_default = "4096",
     .help = "Tokens of an image at most, for models that take images: larger pictures are made smaller. The encoder's memory and "
             "time grow with it. 0: images are refused, and the encoder is not loaded."},
    {{"image-cache-gib"}, TD_FLAG_REAL, E(image_cache_gib), .in = SERVING | PLAN, .min = 0, .max = 4096, .arg = "GIB",
     .by_default = "1",
     .help = "Host memory for what the encoder makes of images, until prompts have read it, and for images that come again. The "
             "largest image must fit."},
    {{"disable-radix-cache", "no-enable-prefix-caching"}, TD_FLAG_SWITCH, E(disable_radix_cache), .in = LAUNCH,
     .help = "Keep no pages of earlier requests for later ones with the same beginning."},
    {{"random-seed", "seed"}, TD_FLAG_U64, E(random_seed), .in = LAUNCH, .max = 9007199254740992.0, .arg = "N", .by_default = "0",
     .help = "Seed of the requests that bring none."},

    TITLE("More than one machine, speculation"),
    {{"nnodes"}, TD_FLAG_U32, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "N", .choices = TD_CHOICES("1"), .by_default = "1",
     .help = "Machines that serve one model together.", .refusal = TD_NOT_YET "; only 1 is"},
    {{"node-rank"}, TD_FLAG_U32, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "N", .choices = TD_CHOICES("0"), .by_default = "0",
     .help = "This machine's number.", .refusal = TD_NOT_YET "; only 0 is"},
    {{"dist-init-addr"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "HOST:PORT", .help = "Where the machines meet.",
     .refusal = TD_NOT_YET "; one machine serves a model"},
    {{"speculative-algorithm"}, TD_FLAG_TEXT, E(speculative_algorithm), .in = LAUNCH, .arg = "NAME",
     .choices = TD_CHOICES("NEXTN"),
     .help = "Draft a token ahead, where that pays: NEXTN, with the model's multi-token-prediction layer (docs/speculative.md). "
             "The tokens are the same.",
     .refusal = TD_NOT_YET "; only NEXTN is"},
    {{"speculative-always"}, TD_FLAG_SWITCH, E(speculative_always), .in = LAUNCH,
     .help = "Draft in every step, whether it pays or not: for measuring."},
    {{"speculative-num-steps"}, TD_FLAG_U32, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "N", .choices = TD_CHOICES("1"),
     .by_default = "1", .help = "Tokens drafted in a row.", .refusal = TD_NOT_YET "; only 1 is"},
    {{"speculative-eagle-topk"}, TD_FLAG_U32, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "N", .choices = TD_CHOICES("1"),
     .by_default = "1", .help = "Drafts for one place.", .refusal = TD_NOT_YET "; only 1 is"},
    {{"speculative-num-draft-tokens"}, TD_FLAG_U32, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "N", .choices = TD_CHOICES("2"),
     .by_default = "2", .help = "Rows that verify a draft, the newest token's among them.", .refusal = TD_NOT_YET "; only 2 is"},
    {{"disaggregation-mode"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "MODE", .choices = TD_CHOICES("null"),
     .by_default = "null", .help = "Prefill and decode on machines of their own.", .refusal = TD_NOT_YET},
    {{"disaggregation-transfer-backend"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "NAME",
     .help = "How KV pages travel.", .refusal = TD_NOT_YET},
    {{"disaggregation-bootstrap-port"}, TD_FLAG_TEXT, TD_FLAG_NOWHERE, .in = LAUNCH, .arg = "PORT",
     .help = "Where the machines meet.", .refusal = TD_NOT_YET},

    TITLE("What the engine logs"),
    {{"log-requests"}, TD_FLAG_SWITCH, E(log_requests), .in = LAUNCH, .help = "Log each request's lengths and times."},
    {{"decode-log-interval"}, TD_FLAG_U32, E(decode_log_interval), .in = LAUNCH, .max = I31_TOP, .arg = "STEPS",
     .by_default = "40",
     .help = "Steps between lines with the load, the throughput and each tier's share of its bound; 0 for none."},
};
/* clang-format on */

#define N_FLAGS (sizeof FLAGS / sizeof *FLAGS)
static_assert(N_FLAGS <= TD_ENGINE_FLAGS_MAX, "TD_ENGINE_FLAGS_MAX has room for every row");

td_flag_group td_engine_flags(unsigned in, td_engine_options *o) {
    td_device_flag_fill();
    return (td_flag_group){.flags = FLAGS, .n = N_FLAGS, .options = o, .in = in};
}

void td_engine_flags_settle(td_engine_options *o) {
    char why[TD_ERROR_TEXT_MAX];
    if (o->device && !strcmp(o->device, "auto")) {
        o->device = td_npu_auto(why, sizeof why);
        td_info("device auto: %s (%s)", o->device, why);
    }
    if (o->max_deferred_experts_per_token) o->enable_defer = true;
}
