/* tandem eval: options, and the result for people or as JSON. */
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/meter.h"
#include "cli/model_flags.h"
#include "cli/option_number.h"
#include "cli/standard_output.h"
#include "core/json_text.h"
#include "tandem_tools.h"

enum { TASK = 1, KIND, PROMPT, SHOTS, SHOTS_FROM, CHAT, STOP, MAX_TOKENS, EXTRACT, LIMIT, OUTPUT, JSON };

static const struct option OPTIONS[] = {
    {"task", required_argument, NULL, TASK},     {"kind", required_argument, NULL, KIND},
    {"prompt", required_argument, NULL, PROMPT}, {"shots", required_argument, NULL, SHOTS},
    {"shots-from", required_argument, NULL, SHOTS_FROM}, {"chat", no_argument, NULL, CHAT},
    {"stop", required_argument, NULL, STOP},     {"max-tokens", required_argument, NULL, MAX_TOKENS},
    {"extract", required_argument, NULL, EXTRACT}, {"limit", required_argument, NULL, LIMIT},
    {"output", required_argument, NULL, OUTPUT}, {"json", no_argument, NULL, JSON},
    {"help", no_argument, NULL, 'h'},            {NULL, 0, NULL, 0},
};

static const char HELP[] =
    "usage: tandem eval --model-path DIR --task FILE.jsonl [options]\n\n"
    "How many questions of a task a model answers right, greedily. docs/evaluation.md has the fields and the rules.\n\n"
    "  --task FILE.jsonl     an item a line: {\"question\", \"choices\", \"answer\"}, {\"question\", \"answer\"}, or {\"prompt\"}\n"
    "  --kind NAME           choice: the likeliest of the choices; match: the answer in a generated text; complete: generate\n"
    "                        only, for an external checker; default: by the first item's fields\n"
    "  --prompt TEMPLATE     with {field}s of the item (default \"Question: {question}\\nAnswer:\", complete \"{prompt}\")\n"
    "  --shots N             solved items before each (default 0): the task's first, which are then not scored\n"
    "  --shots-from FILE     take them from another file\n"
    "  --chat                the prompt is a user's message in the model's chat template\n"
    "  --stop TEXT           ends an answer; may be given several times, \\n is a newline (default: the kind's own)\n"
    "  --max-tokens N        of an answer (default 256; complete 512)\n"
    "  --extract RULE        where the answer is in a text: last-number (default), whole, regex:PATTERN\n"
    "  --limit N             only the first N items\n"
    "  --output FILE         a JSON line an item\n"
    "  --json                one JSON object on standard output\n\n"
    "The model:\n"
    "  --max-running-requests N       items at a time (default 32)\n";

static const char *const KINDS[] = {[TD_EVAL_AUTO] = "auto", [TD_EVAL_CHOICE] = "choice", [TD_EVAL_MATCH] = "match", [TD_EVAL_COMPLETE] = "complete"};
#define N_KINDS (sizeof KINDS / sizeof *KINDS)

typedef struct {
    td_eval_options e;
    const char     *stop[TD_STOP_MAX];
    bool            json, help;
} options;

/* "\n", "\t" and "\\" become what they stand for, in place: a shell makes them hard to type. */
static void unescape(char *s) {
    char *to = s;
    for (; *s; s++) {
        if (*s == '\\' && (s[1] == 'n' || s[1] == 't' || s[1] == '\\')) *to++ = *++s == 'n' ? '\n' : *s == 't' ? '\t' : '\\';
        else *to++ = *s;
    }
    *to = 0;
}

static bool parse_kind(const char *name, td_eval_kind *kind) {
    for (size_t i = 0; i < N_KINDS; i++)
        if (!strcmp(KINDS[i], name)) {
            *kind = (td_eval_kind)i;
            return true;
        }
    fprintf(stderr, "tandem eval: --kind is '%.60s', expected auto, choice, match or complete\n", name);
    return false;
}

/* @return 0, or the exit status of a wrong command line. */
static int parse_options(int argc, char **argv, options *o) {
    td_error err = {0};
    uint64_t n;
    td_engine_options_init(&o->e.model);
    if (td_model_flags_take(&argc, argv, "", &o->e.model, &err) != TD_OK) {
        fprintf(stderr, "tandem eval: %s\n", err.text);
        return 2;
    }
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case TASK: o->e.task_path = optarg; break;
        case KIND:
            if (!parse_kind(optarg, &o->e.kind)) return 2;
            break;
        case PROMPT:
            unescape(optarg);
            o->e.prompt = optarg;
            break;
        case SHOTS:
            if (!td_option_number("eval", "--shots", optarg, 1000, &n)) return 2;
            o->e.shots = (uint32_t)n;
            break;
        case SHOTS_FROM: o->e.shots_path = optarg; break;
        case CHAT: o->e.chat = true; break;
        case STOP:
            if (o->e.n_stop == TD_STOP_MAX) {
                fprintf(stderr, "tandem eval: at most %d --stop\n", TD_STOP_MAX);
                return 2;
            }
            unescape(optarg);
            o->stop[o->e.n_stop++] = optarg;
            o->e.stop = o->stop;
            break;
        case MAX_TOKENS:
            if (!td_option_number("eval", "--max-tokens", optarg, 1 << 20, &n)) return 2;
            o->e.max_tokens = (uint32_t)n;
            break;
        case EXTRACT: o->e.extract = optarg; break;
        case LIMIT:
            if (!td_option_number("eval", "--limit", optarg, INT64_MAX, &o->e.limit)) return 2;
            break;
        case OUTPUT: o->e.output_path = optarg; break;
        case JSON: o->json = true; break;
        case 'h': o->help = true; return 0;
        default: fputs("tandem eval --help lists the options\n", stderr); return 2;
        }
    }
    if (optind == argc && o->e.model.model_path && o->e.task_path) return 0;
    if (optind < argc)
        fprintf(stderr, "tandem eval: unexpected argument '%.60s'\n", argv[optind]);
    else
        fputs("tandem eval: --model-path and --task are needed; --help lists the options\n", stderr);
    return 2;
}

static json_t *real_or_null(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static bool print_json(const options *o, const td_eval_result *r) {
    json_t *out = json_pack("{s:o, s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:f}", "model", td_json_name(o->e.model.model_path), "quantization", r->quantization,
                            "expert_quantization", r->expert_quantization, "task", td_json_name(o->e.task_path), "kind", KINDS[r->kind], "items",
                            (json_int_t)r->items, "shots", (json_int_t)o->e.shots, "prompt_tokens", (json_int_t)r->prompt_tokens,
                            "generated_tokens", (json_int_t)r->generated_tokens, "seconds", r->seconds);
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
    printf("%llu items (%s), %u shots, %llu prompt and %llu generated tokens in %.1f s; quantization %s, expert quantization %s\n",
           (unsigned long long)r->items, KINDS[r->kind], o->e.shots, (unsigned long long)r->prompt_tokens, (unsigned long long)r->generated_tokens,
           r->seconds, r->quantization, r->expert_quantization);
    if (r->kind != TD_EVAL_COMPLETE) print_share("accuracy", r->accuracy);
    if (r->kind == TD_EVAL_CHOICE) print_share("  by bytes", r->accuracy_normalised);
    if (r->kind == TD_EVAL_MATCH) printf("%-22s %llu\n", "without an answer", (unsigned long long)r->no_answer);
}

int td_cmd_eval(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc) return rc;
    if (o.help) {
        printf("%s%s", HELP, TD_MODEL_FLAGS_HELP);
        return 0;
    }
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
