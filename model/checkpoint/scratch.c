#include "model/checkpoint/scratch.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/error.h"
#include "core/memory/mem.h"

void td_scratch_reset(td_scratch *s) {
    for (size_t i = 0; i < s->n; i++) free(s->blocks[i]);
    free(s->blocks);
    *s = (td_scratch){0};
}

void *td_scratch_take(td_scratch *s, size_t bytes, td_error *err) {
    if (s->n == s->room) {
        size_t room = s->room ? 2 * s->room : 16;
        void **blocks = realloc(s->blocks, room * sizeof *blocks);
        if (!blocks) {
            td_fail(err, TD_ENOMEM, "out of memory");
            return NULL;
        }
        s->blocks = blocks;
        s->room = room;
    }
    /* Large blocks are aligned for huge pages: faulting in small pages takes longer than filling them. */
    size_t huge = td_huge_page_bytes(), align = bytes >= 2 * huge ? huge : TD_CACHE_LINE;
    void  *p = aligned_alloc(align, td_round_up(bytes ? bytes : 1, align));
    if (p && align == huge) madvise(p, td_round_up(bytes, align), MADV_HUGEPAGE);
    if (p)
        s->blocks[s->n++] = p;
    else
        td_fail(err, TD_ENOMEM, "no memory for a tensor of %zu bytes", bytes);
    return p;
}
