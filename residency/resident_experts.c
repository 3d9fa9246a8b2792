#include "residency/resident_experts.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"

typedef enum { READ, COPY, DROP } swap_step;

enum { WHOLE, ASIDE, PASSES }; /* that may be under way: one is in pieces, others run between these */

typedef struct {
    td_residency_swap swap;
    uint16_t          slot;
    swap_step         step;
    td_status         status; /* of the step; written before n_ended rises, as the next one */
    td_error          error;
} upload;

/* What one card has. */
typedef struct {
    td_npu        *npu;
    char          *slots;           /* device */
    uint16_t      *table, *on_host; /* [n_layers, n_experts]: on the device; in pinned memory, what it will be */
    char          *staging;         /* pinned, an expert */
    td_npu_stream *stream;          /* of uploads */
} card_part;

struct td_resident_experts {
    td_resident_spec     s;
    bool                 unified;
    td_residency_policy *policy;
    card_part            cards[TD_CARDS_MAX];
    uint16_t            *slot_of;    /* [n_layers, n_experts] numbers of slots, also of experts that are loading */
    uint16_t            *free_slots; /* [n_layers, n_slots] */
    uint32_t            *n_free;     /* [n_layers] */
    uint16_t            *chosen;     /* [n_layers, max_tok, top_k] of the passes under way */
    uint32_t            *n_chosen;   /* [PASSES, n_layers] rows of it; 0: the pass does not have the layer */
    bool                *held;       /* [n_layers] */
    uint64_t             begun_ns;
    uint64_t             pass_begun_ns, pass_ns; /* of the pass under way; how long the one before took */
    /* steps of swaps: a ring, begun by the launching thread, ended by the uploads' */
    upload           ring[TD_FILLS_OPEN];
    _Atomic uint32_t n_begun, n_ended; /* acq_rel: what the other side wrote before */
    uint32_t         n_taken;          /* by the launching thread, which begins the swap's next step */
    uint32_t         n_open;           /* swaps, each with one step in the ring */
    td_signal        news;
    _Atomic bool     stop;
    pthread_mutex_t  device; /* held while the uploads' thread calls the device, or a capture is made */
    pthread_t        thread;
    bool             has_thread, has_mutex;
    /* relaxed: only counts */
    _Atomic uint64_t hits, misses, streamed, uploads, failed, reads, unread, upload_ns;
    _Atomic uint32_t resident, dropped;
};

uint64_t td_resident_slot_bytes(const td_resident_spec *s) {
    return (uint64_t)s->n_layers * s->packed.bytes;
}

uint64_t td_resident_stream_bytes(const td_resident_spec *s) {
    return (uint64_t)s->stream_slots * s->packed.bytes;
}

uint64_t td_resident_table_bytes(const td_resident_spec *s) {
    return (size_t)s->n_layers * s->n_experts * sizeof(uint16_t);
}
static size_t slots_bytes(const td_resident_spec *s) {
    return td_resident_slot_bytes(s) * (s->n_slots / s->n_cards) + td_resident_stream_bytes(s);
}

uint64_t td_resident_pinned_bytes(const td_resident_spec *s) {
    return s->packed.bytes + td_resident_table_bytes(s);
}

uint64_t td_resident_saved_bytes(const td_resident_spec *s) {
    return s->n_layers * td_packed_drop_bytes(&s->packed);
}

uint64_t td_resident_doubled_bytes(const td_resident_spec *s) {
    return (s->n_slots > TD_UPLOADS_OPEN ? s->n_slots : TD_UPLOADS_OPEN) * s->packed.bytes;
}

static uint16_t *row_of(const td_resident_experts *r, uint16_t *table, uint32_t layer) {
    return table + (size_t)layer * r->s.n_experts;
}

/* ---- uploads ------------------------------------------------------------------------------------- */

