/*
 * The bridge's hand-over as a Promela model: bridge.c's counts, bells and slots, and the sleep and wake-up of
 * core/threads/signal_word.c. tests/bridge/test_ticket_protocol.py checks every interleaving with spin, and that each of the faults
 * below is found.
 *
 *   process     code                                           raises                     waits for
 *   stream      td_bridge_begin_pass; what enqueue_submit      n_begun, n_filled,         progress, summed,
 *               and enqueue_collect put on the stream;         filled, closed             n_ended
 *               td_bridge_end_pass and td_bridge_close
 *   expert_main expert_main, run_pass and run_ticket           progress, summed,          n_begun, n_filled,
 *                                                              n_ended                    filled, closed
 *
 * The engine's thread and the stream are one process: the one begins a pass before it launches the other, and ends it after
 * it synchronised. Two passes follow each other, each of one or two halves, each broken off before its first submit or after
 * any submit or collect (a device that failed), or run to its end; then the bridge is closed. Checked: no buffer is written
 * while the other side reads or writes it; a collect sees its own ticket's sum and the deferred sum of the same half's layer
 * before; no more than OPEN_MAX tickets are open; after end_pass nothing runs, everything that was filled has been run and no
 * bell is left rung; no deadlock, so no wake-up is lost.
 *
 * Memory is sequentially consistent here. In C a signal's value and n_sleeping are (seq_cst), and the data is published by
 * raising a count or ringing a bell (release) and seen by who read it (acquire). A sum takes time: it is written, and x is
 * read, in two steps. With two memories the rows are carried by the stream within the spans in which this model has the
 * device write x and read y, so one memory covers both. Sums that come ahead (td_bridge_config.ahead_bytes) are read between
 * their bell and the collect that joins the branch; here they are read at the collect. Who polls a bell looks once, and again
 * when there is something new: looks in between are that first one.
 *
 * -DFORM=HOST_CALL|DOORBELL    the form of hand-over
 * -DDEFER=0|1                  whether layers defer
 * -DCUT                        passes with until_ns: the expert thread may run out of time behind any rows of a ticket, and
 *                              the stream waits with td_bridge_await_sums before it collects. A pass that goes on with what
 *                              another left is one like any other here: it hands over again, and other rows are not touched
 * -DFAULT_...                  one of the seeded faults: FAULT_CALL_... can be with host calls alone, FAULT_BELL_... with
 *                              doorbells, FAULT_CUT_... with CUT, others with all
 */
#define HOST_CALL 1
#define DOORBELL  2
#ifndef FORM
#define FORM HOST_CALL
#endif
#ifndef DEFER
#define DEFER 1
#endif
#define LAYERS   3 /* MoE layers of a pass; odd: the last and the next pass's first have one parity */
#define PASSES   2
#define OPEN_MAX 2 /* TD_BRIDGE_OPEN_MAX */
#define SLOTS    4
#define PORTS    6 /* a half of a layer each */
#define NOBODY   255

/* ---- td_signal -------------------------------------------------------------------------------- */

#define NEWS     0 /* for the expert thread */
#define STEPS_ON 1 /* for the stream and who ends a pass */

byte value[2];
byte n_sleeping[2];
bool in_futex[2]; /* the kernel's queue: each signal has one waiter at a time */

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

/* td_signal_wait: seen = the value once it is not `seen`. Spinning is one look: more looks are a later one. */
inline signal_wait(w, seen) {
    if
    :: value[w] != seen
    :: else ->
#ifndef FAULT_SLEEP_UNCOUNTED
        n_sleeping[w]++;
#endif
        do
        :: if
            :: value[w] != seen -> break
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
    fi;
    seen = value[w]
}

/* ---- buffers: who is at them, and the ticket whose data they hold ----------------------------- */

typedef buffer {
    bool writing;
    byte reading;
    byte ticket = NOBODY
}

