/* `tandem perplexity`: its options, and its figures as text or as JSON. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/meter.h"
#include "cli/standard_output.h"
#include "core/files/json_text.h"
#include "core/log/log.h"
#include "core/plural.h"
#include "tandem_tools.h"

#define WORST_DEFAULT 10

typedef struct {
    td_perplexity_options p;
    td_engine_options     reference;
    const char           *against;
    uint32_t              worst; /* 0: not given */
    bool                  json;
} options;

#define P(member) offsetof(options, p.member)
#define O(member) offsetof(options, member)

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    {{"text"}, TD_FLAG_TEXT, P(text_path), .arg = "FILE",
     .help = "A text; or a .jsonl file with an object {\"text\": ...} a line, each a document of its own. Required."},
    {{"window"}, TD_FLAG_U32, P(window), .min = 1, .max = 1 << 24, .arg = "W", .by_default = "512",
     .help = "Tokens that the model sees at once."},
    {{"stride"}, TD_FLAG_U32, P(stride), .min = 1, .max = 1 << 24, .arg = "S", .by_default = "W / 2",
     .help = "Tokens from one window to the next: each is scored after at least W - S others."},
    {{"limit"}, TD_FLAG_U64, P(limit), .min = 1, .max = 1e15, .arg = "N", .by_default = "all",
     .help = "Only the first N tokens of the text."},
    {{"against"}, TD_FLAG_TEXT, O(against), .arg = "REFERENCE",
     .help = "A model's folder, or a file that --save wrote: adds ratio, KL divergence, agreement."},
    {{"worst"}, TD_FLAG_U32, O(worst), .min = 1, .max = 1 << 30, .arg = "N", .by_default = "10",
     .help = "With a folder as reference: list the N experts with the largest errors."},
    {{"per-tensor"}, TD_FLAG_SWITCH, P(per_tensor),
     .help = "With a folder as reference: compare the weights of every matrix, too; list the --worst of them."},
    {{"drafts"}, TD_FLAG_SWITCH, P(drafts),
     .help = "Score the multi-token-prediction layer, too: its perplexity, and how often it drafts the model's own next "
             "token."},
    {{"save"}, TD_FLAG_TEXT, P(save_path), .arg = "FILE",
     .help = "Write the model's log-probabilities, for a later --against."},
    {{"json"}, TD_FLAG_SWITCH, O(json), .help = "One JSON object on standard output."},
};
/* clang-format on */

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_engine_options_init(&o->p.model);
    td_engine_options_init(&o->reference);
    o->reference.quantization = "none";
    enum { OWN, MODEL, REFERENCE };
    td_flag_group groups[] = {[OWN] = {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o},
                              [MODEL] = td_engine_flags(TD_IN_PERPLEXITY, &o->p.model),
                              [REFERENCE] = td_engine_flags(TD_IN_PERPLEXITY, &o->reference)};
    groups[REFERENCE].prefix = "against-";
    groups[REFERENCE].about = "The same for the reference, whose numbers are none unless told";
    const td_flag_command command = {.name = "perplexity",
                                     .synopsis = "--model-path DIR --text FILE [flags]",
                                     .about =
                                         "How well a model predicts a text, and with --against how far it is from a "
                                         "reference. docs/evaluation.md has the protocol.\n",
                                     .groups = groups,
                                     .n_groups = 3};
    int                   rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    td_engine_flags_settle(&o->p.model);
    td_engine_flags_settle(&o->reference);
    if (!o->p.model.model_path || !o->p.text_path) {
        fputs("tandem perplexity: --model-path and --text are needed; --help lists the flags\n", stderr);
        return 2;
    }
    struct stat s;
    if (o->against && stat(o->against, &s) == 0 && S_ISDIR(s.st_mode)) {
        o->reference.model_path = o->against;
        o->p.reference = &o->reference;
    } else {
        o->p.reference_path = o->against;
        if (groups[REFERENCE].n_given || o->worst) {
            fputs("tandem perplexity: --worst and flags that begin with --against- need a model's folder as --against\n",
                  stderr);
            return 2;
        }
    }
    if (!o->worst) o->worst = WORST_DEFAULT;
    return -1;
}