static td_status copy_expert(td_resident_experts *r, uint32_t layer, uint16_t expert, uint16_t to) {
    const uint32_t   n = r->s.n_cards;
    const card_part *c = &r->cards[to % n];
    td_npu          *d = c->npu;
    char            *slots = td_resident_slots(r, to % n, layer), *slot = slots + to / n * r->s.packed.bytes;
    td_experts_copy_packed(r->s.experts, layer, expert, r->unified ? slot : c->staging);
    if (r->unified) return TD_OK;
    pthread_mutex_lock(&r->device);
    td_status st = d->ops->copy(d, c->stream, slot, c->staging, r->s.packed.bytes, TD_COPY_H2D),
              sync = d->ops->stream_sync(d, c->stream);
    pthread_mutex_unlock(&r->device);
    return st != TD_OK ? st : sync;
}

static void drop_expert(td_resident_experts *r, uint32_t layer, uint16_t expert) {
    td_experts_drop(r->s.experts, layer, expert);
    atomic_fetch_add_explicit(&r->dropped, 1, memory_order_relaxed);
}

static td_status read_expert(td_resident_experts *r, uint32_t layer, uint16_t expert, td_error *err) {
    TD_TRY(td_experts_read_again(r->s.experts, layer, expert, err));
    atomic_fetch_sub_explicit(&r->dropped, 1, memory_order_relaxed);
    return TD_OK;
}

static void do_step(td_resident_experts *r, upload *u) {
    const td_residency_swap *s = &u->swap;
    u->status = TD_OK;
    if (u->step == READ)
        u->status = read_expert(r, s->layer, s->out, &u->error);
    else if (u->step == COPY)
        u->status = copy_expert(r, s->layer, s->in, u->slot);
    else
        drop_expert(r, s->layer, s->in);
}

static void *uploads_main(void *arg) {
    static const char *const NAMES[] = {[READ] = "read", [COPY] = "upload", [DROP] = "drop"};
    td_resident_experts     *r = arg;
    for (uint32_t n = 0;; n++) {
        for (uint32_t seen = td_signal_get(&r->news); atomic_load_explicit(&r->n_begun, memory_order_acquire) == n;) {
            if (atomic_load_explicit(&r->stop, memory_order_acquire)) return NULL;
            seen = td_signal_wait(&r->news, seen, (td_spin){0});
        }
        upload  *u = &r->ring[n % TD_FILLS_OPEN];
        uint64_t begin = td_trace_now();
        do_step(r, u);
        uint64_t end = td_trace_now();
        atomic_fetch_add_explicit(&r->upload_ns, end - begin, memory_order_relaxed);
        if (td_trace_on())
            td_trace_span(begin, end,
                          &(td_trace_label){TD_TRACE_BRIDGE,
                                            NAMES[u->step],
                                            {"layer", "expert"},
                                            {u->swap.layer, u->step == READ ? u->swap.out : u->swap.in}});
        atomic_fetch_add_explicit(&r->n_ended, 1, memory_order_release);
    }
}

/* ---- swaps --------------------------------------------------------------------------------------- */

static void begin_step(td_resident_experts *r, const upload *u) {
    const uint32_t n = atomic_load_explicit(&r->n_begun, memory_order_relaxed);
    r->ring[n % TD_FILLS_OPEN] = *u;
    atomic_store_explicit(&r->n_begun, n + 1, memory_order_release);
    td_signal_add(&r->news);
}

static void enter_table(td_resident_experts *r, uint32_t layer, uint16_t expert, uint16_t slot) {
    const uint32_t n = r->s.n_cards;
    for (uint32_t c = 0; c < n; c++)
        row_of(r, r->cards[c].on_host, layer)[expert] = slot % n == c ? (uint16_t)(slot / n) : TD_SLOT_ELSEWHERE;
    atomic_fetch_add_explicit(&r->uploads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->resident, 1, memory_order_relaxed);
}

static void leave_table(td_resident_experts *r, uint32_t layer, uint16_t expert) {
    row_of(r, r->slot_of, layer)[expert] = TD_NO_SLOT;
    for (uint32_t c = 0; c < r->s.n_cards; c++) row_of(r, r->cards[c].on_host, layer)[expert] = TD_NO_SLOT;
    atomic_fetch_sub_explicit(&r->resident, 1, memory_order_relaxed);
}

