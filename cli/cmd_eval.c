/* `tandem eval`: its options, and its result as text or as JSON. */
#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/meter.h"
#include "cli/standard_output.h"
#include "core/files/json_text.h"
#include "core/plural.h"
#include "tandem_tools.h"

static_assert(TD_FLAG_TEXTS_MAX <= TD_STOP_MAX, "as many --stop as a request may have");

static const char *const KINDS[] = {
    [TD_EVAL_AUTO] = "auto", [TD_EVAL_CHOICE] = "choice", [TD_EVAL_MATCH] = "match", [TD_EVAL_COMPLETE] = "complete"};
#define N_KINDS (sizeof KINDS / sizeof *KINDS)

typedef struct {
    td_eval_options e;
    td_flag_texts   stop;
    const char     *kind;
    bool            json;
} options;

#define V(member) offsetof(options, e.member)
#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"task"}, TD_FLAG_TEXT, V(task_path), .arg = "FILE.jsonl",
     .help = "An item a line: {\"question\", \"choices\", \"answer\"}, {\"question\", \"answer\"}, or {\"prompt\"}. "
             "Required."},
    {{"kind"}, TD_FLAG_TEXT, O(kind), .arg = "NAME", .choices = TD_CHOICES("auto", "choice", "match", "complete"),
     .by_default = "auto",
     .help = "choice: the likeliest of the choices; match: the answer in a generated text; complete: generate only, for "
             "an external checker; auto: by the first item's fields."},
    {{"prompt"}, TD_FLAG_TEXT, V(prompt), .arg = "TEMPLATE",
     .by_default = "\"Question: {question}\\nAnswer:\", complete \"{prompt}\"", .help = "With {field}s of the item."},
    {{"shots"}, TD_FLAG_U32, V(shots), .max = 1000, .arg = "N", .by_default = "0",
     .help = "Solved items before each: the task's first, which are then not scored."},
    {{"shots-from"}, TD_FLAG_TEXT, V(shots_path), .arg = "FILE", .help = "Take them from another file."},
    {{"chat"}, TD_FLAG_SWITCH, V(chat), .help = "The prompt is a user's message in the model's chat template."},
    {{"stop"}, TD_FLAG_TEXTS, O(stop), .arg = "TEXT", .by_default = "the kind's own",
     .help = "Ends an answer; may be given several times, \\n is a newline."},
    {{"max-tokens"}, TD_FLAG_U32, V(max_tokens), .min = 1, .max = 1 << 20, .arg = "N", .by_default = "256; complete 512",
     .help = "Tokens of an answer."},
    {{"extract"}, TD_FLAG_TEXT, V(extract), .arg = "RULE", .by_default = "last-number",
     .help = "Where the answer is in a text: last-number, whole, regex:PATTERN."},
    {{"limit"}, TD_FLAG_U64, V(limit), .min = 1, .max = 1e15, .arg = "N", .by_default = "all",
     .help = "Only the first N items."},
    {{"output"}, TD_FLAG_TEXT, V(output_path), .arg = "FILE", .help = "A JSON line an item."},
    {{"json"}, TD_FLAG_SWITCH, O(json), .help = "One JSON object on standard output."},
};
/* clang-format on */

/* Replaces "\n", "\t" and "\\" by what they stand for, in place in argv, because these characters are hard to type in a
 * shell. */
