/* Values of tensors as f32. FLOAT16 is not here: the backend does not use it. */
#include "standin_op.h"

float standin_get(const void *at, td_acl_dtype t, int64_t i) {
    switch (t) {
        case TD_ACL_FLOAT: return ((const float *)at)[i];
        case TD_ACL_BF16: return td_bf16_to_f32(((const td_bf16 *)at)[i]);
        case TD_ACL_INT8: return ((const int8_t *)at)[i];
        case TD_ACL_INT16: return ((const int16_t *)at)[i];
        case TD_ACL_INT32: return (float)((const int32_t *)at)[i];
        case TD_ACL_INT64: return (float)((const int64_t *)at)[i];
        default: standin_refuse("stand-in", "values of dtype %d are not computed with here", t);
    }
}

void standin_set(void *at, td_acl_dtype t, int64_t i, float v) {
    switch (t) {
        case TD_ACL_FLOAT: ((float *)at)[i] = v; return;
        case TD_ACL_BF16: ((td_bf16 *)at)[i] = td_f32_to_bf16(v); return;
        case TD_ACL_INT8: ((int8_t *)at)[i] = (int8_t)v; return;
        case TD_ACL_INT32: ((int32_t *)at)[i] = (int32_t)v; return;
        case TD_ACL_INT64: ((int64_t *)at)[i] = (int64_t)v; return;
        default: standin_refuse("stand-in", "values of dtype %d are not computed with here", t);
    }
}

float standin_norm_row(const float *x, int64_t n, double epsilon, const void *gamma, td_acl_dtype gamma_type, float *out) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    float rstd = 1 / sqrtf(sum / (float)n + (float)epsilon);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * rstd * standin_get(gamma, gamma_type, i);
    return rstd;
}

float standin_quant_row(const float *x, int64_t n, int8_t *codes) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    float scale = most / 127;
    for (int64_t i = 0; i < n; i++) codes[i] = scale > 0 ? (int8_t)rintf(x[i] / scale) : 0;
    return scale;
}
