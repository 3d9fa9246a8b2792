/* td_perplexity: windows through the model, and through its reference, a batch at a time; then the figures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/file_write.h"
#include "engine/model_folder.h"
#include "eval/expert_errors.h"
#include "eval/layer_errors.h"
#include "eval/logit_rows.h"
#include "eval/logprob_file.h"
#include "eval/scored_model.h"
#include "eval/tensor_errors.h"

#define WINDOW_DEFAULT 512

/* The figures of a scored token. DRAFT_…: those of the MTP layer's prediction of it, which knows one token less; NAN for a
 * window's first token. */
enum { NLL, REFERENCE_NLL, NLL_DIFFERENCE, LOGPROB_CHANGE, KL, TOP1, DRAFT_NLL, DRAFT_TOP1, N_FIGURES };
typedef struct {
    float    figure[N_FIGURES];
    uint32_t best; /* the model's, with drafts */
} token_score;

typedef struct {
    const td_perplexity_options *o;
    td_tokenizer                *tok;
    td_scored_text               text;
    td_scored_room               room;
    td_batch                     batch;
    td_scored_model              model, reference;
    td_logprob_file              file, save; /* file: of the reference */
    td_rotated_stream            rotated;
    td_layer_errors              layers;
    td_expert_errors             experts;
    td_linear_rows               rows; /* of the reference, with per_tensor */
    bool                         has_reference, has_file, has_save;
    uint32_t                     vocab;
    float                       *decoded;        /* [max_out, vocab] of file */
    float                       *decoded_target; /* [max_out] */
    double                      *lse;            /* [max_out] */
    token_score                 *scores;         /* [n_scored] */
    uint32_t                    *next_token;     /* [rows of a batch] with drafts */
} run;

/* ---- opening --------------------------------------------------------------------------------- */

static td_status open_text(run *r, td_error *err) {
    const td_perplexity_options *o = r->o;
    td_text_protocol             p = {.window = o->window ? o->window : WINDOW_DEFAULT, .limit = o->limit};
    const char                  *dir = o->model.tokenizer_path ? o->model.tokenizer_path : o->model.model_path;
    p.stride = o->stride ? o->stride : p.window > 1 ? p.window / 2 : 1;
    if (!dir) return td_fail(err, TD_EINVAL, "model-path is missing");
    if (!o->text_path) return td_fail(err, TD_EINVAL, "text is missing");
    if (o->per_tensor && !o->reference)
        return td_fail(err, TD_EINVAL, "weights can be compared with those of a model's folder only");
    if (o->reference && o->reference_path) return td_fail(err, TD_EINVAL, "a reference is a model or a file, not both");
    if (o->model.model_path) TD_TRY(td_model_folder_check(o->model.model_path, false, err));
    TD_TRY(td_tokenizer_open(dir, &r->tok, err));
    return td_scored_text_open(o->text_path, r->tok, &p, &r->text, err);
}

/* The reference must read the same tokens. */
static td_status check_reference_text(const run *r, td_error *err) {
    const td_engine_options *ref = r->o->reference;
    td_tokenizer            *tok;
    td_scored_text           text;
    const char              *dir = ref->tokenizer_path ? ref->tokenizer_path : ref->model_path;
    if (!dir) return td_fail(err, TD_EINVAL, "the reference has no model-path");
    if (td_tokenizer_open(dir, &tok, err) != TD_OK) return td_fail_within(err, "the reference");
    td_status st = td_scored_text_open(r->o->text_path, tok, &r->text.protocol, &text, err);
    td_tokenizer_close(tok);
    if (st != TD_OK) return td_fail_within(err, "the reference");
    if (text.hash != r->text.hash) st = td_fail(err, TD_EINVAL, "the reference's tokenizer makes other tokens of the text");
    td_scored_text_close(&text);
    return st;
}

/* The layer taps of the two models. */
static void see_reference(void *user, const td_layer_output *out) {
    run *r = user;
    td_layer_errors_reference(&r->layers, out);
    td_expert_errors_keep(&r->experts, out);
}

static void see_own(void *user, const td_layer_output *out) {
    run *r = user;
    td_layer_errors_compare(&r->layers, out);
}

static void see_rows(void *user, const td_npu_weight *const *weights, size_t n, td_dtype dtype, const void *x, size_t m,
                     size_t k) {
    run *r = user;
    td_linear_rows_keep(&r->rows, r->reference.model, weights, n, dtype, x, m, k);
}

