#include "residency/streamed_experts.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/math/rng.h"
#include "core/plural.h"
#include "core/threads/chaos.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"

#define NAP_S 2e-5     /* between looks at a layer that has not left */
#define AT_ONCE 4      /* uploads that a lane takes */
#define NEWS_SHARE 0.2 /* of a new measurement in a speed */
/* Rows of an expert on the CPU on average: from so many on its arithmetic is measured, and up to so many its reading. */
#define MANY_ROWS 16
#define FEW_ROWS 4

typedef struct {
    uint16_t layer, expert;
} upload;

/* Of a layer, in pinned memory, each on a line of its own. */
typedef struct {
    _Alignas(TD_CPU_LINE) td_bell taken; /* a lane rings it: the uploads have ended, the row is written */
    _Alignas(TD_CPU_LINE) td_bell left;  /* the device does: the slots may be written; silenced when a pass begins */
} bells;

typedef struct card_part card_part;

typedef struct {
    td_streamed_experts *s;
    card_part           *card;
    td_npu_stream       *stream;
    char                *staging; /* pinned, an expert */
    pthread_t            thread;
    bool                 has_thread;
} lane;

/* What one card has. */
struct card_part {
    td_npu          *npu;
    uint16_t        *rows;               /* pinned [spec.n_layers, n_experts]: its table of the pass */
    bells           *bells;              /* pinned [spec.n_layers] */
    upload          *list;               /* [shape.n_layers, spec.stream_slots / TD_STREAM_LAYERS] of the pass */
    uint32_t         n_list;             /* the launching thread's, until n_begun rises */
    _Atomic uint32_t next;               /* of the list; relaxed: n_begun has published the list */
    _Atomic uint64_t uploads, upload_ns; /* that ended well; relaxed: only counts */
    lane             lanes[TD_STREAM_LANES];
};

struct td_streamed_experts {
    td_resident_experts *resident;
    td_resident_spec     spec;
    td_stream_shape      shape;  /* with all slots of resident experts empty */
    td_stream_speeds     speeds; /* card_row 0: they are not known, and nothing is streamed */
    uint32_t             n_draws;
    card_part            cards[TD_CARDS_MAX];
    uint16_t            *order;            /* [n_experts] of the layer that is listed */
    float               *uses;             /* [n_experts] of the same */
    uint32_t             n_dealt;          /* uploads of the pass */
    _Atomic uint32_t    *n_under_way;      /* [shape.n_layers] uploads of the layer, to all cards, that have not ended */
    bool                 is_streamed;      /* the pass */
    bool                *is_registered;    /* [spec.n_layers]: the layer's experts are copied from where they lie */
    td_signal            news, steps_on;   /* for the lanes; for who waits for them */
    _Atomic uint32_t     n_begun, n_ended; /* passes; of them by lanes, each for itself; acq_rel */
    _Atomic bool         broken_off, stop;
    uint64_t             pairs_before, bytes_before, busy_before; /* of the CPU's experts, when the pass began */
    uint64_t             uploads_before, upload_ns_before;        /* of all cards, then */
    /* relaxed: only counts */
    _Atomic uint64_t steps, failed;
    _Atomic uint32_t crossover, share;
};

uint64_t td_streamed_pinned_bytes(const td_resident_spec *s) {
    return td_resident_table_bytes(s) + s->n_layers * sizeof(bells) + TD_STREAM_LANES * s->packed.bytes;
}

static uint32_t all_lanes(const td_streamed_experts *s) {
    return s->spec.n_cards * TD_STREAM_LANES;
}

static uint16_t *row_of(const td_streamed_experts *s, uint32_t card, uint32_t layer) {
    return s->cards[card].rows + (size_t)layer * s->spec.n_experts;
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static void nap(double seconds) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))}, NULL);
}

/* Whether the layer that had the slot of the lane's upload i before has left. */
static bool slot_is_free(const lane *l, uint32_t i) {
    const card_part *c = l->card;
    const uint32_t   ring = l->s->spec.stream_slots;
    return i < ring || atomic_load_explicit(&c->bells[c->list[i - ring].layer].left, memory_order_acquire);
} /* acquire: with the device's bell_ring */

/* @return false: the pass was broken off. */
static bool await_slot(const lane *l, uint32_t i) {
    for (;;) {
        if (atomic_load_explicit(&l->s->broken_off, memory_order_acquire)) return false;
        if (slot_is_free(l, i)) return true;
        nap(NAP_S);
    }
}

