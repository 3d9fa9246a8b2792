/* `tandem trace-routing`: its options, and a line about what was written. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/meter.h"
#include "cli/standard_output.h"
#include "core/plural.h"
#include "tandem_tools.h"

#define T(member) offsetof(td_trace_routing_options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"text"}, TD_FLAG_TEXT, T(text_path), .arg = "FILE",
     .help = "A text; or a .jsonl file with an object {\"text\": ...} a line, each a document of its own. Required."},
    {{"output"}, TD_FLAG_TEXT, T(output_path), .arg = "FILE",
     .help = "The trace: for every token and MoE layer the ids of its experts. Nothing of the text. Required."},
    {{"window"}, TD_FLAG_U32, T(window), .min = 2, .max = 1 << 24, .arg = "W", .by_default = "512",
     .help = "Tokens that the model sees at once. Windows do not overlap."},
    {{"limit"}, TD_FLAG_U64, T(limit), .min = 1, .max = 1e15, .arg = "N", .by_default = "all",
     .help = "Only the first N tokens of the text."},
};
/* clang-format on */

int td_cmd_trace_routing(int argc, char **argv) {
    td_trace_routing_options o = {0};
    td_engine_options_init(&o.model);
    td_flag_group         groups[] = {{.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = &o},
                                      td_engine_flags(TD_IN_PERPLEXITY, &o.model)};
    const td_flag_command command = {.name = "trace-routing",
                                     .synopsis = "--model-path DIR --text FILE --output FILE [flags]",
                                     .about =
                                         "Which experts a model chooses for the tokens of a text. tandem bench residency "
                                         "--routing FILE replays the trace; docs/residency.md has the format.\n",
                                     .groups = groups,
                                     .n_groups = 2};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    td_engine_flags_settle(&o.model);
    if (!o.model.model_path || !o.text_path || !o.output_path) {
        fputs("tandem trace-routing: --model-path, --text and --output are needed; --help lists the flags\n", stderr);
        return 2;
    }
    td_meter                meter;
    td_trace_routing_result result;
    td_error                err = {0};
    td_meter_open(&meter, "trace-routing", "tokens", 1);
    o.progress = td_meter_progress;
    o.user = &meter;
    if (td_trace_routing(&o, &result, &err) != TD_OK) {
        fprintf(stderr, "%standem trace-routing: %s\n", td_meter_newline(&meter), err.text);
        return 1;
    }
    printf("%llu token%s, %u MoE layer%s of %u expert%s, %u of them a token: %s\n", (unsigned long long)result.tokens,
           td_plural(result.tokens), result.n_layers, td_plural(result.n_layers), result.n_experts,
           td_plural(result.n_experts), result.top_k, o.output_path);
    return td_standard_output_end("tandem trace-routing");
}