static td_status open_model(run *r, const td_engine_options *o, td_scored_model *m, td_layer_tap tap, td_rows_tap rows_tap,
                            td_error *err) {
    TD_TRY(td_scored_room_look(&r->room, o, err));
    return td_scored_model_open(m, o, &r->batch.shape, &r->room.room,
                                &(td_model_probe){.layer_tap = tap, .rows_tap = rows_tap, .user = r}, err);
}

static td_status open_reference_file(run *r, td_error *err) {
    if (!r->o->reference_path) return TD_OK;
    TD_TRY(td_logprob_file_open(&r->file, r->o->reference_path, &r->text, err));
    r->has_file = true;
    return TD_OK;
}

static td_status check_save_path(const td_perplexity_options *o, td_error *err) {
    if (!td_same_file(o->save_path, o->text_path) && !td_same_file(o->save_path, o->reference_path)) return TD_OK;
    return td_fail(err, TD_EINVAL, "%s would be overwritten: choose another file to save", o->save_path);
}

static td_status open_save_file(run *r, td_error *err) {
    if (!r->o->save_path) return TD_OK;
    TD_TRY(td_logprob_file_create(&r->save, r->o->save_path, &r->text, r->vocab, err));
    r->has_save = true;
    return TD_OK;
}

static td_status open_models(run *r, td_error *err) {
    const td_perplexity_options *o = r->o;
    td_batch_shape               shape = td_batch_shape_for(&r->text, (uint32_t)td_tokenizer_vocab_size(r->tok));
    TD_TRY(td_batch_open(&r->batch, &shape, err));
    TD_TRY(open_model(r, &o->model, &r->model, o->reference ? see_own : NULL, NULL, err));
    const td_model_config *c = td_model_get_config(r->model.model), *rc;
    r->vocab = c->vocab;
    TD_TRY(td_scored_text_check_ids(&r->text, r->vocab, err));
    if (o->drafts && !c->n_mtp_layers)
        return td_fail(err, TD_EINVAL, "the model has no multi-token-prediction layer that could draft");
    if (r->has_file && r->file.vocab != r->vocab)
        return td_fail(err, TD_EINVAL, "%s has a vocabulary of %u, the model one of %u", o->reference_path, r->file.vocab,
                       r->vocab);
    if (!o->reference) return TD_OK;
    TD_TRY(check_reference_text(r, err));
    if (open_model(r, o->reference, &r->reference, see_reference, o->per_tensor ? see_rows : NULL, err) != TD_OK)
        return td_fail_within(err, "the reference");
    r->has_reference = true;
    rc = td_model_get_config(r->reference.model);
    if (rc->vocab != c->vocab || rc->n_layers != c->n_layers || rc->hidden != c->hidden || rc->n_experts != c->n_experts ||
        rc->top_k != c->top_k)
        return td_fail(err, TD_EINVAL,
                       "the reference has %u ids, %u layers, hidden size %u, %u experts, %u per token, the model %u, %u, "
                       "%u, %u, %u: they cannot be compared",
                       rc->vocab, rc->n_layers, rc->hidden, rc->n_experts, rc->top_k, c->vocab, c->n_layers, c->hidden,
                       c->n_experts, c->top_k);
    if (o->per_tensor) TD_TRY(td_linear_rows_open(&r->rows, rc, err));
    TD_TRY(td_rotated_stream_open(&r->rotated, &r->model, &o->model, &r->reference, o->reference, err));
    TD_TRY(td_layer_errors_open(&r->layers, c->n_layers, c->hidden, shape.max_seq * shape.max_rows, &r->rotated, err));
    return td_expert_errors_open(&r->experts, c, shape.max_seq * shape.max_rows, &r->rotated, err);
}

static td_status open_rows(run *r, td_error *err) {
    size_t n = r->batch.shape.max_out;
    r->scores = calloc(r->text.n_scored, sizeof *r->scores);
    r->lse = calloc(n, sizeof *r->lse);
    r->next_token = calloc((size_t)r->batch.shape.max_seq * r->batch.shape.max_rows, sizeof *r->next_token);
    if (r->has_file) {
        r->decoded = malloc(n * r->vocab * sizeof *r->decoded);
        r->decoded_target = malloc(n * sizeof *r->decoded_target);
    }
    return r->scores && r->lse && r->next_token && (!r->has_file || (r->decoded && r->decoded_target))
               ? TD_OK
               : td_fail(err, TD_ENOMEM, "out of memory for the scores");
}

