#include "bridge/bridge.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/chaos.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/signal_word.h"
#include "core/thread.h"

#define N_BUFFERS 5

/* A ticket's buffers on both sides; the same pointers with unified memory. Those of half 1 lie in those of half 0. */
typedef struct {
    td_bridge_buffers host, dev;
    const td_bridge_port *port; /* whose ticket fills the slot now */
    uint32_t n_tok, n_immediate;
} slot;

struct td_bridge_port {
    td_bridge     *bridge;
    td_bridge_port *next; /* the bridge's list, for close */
    slot          *slot, *before; /* before: of the half's MoE layer before, whose deferred sum arrives with this one */
    uint32_t       layer, model_layer, max_tok;
    bool           last;
    const td_step *step; /* of the pass under way */
};

struct td_bridge {
    td_bridge_config c;
    bool             unified;
    size_t           row_bytes[N_BUFFERS]; /* of x, ids, weights, y, y_deferred */
    slot             slots[TD_BRIDGE_PARITIES][TD_HALVES];
    td_bridge_port  *ports;
    uint32_t         n_submitted, n_collected; /* the stream's own count of tickets */
    td_signal        submitted, progress;      /* see DESIGN */
    bool             stop;                     /* written before submitted's last rise */
    bool             has_thread;
    pthread_t        thread;
    slot            *queue[TD_BRIDGE_OPEN_MAX]; /* ticket n's at n % OPEN_MAX; written before submitted is raised */
    _Atomic uint32_t in_pass;                  /* from the first submit to the end of the pass; relaxed: for how long to spin */
    _Atomic int      error;                    /* td_status */
    _Atomic uint64_t n_deferred;
};

static void buffer_rows(const td_bridge_config *c, size_t row_bytes[N_BUFFERS]) {
    row_bytes[0] = row_bytes[3] = c->hidden * td_dtype_bytes(c->act_dtype);
    row_bytes[1] = c->top_k * sizeof(uint16_t);
    row_bytes[2] = c->top_k * sizeof(float);
    row_bytes[4] = c->max_deferred ? row_bytes[0] : 0;
}

uint64_t td_bridge_bytes(const td_bridge_config *c, bool unified_memory) {
    size_t   row_bytes[N_BUFFERS];
    uint64_t sum = 0;
    buffer_rows(c, row_bytes);
    for (int i = 0; i < N_BUFFERS; i++) sum += td_round_up(row_bytes[i] * c->max_tok, TD_PAGE_BYTES);
    return sum * TD_BRIDGE_PARITIES * (unified_memory ? 1 : 2);
}

/* The five buffers of a slot as an array, in the order of buffer_rows. */
static void **buffer_at(td_bridge_buffers *b, int i) {
    void **at[N_BUFFERS] = {&b->x, (void **)&b->ids, (void **)&b->weights, &b->y, &b->y_deferred};
    return at[i];
}

static td_status allocate(td_bridge *b, td_error *err) {
    td_npu *d = b->c.npu;
    for (int p = 0; p < TD_BRIDGE_PARITIES; p++)
        for (int i = 0; i < N_BUFFERS; i++) {
            slot  *whole = &b->slots[p][0], *second = &b->slots[p][1];
            size_t bytes = b->row_bytes[i] * b->c.max_tok, offset = b->row_bytes[i] * td_first_half(b->c.max_tok);
            if (!bytes) continue;
            TD_TRY(d->ops->host_alloc(d, bytes, buffer_at(&whole->host, i), err));
            if (b->unified)
                *buffer_at(&whole->dev, i) = *buffer_at(&whole->host, i);
            else
                TD_TRY(d->ops->alloc(d, bytes, buffer_at(&whole->dev, i), err));
            *buffer_at(&second->host, i) = (char *)*buffer_at(&whole->host, i) + offset;
            *buffer_at(&second->dev, i) = (char *)*buffer_at(&whole->dev, i) + offset;
        }
    return TD_OK;
}

static void set_error(td_bridge *b, td_status st) {
    int none = TD_OK;
    atomic_compare_exchange_strong(&b->error, &none, (int)st);
}

static void immediate_done(void *user) {
    td_bridge *b = user;
    td_chaos_delay();
    td_signal_add(&b->progress);
    td_trace_instant(&(td_trace_label){.tier = TD_TRACE_BRIDGE, .name = "immediate sum done"});
}

