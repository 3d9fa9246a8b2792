/* Routers: scores, groups, the best experts. Everything is f32; ties go to the lower index. */
#include <stdlib.h>

#include "standin_op.h"

#define TF "hicann/ops-transformer "

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

static void softmax(float *x, int64_t n) {
    float most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - most);
    for (int64_t i = 0; i < n; i++) x[i] /= sum;
}

static int64_t best_of(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

typedef struct {
    int64_t k, k_group, n_group, group_mode, renorm, norm_type;
    bool    with_scores;
    double  scale, eps;
} gating_args;

/** All but the k_group best groups of choice become -inf. */
static void keep_groups(float *choice, int64_t n, const gating_args *a) {
    int64_t size = n / a->n_group;
    float   group[2048];
    bool    keep[2048] = {false};
    for (int64_t g = 0; g < a->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            if (choice[i] > first)
                second = first, first = choice[i];
            else if (choice[i] > second)
                second = choice[i];
        }
        group[g] = a->group_mode ? first + second : first;
    }
    for (int64_t i = 0; i < a->k_group; i++) {
        int64_t g = best_of(group, a->n_group);
        keep[g] = true;
        group[g] = -INFINITY;
    }
    for (int64_t i = 0; i < n; i++)
        if (!keep[i / size]) choice[i] = -INFINITY;
}

static void run_gating(const standin_call *c) {
    const gating_args *a = c->args;
    int64_t            n = standin_last(c->t[0]);
    float             *score = malloc((size_t)n * sizeof *score), *choice = malloc((size_t)n * sizeof *choice),
          *chosen = malloc((size_t)a->k * sizeof *chosen);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) {
            float v = standin_get(c->at[0], c->t[0]->dtype, r * n + i);
            score[i] = a->norm_type ? 1 / (1 + expf(-v)) : v;
        }
        if (!a->norm_type) softmax(score, n);
        for (int64_t i = 0; i < n; i++) choice[i] = score[i] + (c->t[1] ? standin_get(c->at[1], c->t[1]->dtype, i) : 0);
        if (a->n_group > 1) keep_groups(choice, n, a);
        for (int64_t j = 0; j < a->k; j++) {
            int64_t best = best_of(choice, n);
            choice[best] = -INFINITY;
            ((int32_t *)c->at[3])[r * a->k + j] = (int32_t)best;
            sum += chosen[j] = score[best];
        }
        for (int64_t j = 0; j < a->k; j++) {
            float w = a->norm_type ? chosen[j] / (sum + (float)a->eps) : chosen[j];
            standin_set(c->at[2], c->t[2]->dtype, r * a->k + j, w * (float)a->scale);
        }
        for (int64_t i = 0; a->with_scores && i < n; i++) ((float *)c->at[4])[r * n + i] = score[i];
    }
    free(score);
    free(choice);
    free(chosen);
}

td_aclnn_status aclnnMoeGatingTopKGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *bias, int64_t k,
                                                   int64_t k_group, int64_t n_group, int64_t group_mode, int64_t renorm,
                                                   int64_t norm_type, bool with_scores, double scale, double eps,
                                                   const td_acl_tensor *out, const td_acl_tensor *ids,
                                                   const td_acl_tensor *scores, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnMoeGatingTopK", TF "moe/moe_gating_top_k", self, bias, k, k_group, n_group, group_mode, renorm,
                      norm_type, with_scores, scale, eps, out, ids, scores, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN),
                         *b = standin_add(x, bias, "biasOptional", STANDIN_OPTIONAL),
                         *o = standin_add(x, out, "yOut", STANDIN_OUT),
                         *i = standin_add(x, ids, "expertIdxOut", STANDIN_OUT),
                         *s = standin_add(x, scores, "outOut", STANDIN_OUT); /* moe_gating_top_k_def.cpp: REQUIRED */
    need(x, standin_is_float(t->dtype) && o->dtype == t->dtype && i->dtype == TD_ACL_INT32,
         "x is no float, yOut not of x's dtype, or expertIdxOut not INT32");
    need(x, !b || standin_is_float(b->dtype), "bias is no float");
    need(x, t->n_view == 2 && standin_count(t) > 0, "x has not two dimensions, or is empty");
    int64_t n = t->view[1], size = n_group > 0 && n % n_group == 0 ? n / n_group : 0;
    need(x, n <= 2048, "there are more than 2048 experts");
    need(x, size > group_mode && (size + 31) / 32 * 32 * n_group <= 2048,
         "the groups do not divide the experts, are too small, or too many");
    need(x, k_group >= 1 && k_group <= n_group && k >= 1 && k <= k_group * size,
         "kGroup is not in 1 to groupCount, or k not in 1 to the experts of kGroup groups");
    need(x, o->n_view == 2 && o->view[0] == t->view[0] && o->view[1] == k && standin_same_shape(o, i),
         "yOut or expertIdxOut is not [rows, k]");
    need(x, !b || (b->n_view == 1 && b->view[0] == n), "bias has not one value an expert");
    need(x, s->dtype == TD_ACL_FLOAT && standin_same_shape(s, t), "outOut is not FLOAT of x's shape");
    need(x, standin_contiguous(t) && standin_contiguous(o) && standin_contiguous(i), "a tensor is not contiguous");
    gating_args a = {k, k_group, n_group, group_mode, renorm, norm_type, with_scores, scale, eps};
    return standin_end(x, run_gating, &a, sizeof a, 1024, ws, executor);
}
STANDIN_SECOND(aclnnMoeGatingTopK)

static void run_gating_softmax(const standin_call *c) {
    const gating_args *a = c->args;
    int64_t            n = standin_last(c->t[0]);
    float             *x = malloc((size_t)n * sizeof *x), *chosen = malloc((size_t)a->k * sizeof *chosen);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        for (int64_t i = 0; i < n; i++) x[i] = standin_get(c->at[0], c->t[0]->dtype, r * n + i);
        if (!a->renorm) softmax(x, n);
        for (int64_t j = 0; j < a->k; j++) {
            int64_t best = best_of(x, n);
            chosen[j] = x[best];
            x[best] = -INFINITY;
            ((int32_t *)c->at[2])[r * a->k + j] = (int32_t)best;
        }
        if (a->renorm) softmax(chosen, a->k);
        for (int64_t j = 0; j < a->k; j++) standin_set(c->at[1], c->t[1]->dtype, r * a->k + j, chosen[j]);
    }
    free(x);
    free(chosen);
}

td_aclnn_status aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *finished,
                                                            int64_t k, int64_t renorm, bool with_scores,
                                                            const td_acl_tensor *out, const td_acl_tensor *ids,
                                                            const td_acl_tensor *scores, uint64_t *ws,
                                                            td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnMoeGatingTopKSoftmaxV2", TF "moe/moe_gating_top_k_softmax_v2", self, finished,
                                       k, renorm, with_scores, out, ids, scores, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *o = standin_add(x, out, "yOut", STANDIN_OUT),
                         *i = standin_add(x, ids, "expertIdxOut", STANDIN_OUT);
    (void)scores;
    need(x, !finished && !with_scores, "finished rows and softmax's result are not here");
    need(x, standin_is_float(t->dtype) && o->dtype == t->dtype && i->dtype == TD_ACL_INT32,
         "x is no float, yOut not of x's dtype, or expertIdxOut not INT32");
    need(x, t->n_view == 2 && standin_count(t) > 0, "x has not two dimensions (three are not here), or is empty");
    need(x, k > 0 && k <= t->view[1] && k <= 1024, "k is not in 1 to the experts, or more than 1024");
    need(x, o->n_view == 2 && o->view[0] == t->view[0] && o->view[1] == k && standin_same_shape(o, i),
         "yOut or expertIdxOut is not [rows, k]");
    need(x, standin_contiguous(t) && standin_contiguous(o) && standin_contiguous(i), "a tensor is not contiguous");
    gating_args a = {.k = k, .renorm = renorm};
    return standin_end(x, run_gating_softmax, &a, sizeof a, 1024, ws, executor);
}
STANDIN_SECOND(aclnnMoeGatingTopKSoftmaxV2)
