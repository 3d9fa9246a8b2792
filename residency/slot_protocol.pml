/*
 * The slots of experts that move as a Promela model: residency/resident_experts.c's table, ring of steps and memories.
 * tests/residency/test_slot_protocol.py checks every interleaving with spin, and that each of the faults below is found.
 *
 *   process   code                                                     raises     waits for
 *   passes    td_resident_begin_pass, a pass, td_resident_close        n_begun    nothing; it looks at n_ended
 *   uploads   uploads_main: one step of a swap after the other         n_ended    n_begun
 *
 * A pass copies the table to the device. Of any one expert it then reads, at any time, the slot that the device's table says, or
 * else the CPU's copy; more experts would be read as that one is. The policy's choices are free: any absent expert may come, any resident one may go. Copies to
 * the device and reads of files may fail. Checked: who reads a slot finds the expert that the table says, whole; who reads the
 * CPU's copy finds it in memory; nothing is written or given back while it is read; no slot is lost or had by two; no deadlock.
 *
 * A pass in pieces reads a layer with other passes between, while the layer is held (td_resident_hold): no step of a swap of
 * that layer is begun or taken then. So to the layer, which is all that is here, it is one pass that takes longer.
 *
 * Memory is sequentially consistent here: in C n_begun and n_ended publish what was written before. How a thread sleeps is
 * bridge/ticket_protocol.pml's.
 *
 * -DDROP=0|1     whether what is resident leaves host memory
 * -DFAULT_...    one of the seeded faults: FAULT_DROP_... can be with DROP=1 alone, FAULT_KEEP_... with 0
 */
#ifndef DROP
#define DROP 1
#endif
#define EXPERTS  4 /* of one layer */
#define SLOTS    2
#ifndef PASSES
#define PASSES 3 /* a swap with DROP takes as many */
#endif
#define OPEN_MAX 2 /* TD_UPLOADS_OPEN */
#define NONE     255

mtype = { ABSENT, LOADING, RESIDENT, LEAVING, STAYS };
mtype = { READ, COPY, GIVE_BACK };

/* ---- what both threads share -------------------------------------------------------------------- */

typedef swap_step {
    mtype kind;
    byte  in, out, slot;
    bool  failed
}

/* What nobody reads any more: fewer states. */
inline clear(x) {
    x.kind = 0;
    x.in = 0;
    x.out = 0;
    x.slot = 0;
    x.failed = false
}

swap_step ring[OPEN_MAX];
byte      n_begun, n_ended;
bool      stop, ended;

byte holds[SLOTS] = NONE; /* the expert whose bytes are whole in a slot of the device */
byte slot_readers[SLOTS];
bool in_memory[EXPERTS] = true;
byte memory_readers[EXPERTS];

inline read_memory(e) {
    atomic { assert(in_memory[e]); memory_readers[e]++ };
    atomic { assert(in_memory[e]); memory_readers[e]-- }
}

inline read_slot(s, e) {
    atomic { assert(holds[s] == e); slot_readers[s]++ };
    atomic { assert(holds[s] == e); slot_readers[s]-- }
}

/* ---- the uploads' thread ------------------------------------------------------------------------ */

inline give_back(e) { atomic { assert(memory_readers[e] == 0); in_memory[e] = false } }

inline copy_expert() {
    atomic { assert(slot_readers[u.slot] == 0); holds[u.slot] = NONE };
    read_memory(u.in);
    if
    :: ring[n % OPEN_MAX].failed = true
    :: holds[u.slot] = u.in
    fi
}

inline read_expert() {
    if
    :: ring[n % OPEN_MAX].failed = true
    :: in_memory[u.out] = true
    fi
}

inline tell_ended() { n_ended++ }

active proctype uploads() {
    byte      n;
    swap_step u;
    do
    :: n_begun != n ->
        d_step {
            u.kind = ring[n % OPEN_MAX].kind;
            u.in = ring[n % OPEN_MAX].in;
            u.out = ring[n % OPEN_MAX].out;
            u.slot = ring[n % OPEN_MAX].slot
        };
#ifdef FAULT_ENDED_EARLY
        tell_ended();
#endif
        if
        :: u.kind == READ -> read_expert()
        :: u.kind == COPY ->
            copy_expert();
#ifdef FAULT_DROP_BEFORE_TABLE
            give_back(u.in)
#endif
        :: u.kind == GIVE_BACK -> give_back(u.in)
        fi;
#ifndef FAULT_ENDED_EARLY
        tell_ended();
#endif
        d_step { clear(u); n++ }
    :: n_begun == n && stop -> break
    od;
    ended = true
}

/* ---- the launching thread ------------------------------------------------------------------------ */

mtype state[EXPERTS] = ABSENT; /* the policy's */
byte  table[EXPERTS] = NONE;   /* pinned: what the device's table will be */
byte  on_device[EXPERTS] = NONE;
byte  slot_of[EXPERTS] = NONE; /* with those that are loading */
bool  is_free[SLOTS] = true;
byte  n_taken, n_open;

inline begin_step(what, comes, goes, where) {
    ring[n_begun % OPEN_MAX].kind = what;
    ring[n_begun % OPEN_MAX].in = comes;
    ring[n_begun % OPEN_MAX].out = goes;
    ring[n_begun % OPEN_MAX].slot = where;
    ring[n_begun % OPEN_MAX].failed = false;
    n_begun++
}

inline enter_table(e, where) { table[e] = where }

inline leave_table(e) {
    table[e] = NONE;
    slot_of[e] = NONE
}