static td_trace_label label_of(const char *name, td_trace_tier tier, const slot *t) {
    return (td_trace_label){tier, name, {"layer", "tokens"}, {t->port->model_layer, t->n_tok}};
}

/* Run a ticket: its sums into the slot's host buffers. Ids come from the device: a wrong one must not become a wild read. */
static void run_ticket(td_bridge *b, slot *t, void (*on_immediate)(void *)) {
    const td_bridge_config *c = &b->c;
    size_t                  pairs = (size_t)t->n_tok * c->top_k;
    for (size_t i = 0; i < pairs; i++)
        if (t->host.ids[i] >= c->n_experts) {
            set_error(b, TD_EDEVICE);
            memset(t->host.y, 0, b->row_bytes[3] * t->n_tok);
            if (t->host.y_deferred) memset(t->host.y_deferred, 0, b->row_bytes[4] * t->n_tok);
            if (on_immediate) on_immediate(b);
            return;
        }
    td_ffn_args a = {
        .n_tok = t->n_tok, .top_k = c->top_k, .x = t->host.x, .ids = t->host.ids, .weights = t->host.weights,
        .n_immediate = t->n_immediate, .y = t->host.y, .y_deferred = t->host.y_deferred,
        .immediate_done = on_immediate, .user = b,
    };
    uint64_t begin = td_trace_begin();
    td_experts_ffn(c->experts, t->port->layer, &a);
    td_trace_label label = label_of("experts", TD_TRACE_CPU, t);
    td_trace_end(begin, &label);
    atomic_fetch_add_explicit(&b->n_deferred, (uint64_t)t->n_tok * (c->top_k - t->n_immediate), memory_order_relaxed);
}

/* Both sides are needed again soon while a pass is under way. It is the bridge's own: another's pass is no reason to keep a core. */
static td_spin wait_policy(const td_bridge *b) {
    td_spin spin = td_pool_spin(b->c.pool);
    if (spin.held) spin.held = &b->in_pass;
    return spin;
}

static void *expert_main(void *arg) {
    td_bridge *b = arg;
    const td_spin spin = wait_policy(b);
    td_pool_pin_caller(b->c.pool);
    for (uint32_t n = 0;; n++) {
        td_signal_wait(&b->submitted, n, spin);
        if (b->stop) return NULL;
        td_chaos_delay();
        run_ticket(b, b->queue[n % TD_BRIDGE_OPEN_MAX], immediate_done);
        td_chaos_delay();
        td_signal_add(&b->progress);
    }
}

td_status td_bridge_open(const td_bridge_config *c, td_bridge **out, td_error *err) {
    *out = NULL;
    if (!c->top_k || c->max_deferred >= c->top_k)
        return td_fail(err, TD_EINVAL, "at most %u of %u experts per token can be deferred, not %u", c->top_k ? c->top_k - 1 : 0, c->top_k, c->max_deferred);
    td_bridge *b = aligned_alloc(TD_CACHE_LINE, td_round_up(sizeof *b, TD_CACHE_LINE));
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for the bridge");
    memset(b, 0, sizeof *b);
    b->c = *c;
    td_npu_caps caps;
    c->npu->ops->caps(c->npu, &caps);
    b->unified = caps.unified_memory;
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
        td_signal_add(&b->submitted);
        pthread_join(b->thread, NULL);
    }
    td_npu *d = b->c.npu;
    for (int p = 0; p < TD_BRIDGE_PARITIES; p++)
        for (int i = 0; i < N_BUFFERS; i++) {
            void *host = *buffer_at(&b->slots[p][0].host, i), *dev = *buffer_at(&b->slots[p][0].dev, i);
            if (dev && dev != host) d->ops->free(d, dev, b->row_bytes[i] * b->c.max_tok);
            if (host) d->ops->host_free(d, host, b->row_bytes[i] * b->c.max_tok);
        }
    while (b->ports) {
        td_bridge_port *p = b->ports;
        b->ports = p->next;
        free(p);
    }
    free(b);
}

void td_bridge_get_buffers(const td_bridge *b, uint32_t parity, uint32_t half, td_bridge_buffers *out) {
    assert(parity < TD_BRIDGE_PARITIES && half < TD_HALVES);
    *out = b->slots[parity][half].dev;
}

