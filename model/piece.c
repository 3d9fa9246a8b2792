#include "model/piece.h"

#include "core/log/trace.h"
#include "core/threads/chaos.h"

bool td_piece_is_waited_for(const td_piece *p) {
    return p->waited_for && atomic_load_explicit(p->waited_for, memory_order_relaxed);
}

double td_seconds_since(uint64_t begin_ns) {
    return 1e-9 * (double)(td_trace_now() - begin_ns);
}

bool td_piece_ends(const td_piece *p, uint64_t begin_ns, double next_s) {
    if (td_piece_is_waited_for(p)) return true;
    if (td_chaos_seeded()) return td_chaos_cuts();
    return td_seconds_since(begin_ns) + next_s > p->budget_s;
}