/* ---- running --------------------------------------------------------------------------------- */

/* Rows of logits whose scores are wanted. */
typedef struct {
    const float *own, *reference;  /* [n, vocab]; reference NULL: none */
    const float *reference_target; /* [n] log-probability of the token that came, where reference has lost digits; or NULL */
    const uint32_t *target;        /* [n] */
    size_t          vocab;
    bool            best;   /* is wanted too */
    double         *lse;    /* [n] of own, out */
    token_score    *scores; /* [n] out */
} row_set;

static void score_row(void *ctx, uint32_t i, const td_worker *w) {
    (void)w;
    const row_set *s = ctx;
    const float   *own = s->own + (size_t)i * s->vocab;
    float         *figure = s->scores[i].figure;
    double         lse = s->lse[i] = td_log_sum_exp(own, s->vocab), nll = lse - own[s->target[i]];
    figure[NLL] = (float)nll;
    if (s->best) s->scores[i].best = (uint32_t)td_row_best(own, s->vocab);
    if (!s->reference) return;
    const float *ref = s->reference + (size_t)i * s->vocab;
    double       ref_lse = td_log_sum_exp(ref, s->vocab);
    double       ref_nll = s->reference_target ? -(double)s->reference_target[i] : ref_lse - ref[s->target[i]];
    figure[REFERENCE_NLL] = (float)ref_nll;
    figure[NLL_DIFFERENCE] = (float)(nll - ref_nll);
    figure[LOGPROB_CHANGE] = (float)fabs(nll - ref_nll);
    figure[KL] = (float)td_kl_divergence(ref, ref_lse, own, lse, s->vocab);
    figure[TOP1] = td_row_best(ref, s->vocab) == td_row_best(own, s->vocab);
}

/* The numbers of scored rows at .. at + n - 1 of the batch, whose scores begin at scores. */
static td_status score_rows(run *r, uint32_t at, uint32_t n, token_score *scores, td_error *err) {
    row_set set = {.target = r->batch.target + at, .vocab = r->vocab, .best = r->o->drafts, .lse = r->lse, .scores = scores};
    td_model   *m = r->model.model;
    td_out_rows rows = {.row = r->batch.row + at, .n = n};
    td_status   st = td_model_head(m, rows, &set.own);
    if (st == TD_OK && r->has_reference) {
        m = r->reference.model;
        st = td_model_head(m, rows, &set.reference);
    }
    if (st != TD_OK) return td_fail(err, st, "the model's head failed: %s", td_model_why(m, st));
    if (r->has_file) {
        for (uint32_t i = 0; i < n; i++)
            TD_TRY(td_logprob_file_read(&r->file, r->decoded + (size_t)i * r->vocab, &r->decoded_target[i], err));
        set.reference = r->decoded;
        set.reference_target = r->decoded_target;
    }
    td_pool_run(r->room.experts_pool, score_row, &set, n);
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < N_FIGURES; k++)
            if (!isfinite(scores[i].figure[k])) return td_fail(err, TD_EDEVICE, "the model's output is not a number");
    for (uint32_t i = 0; r->has_save && i < n; i++)
        TD_TRY(td_logprob_file_write(&r->save, set.own + (size_t)i * r->vocab, r->lse[i], set.target[i], err));
    return TD_OK;
}

/* Rows of the MTP layer's logits. */
typedef struct {
    const float    *logits;       /* [n, vocab] */
    const uint32_t *pos;          /* of a row of the batch */
    const uint32_t *row, *target; /* [n_left] of the batch's scored rows */
    uint32_t        n_left;       /* scored rows from row on */
    size_t          vocab;
    token_score    *scores; /* [n_left] */
} draft_set;

/* Fed target[i], row i drafts target[i + 1], where the window goes on. */
static void score_draft(void *ctx, uint32_t i, const td_worker *w) {
    (void)w;
    const draft_set *s = ctx;
    const float     *logits = s->logits + (size_t)i * s->vocab;
    if (i + 1 == s->n_left || s->pos[s->row[i + 1]] != s->pos[s->row[i]] + 1) return;
    token_score *score = &s->scores[i + 1];
    score->figure[DRAFT_NLL] = (float)(td_log_sum_exp(logits, s->vocab) - logits[s->target[i + 1]]);
    score->figure[DRAFT_TOP1] = td_row_best(logits, s->vocab) == score->best;
}