buffer x[SLOTS]; /* x, ids, weights */
buffer y[SLOTS]; /* the immediate sum */
buffer d[SLOTS]; /* the deferred sum */
buffer told;     /* td_bridge.pass and the steps' host counts; its ticket is the pass */

inline begin_write(b) { atomic { assert(!b.writing && b.reading == 0); b.writing = true; b.ticket = NOBODY } }
inline end_write(b, n) { atomic { b.ticket = n; b.writing = false } }
inline begin_read(b, n) { atomic { assert(!b.writing && b.ticket == n); b.reading++ } }
inline end_read(b, n) { atomic { assert(!b.writing && b.ticket == n); b.reading-- } }

/* Of the pass's order: ticket n is that of a layer and half. */
#define LAYER_OF(n) ((n) / halves)
#define HALF_OF(n)  ((n) % halves)
#define PORT(layer, half) (2 * (layer) + (half))

/* The slot of a layer and half; the faults give two of them one. */
#if defined(FAULT_ONE_PARITY)
#define SLOT(layer, half) (half)
#elif defined(FAULT_ONE_HALF)
#define SLOT(layer, half) (2 * ((layer) % 2))
#else
#define SLOT(layer, half) (2 * ((layer) % 2) + (half))
#endif

/* ---- what both sides share --------------------------------------------------------------------- */

byte halves;            /* of the pass: part of `told` */
byte n_begun, n_ended;  /* passes */
byte n_filled, progress;
bool closed, stop, ended;
bool filled[PORTS], summed[PORTS];
byte n_run;             /* tickets of the pass that were run: only checked */

inline raise_count(count, w) {
#ifdef FAULT_SIGNAL_BEFORE_COUNT
    signal_add(w);
    count++
#else
    count++;
    signal_add(w)
#endif
}

/* ---- the stream -------------------------------------------------------------------------------- */

byte n_submitted, n_collected; /* of the pass */
byte seen, layer, half, n;
byte last_ticket[2]; /* of each half, for the deferred sum */
bool broken, has_ended, has_sums;

inline begin_pass() {
#ifdef FAULT_BEGUN_EARLY
    raise_count(n_begun, NEWS);
#endif
    begin_write(told);
    if
    :: halves = 1
    :: halves = 2
    fi;
    end_write(told, pass);
    d_step { /* what the pass before has left is nobody's: no ticket of this one may find it */
        for (n : 0 .. SLOTS - 1) {
            x[n].ticket = NOBODY;
            y[n].ticket = NOBODY;
            d[n].ticket = NOBODY
        }
        n_submitted = 0;
        n_collected = 0;
        n_run = 0;
        last_ticket[0] = 0;
        last_ticket[1] = 0;
        n = 0
    }
#if !defined(FAULT_CALL_COUNTS_KEPT) && !defined(FAULT_CALL_COUNTS_LATE)
    n_filled = 0;
    progress = 0;
#endif
#ifndef FAULT_CLOSED_KEPT
    closed = false;
#endif
#ifndef FAULT_BEGUN_EARLY
    raise_count(n_begun, NEWS);
#endif
#ifdef FAULT_CALL_COUNTS_LATE
    n_filled = 0;
    progress = 0
#else
    skip
#endif
}

inline await_progress(want) {
    seen = value[STEPS_ON];
    do
    :: progress >= want -> break
    :: else -> signal_wait(STEPS_ON, seen)
    od;
    seen = 0
}

/* td_bridge_await_sums: the pass ends where the expert thread has left it before. */
inline await_sums(want) {
    do
    :: seen = value[STEPS_ON];
        has_ended = n_ended == n_begun;
        has_sums = progress >= want;
        if
#ifdef FAULT_CUT_END_UNSEEN
        :: has_sums -> break
#else
        :: has_sums || has_ended -> break
#endif
        :: else -> signal_wait(STEPS_ON, seen)
        fi
    od;
    seen = 0;
    broken = !has_sums
}

