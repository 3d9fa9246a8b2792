#include "bridge/bridge.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/row_pace.h"
#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/chaos.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"
#include "kernels/exact_sum.h"
#include "npu/carried_rows.h"
#include "npu/raw_choice.h"

/* A slot's buffers in the order in which they are copied: up, then down. */
enum { X, X_CODES, X_SCALE, IDS, WEIGHTS, Y, Y_DEFERRED, N_BUFFERS };
#define LAST_UP WEIGHTS

/* A parity's buffers on both sides; the same pointers with unified memory. */
typedef struct {
    td_bridge_buffers host, dev;
} slot;

/* The two words of a port in pinned memory, each on a line of its own: the device spins on one while the expert tier writes
 * the other. */
typedef struct {
    _Alignas(TD_CPU_LINE) td_bell filled; /* the device rings it: the slot is filled */
    _Alignas(TD_CPU_LINE) td_bell summed; /* the expert thread does: the sums that its collect takes are there */
} bells;

struct td_bridge_port {
    td_bridge      *bridge;
    td_bridge_port *next; /* the bridge's list, for close */
    slot  *slot, *before; /* before: of the half's MoE layer before, whose deferred sum arrives with this one; NULL: none */
    bells *bells;
    uint32_t layer, model_layer, half;
    bool     last;
};

struct td_bridge {
    td_bridge_config c;
    bool             unified, raw_choice;  /* as the device's caps */
    size_t           row_bytes[N_BUFFERS]; /* by buffer; 0: there is none */
    slot             slots[TD_BRIDGE_PARITIES];
    bells           *bells;             /* [max_ports] with doorbells */
    td_npu_stream   *branch[TD_HALVES]; /* where a half's sums come ahead; NULL: they do not */
    td_bridge_port  *ports;
    uint32_t         n_ports;
    td_bridge_pass   pass;               /* under way; written before n_begun rises */
    uint32_t         n_collected;        /* tickets of the pass; the stream's own count */
    td_signal        news, steps_on;     /* for the expert thread; for the stream: something below has changed */
    _Atomic uint32_t n_begun, n_ended;   /* passes */
    _Atomic uint32_t n_filled, progress; /* of the pass; see DESIGN */
    _Atomic bool     closed;             /* the pass: no ticket is filled any more */
    bool             stop;               /* written before n_begun's last rise */
    bool             has_thread;
    pthread_t        thread;
    _Atomic uint32_t in_pass; /* from the begin to the end of a pass; relaxed: for how long to spin */
    _Atomic int      error;   /* td_status */
    _Atomic uint64_t n_deferred;
    /* Of who runs tickets, during a pass; others read it between passes: */
    uint32_t  n_started;                /* tickets of the pass */
    uint32_t  done[TD_BRIDGE_OPEN_MAX]; /* rows of ticket n that have sums, at n % TD_BRIDGE_OPEN_MAX */
    bool      has_run;                  /* some rows of the pass have */
    uint16_t *ids;                      /* [max_tok, top_k] each, with raw_choice: the ticket's, in order */
    float    *weights;
    double    row_ns; /* how long a row took the last time; 0: there was none */
};

static void buffer_rows(const td_bridge_config *c, size_t row_bytes[N_BUFFERS]) {
    size_t      row = c->spec->hidden * td_dtype_bytes(c->spec->act_dtype);
    td_npu_caps caps;
    c->npu->ops->caps(c->npu, &caps);
    row_bytes[X] = c->x_int8 ? 0 : row;
    row_bytes[X_CODES] = c->x_int8 ? c->spec->hidden : 0;
    row_bytes[X_SCALE] = c->x_int8 ? sizeof(float) : 0;
    row_bytes[IDS] = c->spec->top_k * td_npu_id_bytes(&caps);
    row_bytes[WEIGHTS] = c->spec->top_k * sizeof(float);
    row_bytes[Y] = c->in_parts ? td_exact_words(c->spec->hidden) * sizeof(int32_t) : row;
    row_bytes[Y_DEFERRED] = c->spec->max_deferred ? row_bytes[Y] : 0;
}

void td_bridge_row_bytes(const td_bridge_config *c, size_t *to_host, size_t *to_device) {
    size_t row_bytes[N_BUFFERS];
    buffer_rows(c, row_bytes);
    *to_host = *to_device = 0;
    for (int i = 0; i < N_BUFFERS; i++) *(i <= LAST_UP ? to_host : to_device) += row_bytes[i];
}

