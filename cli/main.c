/* `tandem COMMAND …` finds the subcommand and calls it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "cli/standard_output.h"
#include "kernels/kernels.h"
#include "server/api/json_writer.h"
#include "tandem.h"

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command COMMANDS[] = {
    {"launch_server", td_cmd_launch_server, "serve a model over OpenAI's HTTP API"},
    {"quantize", td_cmd_quantize,
     "a checkpoint to int8 weights and packed experts, calibrated on a text if asked, for quick starts"},
    {"perplexity", td_cmd_perplexity, "how well a model predicts a text, and how far it is from a reference"},
    {"eval", td_cmd_eval, "how many questions of a task a model answers right"},
    {"trace-routing", td_cmd_trace_routing, "which experts a model chooses for the tokens of a text, as a file to replay"},
    {"bench", td_cmd_bench, "what parts of the engine reach of what this machine can do"},
    {"plan", td_cmd_plan, "what a model would do on this machine, or on one to be bought"},
    {"topo", td_cmd_topo, "the machine, the bandwidth between its NUMA nodes, and the thread layout"},
    {"doctor", td_cmd_doctor, "whether a device computes what it should, and how fast it talks to this machine"},
    {"tokenize", td_cmd_tokenize, "text to token ids and back, as JSON lines"},
    {"render-chat", td_cmd_render_chat, "chat requests to prompt texts, as JSON lines"},
    {"parse-answer", td_cmd_parse_answer, "answers to content, reasoning and tool calls, as JSON lines"},
    {"grammar", td_cmd_grammar, "which texts a JSON Schema, regex or EBNF grammar accepts, as JSON lines"},
    {NULL, NULL, NULL},
};

static void print_usage(FILE *f) {
    fprintf(f, "usage: tandem COMMAND [options]\n\n");
    for (const command *c = COMMANDS; c->name; c++) fprintf(f, "  %-15s %s\n", c->name, c->help);
    fprintf(f, "\n'tandem COMMAND --help' tells a command's options; 'tandem --version' the version, commit and tiers.\n");
}

/* Prints the commands as JSON, for packaging/make_pages.py. */
static void print_usage_json(void) {
    td_jbuf b = {0};
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "version", TD_VERSION);
    td_jw_key(&b, "commands");
    td_jw_open(&b, '[');
    for (const command *c = COMMANDS; c->name; c++) {
        td_jw_open(&b, '{');
        td_jw_member_str(&b, "name", c->name);
        td_jw_member_str(&b, "help", c->help);
        td_jw_close(&b, '}');
    }
    td_jw_close(&b, ']');
    td_jw_close(&b, '}');
    printf("%.*s\n", (int)b.len, b.data);
    td_jbuf_free(&b);
}

static void print_version(void) {
    size_t n = 0;
    printf("tandem " TD_VERSION "\ncommit: %s\nkernels:", td_bench_commit);
    while (td_kernels_all[n]) n++;
    while (n-- > 0) printf(" %s", td_kernels_all[n]->name);
    printf(" (best here: %s)\ndevices:", td_kernels_here()->name);
    for (size_t i = 0; td_engine_device_name(i); i++) printf(" %s", td_engine_device_name(i));
    printf("\n");
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit on file sizes fails with an error instead */
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--help-json")) {
        print_usage_json();
        return td_standard_output_end("tandem");
    }
    if (!strcmp(argv[1], "--version")) {
        print_version();
        return td_standard_output_end("tandem");
    }
    for (const command *c = COMMANDS; c->name; c++)
        if (!strcmp(argv[1], c->name)) return c->run(argc - 1, argv + 1);
    fprintf(stderr, "tandem: unknown command '%s'; 'tandem --help' lists them\n", argv[1]);
    return 2;
}