static void unescape(const char *arg) {
    char *s = (char *)arg, *to = s;
    for (; *s; s++) {
        if (*s == '\\' && (s[1] == 'n' || s[1] == 't' || s[1] == '\\'))
            *to++ = *++s == 'n' ? '\n' : *s == 't' ? '\t' : '\\';
        else
            *to++ = *s;
    }
    *to = 0;
}

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_engine_options_init(&o->e.model);
    td_flag_group         groups[] = {{.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o},
                                      td_engine_flags(TD_IN_EVAL, &o->e.model)};
    const td_flag_command command = {.name = "eval",
                                     .synopsis = "--model-path DIR --task FILE.jsonl [flags]",
                                     .about =
                                         "How many questions of a task a model answers right, greedily, "
                                         "--max-running-requests at a time. docs/evaluation.md has the fields and\n"
                                         "the rules.\n",
                                     .groups = groups,
                                     .n_groups = 2};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    td_engine_flags_settle(&o->e.model);
    if (o->e.prompt) unescape(o->e.prompt);
    for (size_t i = 0; i < o->stop.n; i++) unescape(o->stop.text[i]);
    o->e.stop = o->stop.n ? o->stop.text : NULL;
    o->e.n_stop = o->stop.n;
    for (size_t i = 0; o->kind && i < N_KINDS; i++)
        if (!strcmp(KINDS[i], o->kind)) o->e.kind = (td_eval_kind)i;
    if (o->e.model.model_path && o->e.task_path) return -1;
    fputs("tandem eval: --model-path and --task are needed; --help lists the flags\n", stderr);
    return 2;
}

static json_t *real_or_null(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static bool print_json(const options *o, const td_eval_result *r) {
    json_t *out = json_pack(
        "{s:o, s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:f}", "model", td_json_name(o->e.model.model_path), "quantization",
        r->quantization, "expert_quantization", r->expert_quantization, "task", td_json_name(o->e.task_path), "kind",
        KINDS[r->kind], "items", (json_int_t)r->items, "shots", (json_int_t)o->e.shots, "prompt_tokens",
        (json_int_t)r->prompt_tokens, "generated_tokens", (json_int_t)r->generated_tokens, "seconds", r->seconds);
    if (r->kind != TD_EVAL_COMPLETE) {
        json_object_set_new(out, "accuracy", json_real(r->accuracy.mean));
        json_object_set_new(out, "accuracy_error", real_or_null(r->accuracy.error));
    }
    if (r->kind == TD_EVAL_CHOICE) {
        json_object_set_new(out, "accuracy_normalised", json_real(r->accuracy_normalised.mean));
        json_object_set_new(out, "accuracy_normalised_error", real_or_null(r->accuracy_normalised.error));
    }
    if (r->kind == TD_EVAL_MATCH) json_object_set_new(out, "no_answer", json_integer((json_int_t)r->no_answer));
    bool made = json_dumpf(out, stdout, 0) == 0;
    putchar('\n');
    json_decref(out);
    if (!made && !ferror(stdout)) fputs("tandem eval: out of memory for the result\n", stderr);
    return made;
}

static void print_share(const char *name, td_estimate share) {
    printf("%-22s %.2f", name, 100 * share.mean);
    if (isfinite(share.error)) printf(" +- %.2f", 100 * share.error);
    printf(" %%\n");
}

static void print_text(const options *o, const td_eval_result *r) {
    printf(
        "%llu item%s (%s), %u shot%s, %llu prompt and %llu generated tokens in %.1f s; quantization %s, expert quantization "
        "%s\n",
        (unsigned long long)r->items, td_plural(r->items), KINDS[r->kind], o->e.shots, td_plural(o->e.shots),
        (unsigned long long)r->prompt_tokens, (unsigned long long)r->generated_tokens, r->seconds, r->quantization,
        r->expert_quantization);
    if (r->kind != TD_EVAL_COMPLETE) print_share("accuracy", r->accuracy);
    if (r->kind == TD_EVAL_CHOICE) print_share("  by bytes", r->accuracy_normalised);
    if (r->kind == TD_EVAL_MATCH) printf("%-22s %llu\n", "without an answer", (unsigned long long)r->no_answer);
}

int td_cmd_eval(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_meter       meter;
    td_eval_result result;
    td_error       err = {0};
    td_meter_open(&meter, "eval", "items", 1);
    o.e.progress = td_meter_progress;
    o.e.user = &meter;
    if (td_eval(&o.e, &result, &err) != TD_OK) {
        fprintf(stderr, "%standem eval: %s\n", td_meter_newline(&meter), err.text);
        return 1;
    }
    bool made = true;
    if (o.json)
        made = print_json(&o, &result);
    else
        print_text(&o, &result);
    return td_standard_output_end("tandem eval") == 0 && made ? 0 : 1;
}