static void begin_swap(td_resident_experts *r, const td_residency_swap *s) {
    uint16_t *slot_of = row_of(r, r->slot_of, s->layer);
    upload    u = {.swap = *s, .step = COPY};
    if (s->out == TD_RESIDENCY_NO_EXPERT) {
        u.slot = r->free_slots[(size_t)s->layer * r->s.n_slots + --r->n_free[s->layer]];
    } else {
        u.slot = slot_of[s->out];
        if (r->s.drop)
            u.step = READ;
        else
            leave_table(r, s->layer, s->out);
    }
    slot_of[s->in] = u.slot;
    r->n_open++;
    begin_step(r, &u);
}

/* The three that follow are about a step that has ended. @return whether the swap has another. */
static bool take_read(td_resident_experts *r, const upload *u) {
    const bool stays = u->status != TD_OK;
    td_residency_policy_end_leave(r->policy, &u->swap, stays);
    if (!stays) {
        leave_table(r, u->swap.layer, u->swap.out);
        atomic_fetch_add_explicit(&r->reads, 1, memory_order_relaxed);
        return true;
    }
    row_of(r, r->slot_of, u->swap.layer)[u->swap.in] = TD_NO_SLOT;
    if (atomic_fetch_add_explicit(&r->unread, 1, memory_order_relaxed) == 0)
        td_warn("an expert cannot leave the device: %s; it stays there, and others are tried", u->error.text);
    return false;
}

static bool take_copy(td_resident_experts *r, const upload *u) {
    const uint32_t layer = u->swap.layer;
    const bool     failed = u->status != TD_OK;
    td_residency_policy_end_upload(r->policy, layer, u->swap.in, failed);
    if (!failed) {
        enter_table(r, layer, u->swap.in, u->slot);
        return r->s.drop;
    }
    row_of(r, r->slot_of, layer)[u->swap.in] = TD_NO_SLOT;
    r->free_slots[(size_t)layer * r->s.n_slots + r->n_free[layer]++] = u->slot;
    if (atomic_fetch_add_explicit(&r->failed, 1, memory_order_relaxed) == 0)
        td_warn("an expert could not be copied to the device: %s; it stays on the CPU, and others are tried",
                td_status_text(u->status));
    return false;
}

static bool take_step(td_resident_experts *r, const upload *u) {
    return u->step == READ ? take_read(r, u) : u->step == COPY && take_copy(r, u);
}

/* Up to the first one in a layer that is held. */
static void take_ended(td_resident_experts *r) {
    while (r->n_taken != atomic_load_explicit(&r->n_ended, memory_order_acquire)) {
        upload u = r->ring[r->n_taken % TD_FILLS_OPEN];
        if (r->held[u.swap.layer]) return;
        r->n_taken++;
        if (take_step(r, &u)) {
            u.step++;
            begin_step(r, &u);
        } else {
            r->n_open--;
        }
    }
}

static bool has_empty_slot(const td_resident_experts *r) {
    for (uint32_t l = 0; l < r->s.n_layers; l++)
        if (r->n_free[l]) return true;
    return false;
}

/* Uploads to empty slots that TD_FILLS_SHARE of the pass before would have sufficed for; the first ones are not known. */
static uint32_t fills_of_pass(const td_resident_experts *r) {
    const uint32_t n = atomic_load_explicit(&r->n_ended, memory_order_relaxed);
    const double   all_ns = (double)atomic_load_explicit(&r->upload_ns, memory_order_relaxed);
    const double   fit = n ? TD_FILLS_SHARE * (double)r->pass_ns * n / all_ns : TD_FILLS_OPEN;
    return fit < TD_UPLOADS_OPEN ? TD_UPLOADS_OPEN : fit > TD_FILLS_OPEN ? TD_FILLS_OPEN : (uint32_t)fit;
}

/* Whether another swap may begin: few are open, and they have not had more than their share of the time, unless slots are
 * empty. With drop these are few, as each swap's expert takes host memory. Chaos would be another one each time by a
 * share. */
static bool may_begin(const td_resident_experts *r) {
    if (r->s.chaos_seed) return r->n_open < TD_UPLOADS_OPEN;
    if (has_empty_slot(r)) return r->n_open < (r->s.drop ? TD_UPLOADS_OPEN : fills_of_pass(r));
    return r->n_open < TD_UPLOADS_OPEN && (double)atomic_load_explicit(&r->upload_ns, memory_order_relaxed) <=
                                              TD_UPLOADS_SHARE * (double)(td_trace_now() - r->begun_ns);
}