/* ---- output ---------------------------------------------------------------------------------- */

static json_t *real_or_null(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

/* Sets "name" to the mean and "name_error" to its standard error. */
static void set_estimate(json_t *to, const char *name, double mean, double error) {
    char key[64];
    snprintf(key, sizeof key, "%s_error", name);
    json_object_set_new(to, name, real_or_null(mean));
    json_object_set_new(to, key, real_or_null(error));
}

static void set_perplexity(json_t *to, const char *name, td_estimate nll) {
    set_estimate(to, name, exp(nll.mean), exp(nll.mean) * nll.error);
}

static bool print_json(const options *o, const td_perplexity_result *r) {
    json_t *out = json_pack(
        "{s:o, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "model", td_json_name(o->p.model.model_path), "quantization",
        r->quantization, "expert_quantization", r->expert_quantization, "text", td_json_name(o->p.text_path), "window",
        (json_int_t)r->window, "stride", (json_int_t)r->stride, "prefix_tokens", (json_int_t)r->prefix, "documents",
        (json_int_t)r->documents, "windows", (json_int_t)r->windows, "tokens", (json_int_t)r->scored_tokens);
    set_estimate(out, "nll", r->nll.mean, r->nll.error);
    set_perplexity(out, "perplexity", r->nll);
    if (r->drafted) {
        set_estimate(out, "draft_nll", r->draft_nll.mean, r->draft_nll.error);
        set_estimate(out, "draft_agreement", r->draft_agreement.mean, r->draft_agreement.error);
    }
    if (r->compared) {
        json_object_set_new(out, "reference", td_json_name(o->against));
        set_perplexity(out, "reference_perplexity", r->reference_nll);
        set_perplexity(out, "ratio", r->nll_difference);
        set_estimate(out, "kl", r->kl.mean, r->kl.error);
        json_object_set_new(out, "kl_99", json_real(r->kl_99));
        set_estimate(out, "top1_agreement", r->top1_agreement.mean, r->top1_agreement.error);
        set_estimate(out, "logprob_change", r->logprob_change.mean, r->logprob_change.error);
    }
    if (r->layers) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < r->n_layers; i++) {
            json_t *layer =
                json_pack("{s:I, s:o}", "layer", (json_int_t)i, "hidden_db", real_or_null(r->layers[i].hidden_db));
            if (!isnan(r->layers[i].routed_db))
                json_object_set_new(layer, "routed_db", real_or_null(r->layers[i].routed_db));
            json_array_append_new(list, layer);
        }
        json_object_set_new(out, "layers", list);
        list = json_array();
        for (size_t i = 0; i < r->n_experts && i < o->worst; i++) {
            const td_expert_snr *x = &r->experts[i];
            json_array_append_new(
                list, json_pack("{s:I, s:I, s:I, s:o}", "layer", (json_int_t)x->layer, "expert", (json_int_t)x->expert,
                                "tokens", (json_int_t)x->tokens, "db", real_or_null(x->db)));
        }
        json_object_set_new(out, "worst_experts", list);
    }
    if (r->tensors) {
        json_t *list = json_array();
        for (size_t i = 0; i < r->n_tensors; i++) {
            const td_tensor_snr *t = &r->tensors[i];
            json_t *item = json_pack("{s:s, s:I, s:I, s:o}", "name", t->name, "rows", (json_int_t)t->rows, "columns",
                                     (json_int_t)t->columns, "db", real_or_null(t->db));
            if (!isnan(t->output_db)) json_object_set_new(item, "output_db", real_or_null(t->output_db));
            json_array_append_new(list, item);
        }
        json_object_set_new(out, "tensors", list);
    }
    bool made = json_dumpf(out, stdout, 0) == 0;
    putchar('\n');
    json_decref(out);
    if (!made && !ferror(stdout)) fputs("tandem perplexity: out of memory for the result\n", stderr);
    return made;
}