/* The MTP layer over the batch, whose scores begin at scores. */
static td_status score_drafts(run *r, token_score *scores, td_error *err) {
    td_batch *b = &r->batch;
    for (uint32_t i = 0; i + 1 < b->rows.n_tok; i++) r->next_token[i] = b->rows.token[i + 1];
    for (uint32_t i = 0; i < b->n_scored; i++) {
        r->next_token[b->row[i]] = b->target[i]; /* a window's last row too */
        scores[i].figure[DRAFT_NLL] = scores[i].figure[DRAFT_TOP1] = NAN;
    }
    td_status st = td_model_mtp(r->model.model, r->next_token);
    if (st != TD_OK) return td_fail(err, st, "the MTP layer failed: %s", td_model_why(r->model.model, st));
    for (uint32_t at = 0, n; at < b->n_scored; at += n) {
        draft_set set = {.pos = b->rows.pos,
                         .row = b->row + at,
                         .target = b->target + at,
                         .n_left = b->n_scored - at,
                         .vocab = r->vocab,
                         .scores = scores + at};
        n = set.n_left < b->shape.max_out ? set.n_left : b->shape.max_out;
        st = td_model_mtp_head(r->model.model, (td_out_rows){.row = b->row + at, .n = n}, &set.logits);
        if (st != TD_OK) return td_fail(err, st, "the MTP layer's head failed: %s", td_model_why(r->model.model, st));
        td_pool_run(r->room.experts_pool, score_draft, &set, n);
    }
    return TD_OK;
}

static td_status forward(const td_scored_model *m, const td_step_rows *rows, td_error *err) {
    td_status st = td_model_forward(m->model, rows, (td_out_rows){0}, NULL);
    return st == TD_OK ? st : td_fail(err, st, "a step failed: %s", td_model_why(m->model, st));
}