uint64_t td_bridge_bytes(const td_bridge_config *c) {
    size_t   row_bytes[N_BUFFERS];
    uint64_t sum = 0;
    buffer_rows(c, row_bytes);
    for (int i = 0; i < N_BUFFERS; i++) sum += td_round_up(row_bytes[i] * c->spec->max_tok, td_page_bytes());
    return sum * TD_BRIDGE_PARITIES + td_round_up(c->max_ports * sizeof(bells), td_page_bytes());
}

/* The buffers of a slot by number. */
static void **buffer_at(td_bridge_buffers *b, int i) {
    void **at[N_BUFFERS] = {&b->x, (void **)&b->x_i8.q, (void **)&b->x_i8.scale, &b->ids, (void **)&b->weights,
                            &b->y, &b->y_deferred};
    return at[i];
}

static td_status allocate(td_bridge *b, td_error *err) {
    td_npu      *d = b->c.npu;
    const size_t pairs = (size_t)b->c.spec->max_tok * b->c.spec->top_k;
    if (b->raw_choice) {
        b->ids = malloc(pairs * sizeof *b->ids);
        b->weights = malloc(pairs * sizeof *b->weights);
        if (!b->ids || !b->weights) return td_fail(err, TD_ENOMEM, "out of memory for the choice of experts");
    }
    for (int p = 0; p < TD_BRIDGE_PARITIES; p++)
        for (int i = 0; i < N_BUFFERS; i++) {
            size_t bytes = b->row_bytes[i] * b->c.spec->max_tok;
            if (!bytes) continue;
            TD_TRY(d->ops->host_alloc(d, bytes, buffer_at(&b->slots[p].host, i), err));
            if (b->unified)
                *buffer_at(&b->slots[p].dev, i) = *buffer_at(&b->slots[p].host, i);
            else
                TD_TRY(d->ops->alloc(d, bytes, buffer_at(&b->slots[p].dev, i), err));
        }
    if (b->c.handover != TD_HANDOVER_DOORBELL || !b->c.max_ports) return TD_OK;
    TD_TRY(d->ops->host_alloc(d, b->c.max_ports * sizeof *b->bells, (void **)&b->bells, err));
    const bool has_branches = d->ops->graph_fork && !b->unified;
    for (int half = 0; half < TD_HALVES && has_branches; half++) TD_TRY(d->ops->stream_create(d, &b->branch[half], err));
    return TD_OK;
}

static void set_error(td_bridge *b, td_status st) {
    int none = TD_OK;
    atomic_compare_exchange_strong(&b->error, &none, (int)st);
}

static const td_step *step_of(const td_bridge_port *p) {
    return p->bridge->pass.steps[p->half];
}
static uint32_t tokens_of(const td_bridge_port *p) {
    return step_of(p)->host.counts->n_tok;
}

static td_trace_label label_of(const char *name, td_trace_tier tier, const td_bridge_port *p) {
    return (td_trace_label){tier, name, {"layer", "tokens"}, {p->model_layer, tokens_of(p)}};
}

/* ---- what the two sides tell each other -------------------------------------------------------- */

/* Both sides are needed again soon while a pass is under way. It is the bridge's own: another's pass is no reason to keep a
 * core. */
static td_spin wait_policy(const td_bridge *b) {
    td_spin spin = td_pool_spin(b->c.pool);
    if (spin.held) spin.held = &b->in_pass;
    return spin;
}

/* Partner of await: the count is raised before the signal. */
static void raise_count(_Atomic uint32_t *count, td_signal *s) {
    atomic_fetch_add_explicit(count, 1, memory_order_release);
    td_signal_add(s);
}

/* What the expert thread's progress is when a ticket may be collected: the last of a half is waited for to its end, so that
 * nothing runs on after the stream was synchronised. */
static uint32_t progress_of(const td_bridge_port *p, uint32_t n) {
    return 2 * n + (p->last ? 2 : 1);
}

/* In stream order: until the expert thread has come so far in this pass. */
static void await_progress(td_bridge *b, uint32_t want) {
    for (uint32_t seen = td_signal_get(&b->steps_on); atomic_load_explicit(&b->progress, memory_order_acquire) < want;)
        seen = td_signal_wait(&b->steps_on, seen, wait_policy(b));
}