/* td_npu_ops.bell_wait: the device polls, then silences. */
inline bell_wait(bell) {
#ifdef FAULT_BELL_SILENCED_BEFORE_WAIT
    bell = 0;
    bell
#else
    bell;
    bell = 0
#endif
}

/* The router's output, then submit_call or bell_ring. */
inline enqueue_submit() {
#if FORM == DOORBELL && defined(FAULT_BELL_RUNG_BEFORE_COPY)
    filled[PORT(layer, half)] = 1;
#endif
    begin_write(x[SLOT(layer, half)]);
    assert(n_submitted - n_collected < OPEN_MAX);
#ifdef FAULT_CALL_SWAPPED_RAISE
    raise_count(n_filled, NEWS);
#endif
    end_write(x[SLOT(layer, half)], n_submitted);
    n_submitted++;
#if FORM == DOORBELL && !defined(FAULT_BELL_RUNG_BEFORE_COPY)
    filled[PORT(layer, half)] = 1
#elif FORM == HOST_CALL && !defined(FAULT_CALL_SWAPPED_RAISE)
    raise_count(n_filled, NEWS)
#else
    skip
#endif
}

/* The shared expert, collect_call or bell_wait, combine: of layer - 1. */
inline enqueue_collect() {
    n = n_collected;
    begin_read(x[SLOT(layer - 1, half)], n);
    end_read(x[SLOT(layer - 1, half)], n);
    n_collected++;
#if defined(FAULT_DROP_WAIT)
    skip;
#elif FORM == DOORBELL
    bell_wait(summed[PORT(layer - 1, half)]);
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
    last_ticket[half] = n;
    n = 0
}

/* td_bridge_end_pass, after the stream was synchronised. */
inline end_pass() {
    closed = true;
#ifndef FAULT_CALL_CLOSED_UNTOLD
    signal_add(NEWS);
#endif
#ifndef FAULT_END_UNAWAITED
    seen = value[STEPS_ON];
    do
    :: n_ended == n_begun -> break
    :: else -> signal_wait(STEPS_ON, seen)
    od;
    seen = 0;
#endif
#ifndef FAULT_BELL_LEFT_RUNG
    for (n : 0 .. PORTS - 1) {
#if defined(CUT) && !defined(FAULT_CUT_BELL_KEPT)
        filled[n] = 0;
#endif
        summed[n] = 0
    }
    n = 0;
#endif
    atomic {
#ifdef CUT
        assert(told.reading == 0 && n_run <= n_submitted);
#else
        assert(told.reading == 0 && n_run == n_submitted);
#endif
        for (n : 0 .. PORTS - 1) { assert(!filled[n] && !summed[n]) }
        n = 0
    }
}

/* A device that fails: nothing more of the pass happens. */
inline may_break() {
    if
    :: broken = true
    :: true
    fi
}

