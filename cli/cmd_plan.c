/* `tandem plan` says how a model would fit and how fast it would run, on this machine or on one that a file describes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/standard_output.h"
#include "core/error.h"
#include "core/log/log.h"
#include "plan/plan.h"

#define EXIT_USAGE 2
#define EXIT_DOES_NOT_FIT 3
#define TOKENS_MAX 16777216 /* of a context or prompt */
#define STREAMS_MAX 4096

typedef struct {
    td_plan_request request;
    const char     *machine;
    const char     *streams, *contexts, *prompts;
    bool            json, keys;
} options;

#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"model-path", "model", "m"}, TD_FLAG_TEXT, O(request.engine.model_path), .arg = "PATH",
     .help = "config.json of a model, or the folder with it; e.g. configs/models/deepseek-r1.json. Required."},
    {{"machine"}, TD_FLAG_TEXT, O(machine), .arg = "FILE.yaml", .by_default = "this one, measured",
     .help = "The machine to plan for (docs/plan.md lists the keys); examples: configs/machines/."},
    {{"streams"}, TD_FLAG_TEXT, O(streams), .arg = "N,...", .by_default = "1,4,16 and --max-running-requests",
     .help = "Numbers of streams to tell the time of a token for, 8 at most."},
    {{"contexts"}, TD_FLAG_TEXT, O(contexts), .arg = "N,...", .by_default = "1024",
     .help = "Tokens that each of them has so far, 8 at most."},
    {{"prompts"}, TD_FLAG_TEXT, O(prompts), .arg = "N,...", .by_default = "128,8192,40960",
     .help = "Lengths of prompts to tell the time to the first token for, 8 at most."},
    {{"experts-in-use"}, TD_FLAG_U32, O(request.experts_in_use), .min = 1, .max = 65536, .arg = "N", .by_default = "all",
     .help = "Of a layer's routed experts, among how many tokens choose, each equally likely: fewer where routing is uneven."},
    {{"expert-hits"}, TD_FLAG_REAL, O(request.expert_hits), .min = 0.01, .max = 1, .arg = "SHARE",
     .by_default = "that of equally likely experts",
     .help = "With --num-gpu-experts: share of decoded tokens' choices that find their expert on the card. tandem bench "
             "residency measures it."},
    {{"json"}, TD_FLAG_SWITCH, O(json), .help = "One JSON object instead of tables."},
    {{"machine-keys"}, TD_FLAG_SWITCH, O(keys), .help = "Print the keys of a machine file as docs/plan.md has them."},
};
/* clang-format on */

static td_status take_list(const char *flag, const char *text, long max, td_plan_list *out, td_error *err) {
    out->n = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long x = strtol(at, &end, 10);
        if (end == at || errno || x < 1 || x > max || (*end && *end != ','))
            return td_fail(err, TD_EINVAL, "--%s needs whole numbers from 1 to %ld with commas between, not '%.60s'", flag,
                           max, text);
        if (out->n == TD_PLAN_LIST_MAX)
            return td_fail(err, TD_EINVAL, "--%s takes %d numbers at most", flag, TD_PLAN_LIST_MAX);
        out->at[out->n++] = (uint32_t)x;
        if (!*end) return TD_OK;
        at = end + 1;
    }
}

static td_status take_lists(options *o, td_error *err) {
    td_plan_request *r = &o->request;
    r->streams = (td_plan_list){4, {1, 4, 16, 0}};
    r->contexts = (td_plan_list){1, {1024}};
    r->prompts = (td_plan_list){3, {128, 8192, 40960}};
    if (o->streams) TD_TRY(take_list("streams", o->streams, STREAMS_MAX, &r->streams, err));
    if (o->contexts) TD_TRY(take_list("contexts", o->contexts, TOKENS_MAX, &r->contexts, err));
    if (o->prompts) TD_TRY(take_list("prompts", o->prompts, TOKENS_MAX, &r->prompts, err));
    if (!r->engine.model_path)
        return td_fail(err, TD_EINVAL, "--model-path is missing: the config.json of the model to plan for");
    return TD_OK;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    uint8_t               given[TD_ENGINE_FLAGS_MAX] = {0};
    td_flag_group         groups[] = {{.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o},
                                      td_engine_flags(TD_IN_PLAN, &o->request.engine)};
    const td_flag_command command = {
        .name = "plan",
        .synopsis = "--model-path PATH [--machine FILE.yaml] [flags]",
        .about =
            "What a model would do on a machine: whether it fits, what goes where, the time of a token and to the first "
            "one, and\nwhat bounds them. No weight is read. Exit status 3 where it does not fit. docs/plan.md has the "
            "formulas.\n",
        .groups = groups,
        .n_groups = 2};
    groups[1].given = given;
    td_engine_options_init(&o->request.engine);
    int rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    td_engine_flags_settle(&o->request.engine);
    for (size_t i = 0; i < groups[1].n; i++)
        if (given[i] && groups[1].flags[i].offset == offsetof(td_engine_options, tensor_parallel_size))
            o->request.cards_given = true;
    return -1;
}

static td_status make_plan(const options *o, td_plan_machine *m, td_plan *p, td_error *err) {
    TD_TRY(o->machine ? td_plan_machine_read(o->machine, m, err) : td_plan_machine_measure(m, err));
    return td_plan_make(&o->request, m, p, err);
}

static int run(options *o) {
    td_error         err = {0};
    td_plan_machine *m = malloc(sizeof *m);
    td_plan         *p = malloc(sizeof *p);
    td_status        st = m && p ? take_lists(o, &err) : td_fail(&err, TD_ENOMEM, "out of memory");
    int              rc = st == TD_OK ? 1 : EXIT_USAGE;
    if (st == TD_OK) st = make_plan(o, m, p, &err);
    if (st == TD_OK) {
        (o->json ? td_plan_print_json : td_plan_print)(p, m, stdout);
        rc = td_standard_output_end("tandem plan");
        if (rc == 0 && !p->fits) rc = EXIT_DOES_NOT_FIT;
    } else {
        fprintf(stderr, "tandem plan: %s\n", err.text);
    }
    free(m);
    free(p);
    return rc;
}

int td_cmd_plan(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_log_set_level(TD_LOG_ERROR);
    if (!o.keys) return run(&o);
    td_plan_machine_print_keys(stdout);
    return td_standard_output_end("tandem plan");
}