static void print_estimate(const char *name, double mean, double error, int digits, const char *unit) {
    printf("%-22s %.*f", name, digits, mean);
    if (isfinite(error)) printf(" +- %.*f", digits, error);
    printf("%s\n", unit);
}

static void print_db(double db, int width) {
    if (isnan(db))
        printf(" %*s", width, "");
    else if (isinf(db))
        printf(" %*s", width, "equal");
    else
        printf(" %*.1f", width, db);
}

static void print_text(const options *o, const td_perplexity_result *r) {
    double ppl = exp(r->nll.mean), reference = exp(r->reference_nll.mean), ratio = exp(r->nll_difference.mean);
    printf(
        "%llu token%s in %llu window%s of %u, stride %u, after %u special token%s; quantization %s, expert quantization "
        "%s\n",
        (unsigned long long)r->scored_tokens, td_plural(r->scored_tokens), (unsigned long long)r->windows,
        td_plural(r->windows), r->window, r->stride, r->prefix, td_plural(r->prefix), r->quantization,
        r->expert_quantization);
    print_estimate("perplexity", ppl, ppl * r->nll.error, 4, "");
    if (r->drafted) {
        print_estimate("drafts' perplexity", exp(r->draft_nll.mean), exp(r->draft_nll.mean) * r->draft_nll.error, 4, "");
        print_estimate("drafts' agreement", 100 * r->draft_agreement.mean, 100 * r->draft_agreement.error, 2, " %");
    }
    if (!r->compared) return;
    print_estimate("reference", reference, reference * r->reference_nll.error, 4, "");
    print_estimate("difference", 100 * (ratio - 1), 100 * ratio * r->nll_difference.error, 3, " %");
    print_estimate("KL divergence", r->kl.mean, r->kl.error, 6, " nats");
    print_estimate("  99 % are below", r->kl_99, NAN, 6, " nats");
    print_estimate("top-1 agreement", 100 * r->top1_agreement.mean, 100 * r->top1_agreement.error, 2, " %");
    print_estimate("|log-prob. change|", r->logprob_change.mean, r->logprob_change.error, 6, " nats");
    if (r->layers) printf("\n  layer   hidden   routed   signal to noise, dB\n");
    for (uint32_t i = 0; i < r->n_layers; i++) {
        printf("  %5u", i);
        print_db(r->layers[i].hidden_db, 8);
        print_db(r->layers[i].routed_db, 8);
        putchar('\n');
    }
    if (r->n_experts)
        printf("\n  layer  expert  tokens   signal to noise of the worst experts' output, on the reference's input, dB\n");
    for (size_t i = 0; i < r->n_experts && i < o->worst; i++) {
        printf("  %5u %7u %7llu", r->experts[i].layer, r->experts[i].expert, (unsigned long long)r->experts[i].tokens);
        print_db(r->experts[i].db, 8);
        putchar('\n');
    }
    if (r->tensors) printf("\n     rows  columns weights  output   signal to noise of the worst matrices, dB\n");
    for (size_t i = 0; i < r->n_tensors && i < o->worst; i++) {
        printf("  %7llu  %7llu", (unsigned long long)r->tensors[i].rows, (unsigned long long)r->tensors[i].columns);
        print_db(r->tensors[i].db, 7);
        print_db(r->tensors[i].output_db, 7);
        printf("  %s\n", r->tensors[i].name);
    }
}

int td_cmd_perplexity(int argc, char **argv) {
    options o = {0};
    int     rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_meter             meter;
    td_perplexity_result result;
    td_error             err = {0};
    td_meter_open(&meter, "perplexity", "tokens", 1);
    o.p.progress = td_meter_progress;
    o.p.user = &meter;
    if (td_perplexity(&o.p, &result, &err) != TD_OK) {
        fprintf(stderr, "%standem perplexity: %s\n", td_meter_newline(&meter), err.text);
        return 1;
    }
    bool made = true;
    if (o.json)
        made = print_json(&o, &result);
    else
        print_text(&o, &result);
    td_perplexity_result_free(&result);
    return td_standard_output_end("tandem perplexity") == 0 && made ? 0 : 1;
}
