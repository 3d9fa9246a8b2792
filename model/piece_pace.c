#include "model/piece_pace.h"

static bool is_first(const td_block_part *part) {
    return part->i == 0;
}

static bool is_last(const td_block_part *part) {
    return part->i && part->i + 1 == part->n;
}

void td_piece_pace_note(td_piece_pace *p, const td_block_part *part, uint32_t n_tok, double seconds) {
    const td_part_time time = {seconds, n_tok};
    if (is_first(part)) {
        if (p->middle.s > 0) p->middle_was = p->middle;
        p->middle = (td_part_time){0};
        p->first = time;
    } else if (is_last(part)) {
        p->last = time;
    } else if (seconds > p->middle.s) {
        p->middle = time;
    }
}

void td_piece_pace_note_block(td_piece_pace *p, uint32_t n_tok, double seconds) {
    p->row_s = seconds / n_tok;
}

uint32_t td_piece_pace_parts(const td_piece_pace *p, uint32_t n_tok, double part_s, uint32_t most) {
    const double block_s = p->row_s * n_tok;
    if (most > n_tok) most = n_tok;
    return block_s < part_s * most ? 1 + (uint32_t)(block_s / part_s) : most;
}

static double of_rows(td_part_time t, uint32_t n_tok) {
    return t.n_tok && n_tok > t.n_tok ? t.s * n_tok / t.n_tok : t.s;
}

double td_piece_pace_foreseen(const td_piece_pace *p, const td_block_part *part, uint32_t n_tok) {
    if (is_first(part)) return of_rows(p->first, n_tok);
    if (is_last(part)) return of_rows(p->last, n_tok);
    const double was_s = of_rows(p->middle_was, n_tok);
    return p->middle.s > was_s ? p->middle.s : was_s;
}
