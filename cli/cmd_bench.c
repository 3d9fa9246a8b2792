/* `tandem bench SUITE` measures parts of the engine and compares each figure with the most that this machine can do. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "cli/device_flag.h"
#include "cli/flags.h"
#include "cli/standard_output.h"
#include "core/error.h"
#include "core/log/log.h"
#include "core/machine/cpu.h"
#include "kernels/kernels.h"

#define EXIT_USAGE 2
#define TRACE_BYTES ((uint64_t)1 << 30)

/* Groups of options. A suite lists those that it uses; any other is refused. */
enum {
    CONFIG = 1, /* --model-path, which the suite needs, and --json-model-override-args */
    FILTER = 2,
    EXPERTS = 4,
    DEVICE = 8, /* --device and --base-gpu-id */
    DIVIDE = 16,
    SKIP = 32,
    ROUTING = 64,
    MOVING = 128,    /* --num-gpu-experts */
    STREAMING = 256, /* --stream-experts */
};

typedef struct {
    const char *name;
    td_status (*run)(td_bench *b, td_error *err);
    unsigned    takes;
    const char *help;
} suite;

static const suite SUITES[] = {
    {"roofline", td_bench_roofline, DEVICE,
     "read bandwidth by threads and pairs of NUMA nodes, int8, bf16 and f32 peak by threads; of a card (--device) "
     "reading, copying, int8 and bf16"},
    {"pool", td_bench_pool, 0, "what a parallel loop costs, by threads"},
    {"kernels", td_bench_kernels, FILTER | DEVICE | DIVIDE, "the device's linears and the experts' kernels, by rows"},
    {"attention", td_bench_attention, FILTER | DEVICE | DIVIDE, "MLA, GQA and gated DeltaNet, decode and prefill"},
    {"experts", td_bench_experts, FILTER | EXPERTS,
     "the routed experts of a layer: DeepSeek-V3, V2-Lite and Qwen3-30B shapes"},
    {"decode", td_bench_decode, CONFIG | FILTER | EXPERTS | DEVICE | SKIP | MOVING,
     "whole steps of generating, by streams and context (--model-path)"},
    {"prefill", td_bench_prefill, CONFIG | FILTER | EXPERTS | DEVICE | SKIP | MOVING | STREAMING,
     "whole steps of a prompt (--model-path)"},
    {"vision", td_bench_vision, CONFIG | FILTER, "pictures through a model's vision encoder, on the host (--model-path)"},
    {"load", td_bench_load, CONFIG | FILTER,
     "a folder of tandem quantize to memory and to the first token, cached and from disk (--model-path FOLDER)"},
    {"link", td_bench_link, FILTER | DEVICE,
     "copies to a device with memory of its own and back, and hand-overs in both forms (--device)"},
    {"residency", td_bench_residency, FILTER | ROUTING,
     "routing traces replayed: how often experts that move are on the device, at what uploads (docs/residency.md)"},
    {NULL, NULL, 0, NULL},
};

/* The suites' options, and texts from the command line that are translated into them. */
typedef struct {
    td_bench_options b;
    const char      *experts, *suite, *skip;
} options;

