#include "model/memory_plan.h"

#include <math.h>
#include <stdio.h>

#include "core/error.h"
#include "npu/npu.h"

#define GIB(bytes) ((double)(bytes) / (1u << 30))

/* GiB, rounded up to three decimals. */
static double gib_enough(double bytes) {
    return ceil(bytes / (1u << 30) * 1000) / 1000;
}

static uint64_t saturating_add(uint64_t a, uint64_t b) {
    return a + b < a ? UINT64_MAX : a + b;
}

/* How many slots of each layer have to be on the device so that host memory holds the other experts: mostly none. */
static td_status slots_for_host(const td_memory_plan_input *in, uint32_t *out, td_error *err) {
    const td_host_budget *host = in->host;
    *out = 0;
    if (!host) return TD_OK;
    uint64_t budget = (uint64_t)((double)host->available_bytes * in->fraction),
             wanted = saturating_add(host->weight_bytes, host->scratch_bytes);
    if (wanted <= budget) return TD_OK;
    const uint64_t most = in->slots_most * host->saved_bytes;
    if (wanted - budget <= most) {
        const uint32_t n = (uint32_t)((wanted - budget + host->saved_bytes - 1) / host->saved_bytes);
        *out = n > in->slots_least ? n : in->slots_least;
        return TD_OK;
    }
    return td_fail(err, TD_ENOMEM,
                   "host memory: the experts take %.2f GiB and pinned and working memory %.2f GiB, but only %.2f GiB of the "
                   "%.2f GiB available may be used "
                   "(mem-fraction-static %.2f): use a machine with %.2f GiB or more, or a smaller chunked-prefill-size",
                   GIB(host->weight_bytes - most), GIB(host->scratch_bytes), GIB(budget), GIB(host->available_bytes),
                   in->fraction, GIB((double)(wanted - most) / in->fraction));
}

/* Whether other processes have much of the device's memory. Its own context takes some hundred MiB. */
static bool others_have_much(const td_memory_plan_input *in) {
    return in->taken_bytes > in->available_bytes / 8 && in->taken_bytes > (uint64_t)1 << 30;
}

static uint64_t kv_bytes(const td_memory_plan_input *in, uint32_t n_pages) {
    return n_pages * in->kv_bytes_per_page + td_window_count(in->windows, n_pages) * in->windows.page_bytes;
}

/* The most pages that take no more than `room`. Slots are 32 bits, which bounds them too. */
static uint32_t fitting_pages(const td_memory_plan_input *in, uint64_t room) {
    uint32_t fits = 0, too_many = UINT32_MAX / TD_KV_PAGE + 1;
    while (too_many - fits > 1) {
        const uint32_t n = fits + (too_many - fits) / 2;
        *(kv_bytes(in, n) <= room ? &fits : &too_many) = n;
    }
    return fits;
}

/* Up to what max_running sequences of context_length take. Slots for experts get a share: half of the room, if the other
 * half holds one such sequence. */
static uint64_t useful_pages(const td_memory_plan_input *in, uint64_t fit) {
    const uint64_t longest = in->context_length / TD_KV_PAGE + 1, useful = in->max_running * longest;
    if (in->slot_bytes && fit / 2 >= longest) fit /= 2;
    return useful < fit ? useful : fit;
}

/* @param needed slots that are no part of what is left */
static uint32_t slots_beside(const td_memory_plan_input *in, uint32_t needed, uint64_t left) {
    uint64_t fit = in->slot_bytes ? needed + left / in->slot_bytes : 0;
    if (fit < in->slots_least) return 0;
    return fit < in->slots_most ? (uint32_t)fit : in->slots_most;
}

td_status td_memory_plan(const td_memory_plan_input *in, td_memory_shares *out, td_error *err) {
    const char *where = in->host ? "device memory: " : "";
    char        others[80] = "";
    uint32_t    needed;
    if (others_have_much(in))
        snprintf(others, sizeof others, " (other processes have %.2f GiB of the device)", GIB(in->taken_bytes));
    TD_TRY(slots_for_host(in, &needed, err));
    uint64_t budget = (uint64_t)((double)in->available_bytes * in->fraction);
    uint64_t weights = saturating_add(in->weight_bytes, needed * in->slot_bytes);
    uint64_t fixed = saturating_add(weights, in->scratch_bytes);
    uint64_t least = saturating_add(fixed, kv_bytes(in, 1));
    if (least > budget)
        return td_fail(err, TD_ENOMEM,
                       "%sthe weights take %.2f GiB, working memory %.2f GiB and one KV page %.3f GiB, but only %.2f GiB of "
                       "the %.2f GiB available%s may be "
                       "used (mem-fraction-static %.2f): use one with %.3f GiB or more, or a smaller chunked-prefill-size",
                       where, GIB(weights), GIB(in->scratch_bytes), GIB(kv_bytes(in, 1)), GIB(budget),
                       GIB(in->available_bytes), others, in->fraction, gib_enough((double)least / in->fraction));

    uint64_t fit = fitting_pages(in, budget - fixed);
    uint64_t wanted = in->max_total_tokens / TD_KV_PAGE + (in->max_total_tokens % TD_KV_PAGE != 0);
    if (wanted > fit)
        return td_fail(
            err, TD_ENOMEM,
            "%smax-total-tokens %llu does not fit: with %.2f GiB of weights and %.2f GiB of working memory in %.2f "
            "GiB (mem-fraction-static %.2f "
            "of %.2f GiB available%s) the largest is %llu",
            where, (unsigned long long)in->max_total_tokens, GIB(weights), GIB(in->scratch_bytes), GIB(budget), in->fraction,
            GIB(in->available_bytes), others, (unsigned long long)fit * TD_KV_PAGE);
    if (wanted == 0) wanted = useful_pages(in, fit);
    *out = (td_memory_shares){(uint32_t)wanted, slots_beside(in, needed, budget - fixed - kv_bytes(in, (uint32_t)wanted))};
    return TD_OK;
}