td_status td_bridge_port_create(td_bridge *b, const td_bridge_port_desc *desc, td_bridge_port **out, td_error *err) {
    assert(desc->parity < TD_BRIDGE_PARITIES && desc->half < TD_HALVES);
    uint32_t        first_row = desc->half ? td_first_half(b->c.max_tok) : 0;
    td_bridge_port *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a bridge port");
    *p = (td_bridge_port){.bridge = b, .next = b->ports, .layer = desc->layer, .model_layer = desc->model_layer,
                          .slot = &b->slots[desc->parity][desc->half], .before = &b->slots[(desc->parity + 1) % TD_BRIDGE_PARITIES][desc->half],
                          .max_tok = b->c.max_tok - first_row, .last = desc->last};
    b->ports = p;
    return TD_OK;
}

/* In stream order: the slot is filled, queue its ticket. */
static void submit_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    slot           *t = p->slot;
    td_chaos_delay();
    assert(b->n_submitted - b->n_collected < TD_BRIDGE_OPEN_MAX);
    t->port = p;
    t->n_tok = p->step->n_tok;
    t->n_immediate = b->c.top_k - (p->last ? 0 : b->c.max_deferred);
    b->queue[b->n_submitted++ % TD_BRIDGE_OPEN_MAX] = t;
    td_trace_label label = label_of("submit", TD_TRACE_BRIDGE, t);
    td_trace_instant(&label);
    atomic_store_explicit(&b->in_pass, 1, memory_order_relaxed);
    if (b->c.async) td_signal_add(&b->submitted);
}

static void await_progress(td_bridge *b, uint32_t want) {
    for (uint32_t v = td_signal_get(&b->progress); (int32_t)(v - want) < 0;) v = td_signal_wait(&b->progress, v, wait_policy(b));
}

/* In stream order: return when this ticket's immediate sum is there (tickets run in order, so the deferred sums of all before are
   too); the last of a pass is waited for to its end, so that nothing runs on after the stream was synchronised. */
static void collect_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    uint32_t        n = b->n_collected++;
    td_chaos_delay();
    if (!b->c.async) {
        run_ticket(b, p->slot, NULL);
        return;
    }
    uint64_t begin = td_trace_begin();
    await_progress(b, 2 * n + (p->last ? 2 : 1));
    td_trace_label label = label_of("wait for experts", TD_TRACE_BRIDGE, p->slot);
    td_trace_end(begin, &label);
}

static td_status copy_each(td_bridge *b, td_npu_stream *s, td_bridge_buffers *to, td_bridge_buffers *from, int first, int last, uint32_t n_tok,
                           td_copy_kind kind) {
    td_npu *d = b->c.npu;
    for (int i = first; i <= last; i++)
        if (b->row_bytes[i]) TD_TRY(d->ops->copy(d, s, *buffer_at(to, i), *buffer_at(from, i), b->row_bytes[i] * n_tok, kind));
    return TD_OK;
}

td_status td_bridge_enqueue_submit(td_bridge_port *p, td_npu_stream *s, const td_step *step) {
    td_bridge *b = p->bridge;
    assert(step->n_tok <= p->max_tok);
    p->step = step;
    if (!b->unified) TD_TRY(copy_each(b, s, &p->slot->host, &p->slot->dev, 0, 2, step->n_tok, TD_COPY_D2H));
    return b->c.npu->ops->host_call(b->c.npu, s, submit_call, p);
}

td_status td_bridge_enqueue_collect(td_bridge_port *p, td_npu_stream *s, const td_step *step) {
    td_bridge *b = p->bridge;
    TD_TRY(b->c.npu->ops->host_call(b->c.npu, s, collect_call, p));
    if (b->unified) return TD_OK;
    TD_TRY(copy_each(b, s, &p->slot->dev, &p->slot->host, 3, 3, step->n_tok, TD_COPY_H2D));
    return copy_each(b, s, &p->before->dev, &p->before->host, 4, 4, step->n_tok, TD_COPY_H2D);
}

td_status td_bridge_end_pass(td_bridge *b) {
    if (b->c.async) await_progress(b, 2 * b->n_submitted);
    atomic_store_explicit(&b->in_pass, 0, memory_order_relaxed);
    b->n_collected = b->n_submitted;
    return (td_status)atomic_exchange(&b->error, (int)TD_OK);
}

uint64_t td_bridge_deferred(const td_bridge *b) { return atomic_load_explicit(&b->n_deferred, memory_order_relaxed); }
