/*
 * Int8 products of many rows: cuBLASLt's sums of some rows at a time, and our kernel that scales them. Our own products read
 * the weights again for every TD_CUDA_LINEAR_ROWS_MAX rows, so from there on they are bound by that and not by what the card
 * can compute.
 *
 * A library's product has the rows of the bucket, so those beyond the step's count are multiplied too. They are whatever the
 * memory holds; sums of a row are of that row alone, and the kernel does not read theirs.
 */
#include "core/error.h"
#include "core/log.h"
#include "npu/cuda/cuda_op.h"

#define EPILOGUE_THREADS 256
#define ROWS_MULTIPLE 128 /* of a stretch: tiles of rows are no larger */

size_t td_cuda_library_bytes(const td_cuda_npu *d, uint32_t max_tok) {
    return d->blas.api && max_tok > TD_CUDA_LINEAR_ROWS_MAX ? d->blas.sums_bytes + d->blas.workspace_bytes : 0;
}

/* Rows that have room for their sums. @return 0: too few for the library to be worth it */
static uint32_t stretch(const td_cuda_blas *b, uint32_t most, size_t row_bytes) {
    size_t rows = b->sums_bytes / row_bytes;
    return rows >= most ? most : (uint32_t)(rows / ROWS_MULTIPLE * ROWS_MULTIPLE);
}

/* What it cannot do is ours from now on; without an algorithm only this one. */
static void cannot(td_cuda_npu *d, td_status st, const td_error *why) {
    if (st == TD_ENOTSUP) {
        td_debug("CUDA card %u: %s", d->config.card, why->text);
        return;
    }
    td_warn("CUDA card %u: %s; its int8 products of many rows are our own kernels' from now on", d->config.card, why->text);
    d->blas.has_failed = true;
}

static bool multiply(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *up,
                     const void *bias, void *out, bool out_is_f32) {
    const td_npu_weight *const of[2] = {w, up};
    const size_t               n_of = up ? 2 : 1, ldk = td_cuda_row_codes(w->k), most = rows->n.most;
    const uint32_t             at_once = stretch(&r->d->blas, rows->n.most, n_of * w->n * sizeof(int32_t));
    if (!at_once) return false;
    for (size_t first = 0; first < most; first += at_once) {
        td_cuda_blas_product p = {.x = (const char *)rows->q + first * ldk,
                                  .rows = most - first < at_once ? most - first : at_once,
                                  .n = w->n,
                                  .ldk = ldk,
                                  .workspace = r->library + r->d->blas.sums_bytes};
        char                *sums[2] = {r->library, up ? r->library + p.rows * w->n * sizeof(int32_t) : NULL};
        for (size_t i = 0; i < n_of; i++) {
            td_error why = {0};
            p.w = of[i]->data;
            p.sums = sums[i];
            if (!td_cuda_blas_takes(&r->d->blas, &p)) return false;
            td_status st = td_cuda_blas_multiply(&r->d->blas, r->stream, &p, &why);
            if (st != TD_OK) {
                cannot(r->d, st, &why);
                return false;
            }
            r->launches++;
        }
        TD_CUDA_LAUNCH(r, W8A8_EPILOGUE, TD_GRID(td_div_up(w->n, EPILOGUE_THREADS), p.rows, 1), 0, TD_P(rows->n.count),
                       TD_U(first), TD_P(sums[0]), TD_P(sums[1]), TD_P(rows->scale), TD_P(w->scale),
                       TD_P(up ? up->scale : NULL), TD_P(bias), TD_U(w->n), TD_P(out), TD_U(out_is_f32));
    }
    return true;
}

/* The library may load its kernels when it needs them first. In a capture a thread may not, but where it says that it knows
 * what it does. */
static bool exchange_mode(td_cuda_run *r, td_cu_capture_mode *mode) {
    td_cu_status said = r->d->cu->cuThreadExchangeStreamCaptureMode(mode);
    if (said == TD_CUDA_SUCCESS) return true;
    r->status = td_cuda_failed(r->d, "cuThreadExchangeStreamCaptureMode", said, NULL);
    return false;
}

bool td_cuda_product_by_library(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *up,
                                const void *bias, void *out, bool out_is_f32) {
    td_cu_capture_mode mode = TD_CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!r->library || rows->n.most <= TD_CUDA_LINEAR_ROWS_MAX || r->status != TD_OK) return false;
    if (!exchange_mode(r, &mode)) return false;
    bool done = multiply(r, rows, w, up, bias, out, out_is_f32);
    return exchange_mode(r, &mode) && done;
}
