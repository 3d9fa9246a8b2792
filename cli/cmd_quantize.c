/* `tandem quantize`: its options, and its progress as a bar on a terminal or as lines in a log. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/meter.h"
#include "core/log/log.h"
#include "tandem_tools.h"

/* The options of td_quantize, and texts from the command line that are translated into them. */
typedef struct {
    td_quantize_options q;
    const char         *load_format;
} options;

#define Q(member) offsetof(options, q.member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"model-path", "model"}, TD_FLAG_TEXT, Q(model_path), .arg = "DIR",
     .help = "Checkpoint in bf16, f16, f32 or a quantised format (docs/checkpoints.md). Required."},
    {{"output"}, TD_FLAG_TEXT, Q(output_path), .arg = "DIR", .help = "New folder, or one to continue. Required."},
    {{"load-format"}, TD_FLAG_TEXT, offsetof(options, load_format), .arg = "FORMAT", .choices = TD_CHOICES("auto", "dummy"),
     .by_default = "auto", .help = "dummy: random weights of the shape of --model-path, a folder or a config.json."},
    {{"quantization"}, TD_FLAG_TEXT, Q(quantization), .arg = "FORMAT", .choices = TD_CHOICES("w8a8_int8", "none"),
     .by_default = "w8a8_int8",
     .help = "Numbers of everything but the routed experts. none: weights as stored, experts packed only."},
    {{"expert-quantization", "requantize"}, TD_FLAG_TEXT, Q(expert_quantization), .arg = "FORMAT",
     .choices = TD_CHOICES("auto", "int4", "int4-channel=int4", "int8", "int4-g32", "int4-g64", "int4-g128", "mxfp4",
                           "nvfp4"), .by_default = "auto",
     .help = "Numbers of the routed experts. auto: what carries a quantised checkpoint exactly, else int4."},
    {{"calibration"}, TD_FLAG_TEXT, Q(calibration_path), .arg = "FILE",
     .help = "Text, or .jsonl with \"text\" or chat \"messages\": round the weights for what they see in it, layer by "
             "layer."},
    {{"method"}, TD_FLAG_TEXT, Q(method), .arg = "NAME", .choices = TD_CHOICES("nearest", "clip", "gptq"),
     .by_default = "nearest; gptq with --calibration", .help = "How weights are rounded; gptq needs --calibration."},
    {{"rotation"}, TD_FLAG_TEXT, Q(rotation), .arg = "NAME", .choices = TD_CHOICES("auto", "hadamard", "none"),
     .by_default = "auto",
     .help = "hadamard turns the residual stream, folded into every weight beside it. auto: hadamard with gptq, and of "
             "floats with experts in int8; for other engines with gptq alone, and not of an MTP layer."},
    {{"calibration-tokens"}, TD_FLAG_U64, Q(calibration_tokens), .min = 1, .max = 1u << 28, .arg = "N",
     .by_default = "32768", .help = "Tokens of the text at most."},
    {{"calibration-window"}, TD_FLAG_U32, Q(calibration_window), .min = 1, .max = 1u << 20, .arg = "N", .by_default = "512",
     .help = "Tokens that see each other."},
    {{"output-format"}, TD_FLAG_TEXT, Q(output_format), .arg = "FORMAT",
     .choices = TD_CHOICES("tandem", "compressed-tensors"), .by_default = "tandem",
     .help = "compressed-tensors: safetensors that other engines read too."},
    {{"threads"}, TD_FLAG_U32, Q(threads), .min = 1, .max = 1024, .arg = "N", .by_default = "every core",
     .help = "Threads that it computes with."},
    {{"subpool-count", "kt-threadpool-count"}, TD_FLAG_U32, Q(subpool_count), .min = 1, .max = 64, .arg = "N",
     .by_default = "this machine's",
     .help = "Parts of each packed layer, one per NUMA node of the machine that will serve."},
    {{"force"}, TD_FLAG_SWITCH, Q(force), .help = "Replace the output of another model or of other options."},
};
/* clang-format on */

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_flag_group         group = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o};
    const td_flag_command command = {.name = "quantize",
                                     .synopsis = "--model-path DIR --output DIR [flags]",
                                     .about =
                                         "Writes a folder that starts without quantising: int8 weights, packed experts, "
                                         "tokenizer and configuration. Use it as\n"
                                         "--model-path of launch_server, or, unless it is rotated, as --cpu-weight-path "
                                         "beside the original folder. An interrupted run\n"
                                         "is continued.\n",
                                     .groups = &group,
                                     .n_groups = 1};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    o->q.load_dummy = !strcmp(o->load_format, "dummy");
    if (o->q.model_path && o->q.output_path) return -1;
    fputs("tandem quantize: --model-path and --output are needed; --help lists the flags\n", stderr);
    return 2;
}

int td_cmd_quantize(int argc, char **argv) {
    options  o = {.q = {.quantization = "w8a8_int8", .expert_quantization = "auto"}, .load_format = "auto"};
    td_meter m;
    td_error err = {0};
    int      rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_meter_open(&m, "quantize", "MB", 1e6);
    o.q.progress = td_meter_progress;
    o.q.user = &m;
    if (td_quantize(&o.q, &err) != TD_OK) {
        fprintf(stderr, "%standem quantize: %s\n", td_meter_newline(&m), err.text);
        return 1;
    }
    td_info("quantize: %s is complete", o.q.output_path);
    return 0;
}
