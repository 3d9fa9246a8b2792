/*
 * The sum over cards: each leaves its part where the others can read it, they meet, and every card adds all parts in the
 * order of the cards. So all have the same bits, and none depends on who comes first. Exact sums are added in the same way.
 *
 * Why it is shaped so. A card's part lies in memory that the others read directly (peer access, else pinned memory of the
 * host). With few rows every card adds all of them (one shot: one meeting). With many, a card adds a stretch, puts its sums
 * in the place of its own part's stretch, and all gather the stretches. That is two shots: two meetings, and each value
 * crosses twice in place of once for every other card. A value's sum is the same either way.
 *
 * Cards meet in a kernel of one warp, by words that each sets in the others' memory. A graph of one card can neither wait
 * for an event that another card's graph is still to record, nor may two streams' host functions wait for each other
 * (cuLaunchHostFunc: they may be serialised). The kernels before and behind are ordered by the stream, so that no block ever
 * waits for another of its own card, and nothing needs blocks to run at the same time. A part has two places, taken in turn:
 * who writes one knows by the last meeting that everybody has read it. A card that gave up a meeting knows nothing of the
 * kind: from there on it neither writes a part nor reads one, and comes to the others' meetings only.
 */
#include "npu/cuda/kernels/kernel.cuh"

/* Where a sum's part is: sums begun so far, this one included, say which of the two places. */
TD_FN size_t place_of_sum(const td_u32 *state, td_u32 groups_of_place, bool is_begun) {
    return (state[1] + (is_begun ? 1 : 0)) % 2 * static_cast<size_t>(groups_of_place);
}
/* Groups of TD_CUDA_SUM_VALUES values that the rows first .. first + most - 1 have, as far as they are there. */
TD_FN size_t groups_of_rows(const td_u32 *n_rows, td_u32 first, td_u32 most, td_u32 width) {
    const td_u32 rows = *n_rows > first ? min(*n_rows - first, most) : 0;
    return static_cast<size_t>(rows) * width / TD_CUDA_SUM_VALUES;
}

struct group_range {
    size_t begin, end;
};
/* Of n groups those of a card's stretch that are this block's; n_cards: of all. */
TD_FN group_range groups_of_block(size_t n, td_u32 card, td_u32 n_cards) {
    const size_t begin = card == n_cards ? 0 : n * card / n_cards, end = card == n_cards ? n : n * (card + 1) / n_cards;
    const size_t first = static_cast<size_t>(blockIdx.x) * TD_CUDA_SUM_THREADS;
    return {max(begin, first), min(end, first + TD_CUDA_SUM_THREADS)};
}
TD_FN size_t group_of_thread() {
    return static_cast<size_t>(blockIdx.x) * TD_CUDA_SUM_THREADS + threadIdx.x;
}
TD_FN bool is_in(const group_range &r, size_t group) {
    return group >= r.begin && group < r.end;
}
TD_FN void tell_used(const td_exchange *place, const group_range &r, bool is_written) {
    if (threadIdx.x == 0 && r.begin < r.end) td_exchange_used(place + r.begin, r.end - r.begin, is_written);
}

struct sums {
    float v[TD_CUDA_SUM_VALUES];
};
TD_FN void add_words(sums *to, const uint4 &words) {
    const unsigned w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to->v[2 * i] += __uint_as_float(w[i] << 16);
        to->v[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000u);
    }
}
TD_FN void add_exact(uint4 *to, const uint4 &words) {
    *to = {to->x + words.x, to->y + words.y, to->z + words.z, to->w + words.w};
}
TD_FN uint4 words_of(const sums &x) {
    return {td_bf16_pair(x.v[0], x.v[1]), td_bf16_pair(x.v[2], x.v[3]), td_bf16_pair(x.v[4], x.v[5]),
            td_bf16_pair(x.v[6], x.v[7])};
}

/**
 * The card's part: a + b + c in f32, NULL left out, rounded to bf16. grid (most * width / 8 / TD_CUDA_SUM_THREADS rounded
 * up), block TD_CUDA_SUM_THREADS.
 * @param a, b, c [most, width] bf16, of row `first` of the step on; 16-byte aligned; width a multiple of 8
 * @param state   [3] meetings, and sums begun so far; not 0: it gave up
 * @param part    [2, groups_of_place] groups of TD_CUDA_SUM_VALUES values
 * @param exact   not 0: the part is a as it is, int32 words of exact sums, of which one is two values
 */
TD_KERNEL(TD_CUDA_SUM_THREADS)
td_cards_part(const td_u32 *n_rows, td_u32 first, td_u32 most, const td_bf16 *a, const td_bf16 *b, const td_bf16 *c,
              td_u32 width, const td_u32 *state, td_exchange *part, td_u32 groups_of_place, td_u32 exact) {
    const size_t      group = group_of_thread();
    const group_range mine = groups_of_block(groups_of_rows(n_rows, first, most, width), 1, 1);
    if (state[2]) return;
    part += place_of_sum(state, groups_of_place, true);
    tell_used(part, mine, true);
    if (!is_in(mine, group)) return;
    sums sum = {{0, 0, 0, 0, 0, 0, 0, 0}};
    if (a) add_words(&sum, td_load<uint4>(a + group * TD_CUDA_SUM_VALUES));
    if (b) add_words(&sum, td_load<uint4>(b + group * TD_CUDA_SUM_VALUES));
    if (c) add_words(&sum, td_load<uint4>(c + group * TD_CUDA_SUM_VALUES));
    td_store(part + group, exact ? td_load<uint4>(a + group * TD_CUDA_SUM_VALUES) : words_of(sum));
}

