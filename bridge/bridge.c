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

#define N_BUFFERS 5

/* A ticket's buffers on both sides; the same pointers with unified memory. */
typedef struct {
    td_bridge_buffers host, dev;
    const td_bridge_port *port; /* whose ticket fills the slot now */
    uint32_t n_tok, n_immediate;
} slot;

struct td_bridge_port {
    td_bridge     *bridge;
    td_bridge_port *next; /* the bridge's list, for close */
    uint32_t       layer, model_layer, slot;
    bool           last;
    const td_step *step; /* of the pass under way */
};

struct td_bridge {
    td_bridge_config c;
    bool             unified;
    size_t           bytes[N_BUFFERS]; /* sizes of x, ids, weights, y, y_deferred of a slot */
    slot             slots[TD_BRIDGE_SLOTS];
    td_bridge_port  *ports;
    uint32_t         n_submitted, n_collected; /* the stream's own count of tickets */
    td_signal        submitted, progress;      /* see DESIGN */
    bool             stop;                     /* written before submitted's last rise */
    bool             has_thread;
    pthread_t        thread;
    uint32_t         queue[TD_BRIDGE_SLOTS];   /* ticket n's slot at n % SLOTS; written before submitted is raised */
    _Atomic int      error;                    /* td_status */
    _Atomic uint64_t n_deferred;
};

static size_t act_bytes(const td_bridge_config *c) { return (size_t)c->max_tok * c->hidden * td_dtype_bytes(c->act_dtype); }

static void buffer_sizes(const td_bridge_config *c, size_t bytes[N_BUFFERS]) {
    size_t pairs = (size_t)c->max_tok * c->top_k;
    bytes[0] = bytes[3] = act_bytes(c);
    bytes[1] = pairs * sizeof(uint16_t);
    bytes[2] = pairs * sizeof(float);
    bytes[4] = c->max_deferred ? act_bytes(c) : 0;
}

uint64_t td_bridge_bytes(const td_bridge_config *c, bool unified_memory) {
    size_t   bytes[N_BUFFERS];
    uint64_t sum = 0;
    buffer_sizes(c, bytes);
    for (int i = 0; i < N_BUFFERS; i++) sum += td_round_up(bytes[i], TD_PAGE_BYTES);
    return sum * TD_BRIDGE_SLOTS * (unified_memory ? 1 : 2);
}

/* The five buffers of a slot as an array, in the order of buffer_sizes. */
static void **buffer_at(td_bridge_buffers *b, int i) {
    void **at[N_BUFFERS] = {&b->x, (void **)&b->ids, (void **)&b->weights, &b->y, &b->y_deferred};
    return at[i];
}