/* The expert thread: until ticket n of the pass is filled. @return false: it never will be. */
static bool await_call(td_bridge *b, uint32_t n) {
    for (;;) {
        uint32_t seen = td_signal_get(&b->news);
        bool     closed = atomic_load_explicit(
                &b->closed, memory_order_acquire); /* before the count: a pass is closed after its last submit */
        if (atomic_load_explicit(&b->n_filled, memory_order_acquire) > n) return true;
        if (closed) return false;
        td_signal_wait(&b->news, seen, wait_policy(b));
    }
}

/* Never asleep: a pass is under way. A thread that has its core to itself keeps it. */
static bool await_bell(td_bridge *b, td_bell *bell) {
    const td_spin spin = wait_policy(b);
    uint64_t      until_ns = td_trace_now() + spin.us * UINT64_C(1000);
    for (;;) {
        bool closed = atomic_load_explicit(&b->closed, memory_order_acquire);
        if (atomic_load_explicit(bell, memory_order_acquire)) {   /* with the device's bell_ring */
            atomic_store_explicit(bell, 0, memory_order_relaxed); /* the device rings it again in another pass */
            return true;
        }
        if (closed) return false;
        if (spin.held || td_trace_now() < until_ns)
            td_cpu_relax();
        else
            sched_yield();
    }
}

/* A pass that may end within a ticket has been closed. */
static bool is_left(const td_bridge *b) {
    return b->pass.until_ns && atomic_load_explicit(&b->closed, memory_order_acquire);
}

static bool await_filled(td_bridge *b, uint32_t n) {
    return b->bells ? await_bell(b, &b->pass.order[n]->bells->filled) : await_call(b, n);
}

/* The sums that this ticket's collect takes are there. */
static void tell_summed(td_bridge_port *p) {
    if (p->bells) atomic_store_explicit(&p->bells->summed, 1, memory_order_release); /* with the device's bell_wait */
}

static void immediate_done(void *port) {
    td_bridge_port *p = port;
    td_chaos_delay();
    raise_count(&p->bridge->progress, &p->bridge->steps_on);
    if (!p->last) tell_summed(p);
    td_trace_instant(&(td_trace_label){.tier = TD_TRACE_BRIDGE, .name = "immediate sum done"});
}

/* ---- tickets ----------------------------------------------------------------------------------- */

static void *row_of(const td_bridge *b, td_bridge_buffers *buffers, int i, uint32_t row) {
    char *base = *buffer_at(buffers, i);
    return base ? base + b->row_bytes[i] * row : NULL;
}

/* Sums of no experts. */
static void add_nothing(td_bridge_port *p, const td_ffn_args *a) {
    td_bridge *b = p->bridge;
    memset(a->y, 0, b->row_bytes[Y] * a->n_tok);
    if (a->y_deferred) memset(a->y_deferred, 0, b->row_bytes[Y_DEFERRED] * a->n_tok);
    if (a->immediate_done) a->immediate_done(p);
}

static bool are_experts(const uint16_t *ids, size_t n, uint32_t n_experts) {
    for (size_t i = 0; i < n; i++)
        if (td_id_number(ids[i]) >= n_experts) return false;
    return true;
}

/* The choice of row `row` as the experts take it. */
typedef struct {
    const uint16_t *ids;
    const float    *weights;
} choice;

static choice choice_of(const td_bridge_port *p, uint32_t row) {
    const td_bridge         *b = p->bridge;
    const td_bridge_buffers *host = &p->slot->host;
    const size_t             at = (size_t)row * b->c.spec->top_k;
    if (b->raw_choice) return (choice){b->ids + at, b->weights + at};
    return (choice){(const uint16_t *)host->ids + at, host->weights + at};
}

/* Ids come from the device: a wrong one must not become a wild read. @param tell what was chosen */
static void take_choice(td_bridge_port *p, bool tell) {
    td_bridge         *b = p->bridge;
    const uint32_t     first = step_of(p)->first_row, n_tok = tokens_of(p), top_k = b->c.spec->top_k;
    const size_t       at = (size_t)first * top_k;
    td_bridge_buffers *host = &p->slot->host;
    const choice       c = choice_of(p, first);
    const bool known = b->raw_choice ? td_raw_choice_sort((const int32_t *)host->ids + at, host->weights + at, n_tok, top_k,
                                                          b->c.spec->n_experts, b->ids + at, b->weights + at)
                                     : are_experts(c.ids, (size_t)n_tok * top_k, b->c.spec->n_experts);
    if (!known)
        set_error(b, TD_EDEVICE);
    else if (tell && b->c.chosen)
        b->c.chosen(b->c.user, p->layer, first, n_tok, c.ids);
}

