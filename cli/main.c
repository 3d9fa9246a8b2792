/* `tandem COMMAND …` finds the subcommand and calls it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/standard_output.h"
#include "image/image_worker.h"
#include "kernels/kernels.h"
#include "server/api/json_writer.h"
#include "tandem.h"

#define EXIT_USAGE 2

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command COMMANDS[] = {
    {"launch_server", td_cmd_launch_server, "serve a model over OpenAI's HTTP API"},
    {"quantize", td_cmd_quantize, "a checkpoint to int8 weights and packed experts, written once"},
    {"perplexity", td_cmd_perplexity, "how well a model predicts a text, beside a reference"},
    {"eval", td_cmd_eval, "how many questions of a task a model answers right"},
    {"trace-routing", td_cmd_trace_routing, "which experts a model chooses for the tokens of a text"},
    {"bench", td_cmd_bench, "what parts of the engine reach of what this machine can do"},
    {"plan", td_cmd_plan, "what a model would do on this machine, or on one to be bought"},
    {"topo", td_cmd_topo, "the machine, its NUMA nodes' bandwidth, and the thread layout"},
    {"doctor", td_cmd_doctor, "whether a device computes what it should, and how fast it is"},
    {"tokenize", td_cmd_tokenize, "text to token ids and back, as JSON lines"},
    {"render-chat", td_cmd_render_chat, "chat requests to prompt texts, as JSON lines"},
    {"parse-answer", td_cmd_parse_answer, "answers to content, reasoning and tool calls, as JSON lines"},
    {"grammar", td_cmd_grammar, "which texts a schema, regex or grammar accepts, as JSON lines"},
    {NULL, NULL, NULL},
};

static void print_usage(FILE *f) {
    fprintf(f, "usage: tandem COMMAND [options]\n\n");
    for (const command *c = COMMANDS; c->name; c++) fprintf(f, "  %-15s %s\n", c->name, c->help);
    fprintf(f, "\n'tandem help COMMAND' tells a command's options; 'tandem version' the version,\ncommit and tiers.\n");
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

static const command *find_command(const char *name) {
    for (const command *c = COMMANDS; c->name; c++)
        if (!strcmp(name, c->name)) return c;
    return NULL;
}

/* Says that there is no such command, and which one may be meant: `serve` is what other engines call launch_server. */
static int refuse_command(const char *name) {
    const char *nearest = !strcmp(name, "serve") || !strcmp(name, "server") ? "launch_server" : NULL;
    size_t      least = strlen(name) / 2 + 1;
    if (least > 4) least = 4;
    for (const command *c = COMMANDS; c->name && !nearest; c++) {
        size_t d = td_name_distance(name, c->name);
        if (d < least) nearest = c->name;
    }
    if (nearest)
        fprintf(stderr, "tandem: there is no command '%.60s'; is %s meant? 'tandem --help' lists them\n", name, nearest);
    else
        fprintf(stderr, "tandem: there is no command '%.60s'; 'tandem --help' lists them\n", name);
    return EXIT_USAGE;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c) {
    return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

/* Open descriptors 0 to 2 where the caller closed them: a file that a command writes would otherwise become standard output
 * or error, and get what is printed there. */
static void open_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    open_standard_streams();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit on file sizes fails with an error instead */
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (is_one_of(word, "help", "--help", "-h")) {
        if (argc > 2) { /* help COMMAND is COMMAND --help */
            const command *c = find_command(argv[2]);
            char          *help[] = {argv[2], "--help", NULL};
            return c ? c->run(2, help) : refuse_command(argv[2]);
        }
        print_usage(stdout);
        return td_standard_output_end("tandem");
    }
    if (!strcmp(word, TD_IMAGE_COMMAND)) return td_image_worker_run();
    if (!strcmp(word, "--help-json")) {
        print_usage_json();
        return td_standard_output_end("tandem");
    }
    if (is_one_of(word, "version", "--version", "-V")) {
        print_version();
        return td_standard_output_end("tandem");
    }
    const command *c = find_command(word);
    return c ? c->run(argc - 1, argv + 1) : refuse_command(word);
}