/* On the lane's card. */
static uint32_t slot_of(const lane *l, uint32_t i) {
    const td_resident_spec *c = &l->s->spec;
    return (c->n_layers - l->card->list[i].layer) * (c->n_slots / c->n_cards) + i % c->stream_slots;
}

/* From where they lie, or through the lane's buffer, which must be free. */
static td_status enqueue_copy(const lane *l, uint32_t i) {
    const td_streamed_experts *s = l->s;
    td_npu                    *d = l->card->npu;
    const upload              *u = &l->card->list[i];
    td_expert_stretch          piece[TD_POOL_SUBPOOLS_MAX];
    char                      *slots = td_resident_slots(s->resident, (uint32_t)(l->card - s->cards), u->layer);
    char                      *to = slots + slot_of(l, i) * s->spec.packed.bytes;
    if (!s->is_registered[u->layer]) {
        td_experts_copy_packed(s->spec.experts, u->layer, u->expert, l->staging);
        return d->ops->copy(d, l->stream, to, l->staging, s->spec.packed.bytes, TD_COPY_H2D);
    }
    const uint32_t n = td_experts_pieces(s->spec.experts, u->layer, u->expert, piece);
    for (uint32_t p = 0; p < n; to += piece[p++].bytes)
        TD_TRY(d->ops->copy(d, l->stream, to, piece[p].at, piece[p].bytes, TD_COPY_H2D));
    return TD_OK;
}

/* The layer's rows are complete, on all cards. Only with the last of its uploads: lanes end in any order. */
static void end_upload(td_streamed_experts *s, uint32_t layer) {
    if (atomic_fetch_sub_explicit(&s->n_under_way[layer], 1, memory_order_acq_rel) != 1) return;
    for (uint32_t c = 0; c < s->spec.n_cards; c++) /* with the devices' bell_wait */
        atomic_store_explicit(&s->cards[c].bells[layer].taken, 1, memory_order_release);
}

/* The lane's upload i enters the rows: every card marks the same ids. */
static void enter_rows(const lane *l, uint32_t i) {
    td_streamed_experts *s = l->s;
    const upload        *u = &l->card->list[i];
    for (uint32_t c = 0; c < s->spec.n_cards; c++)
        row_of(s, c, u->layer)[u->expert] = &s->cards[c] == l->card ? (uint16_t)slot_of(l, i) : TD_SLOT_ELSEWHERE;
}

/* The lane's uploads `first` to `end` - 1 have ended, with status st. */
static void end_uploads(const lane *l, uint32_t first, uint32_t end, td_status st) {
    td_streamed_experts *s = l->s;
    for (uint32_t i = first; i < end; i++) {
        if (st == TD_OK)
            enter_rows(l, i);
        else if (atomic_fetch_add_explicit(&s->failed, 1, memory_order_relaxed) == 0)
            td_warn("an expert could not be streamed to the device: %s; the CPU computes it", td_status_text(st));
        end_upload(s, l->card->list[i].layer);
    }
    if (st == TD_OK) atomic_fetch_add_explicit(&l->card->uploads, end - first, memory_order_relaxed);
}

/* As many of first .. end - 1 as can go at once; the slot of the first is free. Waiting costs no core but at the end: a
 * stream_sync spins. @return the next one. */
static uint32_t run_some(const lane *l, uint32_t first, uint32_t end) {
    td_streamed_experts *s = l->s;
    const upload        *list = l->card->list;
    td_npu              *d = l->card->npu;
    const uint64_t       begin = td_trace_now();
    const uint32_t       layer = list[first].layer;
    uint32_t             i = first;
    td_status            st = TD_OK;
    do st = enqueue_copy(l, i++);
    while (st == TD_OK && i < end && s->is_registered[layer] && list[i].layer == layer && slot_is_free(l, i));
    if (s->is_registered[layer]) nap(0.75 * (i - first) * s->speeds.upload * s->spec.n_cards);
    const td_status sync = d->ops->stream_sync(d, l->stream);
    const uint64_t  now = td_trace_now();
    if (st == TD_OK && sync == TD_OK) atomic_fetch_add_explicit(&l->card->upload_ns, now - begin, memory_order_relaxed);
    if (td_trace_on())
        td_trace_span(begin, now,
                      &(td_trace_label){TD_TRACE_BRIDGE, "streamed uploads", {"layer", "experts"}, {layer, i - first}});
    end_uploads(l, first, i, st != TD_OK ? st : sync);
    return i;
}