#ifdef FAULT_DROP_UNREAD_LEAVES
#define READ_FAILED false
#else
#define READ_FAILED t.failed
#endif
#ifdef FAULT_UNCOPIED_ENTERS
#define COPY_FAILED false
#else
#define COPY_FAILED t.failed
#endif

inline take_step() {
    if
    :: t.kind == READ && READ_FAILED ->
        state[t.out] = STAYS;
        state[t.in] = ABSENT;
        slot_of[t.in] = NONE;
#ifdef FAULT_DROP_SLOT_GIVEN_TWICE
        is_free[t.slot] = true;
#endif
        n_open--
    :: t.kind == READ && !READ_FAILED ->
        state[t.out] = ABSENT;
        leave_table(t.out);
        begin_step(COPY, t.in, t.out, t.slot)
    :: t.kind == COPY && COPY_FAILED ->
        state[t.in] = ABSENT;
        slot_of[t.in] = NONE;
        is_free[t.slot] = true;
        n_open--
    :: t.kind == COPY && !COPY_FAILED ->
        state[t.in] = RESIDENT;
        enter_table(t.in, t.slot);
#ifdef FAULT_KEEP_LEAVES_AFTER_COPY
        if
        :: t.out != NONE -> leave_table(t.out)
        :: else
        fi;
#endif
        if
#if DROP && !defined(FAULT_DROP_BEFORE_TABLE)
        :: true -> begin_step(GIVE_BACK, t.in, NONE, t.slot)
#else
        :: true -> n_open--
#endif
        fi
    :: t.kind == GIVE_BACK -> n_open--
    fi
}

inline take_ended() {
    do
    :: n_taken != n_ended ->
        d_step {
            t.kind = ring[n_taken % OPEN_MAX].kind;
            t.in = ring[n_taken % OPEN_MAX].in;
            t.out = ring[n_taken % OPEN_MAX].out;
            t.slot = ring[n_taken % OPEN_MAX].slot;
            t.failed = ring[n_taken % OPEN_MAX].failed;
            clear(ring[n_taken % OPEN_MAX]);
            n_taken++;
            take_step();
            clear(t)
        }
    :: else -> break
    od
}

/* An expert that may come, and a slot: an empty one, or that of an expert that may go. NONE: there is none, or nobody wants one. */
inline choose() {
    in = NONE;
    out = NONE;
    slot = NONE;
    for (e : 0 .. EXPERTS - 1) {
        if
        :: in == NONE && state[e] == ABSENT -> in = e
        :: true
        fi
    };
    for (e : 0 .. SLOTS - 1) {
        if
        :: slot == NONE && is_free[e] -> slot = e
        :: else
        fi
    };
    for (e : 0 .. EXPERTS - 1) {
        if
        :: slot == NONE && out == NONE && state[e] == RESIDENT -> out = e
        :: true
        fi
    };
    e = 0
}

inline begin_swap() {
    n_open++;
    state[in] = LOADING;
    if
    :: out == NONE ->
        is_free[slot] = false;
        slot_of[in] = slot;
        begin_step(COPY, in, NONE, slot)
    :: else ->
        slot = slot_of[out];
        slot_of[in] = slot;
#if DROP && !defined(FAULT_DROP_NOT_READ)
        state[out] = LEAVING;
#ifdef FAULT_DROP_LEAVES_BEFORE_READ
        table[out] = NONE;
#endif
#ifdef FAULT_DROP_LEAVING_IS_ABSENT
        state[out] = ABSENT;
#endif
        begin_step(READ, in, out, slot)
#else
        state[out] = ABSENT;
#ifndef FAULT_KEEP_LEAVES_AFTER_COPY
        leave_table(out);
#endif
        begin_step(COPY, in, out, slot)
#endif
    fi;
#ifdef FAULT_ENTERS_BEFORE_COPY
    enter_table(in, slot)
#else
    skip
#endif
}

inline begin_pass() {
    take_ended();
    do
    :: n_open < OPEN_MAX ->
        atomic {
            choose();
            if
            :: in != NONE && (out != NONE || slot != NONE) -> begin_swap()
            :: else -> break
            fi
        }
    :: else -> break
    od;
    atomic { in = 0; out = 0; slot = 0 }
}

inline check_slots() {
    d_step {
        for (slot : 0 .. SLOTS - 1) {
            n = (is_free[slot] -> 1 : 0);
            for (e : 0 .. EXPERTS - 1) {
                n = n + ((slot_of[e] == slot && state[e] != LOADING) -> 1 : 0)
            };
            assert(n <= 1)
        };
        n = 0;
        e = 0;
        slot = 0
    }
}

active proctype passes() {
    byte      pass, e, in, out, slot, n;
    swap_step t;
#if DROP
    d_step { /* td_resident_fill */
        for (e : 0 .. SLOTS - 1) {
            holds[e] = e;
            table[e] = e;
            slot_of[e] = e;
            is_free[e] = false;
            state[e] = RESIDENT;
            in_memory[e] = false
        }
        e = 0
    }
#endif
    for (pass : 1 .. PASSES) {
        begin_pass();
        check_slots();
#ifdef FAULT_TABLE_KEPT
        if
        :: pass <= 2 ->
#endif
            d_step {
                for (e : 0 .. EXPERTS - 1) { on_device[e] = table[e] }
                e = 0
            }
#ifdef FAULT_TABLE_KEPT
        :: else
        fi;
#endif
#ifdef FAULT_SWAPS_IN_A_PASS
        begin_pass();
#endif
        if
        :: n = 0
        :: n = 1
        :: n = 2
        :: n = 3
        fi;
        if
        :: on_device[n] != NONE -> read_slot(on_device[n], n)
        :: else -> read_memory(n)
        fi;
        n = 0
    }
    stop = true;
    ended /* pthread_join */
}