/* ---- passes --------------------------------------------------------------------------------------- */

/* [n_layers] of the pass that has the row. */
static uint32_t *chosen_rows(const td_resident_experts *r, uint32_t row) {
    return r->n_chosen + (row >= r->s.aside_row ? ASIDE : WHOLE) * (size_t)r->s.n_layers;
}

void td_resident_begin_pass(td_resident_experts *r, uint32_t first_row) {
    memset(chosen_rows(r, first_row), 0, r->s.n_layers * sizeof *r->n_chosen);
    td_resident_go_on(r);
}

void td_resident_go_on(td_resident_experts *r) {
    td_residency_swap swap;
    r->pass_begun_ns = td_trace_now();
    td_residency_policy_begin_step(r->policy);
    take_ended(r);
    while (may_begin(r) && td_residency_policy_next(r->policy, &swap)) begin_swap(r, &swap);
}

void td_resident_hold(td_resident_experts *r, const uint32_t *layer, uint32_t n) {
    memset(r->held, 0, r->s.n_layers * sizeof *r->held);
    for (uint32_t i = 0; i < n; i++) r->held[layer[i]] = true;
    for (uint32_t l = 0; l < r->s.n_layers; l++) td_residency_policy_hold(r->policy, l, r->held[l]);
}

void td_resident_chosen(td_resident_experts *r, uint32_t layer, uint32_t first_row, uint32_t n_tok, const uint16_t *ids) {
    assert(layer < r->s.n_layers && first_row + n_tok <= r->s.max_tok);
    memcpy(r->chosen + ((size_t)layer * r->s.max_tok + first_row) * r->s.top_k, ids,
           (size_t)n_tok * r->s.top_k * sizeof *ids);
    chosen_rows(r, first_row)[layer] = first_row + n_tok - (first_row >= r->s.aside_row ? r->s.aside_row : 0);
}

/* Choices of the layer are counted, and the mark goes. Of what the device computed, what was not resident was streamed. */
static void unmark(td_resident_experts *r, uint32_t layer, uint16_t *ids, size_t n) {
    const uint16_t *placed = td_resident_placement(r, 0, layer);
    uint64_t        hits = 0, streamed = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_on_device = td_id_is_resident(ids[i]);
        ids[i] = td_id_number(ids[i]);
        hits += is_on_device && placed[ids[i]] != TD_NO_SLOT;
        streamed += is_on_device && placed[ids[i]] == TD_NO_SLOT;
    }
    atomic_fetch_add_explicit(&r->hits, hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->streamed, streamed, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->misses, n - hits - streamed, memory_order_relaxed);
}

void td_resident_end_pass(td_resident_experts *r, const td_step *step) {
    r->pass_ns = td_trace_now() - r->pass_begun_ns;
    if (!step) return;
    const td_step_arrays *a = &step->host;
    for (uint32_t l = 0; l < r->s.n_layers; l++) {
        uint16_t *ids = r->chosen + ((size_t)l * r->s.max_tok + step->first_row) * r->s.top_k;
        if (chosen_rows(r, step->first_row)[l] != a->counts->n_tok) continue;
        unmark(r, l, ids, (size_t)a->counts->n_tok * r->s.top_k);
        for (uint32_t q = 0; q < a->counts->n_seq; q++)
            td_residency_policy_count(r->policy, l, a->seq_start[q + 1] - a->seq_start[q],
                                      ids + (size_t)a->seq_start[q] * r->s.top_k, !a->absorbed[q]);
    }
}

void td_resident_pause(td_resident_experts *r) {
    pthread_mutex_lock(&r->device);
}

void td_resident_resume(td_resident_experts *r) {
    pthread_mutex_unlock(&r->device);
}

/* ---- life ------------------------------------------------------------------------------------------- */

const td_resident_spec *td_resident_get_spec(const td_resident_experts *r) {
    return &r->s;
}

void *td_resident_slots(const td_resident_experts *r, uint32_t card, uint32_t layer) {
    return r->cards[card].slots + (size_t)layer * (r->s.n_slots / r->s.n_cards) * r->s.packed.bytes;
}

const uint16_t *td_resident_slot_of(const td_resident_experts *r, uint32_t card, uint32_t layer) {
    return row_of(r, r->cards[card].table, layer);
}