/* Rows row .. row + n_tok - 1 of a ticket: their sums into the slot's host buffers. */
static void run_rows(td_bridge_port *p, uint32_t row, uint32_t n_tok, void (*on_immediate)(void *)) {
    td_bridge              *b = p->bridge;
    const td_bridge_config *c = &b->c;
    const uint32_t          first = step_of(p)->first_row + row;
    td_bridge_buffers      *host = &p->slot->host;
    const choice            chosen = choice_of(p, first);
    td_ffn_args             a = {
                    .n_tok = n_tok,
                    .top_k = c->spec->top_k,
                    .x = row_of(b, host, X, first),
                    .x_i8 = row_of(b, host, X_CODES, first),
                    .x_scale = row_of(b, host, X_SCALE, first),
                    .ids = chosen.ids,
                    .weights = chosen.weights,
                    .n_immediate = c->spec->top_k - (p->last ? 0 : c->spec->max_deferred),
                    .y = row_of(b, host, Y, first),
                    .y_deferred = row_of(b, host, Y_DEFERRED, first),
                    .in_parts = c->in_parts,
                    .immediate_done = on_immediate,
                    .user = p,
    };
    if (!c->experts || atomic_load_explicit(&b->error, memory_order_relaxed) != TD_OK) {
        add_nothing(p, &a);
        return;
    }
    const uint64_t begin = td_trace_begin();
    td_experts_ffn(c->experts, p->layer, &a);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_CPU, "experts", {"layer", "tokens"}, {p->model_layer, n_tok}});
    atomic_fetch_add_explicit(&b->n_deferred, (uint64_t)n_tok * (c->spec->top_k - a.n_immediate), memory_order_relaxed);
}

/* How many of a ticket's rows are computed next. The first rows of a pass are computed whatever the time.
 * @return 0: none, as there is no time for more, or somebody waits */
static uint32_t rows_in_time(const td_bridge *b, uint32_t left) {
    const td_bridge_pass *pass = &b->pass;
    if (!pass->until_ns) return left;
    const uint32_t few = left < TD_ROWS_AT_LEAST ? left : TD_ROWS_AT_LEAST;
    if (td_chaos_seeded()) return b->has_run && td_chaos_cuts() ? 0 : 1 + left / 3;
    if (!b->has_run && !b->row_ns) return few;
    if (b->has_run && pass->waited_for && atomic_load_explicit(pass->waited_for, memory_order_relaxed)) return 0;
    const uint64_t    now = td_trace_now();
    const td_row_time time = {.row_ns = b->row_ns,
                              .left_ns = now < pass->until_ns ? (double)(pass->until_ns - now) : 0,
                              .part_ns = pass->waited_for ? (double)pass->part_ns : 0};
    const uint32_t    rows = td_rows_in_time(&time, left);
    return rows || b->has_run ? rows : few;
}

/* Compute a ticket's rows, or what there is time for. @return whether all are done */
static bool run_ticket(td_bridge_port *p, uint32_t n, void (*on_immediate)(void *)) {
    td_bridge     *b = p->bridge;
    const uint32_t n_tok = tokens_of(p);
    uint32_t      *done = &b->done[n % TD_BRIDGE_OPEN_MAX];
    if (n >= b->n_started) {
        *done = n < TD_BRIDGE_OPEN_MAX ? b->pass.done[n] : 0;
        b->n_started = n + 1;
        take_choice(p, *done == 0);
    }
    if (*done == n_tok) {
        if (on_immediate) on_immediate(p);
        return true;
    }
    for (uint32_t rows; *done < n_tok; *done += rows) {
        const uint64_t begin_ns = td_trace_now();
        rows = is_left(b) ? 0 : rows_in_time(b, n_tok - *done);
        if (!rows) return false;
        run_rows(p, *done, rows, *done + rows == n_tok ? on_immediate : NULL);
        b->has_run = true;
        if (b->pass.until_ns && rows >= TD_ROWS_AT_LEAST) b->row_ns = (double)(td_trace_now() - begin_ns) / rows;
    }
    return true;
}

