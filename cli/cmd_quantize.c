/* tandem quantize: options, and progress as a bar on a terminal or as lines in a log. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/meter.h"
#include "core/log.h"
#include "tandem_tools.h"

static const struct option OPTIONS[] = {
    {"model-path", required_argument, NULL, 'm'},          {"model", required_argument, NULL, 'm'},
    {"output", required_argument, NULL, 'o'},              {"quantization", required_argument, NULL, 'q'},
    {"output-format", required_argument, NULL, 'F'},       {"expert-quantization", required_argument, NULL, 'e'}, {"threads", required_argument, NULL, 't'},
    {"requantize", required_argument, NULL, 'e'},
    {"subpool-count", required_argument, NULL, 's'},       {"kt-threadpool-count", required_argument, NULL, 's'},
    {"load-format", required_argument, NULL, 'l'},         {"force", no_argument, NULL, 'f'},
    {"calibration", required_argument, NULL, 'c'},        {"method", required_argument, NULL, 'M'},
    {"rotation", required_argument, NULL, 'r'},
    {"calibration-tokens", required_argument, NULL, 'n'}, {"calibration-window", required_argument, NULL, 'w'},
    {"help", no_argument, NULL, 'h'},                      {NULL, 0, NULL, 0},
};

static const char HELP[] =
    "usage: tandem quantize --model-path DIR --output DIR [options]\n\n"
    "Writes a folder that starts without quantising: int8 weights, packed experts, tokenizer and configuration. Use it as\n"
    "--model-path of launch_server, or, unless it is rotated, as --cpu-weight-path beside the original folder. An interrupted run\n"
    "is continued.\n\n"
    "  --model-path DIR            checkpoint in bf16, f16, f32 or a quantised format (docs/checkpoints.md)\n"
    "  --output DIR                new folder, or one to continue\n"
    "  --load-format NAME          auto (default), or dummy: random weights of the shape of --model-path, a folder or a config.json\n"
    "  --quantization NAME         w8a8_int8 (default), or none: weights as stored, experts packed only\n"
    "  --expert-quantization NAME  auto (default): what carries a quantised checkpoint exactly, else int4; or int4, int8, int4-g32, int4-g64, int4-g128, mxfp4, nvfp4\n"
    "  --requantize int4-channel   the same as --expert-quantization int4\n"
    "  --calibration FILE          text, or .jsonl with \"text\" or chat \"messages\": round the weights for what they see in it, layer by layer\n"
    "  --method NAME               how weights are rounded: nearest (default), clip, gptq (default with --calibration, which it needs)\n"
    "  --rotation NAME             hadamard: turn the residual stream, folded into every weight beside it; none; auto (default): hadamard with\n"
    "                              gptq, and of floats with experts in int8; for other engines with gptq alone, and not of an MTP layer\n"
    "  --calibration-tokens N      of the text at most; default: 32768\n"
    "  --calibration-window N      tokens that see each other; default: 512\n"
    "  --output-format NAME        tandem (default), or compressed-tensors: safetensors that other engines read too\n"
    "  --threads N                 default: every core\n"
    "  --subpool-count N           parts of each packed layer, one per NUMA node of the machine that will serve; default: this machine's\n"
    "  --force                     replace the output of another model or of other options\n";

/* A count that fits the option; exits are main's, so a bad one is told through the result. */
static bool parse_count(const char *option, const char *text, uint32_t max, uint32_t *out) {
    char         *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && n >= 1 && n <= max) {
        *out = (uint32_t)n;
        return true;
    }
    fprintf(stderr, "tandem quantize: %s is '%s', expected 1 to %u\n", option, text, max);
    return false;
}

int td_cmd_quantize(int argc, char **argv) {
    td_quantize_options o = {.quantization = "w8a8_int8", .expert_quantization = "auto"};
    td_meter            m;
    td_error            err = {0};
    uint32_t            tokens;
    td_meter_open(&m, "quantize", "MB", 1e6);
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case 'm': o.model_path = optarg; break;
        case 'o': o.output_path = optarg; break;
        case 'q': o.quantization = optarg; break;
        case 'F': o.output_format = optarg; break;
        case 'e': o.expert_quantization = optarg; break;
        case 'c': o.calibration_path = optarg; break;
        case 'M': o.method = optarg; break;
        case 'r': o.rotation = optarg; break;
        case 'n':
            if (!parse_count("--calibration-tokens", optarg, 1u << 28, &tokens)) return 2;
            o.calibration_tokens = tokens;
            break;
        case 'w':
            if (!parse_count("--calibration-window", optarg, 1u << 20, &o.calibration_window)) return 2;
            break;
        case 't':
            if (!parse_count("--threads", optarg, 1024, &o.threads)) return 2;
            break;
        case 's':
            if (!parse_count("--subpool-count", optarg, 64, &o.subpool_count)) return 2;
            break;
        case 'l':
            o.load_dummy = !strcmp(optarg, "dummy");
            if (o.load_dummy || !strcmp(optarg, "auto")) break;
            fprintf(stderr, "tandem quantize: --load-format is '%s', expected auto or dummy\n", optarg);
            return 2;
        case 'f': o.force = true; break;
        case 'h': fputs(HELP, stdout); return 0;
        default: fputs("tandem quantize --help lists the options\n", stderr); return 2;
        }
    }
    if (optind < argc || !o.model_path || !o.output_path) {
        if (optind < argc)
            fprintf(stderr, "tandem quantize: unexpected argument '%s'\n", argv[optind]);
        else
            fputs("tandem quantize: --model-path and --output are needed; --help lists the options\n", stderr);
        return 2;
    }
    o.progress = td_meter_progress;
    o.user = &m;
    if (td_quantize(&o, &err) != TD_OK) {
        fprintf(stderr, "%standem quantize: %s\n", td_meter_newline(&m), err.text);
        return 1;
    }
    td_info("quantize: %s is complete", o.output_path);
    return 0;
}