#define B(member) offsetof(options, b.member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"model-path", "model", "m"}, TD_FLAG_TEXT, B(model_path), .arg = "FILE",
     .help = "config.json of a model, e.g. configs/models/deepseek-v2-lite.json."},
    {{"json-model-override-args"}, TD_FLAG_TEXT, B(override_json), .arg = "JSON",
     .help = "Merged over it, e.g. '{\"num_hidden_layers\": 4}'."},
    {{"threads"}, TD_FLAG_U32, B(threads), .min = 1, .max = TD_POOL_WORKERS_MAX, .arg = "N", .by_default = "every core",
     .help = "Threads that compute."},
    {{"subpool-count"}, TD_FLAG_U32, B(subpool_count), .min = 1, .max = TD_POOL_SUBPOOLS_MAX, .arg = "N",
     .by_default = "one per NUMA node", .help = "Groups of them."},
    {{"rounds"}, TD_FLAG_U32, B(rounds), .min = 1, .max = TD_BENCH_ROUNDS_MAX, .arg = "N", .by_default = "5",
     .help = "A row is their median."},
    {{"device"}, TD_FLAG_TEXT, B(device), .arg = "NAME", .choices = td_device_flag_texts.names, .by_default = "host",
     .help = "Of all suites but pool, experts, vision, load and residency. On a card that measures itself a row stands against the card's own bounds; "
             "on one that cannot it has no fraction. apart is for tests: the host with a memory of its own; its times mean nothing, and "
             "what a step copies to it and from it is printed."},
    {{"base-gpu-id"}, TD_FLAG_U32, B(first_card), .max = TD_CARDS_MAX - 1, .arg = "N", .by_default = "0",
     .help = "Which card of the device, of those that the process sees."},
    {{"expert-quantization"}, TD_FLAG_TEXT, offsetof(options, experts), .arg = "NAME",
     .choices = TD_CHOICES("none", "int4", "int8", "int4-g32", "int4-g64", "int4-g128", "mxfp4", "nvfp4"),
     .by_default = "int4", .help = "Of experts, decode and prefill."},
    {{"skip-experts"}, TD_FLAG_TEXT, offsetof(options, skip), .arg = "WHAT", .choices = TD_CHOICES("none", "compute", "all"), .by_default = "none",
     .help = "Of decode and prefill: what of the routed experts' work is left out, and their weights with it. compute: tokens are "
             "handed over, but nothing is computed; all: they are not handed over either. The steps' results mean nothing then."},
    {{"num-gpu-experts"}, TD_FLAG_U32_AUTO, B(device_experts), .max = 2048, .arg = "N", .by_default = "0",
     .help = "Of decode and prefill: as of launch_server. Given, also as 0, tokens recur as those of a text do, and so do the experts "
             "that they choose (docs/residency.md); a row is measured when these have come to the device."},
    {{"stream-experts"}, TD_FLAG_SWITCH, B(stream_experts), .by_default = "off",
     .help = "Of prefill, with --num-gpu-experts: as of launch_server."},
    {{"divide"}, TD_FLAG_U32, B(divide), .min = 1, .max = 1024, .arg = "N", .by_default = "1",
     .help = "Of kernels and attention: sizes, contexts and rows are divided by it, for where they would take too long, as on an emulator. "
             "Names and m stay; the figures are of no use."},
    {{"filter"}, TD_FLAG_TEXT, B(filter), .arg = "TEXT",
     .help = "Only rows whose shape, or whose expert kernel in the suite kernels, contains it; not of roofline and pool."},
    {{"routing"}, TD_FLAG_TEXT, B(routing_path), .arg = "FILE", .by_default = "two that are generated",
     .help = "Of residency: the routing trace, as tandem trace-routing writes it."},
    {{"json"}, TD_FLAG_SWITCH, B(json),
     .help = "JSON lines: bench, shape, m, threads, kernel, time_us, gbps, gops, bound, fraction, int8_fraction, commit, tier, cpu, "
             "cores, nodes; of what was timed also read_bound_gbps, int8_bound_gops and f32_bound_gflops of its rounds; on a card device, "
             "bf16_bound_gflops in the place of the last, read_fraction and bf16_fraction; of a step with experts beside it experts_fraction. "
             "Residency has other keys (docs/residency.md)."},
    {{"trace"}, TD_FLAG_TEXT, B(trace_path), .arg = "FILE",
     .help = "What every thread does, for ui.perfetto.dev and bench/phases.py."},
};
/* clang-format on */

/* Returns the name of an option that was given but that the suite does not use, or NULL. */
static const char *idle_option(const suite *s, const td_bench_options *o) {
    const struct {
        unsigned    bit;
        bool        given;
        const char *name;
    } list[] = {{CONFIG, o->model_path, "model-path"},
                {CONFIG, o->override_json, "json-model-override-args"},
                {FILTER, o->filter, "filter"},
                {DEVICE, o->device, "device"},
                {DEVICE, o->first_card, "base-gpu-id"},
                {EXPERTS, o->experts, "expert-quantization"},
                {DIVIDE, o->divide > 1, "divide"},
                {SKIP, o->experts_left, "skip-experts"},
                {ROUTING, o->routing_path, "routing"},
                {MOVING, o->moves, "num-gpu-experts"},
                {STREAMING, o->stream_experts, "stream-experts"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].given && !(s->takes & list[i].bit)) return list[i].name;
    return NULL;
}