static void run_pass(td_bridge *b) {
    for (uint32_t n = 0; n < b->pass.n_tickets && !is_left(b) && await_filled(b, n); n++) {
        td_bridge_port *p = b->pass.order[n];
        td_chaos_delay();
        if (!run_ticket(p, n, immediate_done)) break;
        td_chaos_delay();
        raise_count(&b->progress, &b->steps_on);
        if (p->last) tell_summed(p);
    }
}

static void *expert_main(void *arg) {
    td_bridge *b = arg;
    td_pool_pin_caller(b->c.pool);
    for (uint32_t n = 0;; n++) {
        for (uint32_t seen = td_signal_get(&b->news); atomic_load_explicit(&b->n_begun, memory_order_acquire) == n;)
            seen = td_signal_wait(&b->news, seen, wait_policy(b));
        if (b->stop) return NULL;
        run_pass(b);
        raise_count(&b->n_ended, &b->steps_on);
    }
}

/* ---- life -------------------------------------------------------------------------------------- */

td_status td_bridge_open(const td_bridge_config *c, td_bridge **out, td_error *err) {
    *out = NULL;
    if (!c->spec->top_k || c->spec->max_deferred >= c->spec->top_k)
        return td_fail(err, TD_EINVAL, "at most %u of %u experts per token can be deferred, not %u",
                       c->spec->top_k ? c->spec->top_k - 1 : 0, c->spec->top_k, c->spec->max_deferred);
    td_bridge *b = aligned_alloc(TD_CPU_LINE, td_round_up(sizeof *b, TD_CPU_LINE));
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for the bridge");
    memset(b, 0, sizeof *b);
    b->c = *c;
    if (!c->async) b->c.handover = TD_HANDOVER_HOST_CALL;
    td_npu_caps caps;
    c->npu->ops->caps(c->npu, &caps);
    b->unified = caps.unified_memory;
    b->raw_choice = caps.raw_choice;
    buffer_rows(c, b->row_bytes);
    td_status st = allocate(b, err);
    if (st == TD_OK && c->async) {
        st = td_thread_start(&b->thread, "experts 0", expert_main, b, err);
        b->has_thread = st == TD_OK;
    }
    if (st != TD_OK) {
        td_bridge_close(b);
        return st;
    }
    *out = b;
    return TD_OK;
}

void td_bridge_close(td_bridge *b) {
    if (!b) return;
    if (b->has_thread) {
        b->stop = true;
        raise_count(&b->n_begun, &b->news);
        pthread_join(b->thread, NULL);
    }
    td_npu *d = b->c.npu;
    for (int half = 0; half < TD_HALVES; half++)
        if (b->branch[half]) d->ops->stream_destroy(d, b->branch[half]);
    for (int p = 0; p < TD_BRIDGE_PARITIES; p++)
        for (int i = 0; i < N_BUFFERS; i++) {
            void *host = *buffer_at(&b->slots[p].host, i), *dev = *buffer_at(&b->slots[p].dev, i);
            if (dev && dev != host) d->ops->free(d, dev, b->row_bytes[i] * b->c.spec->max_tok);
            if (host) d->ops->host_free(d, host, b->row_bytes[i] * b->c.spec->max_tok);
        }
    free(b->ids);
    free(b->weights);
    if (b->bells) d->ops->host_free(d, b->bells, b->c.max_ports * sizeof *b->bells);
    while (b->ports) {
        td_bridge_port *p = b->ports;
        b->ports = p->next;
        free(p);
    }
    free(b);
}

void td_bridge_get_buffers(const td_bridge *b, uint32_t parity, td_bridge_buffers *out) {
    assert(parity < TD_BRIDGE_PARITIES);
    *out = b->slots[parity].dev;
}

void td_bridge_get_host_buffers(const td_bridge *b, uint32_t parity, td_bridge_buffers *out) {
    assert(parity < TD_BRIDGE_PARITIES);
    *out = b->slots[parity].host;
}

void td_bridge_get_choice(const td_bridge *b, uint32_t parity, uint32_t first_row, uint32_t n_tok, uint16_t *ids,
                          float *weights) {
    const td_bridge_buffers *host = &b->slots[parity].host;
    const size_t             at = (size_t)first_row * b->c.spec->top_k, pairs = (size_t)n_tok * b->c.spec->top_k;
    assert(parity < TD_BRIDGE_PARITIES);
    if (b->raw_choice) {
        (void)td_raw_choice_sort((const int32_t *)host->ids + at, host->weights + at, n_tok, b->c.spec->top_k,
                                 b->c.spec->n_experts, ids, weights); /* a wrong id ends the pass: take_choice */
        return;
    }
    memcpy(ids, (const uint16_t *)host->ids + at, pairs * sizeof *ids);
    memcpy(weights, host->weights + at, pairs * sizeof *weights);
}