const uint16_t *td_resident_placement(const td_resident_experts *r, uint32_t card, uint32_t layer) {
    return row_of(r, r->cards[card].on_host, layer);
}

float td_resident_uses(const td_resident_experts *r, uint32_t layer, uint32_t expert) {
    return td_residency_policy_uses(r->policy, layer, (uint16_t)expert);
}

td_status td_resident_enqueue_table(td_resident_experts *r, uint32_t card, td_npu_stream *s) {
    const card_part *c = &r->cards[card];
    if (r->unified) return TD_OK;
    return c->npu->ops->copy(c->npu, s, c->table, c->on_host, td_resident_table_bytes(&r->s), TD_COPY_H2D);
}

static td_status open_card(const td_resident_experts *r, td_npu *d, card_part *c, td_error *err) {
    const td_resident_spec *s = &r->s;
    c->npu = d;
    TD_TRY(d->ops->alloc(d, slots_bytes(s), (void **)&c->slots, err));
    TD_TRY(d->ops->host_alloc(d, td_resident_table_bytes(s), (void **)&c->on_host, err));
    memset(c->on_host, 0xff, td_resident_table_bytes(s)); /* TD_NO_SLOT */
    c->table = c->on_host;
    if (r->unified) return TD_OK;
    TD_TRY(d->ops->alloc(d, td_resident_table_bytes(s), (void **)&c->table, err));
    TD_TRY(d->ops->host_alloc(d, s->packed.bytes, (void **)&c->staging, err));
    return d->ops->stream_create(d, &c->stream, err);
}

static void close_card(const td_resident_experts *r, const card_part *c) {
    const td_resident_spec *s = &r->s;
    td_npu                 *d = c->npu;
    if (c->stream) d->ops->stream_destroy(d, c->stream);
    if (c->slots) d->ops->free(d, c->slots, slots_bytes(s));
    if (c->table && c->table != c->on_host) d->ops->free(d, c->table, td_resident_table_bytes(s));
    if (c->on_host) d->ops->host_free(d, c->on_host, td_resident_table_bytes(s));
    if (c->staging) d->ops->host_free(d, c->staging, s->packed.bytes);
}

static td_status open_memory(td_resident_experts *r, td_error *err) {
    const td_resident_spec *s = &r->s;
    const size_t            slots = (size_t)s->n_layers * s->n_slots;
    for (uint32_t c = 0; c < s->n_cards; c++) TD_TRY(open_card(r, s->npus[c], &r->cards[c], err));
    r->slot_of = malloc(td_resident_table_bytes(s));
    r->free_slots = malloc(slots * sizeof *r->free_slots);
    r->n_free = malloc(s->n_layers * sizeof *r->n_free);
    r->chosen = calloc((size_t)s->n_layers * s->max_tok * s->top_k, sizeof *r->chosen);
    r->n_chosen = calloc((size_t)PASSES * s->n_layers, sizeof *r->n_chosen);
    r->held = calloc(s->n_layers, sizeof *r->held);
    if (!r->slot_of || !r->free_slots || !r->n_free || !r->chosen || !r->n_chosen || !r->held)
        return td_fail(err, TD_ENOMEM, "out of memory for the experts on the device");
    memset(r->slot_of, 0xff, td_resident_table_bytes(s)); /* TD_NO_SLOT */
    for (uint32_t l = 0; l < s->n_layers; l++) {
        r->n_free[l] = s->n_slots;
        for (uint32_t i = 0; i < s->n_slots; i++) r->free_slots[(size_t)l * s->n_slots + i] = (uint16_t)i;
    }
    return TD_OK;
}

static td_status start_uploads(td_resident_experts *r, td_error *err) {
    r->has_mutex = pthread_mutex_init(&r->device, NULL) == 0;
    if (!r->has_mutex) return td_fail(err, TD_ENOMEM, "out of memory for the experts on the device");
    TD_TRY(td_thread_start(&r->thread, "uploads", uploads_main, r, err));
    r->has_thread = true;
    return TD_OK;
}

