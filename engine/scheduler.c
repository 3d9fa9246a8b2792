#include "engine/scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

td_status td_scheduler_open(td_scheduler *s, uint32_t max_running, uint32_t chunk, uint32_t max_seq_tokens,
                            td_kv_pages *pages, td_error *err) {
    size_t max_tok = (size_t)max_running + chunk,
           max_seq = 2 * (size_t)max_running; /* a prompt part and a generated part each */
    size_t stride = max_seq_tokens / TD_KV_PAGE + 1, table, words;
    *s = (td_scheduler){.max_running = max_running, .chunk = chunk, .pages = pages, .step.block_stride = (uint32_t)stride};
    if (td_mul_size(max_seq, stride, &table) && table < SIZE_MAX / 8 - 4 * (max_tok + max_seq)) {
        words = 3 * max_tok + 2 * max_seq + 1 + table;
        s->arrays = calloc(words * sizeof(uint32_t) + max_seq, 1);
    }
    s->running = calloc(max_running, sizeof *s->running);
    s->entries = calloc(max_running, sizeof *s->entries);
    if (!s->arrays || !s->running || !s->entries) {
        td_scheduler_close(s);
        return td_fail(err, TD_ENOMEM, "out of memory for the scheduler");
    }
    s->token = s->arrays;
    s->pos = s->token + max_tok;
    s->slot = s->pos + max_tok;
    s->kv_len = s->slot + max_tok;
    s->seq_start = s->kv_len + max_seq;
    s->block_table = s->seq_start + max_seq + 1;
    s->absorbed = (uint8_t *)(s->block_table + table);
    s->step.host = (td_step_arrays){.token = s->token,
                                    .pos = s->pos,
                                    .slot = s->slot,
                                    .seq_start = s->seq_start,
                                    .kv_len = s->kv_len,
                                    .absorbed = s->absorbed,
                                    .block_table = s->block_table};
    return TD_OK;
}

void td_scheduler_close(td_scheduler *s) {
    free(s->arrays);
    free(s->running);
    free(s->entries);
    *s = (td_scheduler){0};
}

/* ---- the two lists --------------------------------------------------------------------------- */

void td_scheduler_add(td_scheduler *s, td_request *r) {
    td_request **at = &s->waiting;
    while (*at && td_request_before(*at, r)) at = &(*at)->next;
    r->next = *at;
    *at = r;
    s->n_waiting++;
}

static void start_running(td_scheduler *s, td_request *r) {
    uint32_t at = s->n_running++;
    for (; at > 0 && td_request_before(r, s->running[at - 1]); at--) s->running[at] = s->running[at - 1];
    s->running[at] = r;
}

static void free_pages(td_scheduler *s, td_request *r) {
    while (r->n_pages) td_kv_pages_drop(s->pages, r->pages[--r->n_pages]);
    r->n_computed = 0;
}

void td_scheduler_remove(td_scheduler *s, td_request *r) {
    free_pages(s, r);
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->running[i] != r) continue;
        memmove(s->running + i, s->running + i + 1, (s->n_running - i - 1) * sizeof *s->running);
        s->n_running--;
        return;
    }
    for (td_request **at = &s->waiting; *at; at = &(*at)->next) {
        if (*at != r) continue;
        *at = r->next;
        s->n_waiting--;
        td_inbox_left(r->inbox);
        return;
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

static bool is_generating(const td_request *r) {
    return r->n_tokens > r->n_prompt && r->n_tokens - r->n_computed == 1;
}

static uint32_t pages_wanted(const td_request *r) {
    return (r->n_tokens + TD_KV_PAGE - 1) / TD_KV_PAGE - r->n_pages;
}

static bool take_pages(td_scheduler *s, td_request *r) {
    uint32_t n = pages_wanted(r);
    if (!td_kv_pages_take(s->pages, r->pages + r->n_pages, n)) return false;
    r->n_pages += n;
    return true;
}

static void retract_last(td_scheduler *s) {
    td_request *r = s->running[--s->n_running];
    free_pages(s, r);
    td_scheduler_add(s, r);
    td_inbox_rejoin(r->inbox);
    s->retractions++;
}

/* Give every generating request the page of its next token. @return whether it took a retraction. */
static bool extend_running(td_scheduler *s) {
    bool retracted = false;
    for (uint32_t i = 0; i < s->n_running; i++) {
        while (i < s->n_running && !take_pages(s, s->running[i])) {
            assert(s->n_running > 1); /* one request alone always fits: its length is bounded by the capacity */
            retract_last(s);
            retracted = true;
        }
    }
    return retracted;
}

static void admit(td_scheduler *s) {
    uint32_t to_prefill = 0, generating = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (is_generating(s->running[i]))
            generating++;
        else
            to_prefill += s->running[i]->n_tokens - s->running[i]->n_computed;
    }
    while (s->waiting && s->n_running < s->max_running && to_prefill < s->chunk) {
        td_request *r = s->waiting;
        if (pages_wanted(r) + generating > s->pages->n_free && s->n_running > 0) break;
        bool taken = take_pages(s, r);
        assert(taken);
        (void)taken;
        s->waiting = r->next;
        s->n_waiting--;
        td_inbox_left(r->inbox);
        start_running(s, r);
        to_prefill += r->n_tokens;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* One run of rows of one form. */
static void add_sequence(td_scheduler *s, const td_request *r, uint32_t begin, uint32_t end, bool absorbed) {
    td_step  *step = &s->step;
    uint32_t  seq = step->n_seq++, row = step->n_tok;
    uint32_t *table = s->block_table + (size_t)seq * step->block_stride;
    for (uint32_t p = begin; p < end; p++, row++) {
        s->token[row] = r->tokens[p];
        s->pos[row] = p;
        s->slot[row] = r->pages[p / TD_KV_PAGE] * TD_KV_PAGE + p % TD_KV_PAGE;
    }
    s->kv_len[seq] = end;
    s->absorbed[seq] = absorbed;
    memcpy(table, r->pages, r->n_pages * sizeof *table);
    step->n_tok = row;
    s->seq_start[seq + 1] = row;
}

static void add_request(td_scheduler *s, td_request *r, uint32_t n_rows) {
    uint32_t begin = r->n_computed, end = begin + n_rows, p = r->n_prompt;
    s->entries[s->n_entries++] = (td_step_entry){
        .request = r, .first_row = s->step.n_tok, .first_pos = begin, .n_rows = n_rows, .last = end == r->n_tokens};
    if (begin < p) add_sequence(s, r, begin, end < p ? end : p, false);
    if (end > p) add_sequence(s, r, begin > p ? begin : p, end, true);
}

bool td_scheduler_build(td_scheduler *s) {
    s->n_entries = s->n_prefill = 0;
    s->step.n_tok = s->step.n_seq = s->step.n_out = 0;
    s->seq_start[0] = 0;
    if (!extend_running(s)) admit(s);
    for (uint32_t i = 0; i < s->n_running; i++) {
        td_request *r = s->running[i];
        uint32_t    left = r->n_tokens - r->n_computed, room = s->chunk - s->n_prefill;
        if (is_generating(r)) {
            add_request(s, r, 1);
            continue;
        }
        uint32_t n = left < room ? left : room;
        if (n) add_request(s, r, n);
        s->n_prefill += n;
    }
    return s->n_entries > 0;
}

void td_scheduler_commit(td_scheduler *s) {
    for (uint32_t i = 0; i < s->n_entries; i++) s->entries[i].request->n_computed += s->entries[i].n_rows;
}