static td_status allocate(td_bridge *b, td_error *err) {
    td_npu *d = b->c.npu;
    for (int s = 0; s < TD_BRIDGE_SLOTS; s++)
        for (int i = 0; i < N_BUFFERS; i++) {
            if (!b->bytes[i]) continue;
            TD_TRY(d->ops->host_alloc(d, b->bytes[i], buffer_at(&b->slots[s].host, i), err));
            if (b->unified)
                *buffer_at(&b->slots[s].dev, i) = *buffer_at(&b->slots[s].host, i);
            else
                TD_TRY(d->ops->alloc(d, b->bytes[i], buffer_at(&b->slots[s].dev, i), err));
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
            memset(t->host.y, 0, b->bytes[3]);
            if (t->host.y_deferred) memset(t->host.y_deferred, 0, b->bytes[4]);
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

static void *expert_main(void *arg) {
    td_bridge *b = arg;
    td_pool_pin_caller(b->c.pool);
    pthread_setname_np(pthread_self(), "experts 0");
    for (uint32_t n = 0;; n++) {
        td_signal_wait(&b->submitted, n, td_pool_spin_us(b->c.pool));
        if (b->stop) return NULL;
        td_chaos_delay();
        run_ticket(b, &b->slots[b->queue[n % TD_BRIDGE_SLOTS]], immediate_done);
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
    buffer_sizes(c, b->bytes);
    td_status st = allocate(b, err);
    if (st == TD_OK && c->async) {
        b->has_thread = pthread_create(&b->thread, NULL, expert_main, b) == 0;
        if (!b->has_thread) st = td_fail(err, TD_ENOMEM, "cannot start the expert thread");
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
    for (int s = 0; s < TD_BRIDGE_SLOTS; s++)
        for (int i = 0; i < N_BUFFERS; i++) {
            void *host = *buffer_at(&b->slots[s].host, i), *dev = *buffer_at(&b->slots[s].dev, i);
            if (dev && dev != host) d->ops->free(d, dev, b->bytes[i]);
            if (host) d->ops->host_free(d, host, b->bytes[i]);
        }
    while (b->ports) {
        td_bridge_port *p = b->ports;
        b->ports = p->next;
        free(p);
    }
    free(b);
}

void td_bridge_get_buffers(const td_bridge *b, uint32_t s, td_bridge_buffers *out) {
    assert(s < TD_BRIDGE_SLOTS);
    *out = b->slots[s].dev;
}

td_status td_bridge_port_create(td_bridge *b, uint32_t layer, uint32_t model_layer, uint32_t s, bool last, td_bridge_port **out, td_error *err) {
    assert(s < TD_BRIDGE_SLOTS);
    td_bridge_port *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a bridge port");
    *p = (td_bridge_port){.bridge = b, .next = b->ports, .layer = layer, .model_layer = model_layer, .slot = s, .last = last};
    b->ports = p;
    return TD_OK;
}

/* In stream order: the slot is filled, queue its ticket. */
static void submit_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    slot           *t = &b->slots[p->slot];
    td_chaos_delay();
    assert(b->n_submitted - b->n_collected < TD_BRIDGE_SLOTS);
    t->port = p;
    t->n_tok = p->step->n_tok;
    t->n_immediate = b->c.top_k - (p->last ? 0 : b->c.max_deferred);
    b->queue[b->n_submitted++ % TD_BRIDGE_SLOTS] = p->slot;
    td_trace_label label = label_of("submit", TD_TRACE_BRIDGE, t);
    td_trace_instant(&label);
    if (b->c.async) td_signal_add(&b->submitted);
}

/* In stream order: return when this ticket's immediate sum is there (tickets run in order, so the previous one's deferred sum is too);
   the last of a pass is waited for to its end, so that nothing runs on after the stream was synchronised. */
static void collect_call(void *arg) {
    td_bridge_port *p = arg;
    td_bridge      *b = p->bridge;
    uint32_t        n = b->n_collected++;
    td_chaos_delay();
    if (!b->c.async) {
        run_ticket(b, &b->slots[p->slot], NULL);
        return;
    }
    uint64_t begin = td_trace_begin();
    uint32_t want = 2 * n + (p->last ? 2 : 1);
    for (uint32_t v = td_signal_get(&b->progress); (int32_t)(v - want) < 0;) v = td_signal_wait(&b->progress, v, td_pool_spin_us(b->c.pool));
    td_trace_label label = label_of("wait for experts", TD_TRACE_BRIDGE, &b->slots[p->slot]);
    td_trace_end(begin, &label);
}

static td_status copy_each(td_bridge *b, td_npu_stream *s, td_bridge_buffers *to, td_bridge_buffers *from, int first, int last, uint32_t n_tok,
                           td_copy_kind kind) {
    td_npu *d = b->c.npu;
    for (int i = first; i <= last; i++)
        if (b->bytes[i]) TD_TRY(d->ops->copy(d, s, *buffer_at(to, i), *buffer_at(from, i), b->bytes[i] / b->c.max_tok * n_tok, kind));
    return TD_OK;
}

td_status td_bridge_enqueue_submit(td_bridge_port *p, td_npu_stream *s, const td_step *step) {
    td_bridge *b = p->bridge;
    slot      *t = &b->slots[p->slot];
    assert(step->n_tok <= b->c.max_tok);
    p->step = step;
    if (!b->unified) TD_TRY(copy_each(b, s, &t->host, &t->dev, 0, 2, step->n_tok, TD_COPY_D2H));
    return b->c.npu->ops->host_call(b->c.npu, s, submit_call, p);
}

td_status td_bridge_enqueue_collect(td_bridge_port *p, td_npu_stream *s, const td_step *step) {
    td_bridge *b = p->bridge;
    TD_TRY(b->c.npu->ops->host_call(b->c.npu, s, collect_call, p));
    if (b->unified) return TD_OK;
    slot *t = &b->slots[p->slot], *before = &b->slots[(p->slot + TD_BRIDGE_SLOTS - 1) % TD_BRIDGE_SLOTS];
    TD_TRY(copy_each(b, s, &t->dev, &t->host, 3, 3, step->n_tok, TD_COPY_H2D));
    return copy_each(b, s, &before->dev, &before->host, 4, 4, step->n_tok, TD_COPY_H2D);
}

td_status td_bridge_take_error(td_bridge *b) { return (td_status)atomic_exchange(&b->error, (int)TD_OK); }

uint64_t td_bridge_deferred(const td_bridge *b) { return atomic_load_explicit(&b->n_deferred, memory_order_relaxed); }