td_status td_bridge_port_create(td_bridge *b, const td_bridge_port_desc *desc, td_bridge_port **out, td_error *err) {
    assert(desc->parity < TD_BRIDGE_PARITIES && desc->half < TD_HALVES && b->n_ports < b->c.max_ports);
    td_bridge_port *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a bridge port");
    *p = (td_bridge_port){.bridge = b,
                          .next = b->ports,
                          .layer = desc->layer,
                          .model_layer = desc->model_layer,
                          .half = desc->half,
                          .last = desc->last,
                          .slot = &b->slots[desc->parity],
                          .before = desc->first ? NULL : &b->slots[(desc->parity + 1) % TD_BRIDGE_PARITIES],
                          .bells = b->bells ? &b->bells[b->n_ports] : NULL};
    b->ports = p;
    b->n_ports++;
    return TD_OK;
}

uint32_t td_bridge_port_layer(const td_bridge_port *p) {
    return p->layer;
}

/* ---- a pass ------------------------------------------------------------------------------------ */

void td_bridge_begin_pass(td_bridge *b, const td_bridge_pass *pass) {
    b->pass = *pass;
    b->n_collected = b->n_started = 0;
    b->has_run = false;
    atomic_store_explicit(&b->n_filled, 0, memory_order_relaxed); /* published by n_begun */
    atomic_store_explicit(&b->progress, 0, memory_order_relaxed);
    atomic_store_explicit(&b->closed, false, memory_order_relaxed);
    atomic_store_explicit(&b->in_pass, 1, memory_order_relaxed);
    if (b->c.async) raise_count(&b->n_begun, &b->news);
}

/* In stream order: the slot is filled. */
static void submit_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    td_chaos_delay();
    assert(atomic_load_explicit(&b->n_filled, memory_order_relaxed) - b->n_collected < TD_BRIDGE_OPEN_MAX);
    td_trace_label label = label_of("submit", TD_TRACE_BRIDGE, p);
    td_trace_instant(&label);
    if (b->c.async)
        raise_count(&b->n_filled, &b->news);
    else
        atomic_fetch_add_explicit(&b->n_filled, 1, memory_order_relaxed);
}

/* In stream order: return when this ticket's immediate sum is there (tickets run in order, so the deferred sums of all
 * before are too). */
static void collect_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    uint32_t        n = b->n_collected++;
    td_chaos_delay();
    if (!b->c.async) {
        run_ticket(p, n, NULL);
        return;
    }
    uint64_t begin = td_trace_begin();
    await_progress(b, progress_of(p, n));
    td_trace_label label = label_of("wait for experts", TD_TRACE_BRIDGE, p);
    td_trace_end(begin, &label);
}

/* Put the step's rows of buffers first to last behind the others; of two memories only. */
static void add_carried(const td_bridge *b, td_carried *rows, td_bridge_buffers *to, td_bridge_buffers *from, int first,
                        int last) {
    uint32_t row = rows->step->first_row;
    for (int i = first; i <= last && !b->unified; i++) {
        if (!b->row_bytes[i]) continue;
        assert(rows->n < TD_CARRIED_ARRAYS);
        rows->arrays[rows->n].to = row_of(b, to, i, row);
        rows->arrays[rows->n].from = row_of(b, from, i, row);
        rows->arrays[rows->n++].row_bytes = b->row_bytes[i];
    }
}

/* What a collect carries. */
static td_carried sums_of(const td_bridge_port *p, const td_step *step) {
    td_carried rows = {.step = step};
    add_carried(p->bridge, &rows, &p->slot->dev, &p->slot->host, Y, Y);
    if (p->before) add_carried(p->bridge, &rows, &p->before->dev, &p->before->host, Y_DEFERRED, Y_DEFERRED);
    return rows;
}

static bool come_ahead(const td_bridge_port *p, const td_carried *sums, bool captured) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < sums->n; i++) bytes += sums->arrays[i].row_bytes * sums->step->max_tok;
    return captured && p->bridge->branch[p->half] && bytes >= p->bridge->c.ahead_bytes;
}