static td_status score_all(run *r, td_error *err) {
    const td_perplexity_options *o = r->o;
    uint64_t                     fed = 0, scored = 0;
    if (o->progress) o->progress(o->user, 0, r->text.n_fed, "scoring");
    for (uint64_t w = 0, n; w < r->text.n_windows; w += n) {
        n = r->text.n_windows - w < r->batch.shape.max_seq ? r->text.n_windows - w : r->batch.shape.max_seq;
        td_batch_fill(&r->batch, &r->text, w, (uint32_t)n);
        if (r->has_reference) TD_TRY(forward(&r->reference, &r->batch.rows, err));
        TD_TRY(forward(&r->model, &r->batch.rows, err));
        if (r->layers.mismatch)
            return td_fail(err, TD_EINVAL, "the reference has routed experts in other layers: they cannot be compared");
        if (r->has_reference && !r->rotated.apart) td_expert_errors_compare(&r->experts, &r->reference, &r->model);
        for (uint32_t at = 0, m; at < r->batch.n_scored; at += m) {
            m = r->batch.n_scored - at < r->batch.shape.max_out ? r->batch.n_scored - at : r->batch.shape.max_out;
            TD_TRY(score_rows(r, at, m, r->scores + scored + at, err));
        }
        if (o->drafts) TD_TRY(score_drafts(r, r->scores + scored, err));
        fed += r->batch.rows.n_tok;
        scored += r->batch.n_scored;
        if (o->progress) o->progress(o->user, fed, r->text.n_fed, "scoring");
    }
    return r->has_save ? td_logprob_file_finish(&r->save, err) : TD_OK;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Mean over the tokens that have the figure. The standard error takes the windows as the samples, because the tokens of one
   depend on each other: that of a ratio of sums (Cochran, Sampling Techniques, 1977, section 6.4). */
static td_estimate estimate(const run *r, int figure) {
    const td_scored_text *t = &r->text;
    double                sum = 0, squares = 0, n_tokens = 0;
    for (uint64_t i = 0; i < t->n_scored; i++)
        if (!isnan(r->scores[i].figure[figure])) sum += r->scores[i].figure[figure], n_tokens++;
    td_estimate        e = {.mean = sum / n_tokens, .error = NAN};
    const token_score *s = r->scores;
    for (uint64_t w = 0; w < t->n_windows; w++) {
        double deviation = 0;
        for (uint32_t i = t->windows[w].first_scored; i < t->windows[w].n; i++, s++)
            if (!isnan(s->figure[figure])) deviation += s->figure[figure] - e.mean;
        squares += deviation * deviation;
    }
    double n = (double)t->n_windows;
    if (t->n_windows > 1) e.error = sqrt(squares * n / (n - 1)) / n_tokens;
    return e;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static td_status percentile_99(const run *r, int figure, double *out, td_error *err) {
    size_t n = r->text.n_scored;
    float *v = malloc(n * sizeof *v);
    if (!v) return td_fail(err, TD_ENOMEM, "out of memory for the figures");
    for (size_t i = 0; i < n; i++) v[i] = r->scores[i].figure[figure];
    qsort(v, n, sizeof *v, ascending);
    *out = v[(size_t)(0.99 * (double)(n - 1))];
    free(v);
    return TD_OK;
}

static td_status fill_result(const run *r, td_perplexity_result *out, td_error *err) {
    const td_scored_text *t = &r->text;
    *out = (td_perplexity_result){.window = t->protocol.window,
                                  .stride = t->protocol.stride,
                                  .prefix = t->n_prefix,
                                  .documents = t->n_documents,
                                  .windows = t->n_windows,
                                  .scored_tokens = t->n_scored,
                                  .quantization = r->model.quantization,
                                  .expert_quantization = r->model.expert_quantization,
                                  .nll = estimate(r, NLL),
                                  .compared = r->has_reference || r->has_file,
                                  .drafted = r->o->drafts};
    if (out->drafted) {
        out->draft_nll = estimate(r, DRAFT_NLL);
        out->draft_agreement = estimate(r, DRAFT_TOP1);
    }
    if (!out->compared) return TD_OK;
    out->reference_nll = estimate(r, REFERENCE_NLL);
    out->nll_difference = estimate(r, NLL_DIFFERENCE);
    out->logprob_change = estimate(r, LOGPROB_CHANGE);
    out->kl = estimate(r, KL);
    out->top1_agreement = estimate(r, TOP1);
    TD_TRY(percentile_99(r, KL, &out->kl_99, err));
    if (!r->has_reference) return TD_OK;
    if (!r->rotated.apart) {
        out->n_layers = r->layers.n_layers;
        out->layers = td_layer_errors_result(&r->layers);
        if (!out->layers) return td_fail(err, TD_ENOMEM, "out of memory for the layers' errors");
        TD_TRY(td_expert_errors_result(&r->experts, &out->experts, &out->n_experts, err));
    }
    if (!r->o->per_tensor) return TD_OK;
    if (r->rows.no_memory) return td_fail(err, TD_ENOMEM, "out of memory for what the linears read");
    return td_tensor_errors(&r->model, &r->o->model, &r->reference, r->o->reference, &r->rows, r->room.experts_pool,
                            &out->tensors, &out->n_tensors, err);
}

static void close_run(run *r) {
    td_scored_model_close(&r->model);
    td_scored_model_close(&r->reference);
    td_scored_room_close(&r->room);
    td_logprob_file_close(&r->file);
    td_logprob_file_close(&r->save);
    td_layer_errors_close(&r->layers);
    td_expert_errors_close(&r->experts);
    td_linear_rows_close(&r->rows);
    td_rotated_stream_close(&r->rotated);
    td_batch_close(&r->batch);
    td_scored_text_close(&r->text);
    td_tokenizer_close(r->tok);
    free(r->decoded);
    free(r->decoded_target);
    free(r->lse);
    free(r->next_token);
    free(r->scores);
}

td_status td_perplexity(const td_perplexity_options *o, td_perplexity_result *out, td_error *err) {
    run r = {.o = o};
    *out = (td_perplexity_result){0};
    td_status st = check_save_path(o, err);
    if (st == TD_OK) st = open_text(&r, err);
    if (st == TD_OK) st = open_reference_file(&r, err); /* before the model, which takes long to load */
    if (st == TD_OK) st = open_models(&r, err);
    if (st == TD_OK) st = open_save_file(&r, err);
    if (st == TD_OK) st = open_rows(&r, err);
    if (st == TD_OK) st = score_all(&r, err);
    if (st == TD_OK) st = fill_result(&r, out, err);
    close_run(&r);
    if (st != TD_OK) td_perplexity_result_free(out);
    return st;
}

void td_perplexity_result_free(td_perplexity_result *r) {
    free(r->layers);
    free(r->experts);
    free(r->tensors);
    *r = (td_perplexity_result){0};
}