td_status td_resident_open(const td_resident_spec *s, td_resident_experts **out, td_error *err) {
    *out = NULL;
    assert(s->n_slots % s->n_cards == 0);
    if (s->stream_slots && (uint64_t)s->n_layers * (s->n_slots / s->n_cards) + s->stream_slots > TD_SLOT_ELSEWHERE)
        return td_fail(err, TD_ENOTSUP,
                       "beside streamed experts the device keeps at most %u experts of a layer: lower num-gpu-experts",
                       (TD_SLOT_ELSEWHERE - s->stream_slots) / s->n_layers * s->n_cards);
    td_resident_experts *r = calloc(1, sizeof *r);
    if (!r) return td_fail(err, TD_ENOMEM, "out of memory for the experts on the device");
    td_npu_caps caps;
    s->npus[0]->ops->caps(s->npus[0], &caps);
    r->s = *s;
    r->unified = caps.unified_memory;
    r->begun_ns = td_trace_now();
    const td_residency_config c = {.n_layers = s->n_layers,
                                   .n_experts = s->n_experts,
                                   .top_k = s->top_k,
                                   .n_slots = s->n_slots,
                                   .upload_cost = TD_RESIDENCY_UPLOAD_COST,
                                   .goes_later = s->drop};
    td_status                 st = s->chaos_seed ? td_residency_policy_open_chaos(&c, s->chaos_seed, &r->policy, err)
                                                 : td_residency_policy_open(&c, &r->policy, err);
    if (st == TD_OK) st = open_memory(r, err);
    if (st == TD_OK) st = start_uploads(r, err);
    if (st != TD_OK) {
        td_resident_close(r);
        return st;
    }
    *out = r;
    return TD_OK;
}

td_status td_resident_fill(td_resident_experts *r, uint32_t layer, td_error *err) {
    while (r->n_free[layer]) {
        const uint16_t slot = r->free_slots[(size_t)layer * r->s.n_slots + r->n_free[layer] - 1], expert = slot;
        td_status      st = copy_expert(r, layer, expert, slot);
        if (st != TD_OK) return td_fail(err, st, "an expert could not be copied to the device: %s", td_status_text(st));
        r->n_free[layer]--;
        row_of(r, r->slot_of, layer)[expert] = slot;
        enter_table(r, layer, expert, slot);
        td_residency_policy_place(r->policy, layer, expert);
        drop_expert(r, layer, expert);
    }
    return TD_OK;
}

void td_resident_close(td_resident_experts *r) {
    if (!r) return;
    if (r->has_thread) {
        atomic_store_explicit(&r->stop, true, memory_order_release);
        td_signal_add(&r->news);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t c = 0; c < r->s.n_cards; c++) close_card(r, &r->cards[c]);
    if (r->has_mutex) pthread_mutex_destroy(&r->device);
    td_residency_policy_close(r->policy);
    free(r->slot_of);
    free(r->free_slots);
    free(r->n_free);
    free(r->chosen);
    free(r->n_chosen);
    free(r->held);
    free(r);
}

uint32_t td_resident_count(const td_resident_experts *r) {
    return atomic_load_explicit(&r->resident, memory_order_relaxed);
}

void td_resident_report(const td_resident_experts *r, td_residency_counts *out) {
    const uint64_t uploads = atomic_load_explicit(&r->uploads, memory_order_relaxed);
    *out = (td_residency_counts){
        .hits = atomic_load_explicit(&r->hits, memory_order_relaxed),
        .misses = atomic_load_explicit(&r->misses, memory_order_relaxed),
        .streamed = atomic_load_explicit(&r->streamed, memory_order_relaxed),
        .uploads = uploads,
        .failed = atomic_load_explicit(&r->failed, memory_order_relaxed),
        .reads = atomic_load_explicit(&r->reads, memory_order_relaxed),
        .unread = atomic_load_explicit(&r->unread, memory_order_relaxed),
        .upload_bytes = uploads * r->s.packed.bytes,
        .upload_ns = atomic_load_explicit(&r->upload_ns, memory_order_relaxed),
        .resident = td_resident_count(r),
        .slots = r->s.n_layers * r->s.n_slots,
        .drops = r->s.drop,
        .dropped_bytes = atomic_load_explicit(&r->dropped, memory_order_relaxed) * td_packed_drop_bytes(&r->s.packed)};
}