/* By copies, since the stream itself may carry other rows at that time. */
static td_status enqueue_ahead(td_bridge_port *p, td_npu_stream *s, const td_carried *sums) {
    td_npu        *d = p->bridge->c.npu;
    td_npu_stream *branch = p->bridge->branch[p->half];
    TD_TRY(d->ops->graph_fork(d, s, branch));
    TD_TRY(d->ops->bell_wait(d, branch, &p->bells->summed, NULL));
    return td_carry_by_copies(d, branch, sums, TD_COPY_H2D);
}

td_status td_bridge_enqueue_submit(td_bridge_port *p, td_npu_stream *s, const td_step *step, bool captured) {
    td_bridge       *b = p->bridge;
    td_npu          *d = b->c.npu;
    td_carried       rows = {.step = step};
    const td_carried sums = sums_of(p, step);
    assert(step->first_row + step->max_tok <= b->c.spec->max_tok);
    add_carried(b, &rows, &p->slot->host, &p->slot->dev, X, LAST_UP);
    if (p->bells) {
        TD_TRY(d->ops->bell_ring(d, s, &p->bells->filled, &rows));
        return come_ahead(p, &sums, captured) ? enqueue_ahead(p, s, &sums) : TD_OK;
    }
    TD_TRY(td_carry_by_copies(d, s, &rows, TD_COPY_D2H));
    return d->ops->host_call(d, s, submit_call, p);
}

td_status td_bridge_enqueue_collect(td_bridge_port *p, td_npu_stream *s, const td_step *step, bool captured) {
    td_bridge       *b = p->bridge;
    td_npu          *d = b->c.npu;
    const td_carried sums = sums_of(p, step);
    if (come_ahead(p, &sums, captured)) return d->ops->graph_join(d, s, b->branch[p->half]);
    if (p->bells) return d->ops->bell_wait(d, s, &p->bells->summed, &sums);
    TD_TRY(d->ops->host_call(d, s, collect_call, p));
    return td_carry_by_copies(d, s, &sums, TD_COPY_H2D);
}

static bool steps_are_on(const td_bridge *b) {
    uint32_t ended = atomic_load_explicit(&b->n_ended, memory_order_acquire);
    return ended != atomic_load_explicit(&b->n_begun, memory_order_relaxed);
}

bool td_bridge_await_sums(td_bridge *b, uint32_t n) {
    td_bridge_port *p = b->pass.order[n];
    const uint32_t  want = progress_of(p, n);
    if (!b->c.async) return run_ticket(p, n, NULL);
    for (;;) {
        const uint32_t seen = td_signal_get(&b->steps_on);
        const bool     ended = !steps_are_on(b); /* before the count: the expert thread ends behind its last ticket */
        if (atomic_load_explicit(&b->progress, memory_order_acquire) >= want) return true;
        if (ended) return false;
        td_signal_wait(&b->steps_on, seen, wait_policy(b));
    }
}

/* What a pass that broke off left rung. */
static void silence_bells(const td_bridge *b) {
    for (uint32_t n = 0; b->bells && n < b->pass.n_tickets; n++) {
        if (b->pass.until_ns) atomic_store_explicit(&b->pass.order[n]->bells->filled, 0, memory_order_relaxed);
        atomic_store_explicit(&b->pass.order[n]->bells->summed, 0, memory_order_relaxed);
    }
}

td_status td_bridge_end_pass(td_bridge *b) {
    if (b->c.async) {
        atomic_store_explicit(&b->closed, true, memory_order_release);
        td_signal_add(&b->news);
        for (uint32_t seen = td_signal_get(&b->steps_on); steps_are_on(b);)
            seen = td_signal_wait(&b->steps_on, seen, wait_policy(b));
        silence_bells(b);
    }
    atomic_store_explicit(&b->in_pass, 0, memory_order_relaxed);
    return (td_status)atomic_exchange(&b->error, (int)TD_OK);
}

uint32_t td_bridge_rows_done(const td_bridge *b, uint32_t n) {
    if (n < b->n_started) return b->done[n % TD_BRIDGE_OPEN_MAX];
    return n < TD_BRIDGE_OPEN_MAX ? b->pass.done[n] : 0;
}

uint64_t td_bridge_deferred(const td_bridge *b) {
    return atomic_load_explicit(&b->n_deferred, memory_order_relaxed);
}
