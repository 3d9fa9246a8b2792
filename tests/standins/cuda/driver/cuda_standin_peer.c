/*
 * Several cards: who may reach whose memory, and whether kernels of two cards that use the same memory are ordered.
 *
 * Kernels of two cards are ordered by words that one sets and the other waits for (td_signal in cuda_emulation.h). In the
 * guide's memory model that is a release of system scope that an acquire of the same word reads from. It happens while the
 * kernels run, so the order between cards is checked then. Each stream has a second line and clock (standin_order.c) for
 * what has run. A word keeps the clock of the stream that set it, and a stream that reads it takes that clock over. If the
 * word was set again in between, a reader takes over more than its value stands for; such a race is not found.
 */
#include <stdlib.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

static uint32_t reached; /* cards whose memory others have been given; bits are never taken back */

static int peers_most(void) {
    return (int)standin_setting("TD_STANDIN_PEERS", 8); /* "a system-wide maximum of eight peer connections per device" */
}

bool standin_reaches(const struct CUctx_st *c, int device) {
    return c->device == device || (c->peers >> device & 1);
}

td_cu_status cuDeviceCanAccessPeer(int *can, td_cu_device device, td_cu_device peer) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    standin_check_device(device, "cuDeviceCanAccessPeer");
    standin_check_device(peer, "cuDeviceCanAccessPeer");
    if (device == peer) standin_refuse("cuDeviceCanAccessPeer", "whether device %d reaches its own memory is asked", device);
    STANDIN_CAN_FAIL;
    *can = peers_most() > 0;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuCtxEnablePeerAccess(td_cu_context peer, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_context own = standin_current();
    if (flags) standin_refuse("cuCtxEnablePeerAccess", "its flags are %u: they have to be 0", flags);
    if (!peer || !peer->retained)
        standin_refuse("cuCtxEnablePeerAccess", "access to a context that is none, or is released");
    if (peer == own) standin_refuse("cuCtxEnablePeerAccess", "access of device %d to itself", own->device);
    if (peers_most() == 0) return TD_CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (own->peers >> peer->device & 1)
        standin_refuse("cuCtxEnablePeerAccess", "access of device %d to device %d is enabled twice", own->device,
                       peer->device);
    if (__builtin_popcount(own->peers) >= peers_most()) return TD_CUDA_ERROR_TOO_MANY_PEERS;
    STANDIN_CAN_FAIL;
    STANDIN_LOCKED;
    own->peers |= 1u << peer->device; /* "unidirectional" */
    reached |= 1u << peer->device;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuCtxDisablePeerAccess(td_cu_context peer) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_context own = standin_current();
    STANDIN_LOCKED;
    if (!peer || !(own->peers >> peer->device & 1))
        standin_refuse("cuCtxDisablePeerAccess", "access is disabled that device %d does not have", own->device);
    own->peers &= ~(1u << peer->device);
    return standin_left();
}

/* ---- the order of what runs ---------------------------------------------------------------------- */

typedef struct word {
    struct word  *next;
    const void   *at;
    standin_clock clock; /* of those who have set it */
} word;

static word *words; /* under the lock */

void standin_ran(const standin_op *op, td_cu_stream s) {
    STANDIN_LOCKED;
    uint32_t step = standin_line_step(s->run_line, &s->run_clock);
    for (size_t i = 0; i < op->n_uses; i++) {
        standin_use     use = op->uses[i];
        standin_memory *m = standin_memory_of(use.at, use.bytes);
        if (!m || use.is_exchange || (m->device >= 0 && !m->is_told && !(reached >> m->device & 1))) continue;
        use.device = 0; /* all cards' are compared */
        standin_used(&m->run_history, &use, s->run_line, step, &s->run_clock, op->name);
    }
}

/** Under the lock. */
static void signalled(td_cu_stream s, const void *at, bool is_set) {
    word *w = words;
    while (w && w->at != at) w = w->next;
    if (!w && is_set) {
        w = calloc(1, sizeof *w);
        *w = (word){.next = words, .at = at};
        words = w;
    }
    if (is_set)
        standin_clock_merge(&w->clock, &s->run_clock);
    else if (w)
        standin_clock_merge(&s->run_clock, &w->clock);
}

void standin_exchanged(td_cu_stream s, const void *at, size_t bytes, td_cuda_exchange what) {
    STANDIN_LOCKED;
    standin_memory *m = standin_memory_of_real(at, bytes);
    if (!m) standin_refuse("stand-in", "a kernel says that it uses %zu bytes of no live memory", bytes);
    if (what == TD_CUDA_SIGNAL_SET || what == TD_CUDA_SIGNAL_READ)
        signalled(s, at, what == TD_CUDA_SIGNAL_SET);
    else {
        standin_use use = {
            .at = m->given + ((const char *)at - m->real), .bytes = bytes, .write = what == TD_CUDA_EXCHANGE_WRITTEN};
        standin_used(&m->run_history, &use, s->run_line, s->run_clock.seen[s->run_line], &s->run_clock, "a kernel");
    }
}

void standin_signals_forget(const void *at, size_t bytes) {
    for (word **w = &words; *w;) {
        word *it = *w;
        if ((const char *)it->at < (const char *)at || (const char *)it->at >= (const char *)at + bytes) {
            w = &it->next;
            continue;
        }
        *w = it->next;
        free(it);
    }
}
