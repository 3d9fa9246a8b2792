/*
 * The bridge's hand-over as a Promela model: bridge.c's two words and slots, and the sleep and wake-up of core/signal_word.c.
 * tests/bridge/test_ticket_protocol.py checks every interleaving with spin, and that each of the faults below is found.
 *
 *   process     code                                                             words
 *   device      the stream's operations in order: submit_call, collect_call;     raises submitted, waits for progress
 *               then the engine's td_bridge_end_pass and td_bridge_close
 *   expert_main expert_main and run_ticket                                       raises progress, waits for submitted
 *
 * Two passes follow each other, each of one or two halves, each ended after any submit (a device that failed) or run to its end; then
 * the bridge is closed. Checked: no buffer is written while the other side reads or writes it; a collect sees its own ticket's sum and
 * the deferred sum of the same half's layer before; no more than OPEN_MAX tickets are open; after end_pass nothing runs; no deadlock,
 * so no wake-up is lost.
 *
 * Memory is sequentially consistent here. In C the words' value and n_sleeping are (seq_cst), and the data is published by raising a word
 * (release) and seen by who read it (acquire). A sum takes time: it is written, and x is read, in two steps. With two memories the copies
 * are operations of the stream within the spans in which this model has the device write x and read y, so one memory covers both.
 *
 * -DDEFER=0|1    whether layers defer              -DFAULT_...    one of the seeded faults, see there
 */
#ifndef DEFER
#define DEFER 1
#endif
#define LAYERS   3 /* MoE layers of a pass; odd: the last and the next pass's first have one parity */
#define PASSES   2
#define OPEN_MAX 2 /* TD_BRIDGE_OPEN_MAX */
#define SLOTS    4
#define NOBODY   255

/* ---- td_signal -------------------------------------------------------------------------------- */

#define SUBMITTED 0
#define PROGRESS  1

byte value[2];
byte n_sleeping[2];
bool in_futex[2]; /* the kernel's queue: each word has one waiter at a time */

inline futex_wake(w) { in_futex[w] = false }

/* td_signal_add */
inline signal_add(w) {
#ifdef FAULT_WAKE_BEFORE_VALUE
    if
    :: n_sleeping[w] > 0 -> futex_wake(w)
    :: else
    fi;
    value[w]++
#else
    value[w]++;
    if
    :: n_sleeping[w] > 0 -> futex_wake(w)
    :: else
    fi
#endif
}

/* td_signal_wait: v = the value once it is not `seen`. Spinning is one look: more looks are a later one. */
inline signal_wait(w, seen, v) {
    v = value[w];
    if
    :: v != seen
    :: else ->
#ifndef FAULT_SLEEP_UNCOUNTED
        n_sleeping[w]++;
#endif
        do
        :: v = value[w];
            if
            :: v != seen -> break
            :: else
            fi;
#ifdef FAULT_SLEEP_UNCHECKED
            in_futex[w] = true;
#else
            atomic { in_futex[w] = (value[w] == seen) }; /* FUTEX_WAIT compares and queues in one */
#endif
            !in_futex[w]
        od;
#ifndef FAULT_SLEEP_UNCOUNTED
        n_sleeping[w]--
#else
        skip
#endif
    fi
}

/* ---- buffers: who is at them, and the ticket whose data they hold ----------------------------- */

typedef buffer {
    bool writing;
    byte reading;
    byte ticket = NOBODY
}

buffer x[SLOTS];   /* x, ids, weights and the slot's record */
buffer y[SLOTS];   /* the immediate sum */
buffer d[SLOTS];   /* the deferred sum */

inline begin_write(b) { atomic { assert(!b.writing && b.reading == 0); b.writing = true; b.ticket = NOBODY } }
inline end_write(b, n) { atomic { b.ticket = n; b.writing = false } }
inline begin_read(b, n) { atomic { assert(!b.writing && b.ticket == n); b.reading++ } }
inline end_read(b, n) { atomic { assert(!b.writing && b.ticket == n); b.reading-- } }

/* The slot of a layer and half; the faults give two of them one. */
#if defined(FAULT_ONE_PARITY)
#define SLOT(layer, half) (half)
#elif defined(FAULT_ONE_HALF)
#define SLOT(layer, half) (2 * ((layer) % 2))
#else
#define SLOT(layer, half) (2 * ((layer) % 2) + (half))
#endif

/* ---- what both sides share beside the words --------------------------------------------------- */

byte queue[OPEN_MAX] = NOBODY; /* ticket n's slot at n % OPEN_MAX */
bool defers[SLOTS];            /* the record's n_immediate < top_k */
bool stop, idle = true, ended;

/* ---- the device ------------------------------------------------------------------------------- */

byte n_submitted, n_collected;
byte seen_progress, new_progress, halves, layer, half, n;
byte last_ticket[2]; /* of each half, for the deferred sum */
bool broken;