active proctype stream() {
    byte pass;
    for (pass : 1 .. PASSES) {
        begin_pass();
        layer = 0;
        broken = false;
        may_break();
        do /* describe_forward of model/program.c, its blocks left out */
        :: layer <= LAYERS && !broken ->
            half = 0;
            do
            :: half < halves && !broken ->
#ifdef CUT
                if
                :: layer > 0 -> await_sums(2 * n_collected + (layer == LAYERS -> 2 : 1))
                :: else
                fi;
#endif
                if
                :: layer > 0 && !broken -> enqueue_collect(); may_break()
                :: else
                fi;
                if
                :: layer < LAYERS && !broken -> enqueue_submit(); may_break()
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
    raise_count(n_begun, NEWS);
    stop = true;
#else
    stop = true;
    raise_count(n_begun, NEWS);
#endif
    ended; /* pthread_join */
    assert(n_sleeping[NEWS] == 0 && n_sleeping[STEPS_ON] == 0)
}

/* ---- the expert thread ------------------------------------------------------------------------- */

inline write_sum(b) {
    begin_write(b);
    end_write(b, ticket)
}

inline tell_summed() {
#if FORM == DOORBELL
    summed[PORT(LAYER_OF(ticket), HALF_OF(ticket))] = 1
#else
    skip
#endif
}

/* Until ticket `ticket` of the pass is filled; there = false: it never will be. */
inline await_call() {
    do
    :: look = value[NEWS];
#ifdef FAULT_CALL_CLOSED_AFTER_COUNT
        there = n_filled > ticket;
        was_closed = closed;
#else
        was_closed = closed;
        there = n_filled > ticket;
#endif
        if
        :: there || was_closed -> break
        :: else
        fi;
        signal_wait(NEWS, look)
    od;
    look = 0
}

inline await_bell(bell) {
    do
    ::
#ifdef FAULT_BELL_CLOSED_AFTER_BELL
        there = bell;
        was_closed = closed;
#else
        was_closed = closed;
        there = bell;
#endif
        if
#if defined(FAULT_BELL_FILLED_KEPT) || defined(FAULT_BELL_SILENCED_AFTER_WORK)
        :: there -> break
#else
        :: there -> bell = 0; break
#endif
        :: !there && was_closed -> break
        :: else
        fi;
        bell || closed
    od
}

inline await_filled() {
#if FORM == DOORBELL
    await_bell(filled[PORT(LAYER_OF(ticket), HALF_OF(ticket))])
#else
    await_call()
#endif
}

/* on_immediate of run_ticket */
inline immediate_done() {
#ifndef FAULT_RAISE_EARLY
    raise_count(progress, STEPS_ON);
    if
    :: LAYER_OF(ticket) < LAYERS - 1 -> tell_summed()
    :: else
    fi
#else
    skip
#endif
}

inline run_ticket() {
    slot = SLOT(LAYER_OF(ticket), HALF_OF(ticket));
    later = DEFER && LAYER_OF(ticket) < LAYERS - 1;
    begin_read(x[slot], ticket);
#ifdef FAULT_RAISE_EARLY
    raise_count(progress, STEPS_ON);
    tell_summed();
#endif
    begin_write(y[slot]);
    if
    :: later -> /* no expert has deferred tokens alone: both sums come from one pass over the weights */
        write_sum(d[slot]);
        later = false
    :: true
    fi;
    end_write(y[slot], ticket);
    immediate_done();
    if
    :: later -> write_sum(d[slot])
    :: else
    fi;
    end_read(x[slot], ticket)
}

/* Some rows, and no time for the others. */
inline run_rows() {
    slot = SLOT(LAYER_OF(ticket), HALF_OF(ticket));
    begin_read(x[slot], ticket);
    begin_write(y[slot]);
    end_write(y[slot], NOBODY);
    end_read(x[slot], ticket)
}

inline run_pass() {
    begin_read(told, number);
    ticket = 0;
    do
    :: ticket < LAYERS * halves ->
        await_filled();
#ifdef CUT
        if
        :: closed -> there = false
        :: there -> run_rows(); there = false
        :: true
        fi;
#endif
        if
        :: !there -> break
        :: else
        fi;
        run_ticket();
        n_run++;
        raise_count(progress, STEPS_ON);
#ifndef FAULT_RAISE_EARLY
        if
        :: LAYER_OF(ticket) == LAYERS - 1 -> tell_summed()
        :: else
        fi;
#endif
        ticket++
    :: else -> break
    od;
    end_read(told, number)
}

active proctype expert_main() {
    byte number, ticket, look, slot, i;
    bool later, there, was_closed;
    do
    :: look = value[NEWS];
        do
        :: n_begun == number -> signal_wait(NEWS, look)
        :: else -> break
        od;
        look = 0;
        number++;
        if
        :: stop -> break
        :: else
        fi;
        run_pass();
        raise_count(n_ended, STEPS_ON);
#ifdef FAULT_BELL_SILENCED_AFTER_WORK
        for (i : 0 .. PORTS - 1) { filled[i] = 0 }
#endif
    od;
    ended = true
}