static void run_uploads(const lane *l, uint32_t first, uint32_t end) {
    td_chaos_delay();
    while (first < end && await_slot(l, first)) first = run_some(l, first, end);
    for (; first < end; first++) end_upload(l->s, l->card->list[first].layer); /* the pass was broken off */
}

static void *lane_main(void *arg) {
    const lane          *l = arg;
    card_part           *c = l->card;
    td_streamed_experts *s = l->s;
    for (uint32_t n = 0;; n++) {
        for (uint32_t seen = td_signal_get(&s->news); atomic_load_explicit(&s->n_begun, memory_order_acquire) == n;) {
            if (atomic_load_explicit(&s->stop, memory_order_acquire)) return NULL;
            seen = td_signal_wait(&s->news, seen, (td_spin){0});
        }
        for (uint32_t i; (i = atomic_fetch_add_explicit(&c->next, AT_ONCE, memory_order_relaxed)) < c->n_list;)
            run_uploads(l, i, i + AT_ONCE < c->n_list ? i + AT_ONCE : c->n_list);
        atomic_fetch_add_explicit(&s->n_ended, 1, memory_order_release);
        td_signal_add(&s->steps_on);
    }
}

/* ---- what is streamed ------------------------------------------------------------------------------ */

static int by_uses(const void *a, const void *b, void *uses) {
    const float *u = uses, x = u[*(const uint16_t *)a], y = u[*(const uint16_t *)b];
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The rows as they are with resident experts alone; uploads are to come if any. */
static void begin_rows(td_streamed_experts *s, uint32_t layer, bool any) {
    for (uint32_t c = 0; c < s->spec.n_cards; c++) {
        bells *b = &s->cards[c].bells[layer];
        memcpy(row_of(s, c, layer), td_resident_placement(s->resident, c, layer), s->spec.n_experts * sizeof(uint16_t));
        atomic_store_explicit(&b->taken, !any, memory_order_relaxed);
        atomic_store_explicit(&b->left, 0, memory_order_relaxed);
    }
}

/* Append the layer's uploads: of the experts that are not on the device those of most use, or drawn ones. Cards get them in
 * turn. */
static void list_layer(td_streamed_experts *s, uint32_t layer, uint32_t share) {
    const uint64_t  seed = s->spec.chaos_seed;
    const uint16_t *placed = td_resident_placement(s->resident, 0, layer);
    uint32_t        n = 0;
    for (uint32_t e = 0; e < s->spec.n_experts; e++) {
        if (placed[e] != TD_NO_SLOT) continue;
        s->order[n++] = (uint16_t)e;
        s->uses[e] = seed ? (float)td_rng_uniform(seed, layer, s->n_draws++) : td_resident_uses(s->resident, layer, e);
    }
    if (seed) share = (uint32_t)(td_rng_u64(seed, layer, s->n_draws++) % (share + 1));
    if (share < n || s->spec.n_cards > 1) qsort_r(s->order, n, sizeof *s->order, by_uses, s->uses);
    if (share > n) share = n;
    atomic_store_explicit(&s->n_under_way[layer], share, memory_order_relaxed);
    begin_rows(s, layer, share > 0);
    for (uint32_t i = 0; i < share; i++) {
        card_part *c = &s->cards[s->n_dealt++ % s->spec.n_cards];
        c->list[c->n_list++] = (upload){(uint16_t)layer, s->order[i]};
    }
}

static void begin_lists(td_streamed_experts *s, uint32_t n_layers, uint32_t share) {
    s->n_dealt = 0;
    for (card_part *c = s->cards; c < s->cards + s->spec.n_cards; c++) {
        c->n_list = 0;
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    }
    for (uint32_t l = 0; l < n_layers; l++) list_layer(s, l, share);
    atomic_store_explicit(&s->broken_off, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_begun, 1, memory_order_release);
    td_signal_add(&s->news);
}

static void await_lists(td_streamed_experts *s) {
    const uint32_t want = atomic_load_explicit(&s->n_begun, memory_order_relaxed) * all_lanes(s);
    for (uint32_t seen = td_signal_get(&s->steps_on); atomic_load_explicit(&s->n_ended, memory_order_acquire) != want;)
        seen = td_signal_wait(&s->steps_on, seen, (td_spin){0});
}

/* ---- speeds --------------------------------------------------------------------------------------- */

static void learn(double *speed, double seen) {
    *speed += NEWS_SHARE * (seen - *speed);
}

/* Uploads to all cards that ended well, and the time of all lanes in them. */
static void sum_uploads(const td_streamed_experts *s, uint64_t *uploads, uint64_t *ns) {
    *uploads = *ns = 0;
    for (uint32_t c = 0; c < s->spec.n_cards; c++) {
        *uploads += atomic_load_explicit(&s->cards[c].uploads, memory_order_relaxed);
        *ns += atomic_load_explicit(&s->cards[c].upload_ns, memory_order_relaxed);
    }
}

static void note_before(td_streamed_experts *s) {
    td_tier_work work;
    sum_uploads(s, &s->uploads_before, &s->upload_ns_before);
    td_experts_counters(s->spec.experts, &s->pairs_before, &work);
    s->bytes_before = work.bytes;
    s->busy_before = work.busy_ns;
}

/* What the CPU did since. */
static void learn_cpu(td_streamed_experts *s) {
    td_tier_work work;
    uint64_t     all_pairs;
    td_experts_counters(s->spec.experts, &all_pairs, &work);
    const double pairs = (double)(all_pairs - s->pairs_before), busy = 1e-9 * (double)(work.busy_ns - s->busy_before),
                 read = (double)(work.bytes - s->bytes_before) / (double)s->spec.packed.bytes; /* experts */
    if (pairs <= 0 || read <= 0) return;
    if (pairs >= MANY_ROWS * read) learn(&s->speeds.cpu_row, busy / pairs);
    if (pairs <= FEW_ROWS * read) learn(&s->speeds.cpu_read, busy / read);
}

/* Seconds of an upload among others, to all cards at once, of those since; 0: there were none. */
static double upload_time(const td_streamed_experts *s) {
    uint64_t n, ns;
    sum_uploads(s, &n, &ns);
    n -= s->uploads_before;
    return n ? 1e-9 * (double)(ns - s->upload_ns_before) / (double)(n * all_lanes(s)) : 0;
}

/* With the experts that are resident now, in a layer on average. */
static td_stream_shape shape_now(const td_streamed_experts *s) {
    td_stream_shape now = s->shape;
    now.n_resident = td_resident_count(s->resident) / s->spec.n_layers;
    if (now.n_most > now.n_experts - now.n_resident) now.n_most = now.n_experts - now.n_resident;
    return now;
}

static void find_crossover(td_streamed_experts *s) {
    const td_stream_shape now = shape_now(s);
    if (s->speeds.card_row > 0)
        atomic_store_explicit(&s->crossover, td_stream_crossover(&now, &s->speeds, s->spec.max_tok), memory_order_relaxed);
}

const uint16_t *td_streamed_measure_upload(td_streamed_experts *s) {
    for (int i = 0; i < 2; i++) { /* the first time they are slower: memory is touched first */
        note_before(s);
        begin_lists(s, 1, s->shape.n_most);
        await_lists(s);
    }
    s->speeds.upload = upload_time(s);
    return row_of(s, 0, 0);
}

void td_streamed_set_speeds(td_streamed_experts *s, double card_row, double cpu_row, double cpu_read) {
    s->speeds.card_row = card_row;
    s->speeds.cpu_row = cpu_row;
    s->speeds.cpu_read = cpu_read;
    find_crossover(s);
    const uint32_t from = atomic_load_explicit(&s->crossover, memory_order_relaxed);
    td_info(
        "streamed experts: %.1f GB/s over the link%s; a row of one takes %.2f us on the device, %.2f us on the CPU; they "
        "pay "
        "from " TD_FIGURE("streamed_from_rows", "%u") " rows of a step on%s",
        1e-9 * (double)s->spec.packed.bytes / s->speeds.upload, td_plural(s->spec.n_cards), 1e6 * card_row, 1e6 * cpu_row,
        from, from ? "" : ": never");
}

/* ---- passes ---------------------------------------------------------------------------------------- */

uint32_t td_streamed_share(td_streamed_experts *s, uint32_t n_tok) {
    if (s->spec.chaos_seed) {
        const uint64_t drawn = td_rng_u64(s->spec.chaos_seed, s->spec.n_layers, s->n_draws++);
        return drawn & 1 ? 1 + (uint32_t)((drawn >> 1) % s->shape.n_most) : 0;
    }
    const td_stream_shape now = shape_now(s);
    return s->speeds.card_row > 0 ? td_stream_share(&now, &s->speeds, n_tok) : 0;
}

void td_streamed_begin_pass(td_streamed_experts *s, uint32_t share) {
    note_before(s);
    s->is_streamed = share > 0;
    if (!share) return;
    atomic_store_explicit(&s->share, share, memory_order_relaxed);
    begin_lists(s, s->shape.n_layers, share);
}

void td_streamed_break_off(td_streamed_experts *s) {
    atomic_store_explicit(&s->broken_off, true, memory_order_release);
}

void td_streamed_end_pass(td_streamed_experts *s, bool ok) {
    if (s->is_streamed) {
        if (!ok) td_streamed_break_off(s);
        await_lists(s);
    }
    if (!ok) return;
    learn_cpu(s);
    if (s->is_streamed) {
        const double seen = upload_time(s);
        atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
        if (seen > 0) learn(&s->speeds.upload, seen);
    }
    find_crossover(s);
}

td_status td_streamed_enqueue_take(td_streamed_experts *s, uint32_t card, uint32_t layer, td_npu_stream *stream) {
    const card_part *c = &s->cards[card];
    TD_TRY(c->npu->ops->bell_wait(c->npu, stream, &c->bells[layer].taken, NULL));
    return c->npu->ops->copy(c->npu, stream, (void *)td_resident_slot_of(s->resident, card, layer), row_of(s, card, layer),
                             s->spec.n_experts * sizeof *c->rows, TD_COPY_H2D);
}

td_status td_streamed_enqueue_leave(td_streamed_experts *s, uint32_t card, uint32_t layer, td_npu_stream *stream) {
    const card_part *c = &s->cards[card];
    return c->npu->ops->bell_ring(c->npu, stream, &c->bells[layer].left, NULL);
}

/* ---- life ------------------------------------------------------------------------------------------- */

/* With the first card: so all can copy from it. */
static void register_layer(td_streamed_experts *s, uint32_t layer) {
    td_npu           *d = s->spec.npus[0];
    td_expert_stretch piece[TD_POOL_SUBPOOLS_MAX];
    const uint32_t    n = td_experts_layer_pieces(s->spec.experts, layer, piece);
    td_error          why = {0};
    uint32_t          i = 0;
    while (i < n && d->ops->host_register(d, piece[i].at, piece[i].bytes, &why) == TD_OK) i++;
    s->is_registered[layer] = i == n;
    if (i == n) return;
    for (; i > 0; i--) d->ops->host_unregister(d, piece[i - 1].at, piece[i - 1].bytes);
    td_info("experts of MoE layer %u are streamed through a buffer: %s", layer, why.text);
}

static void unregister_layers(td_streamed_experts *s) {
    td_expert_stretch piece[TD_POOL_SUBPOOLS_MAX];
    for (uint32_t layer = 0; s->is_registered && layer < s->spec.n_layers; layer++) {
        if (!s->is_registered[layer]) continue;
        const uint32_t n = td_experts_layer_pieces(s->spec.experts, layer, piece);
        for (uint32_t i = 0; i < n; i++) s->spec.npus[0]->ops->host_unregister(s->spec.npus[0], piece[i].at, piece[i].bytes);
    }
}

static td_status out_of_memory(td_error *err) {
    return td_fail(err, TD_ENOMEM, "out of memory for the experts that are streamed");
}

static td_status open_memory(td_streamed_experts *s, td_error *err) {
    const td_resident_spec *c = &s->spec;
    s->order = malloc(c->n_experts * sizeof *s->order);
    s->uses = malloc(c->n_experts * sizeof *s->uses);
    s->n_under_way = calloc(s->shape.n_layers, sizeof *s->n_under_way);
    s->is_registered = calloc(c->n_layers, sizeof *s->is_registered);
    if (!s->order || !s->uses || !s->n_under_way || !s->is_registered) return out_of_memory(err);
    for (uint32_t i = 0; !c->drop && i < c->n_layers; i++) register_layer(s, i);
    return TD_OK;
}

static td_status start_lane(td_streamed_experts *s, card_part *c, lane *l, td_error *err) {
    td_npu *d = c->npu;
    l->s = s;
    l->card = c;
    TD_TRY(d->ops->host_alloc(d, s->spec.packed.bytes, (void **)&l->staging, err));
    TD_TRY(d->ops->stream_create(d, &l->stream, err));
    TD_TRY(td_thread_start(&l->thread, "streams", lane_main, l, err));
    l->has_thread = true;
    return TD_OK;
}

static td_status open_card(td_streamed_experts *s, td_npu *d, card_part *c, td_error *err) {
    const size_t n_list = (size_t)s->shape.n_layers * (s->spec.stream_slots / TD_STREAM_LAYERS);
    c->npu = d;
    TD_TRY(d->ops->host_alloc(d, td_resident_table_bytes(&s->spec), (void **)&c->rows, err));
    TD_TRY(d->ops->host_alloc(d, s->spec.n_layers * sizeof *c->bells, (void **)&c->bells, err));
    c->list = malloc(n_list * sizeof *c->list);
    if (!c->list) return out_of_memory(err);
    for (uint32_t i = 0; i < TD_STREAM_LANES; i++) TD_TRY(start_lane(s, c, &c->lanes[i], err));
    return TD_OK;
}

/* Lanes have been told to stop. */
static void close_card(const td_streamed_experts *s, card_part *c) {
    td_npu *d = c->npu;
    for (lane *l = c->lanes; l < c->lanes + TD_STREAM_LANES; l++) {
        if (l->has_thread) pthread_join(l->thread, NULL);
        if (l->stream) d->ops->stream_destroy(d, l->stream);
        if (l->staging) d->ops->host_free(d, l->staging, s->spec.packed.bytes);
    }
    if (c->rows) d->ops->host_free(d, c->rows, td_resident_table_bytes(&s->spec));
    if (c->bells) d->ops->host_free(d, c->bells, s->spec.n_layers * sizeof *c->bells);
    free(c->list);
}

td_status td_streamed_open(td_resident_experts *r, uint32_t n_layers, td_streamed_experts **out, td_error *err) {
    *out = NULL;
    td_streamed_experts *s = aligned_alloc(TD_CPU_LINE, td_round_up(sizeof *s, TD_CPU_LINE));
    if (!s) return out_of_memory(err);
    memset(s, 0, sizeof *s);
    s->resident = r;
    s->spec = *td_resident_get_spec(r);
    const uint32_t room = s->spec.n_cards * (s->spec.stream_slots / TD_STREAM_LAYERS); /* for a layer */
    s->shape = (td_stream_shape){.n_layers = n_layers,
                                 .n_experts = s->spec.n_experts,
                                 .top_k = s->spec.top_k,
                                 .n_most = room < s->spec.n_experts ? room : s->spec.n_experts};
    td_status st = open_memory(s, err);
    for (uint32_t i = 0; i < s->spec.n_cards && st == TD_OK; i++) st = open_card(s, s->spec.npus[i], &s->cards[i], err);
    if (st != TD_OK) {
        td_streamed_close(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

void td_streamed_close(td_streamed_experts *s) {
    if (!s) return;
    atomic_store_explicit(&s->stop, true, memory_order_release);
    td_signal_add(&s->news);
    for (uint32_t i = 0; i < s->spec.n_cards; i++) close_card(s, &s->cards[i]);
    unregister_layers(s);
    free(s->order);
    free(s->uses);
    free(s->n_under_way);
    free(s->is_registered);
    free(s);
}

void td_streamed_report(const td_streamed_experts *s, td_stream_counts *out) {
    uint64_t uploads, ns;
    sum_uploads(s, &uploads, &ns);
    *out = (td_stream_counts){.steps = atomic_load_explicit(&s->steps, memory_order_relaxed),
                              .uploads = uploads,
                              .failed = atomic_load_explicit(&s->failed, memory_order_relaxed),
                              .upload_bytes = uploads * s->spec.packed.bytes,
                              .upload_ns = ns / all_lanes(s),
                              .slots = s->spec.stream_slots * s->spec.n_cards,
                              .share = atomic_load_explicit(&s->share, memory_order_relaxed),
                              .crossover = atomic_load_explicit(&s->crossover, memory_order_relaxed)};
}

void td_streamed_report_card(const td_streamed_experts *s, uint32_t card, td_card_stats *out) {
    const card_part *c = &s->cards[card];
    out->streamed_bytes = atomic_load_explicit(&c->uploads, memory_order_relaxed) * s->spec.packed.bytes;
    out->streamed_ns = atomic_load_explicit(&c->upload_ns, memory_order_relaxed) / TD_STREAM_LANES;
}