inline await_progress(want) {
    seen_progress = value[PROGRESS];
    do
    :: seen_progress >= want -> break
    :: else -> signal_wait(PROGRESS, seen_progress, new_progress); seen_progress = new_progress
    od
}

/* The router's output, then submit_call. */
inline submit_call() {
    begin_write(x[SLOT(layer, half)]);
    assert(n_submitted - n_collected < OPEN_MAX);
#ifdef FAULT_SWAPPED_RAISE
    signal_add(SUBMITTED);
#endif
    defers[SLOT(layer, half)] = DEFER && layer < LAYERS - 1;
    end_write(x[SLOT(layer, half)], n_submitted);
    queue[n_submitted % OPEN_MAX] = SLOT(layer, half);
    n_submitted++;
#ifndef FAULT_SWAPPED_RAISE
    signal_add(SUBMITTED)
#endif
}

/* The shared expert, collect_call, combine: of layer - 1. */
inline collect_call() {
    n = n_collected;
    begin_read(x[SLOT(layer - 1, half)], n);
    end_read(x[SLOT(layer - 1, half)], n);
    n_collected++;
#if defined(FAULT_DROP_WAIT)
    skip;
#elif defined(FAULT_LAST_EARLY)
    await_progress(2 * n + 1);
#else
    await_progress(2 * n + (layer == LAYERS -> 2 : 1));
#endif
    begin_read(y[SLOT(layer - 1, half)], n);
    end_read(y[SLOT(layer - 1, half)], n);
    if
    :: DEFER && layer > 1 ->
#ifdef FAULT_OTHER_HALF
        begin_read(d[SLOT(layer - 2, halves - 1 - half)], last_ticket[half]);
        end_read(d[SLOT(layer - 2, halves - 1 - half)], last_ticket[half])
#elif defined(FAULT_SAME_LAYER)
        begin_read(d[SLOT(layer - 1, half)], n);
        end_read(d[SLOT(layer - 1, half)], n)
#else
        begin_read(d[SLOT(layer - 2, half)], last_ticket[half]);
        end_read(d[SLOT(layer - 2, half)], last_ticket[half])
#endif
    :: else
    fi;
    last_ticket[half] = n
}

/* td_bridge_end_pass, after the stream was synchronised. */
inline end_pass() {
#ifndef FAULT_LAST_EARLY
    await_progress(2 * n_submitted);
    assert(idle);
#endif
#ifdef FAULT_KEEP_UNCOLLECTED
    skip
#else
    n_collected = n_submitted
#endif
}

active proctype device() {
    byte pass;
    for (pass : 1 .. PASSES) {
        if
        :: halves = 1
        :: halves = 2
        fi;
        layer = 0;
        broken = false;
        do /* describe_main of model/program.c, its blocks left out */
        :: layer <= LAYERS && !broken ->
            half = 0;
            do
            :: half < halves && !broken ->
                if
                :: layer > 0 -> collect_call()
                :: else
                fi;
                if
                :: layer < LAYERS ->
                    submit_call();
                    if
                    :: broken = true
                    :: true
                    fi
                :: else
                fi;
                half++
            :: else -> break
            od;
            layer++
        :: else -> break
        od;
        end_pass()
    }
    /* td_bridge_close */
#ifdef FAULT_STOP_AFTER_RAISE
    signal_add(SUBMITTED);
    stop = true;
#else
    stop = true;
    signal_add(SUBMITTED);
#endif
    ended; /* pthread_join */
    assert(n_sleeping[SUBMITTED] == 0 && n_sleeping[PROGRESS] == 0 && value[PROGRESS] == 2 * n_submitted)
}

/* ---- the expert thread ------------------------------------------------------------------------ */

inline write_sum(b) {
    begin_write(b);
    end_write(b, ticket)
}

active proctype expert_main() {
    byte ticket, v, slot;
    bool later;
    do
    :: signal_wait(SUBMITTED, ticket, v);
        if
        :: stop -> break
        :: else
        fi;
        idle = false;
        slot = queue[ticket % OPEN_MAX];
        assert(slot != NOBODY);
        begin_read(x[slot], ticket);
        later = defers[slot];
#ifdef FAULT_RAISE_EARLY
        signal_add(PROGRESS);
#endif
        begin_write(y[slot]);
        if
        :: later -> /* no expert has deferred tokens alone: both sums come from one pass over the weights */
            write_sum(d[slot]);
            later = false
        :: true
        fi;
        end_write(y[slot], ticket);
#ifndef FAULT_RAISE_EARLY
        signal_add(PROGRESS); /* immediate_done */
#endif
        if
        :: later -> write_sum(d[slot])
        :: else
        fi;
        end_read(x[slot], ticket);
        idle = true;
        signal_add(PROGRESS);
        ticket++
    od;
    ended = true
}