/* @param name one of the choices of --skip-experts. */
static td_experts_left experts_left_of(const char *name) {
    if (!strcmp(name, "all")) return TD_EXPERTS_LEFT_ALL;
    return !strcmp(name, "compute") ? TD_EXPERTS_LEFT_COMPUTED : TD_EXPERTS_LEFT_NOTHING;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    uint8_t       given[sizeof FLAGS / sizeof *FLAGS] = {0};
    td_flag_group group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o, .given = given};
    td_jbuf       about = {0};
    td_device_flag_fill();
    for (const suite *s = SUITES; s->name; s++) td_jbuf_printf(&about, "  %-10s %s\n", s->name, s->help);
    td_jbuf_puts(
        &about,
        "\nWeights are random. A row is the median of rounds, each beside its own measurement of the machine's bounds by "
        "the same threads:\n"
        "fraction = max(bytes / read bandwidth, operations / int8 peak) / time. Leave the machine alone meanwhile.\n");
    td_jbuf_put(&about, "", 1);
    const td_flag_command command = {.name = "bench",
                                     .synopsis = "SUITE [flags]",
                                     .about = about.failed ? "" : about.data,
                                     .groups = &group,
                                     .n_groups = 1,
                                     .operand = &o->suite};
    int                   rc = td_flags_take(&command, argc, argv);
    td_jbuf_free(&about);
    for (size_t i = 0; i < group.n; i++)
        if (given[i] && FLAGS[i].offset == B(device_experts)) o->b.moves = true;
    if (rc < 0 && o->experts) o->b.experts = td_expert_numbers_find(o->experts);
    if (rc < 0 && o->skip) o->b.experts_left = experts_left_of(o->skip);
    return rc;
}

static td_status run_suite(const suite *s, const td_bench_options *o, td_error *err) {
    static td_thread_layout layout;
    td_bench                b = {.o = o, .bench = s->name};
    td_thread_wishes        wishes = {.cpuinfer = o->threads, .subpool_count = o->subpool_count};
    td_npu_wish(o->device, o->first_card, 1, &wishes);
    TD_TRY(td_thread_layout_here(td_kernels_here()->read, &wishes, &layout, &b.machine, err));
    b.available_bytes = b.machine.available_bytes;
    TD_TRY(td_bench_check_memory(&b, "what measures the read bandwidth", TD_BENCH_BUFFER_BYTES, err));
    b.available_bytes -= TD_BENCH_BUFFER_BYTES;
    if (o->trace_path) TD_TRY(td_trace_start(o->trace_path, TRACE_BYTES, err));
    TD_TRY(td_pool_create(layout.experts, layout.n_experts, &b.pool, err));
    if (wishes.card)
        td_pool_avoid(b.pool);
    else
        td_pool_pin_caller(b.pool);
    td_status st = s->run(&b, err);
    if (st == TD_OK && b.n_rows == 0) st = td_fail(err, TD_EINVAL, "no row is left to measure");
    td_roofline_close(b.roofline);
    td_pool_destroy(b.pool);
    td_trace_stop();
    return st;
}

int td_cmd_bench(int argc, char **argv) {
    options  o = {.b = {.rounds = 5, .divide = 1}};
    td_error err = {0};
    int      rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    if (!o.suite) {
        fprintf(stderr, "tandem bench: which suite? --help lists them\n");
        return EXIT_USAGE;
    }
    const suite *s = SUITES;
    while (s->name && strcmp(s->name, o.suite) != 0) s++;
    if (!s->name) {
        fprintf(stderr, "tandem bench: no suite '%s'; --help lists them\n", o.suite);
        return EXIT_USAGE;
    }
    if ((s->takes & CONFIG) && !o.b.model_path) {
        fprintf(stderr, "tandem bench: %s needs --model-path\n", s->name);
        return EXIT_USAGE;
    }
    if (idle_option(s, &o.b)) {
        fprintf(stderr, "tandem bench: --%s means nothing to %s\n", idle_option(s, &o.b), s->name);
        return EXIT_USAGE;
    }
    if (!o.b.experts) o.b.experts = td_expert_numbers_find("int4");
    td_log_set_level(TD_LOG_WARNING);
    td_status st = run_suite(s, &o.b, &err);
    if (st == TD_OK) return td_standard_output_end("tandem bench");
    fprintf(stderr, "tandem bench: %s\n", err.text);
    return 1;
}
