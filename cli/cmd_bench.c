/* `tandem bench SUITE`: what parts of the engine reach of what this machine can do. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "cli/standard_output.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/kernels.h"

#define EXIT_USAGE 2
#define TRACE_BYTES  ((uint64_t)1 << 30)
#define BUFFER_BYTES ((size_t)1 << 30) /* of the read bandwidth: beyond any L3 */

typedef struct {
    const char *name;
    td_status (*run)(td_bench *b, td_error *err);
    bool        model;   /* needs --config, takes what is merged over it */
    bool        filter;  /* takes --filter */
    bool        experts; /* takes --expert-quantization */
    const char *help;
} suite;

static const suite SUITES[] = {
    {"roofline", td_bench_roofline, false, false, false, "read bandwidth by threads and pairs of NUMA nodes, int8, bf16 and f32 peak by threads"},
    {"pool", td_bench_pool, false, false, false, "what a parallel loop costs, by threads"},
    {"kernels", td_bench_kernels, false, true, false, "the device's linears and the experts' kernels, by rows"},
    {"attention", td_bench_attention, false, true, false, "MLA and GQA, decode and prefill"},
    {"experts", td_bench_experts, false, true, true, "the routed experts of a layer: DeepSeek-V3, V2-Lite and Qwen3-30B shapes"},
    {"decode", td_bench_decode, true, true, true, "whole steps of generating, by streams and context (--config)"},
    {"prefill", td_bench_prefill, true, true, true, "whole steps of a prompt (--config)"},
    {"load", td_bench_load, true, true, false, "a folder of tandem quantize to memory and to the first token, cached and from disk (--config FOLDER)"},
    {NULL, NULL, false, false, false, NULL},
};

static void print_help(FILE *f) {
    fputs("usage: tandem bench SUITE [options]\n\n", f);
    for (const suite *s = SUITES; s->name; s++) fprintf(f, "  %-10s %s\n", s->name, s->help);
    fputs("\nWeights are random. A row is the median of rounds, each beside its own measurement of the machine's bounds by the same threads:\n"
          "fraction = max(bytes / read bandwidth, operations / int8 peak) / time. Leave the machine alone meanwhile.\n\n"
          "  --config FILE               config.json of a model, e.g. configs/models/deepseek-v2-lite.json\n"
          "  --json-model-override-args JSON   merged over it, e.g. '{\"num_hidden_layers\": 4}'\n"
          "  --threads N                 default: every core\n"
          "  --subpool-count N           default: one per NUMA node\n"
          "  --rounds N                  default 5\n"
          "  --device NAME               of decode and prefill: host (default), or apart, which is for tests: the host with a memory of its own;\n"
          "                              its times mean nothing, and what a step copies to it and from it is printed\n"
          "  --expert-quantization NAME  of experts, decode and prefill: none, int4 (default), int8, int4-g32, int4-g64, int4-g128, mxfp4, nvfp4\n"
          "  --filter TEXT               only rows whose shape, or whose expert kernel in the suite kernels, contains it; not of roofline and pool\n"
          "  --json                      JSON lines: bench, shape, m, threads, kernel, time_us, gbps, gops, bound, fraction, commit, tier, cpu, cores, nodes\n"
          "  --trace FILE                what every thread does, for ui.perfetto.dev and bench/phases.py\n"
          "  --help                      this text\n", f);
}

/* An option that was given and means nothing to the suite, or NULL. */
static const char *idle_option(const suite *s, const td_bench_options *o) {
    if (!s->model && o->model_path) return "config";
    if (!s->model && o->override_json) return "json-model-override-args";
    if (!s->filter && o->filter) return "filter";
    if (!s->model && o->device) return "device";
    if (!s->experts && o->experts) return "expert-quantization";
    return NULL;
}