/**
 * All cards have come here, or `stop` was set, and then *gave_up becomes 1. grid (1), block 32.
 * @param s0..s7  [n_cards] of each card, in its memory or the host's: by whom it was reached; those of this card at `self`
 * @param state   [3] meetings and sums so far, of which this is one more; of sums where begins is not 0; not 0: it gave up
 */
TD_KERNEL(32)
td_cards_meet(td_signal *s0, td_signal *s1, td_signal *s2, td_signal *s3, td_signal *s4, td_signal *s5, td_signal *s6,
              td_signal *s7, td_u32 n_cards, td_u32 self, td_u32 *state, td_u32 begins, const td_signal *stop,
              td_u32 *gave_up) {
    td_signal *const cards[TD_CUDA_CARDS] = {s0, s1, s2, s3, s4, s5, s6, s7};
    const td_u32     lane = threadIdx.x, meeting = state[0] + 1;
    td_signal       *theirs = nullptr, *mine = nullptr;
    bool             came = true;
#pragma unroll
    for (td_u32 i = 0; i < TD_CUDA_CARDS; i++) {
        if (i == lane) theirs = cards[i];
        if (i == self) mine = cards[i];
    }
    if (lane < n_cards && lane != self) td_signal_set(theirs + self, meeting);
    __syncwarp();
    if (lane < n_cards && lane != self)
        for (td_u32 round = 0; static_cast<int>(td_signal_get(mine + lane) - meeting) < 0; round++)
            if (round % 64 == 63 && td_signal_get(stop)) {
                came = false;
                break;
            }
    const unsigned all = __ballot_sync(TD_ALL_LANES, came);
    if (lane != 0) return;
    state[0] = meeting;
    if (begins) state[1]++;
    if (all == TD_ALL_LANES) return;
    state[2] = 1;
    *gave_up = 1;
}

/**
 * out = the sum of the cards' parts, in f32, card 0 first, rounded to bf16. grid and block as td_cards_part's.
 * @param p0..p7  [2, groups_of_place] of each card; NULL from n_cards on
 * @param stretch the card whose stretch alone is summed, into `own`; n_cards: all, into out
 * @param own     the card's own part, in whose place its sums go; not used with all
 * @param out     [most, width], of row `first` of the step on
 * @param exact   not 0: words are added as integers
 */
TD_KERNEL(TD_CUDA_SUM_THREADS)
td_cards_sum(const td_u32 *n_rows, td_u32 first, td_u32 most, const td_exchange *p0, const td_exchange *p1,
             const td_exchange *p2, const td_exchange *p3, const td_exchange *p4, const td_exchange *p5,
             const td_exchange *p6, const td_exchange *p7, td_u32 n_cards, td_u32 width, const td_u32 *state,
             td_u32 groups_of_place, td_u32 stretch, td_exchange *own, td_bf16 *out, td_u32 exact) {
    const td_exchange *const parts[TD_CUDA_CARDS] = {p0, p1, p2, p3, p4, p5, p6, p7};
    const size_t             group = group_of_thread(), place = place_of_sum(state, groups_of_place, false);
    const group_range        mine = groups_of_block(groups_of_rows(n_rows, first, most, width), stretch, n_cards);
    const bool               whole = stretch == n_cards;
    sums                     sum = {{0, 0, 0, 0, 0, 0, 0, 0}};
    uint4                    words = {0, 0, 0, 0};
    if (state[2]) return;
#pragma unroll
    for (td_u32 i = 0; i < TD_CUDA_CARDS; i++) {
        if (i >= n_cards) continue;
        tell_used(parts[i] + place, mine, false);
        if (!is_in(mine, group)) continue;
        if (exact)
            add_exact(&words, td_load<uint4>(parts[i] + place + group));
        else
            add_words(&sum, td_load<uint4>(parts[i] + place + group));
    }
    if (!whole) tell_used(own + place, mine, true);
    if (!is_in(mine, group)) return;
    if (!exact) words = words_of(sum);
    if (whole)
        td_store(out + group * TD_CUDA_SUM_VALUES, words);
    else
        td_store(own + place + group, words);
}

/** out = the stretch of each card's sums, from where its part was. Arguments, grid and block as td_cards_sum's. */
TD_KERNEL(TD_CUDA_SUM_THREADS)
td_cards_gather(const td_u32 *n_rows, td_u32 first, td_u32 most, const td_exchange *p0, const td_exchange *p1,
                const td_exchange *p2, const td_exchange *p3, const td_exchange *p4, const td_exchange *p5,
                const td_exchange *p6, const td_exchange *p7, td_u32 n_cards, td_u32 width, const td_u32 *state,
                td_u32 groups_of_place, td_bf16 *out) {
    const td_exchange *const parts[TD_CUDA_CARDS] = {p0, p1, p2, p3, p4, p5, p6, p7};
    const size_t             n = groups_of_rows(n_rows, first, most, width);
    const size_t             group = group_of_thread(), place = place_of_sum(state, groups_of_place, false);
    if (state[2]) return;
#pragma unroll
    for (td_u32 i = 0; i < TD_CUDA_CARDS; i++) {
        if (i >= n_cards) continue;
        const group_range its = groups_of_block(n, i, n_cards);
        tell_used(parts[i] + place, its, false);
        if (is_in(its, group)) td_store(out + group * TD_CUDA_SUM_VALUES, td_load<uint4>(parts[i] + place + group));
    }
}