static bool read_count(const char *name, const char *text, uint32_t min, uint32_t max, uint32_t *to) {
    char         *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < min || n > max) {
        fprintf(stderr, "tandem bench: --%s must be a number from %u to %u, not '%s'\n", name, min, max, text);
        return false;
    }
    *to = (uint32_t)n;
    return true;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, td_bench_options *o) {
    enum { CONFIG = 1, OVERRIDE, THREADS, SUBPOOLS, ROUNDS, EXPERTS, DEVICE, FILTER, JSON, TRACE, SHOW_HELP };
    static const struct option LONG[] = {
        {"config", required_argument, NULL, CONFIG},
        {"json-model-override-args", required_argument, NULL, OVERRIDE},
        {"threads", required_argument, NULL, THREADS},
        {"subpool-count", required_argument, NULL, SUBPOOLS},
        {"rounds", required_argument, NULL, ROUNDS},
        {"expert-quantization", required_argument, NULL, EXPERTS},
        {"device", required_argument, NULL, DEVICE},
        {"filter", required_argument, NULL, FILTER},
        {"json", no_argument, NULL, JSON},
        {"trace", required_argument, NULL, TRACE},
        {"help", no_argument, NULL, SHOW_HELP},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "h", LONG, NULL)) != -1;) {
        bool ok = true;
        switch (c) {
            case CONFIG: o->model_path = optarg; break;
            case OVERRIDE: o->override_json = optarg; break;
            case THREADS: ok = read_count("threads", optarg, 1, TD_POOL_WORKERS_MAX, &o->threads); break;
            case SUBPOOLS: ok = read_count("subpool-count", optarg, 1, TD_POOL_SUBPOOLS_MAX, &o->subpool_count); break;
            case ROUNDS: ok = read_count("rounds", optarg, 1, TD_BENCH_ROUNDS_MAX, &o->rounds); break;
            case EXPERTS:
                o->experts = td_expert_numbers_find(optarg);
                ok = o->experts != NULL;
                if (!ok) fprintf(stderr, "tandem bench: --expert-quantization: there is no format '%s'; --help lists them\n", optarg);
                break;
            case DEVICE: o->device = optarg; break;
            case FILTER: o->filter = optarg; break;
            case JSON: o->json = true; break;
            case TRACE: o->trace_path = optarg; break;
            case SHOW_HELP:
            case 'h': print_help(stdout); return 0;
            default: return EXIT_USAGE; /* getopt has told */
        }
        if (!ok) return EXIT_USAGE;
    }
    return -1;
}

static td_status run_suite(const suite *s, const td_bench_options *o, td_error *err) {
    static td_thread_plan plan;
    td_bench              b = {.o = o, .bench = s->name};
    TD_TRY(td_topology_plan(td_kernels_here()->read, o->threads, o->subpool_count, 0, &plan, &b.machine, err));
    b.available_bytes = b.machine.available_bytes;
    TD_TRY(td_bench_check_memory(&b, "what measures the read bandwidth", BUFFER_BYTES, err));
    b.available_bytes -= BUFFER_BYTES;
    if (o->trace_path) TD_TRY(td_trace_start(o->trace_path, TRACE_BYTES, err));
    TD_TRY(td_pool_create(plan.experts, plan.n_experts, &b.pool, err));
    td_pool_pin_caller(b.pool);
    td_status st = td_roofline_open(b.pool, BUFFER_BYTES, &b.roofline, err);
    if (st == TD_OK) st = s->run(&b, err);
    if (st == TD_OK && b.n_rows == 0) st = td_fail(err, TD_EINVAL, "no row is left to measure");
    td_roofline_close(b.roofline);
    td_pool_destroy(b.pool);
    td_trace_stop();
    return st;
}

int td_cmd_bench(int argc, char **argv) {
    td_bench_options o = {.rounds = 5};
    td_error         err = {0};
    int              rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    if (optind + 1 != argc) {
        fprintf(stderr, "tandem bench: %s; --help lists the suites\n", optind < argc ? "one suite at a time" : "which suite?");
        return EXIT_USAGE;
    }
    const suite *s = SUITES;
    while (s->name && strcmp(s->name, argv[optind]) != 0) s++;
    if (!s->name) {
        fprintf(stderr, "tandem bench: no suite '%s'; --help lists them\n", argv[optind]);
        return EXIT_USAGE;
    }
    if (s->model && !o.model_path) {
        fprintf(stderr, "tandem bench: %s needs --config\n", s->name);
        return EXIT_USAGE;
    }
    if (idle_option(s, &o)) {
        fprintf(stderr, "tandem bench: --%s means nothing to %s\n", idle_option(s, &o), s->name);
        return EXIT_USAGE;
    }
    if (!o.experts) o.experts = td_expert_numbers_find("int4");
    td_log_set_level(TD_LOG_WARNING);
    td_status st = run_suite(s, &o, &err);
    if (st == TD_OK) return td_standard_output_end("tandem bench");
    fprintf(stderr, "tandem bench: %s\n", err.text);
    return 1;
}
