#include "engine/step/scheduler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "npu/npu.h"

#define PARTS_A_PIECE 4
#define IMAGE_PIECE_S 1.0 /* of an image without streams beside it, at most: the watchdog sees that it goes on */
#define PIECE_SHARE 0.75  /* of the time of a step: a short prompt waits for half a piece, and then for its own step */

td_status td_scheduler_open(td_scheduler *s, const td_scheduler_config *c, const td_scheduler_caches *caches,
                            td_inbox *inbox, td_error *err) {
    *s = (td_scheduler){.config = *c,
                        .cache = caches->cache,
                        .states = caches->states,
                        .windows = caches->windows,
                        .images = caches->images,
                        .exchange = caches->exchange,
                        .inbox = inbox,
                        .speed = {.max_s = c->max_step_s, .least_rows = c->least_rows},
                        .aside_speed = {.max_s = PIECE_SHARE * c->max_step_s, .least_rows = c->least_rows}};
    s->running = calloc(c->max_running, sizeof *s->running);
    s->given = calloc(c->max_running, sizeof *s->given);
    s->step.entries = calloc(c->max_running, sizeof *s->step.entries);
    td_status st =
        s->running && s->given && s->step.entries ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the scheduler");
    if (st == TD_OK)
        st = td_step_rows_open(&s->step.rows, c->chunk + c->max_running, td_scheduler_max_seq(c->max_running),
                               c->max_seq_tokens, err);
    s->aside.step.entries = &s->aside_entry;
    if (st == TD_OK && c->aside) st = td_step_rows_open(&s->aside.step.rows, c->aside, TD_ASIDE_SEQ, c->max_seq_tokens, err);
    if (st != TD_OK) td_scheduler_close(s);
    return st;
}

void td_scheduler_close(td_scheduler *s) {
    td_step_rows_close(&s->step.rows);
    td_step_rows_close(&s->aside.step.rows);
    free(s->running);
    free(s->given);
    free(s->step.entries);
    *s = (td_scheduler){0};
}

/* ---- the two lists --------------------------------------------------------------------------- */

static void wait_in_order(td_scheduler *s, td_request *r) {
    td_request **at = &s->waiting;
    while (*at && td_request_before(*at, r)) at = &(*at)->next;
    r->next = *at;
    *at = r;
    s->n_waiting++;
}

td_status td_scheduler_add(td_scheduler *s, td_request *r) {
    wait_in_order(s, r);
    return td_request_images_enter(&r->images, s->images, r->keys);
}

static void start_running(td_scheduler *s, td_request *r) {
    uint32_t at = s->n_running++;
    for (; at > 0 && td_request_before(r, s->running[at - 1]); at--) s->running[at] = s->running[at - 1];
    s->running[at] = r;
}

static void stop_running(td_scheduler *s, uint32_t i) {
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, (s->n_running - i) * sizeof *s->running);
}

/* Whose rows are aside and not computed yet; NULL: nobody's. */
static const td_request *aside_request(const td_scheduler *s) {
    return s->aside.step.n_entries && !s->aside.computed ? s->aside_entry.request : NULL;
}

static void drop_pages(td_scheduler *s, td_request *r) {
    if (r == aside_request(s)) td_scheduler_end_aside(s);
    if (s->states) td_request_state_end(&r->state, s->states);
    if (s->windows) td_request_windows_end(&r->windows, s->windows);
    td_request_images_end(&r->images, s->images);
    while (r->n_pages) td_prefix_cache_drop(s->cache, r->pages[--r->n_pages]);
    r->n_computed = r->n_published = 0;
}

/* r is no longer in the waiting list. */
static void left_waiting(td_scheduler *s, td_request *r) {
    s->n_waiting--;
    s->n_retracted -= r->retracted;
    r->retracted = false;
    td_inbox_left(s->inbox, r);
}

void td_scheduler_remove(td_scheduler *s, td_request *r) {
    td_page_exchange_left(s->exchange, r);
    drop_pages(s, r);
    td_request_images_leave(&r->images, s->images);
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->running[i] != r) continue;
        stop_running(s, i);
        return;
    }
    for (td_request **at = &s->waiting; *at; at = &(*at)->next) {
        if (*at != r) continue;
        *at = r->next;
        left_waiting(s, r);
        return;
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

static uint32_t pages_wanted(const td_request *r) {
    return (r->n_tokens + TD_KV_PAGE - 1) / TD_KV_PAGE - r->n_pages;
}

static bool take_pages(td_scheduler *s, td_request *r) {
    uint32_t n = pages_wanted(r);
    if (!td_prefix_cache_take(s->cache, r->pages + r->n_pages, n)) return false;
    r->n_pages += n;
    return true;
}

static void retract(td_scheduler *s, uint32_t i) {
    td_request *r = s->running[i];
    stop_running(s, i);
    drop_pages(s, r);
    wait_in_order(s, r);
    td_inbox_rejoin(s->inbox, r);
    r->retracted = true;
    r->looked_up = false;
    r->draft = TD_NO_DRAFT;
    s->n_retracted++;
    s->retractions++;
}

/* Give every running request the pages of its next tokens. @return whether a request was retracted for that. */
static bool extend_running(td_scheduler *s) {
    bool retracted = false;
    for (uint32_t i = 0; i < s->n_running; i++) {
        while (i < s->n_running && !take_pages(s, s->running[i])) {
            assert(s->n_running > 1); /* one request alone always fits: its length is bounded by the capacity */
            retract(s, s->n_running - 1);
            retracted = true;
        }
    }
    return retracted;
}

/* ---- the prefix cache ------------------------------------------------------------------------ */

/* The number of r's first tokens whose KV depends on nothing but the tokens themselves. */
static uint32_t cacheable_tokens(const td_scheduler *s, const td_request *r) {
    return r->n_prompt >= s->config.one_form_from ? r->n_tokens : r->n_prompt;
}

/* Whole pages that r may take from the cache. Rows whose logits are still needed must be computed; all rows, while the
 * prompt's log-probabilities are wanted. */
static uint32_t matchable_pages(const td_scheduler *s, const td_request *r) {
    uint32_t n = cacheable_tokens(s, r), needed = td_request_first_needed(r);
    if (!s->cache->on || (r->prompt_logprobs && !r->prompt_positions_sent)) return 0;
    return (n < needed ? n : needed) / TD_KV_PAGE;
}

static td_snapshot_rule snapshot_rule(const td_scheduler *s, const td_request *r) {
    bool published = s->cache->on && r->publishes;
    return (td_snapshot_rule){.n_prompt = r->n_prompt, .n_cacheable = published ? cacheable_tokens(s, r) : 0};
}

/* The step's work on r's state counts, as far as r's published pages go. */
static void commit_state(td_scheduler *s, td_request *r) {
    if (s->states) td_request_state_commit(&r->state, s->states, snapshot_rule(s, r), r->pages, r->n_published);
}

static void publish(td_scheduler *s, td_request *r) {
    uint32_t n = cacheable_tokens(s, r), pages = (r->n_computed < n ? r->n_computed : n) / TD_KV_PAGE;
    if (!r->publishes || pages <= r->n_published) return;
    for (; r->n_published < pages; r->n_published++) {
        const uint32_t i = r->n_published, own = r->pages[i];
        td_prefix_cache_publish(s->cache, r->keys, i, i + 1, r->pages);
        if (s->windows && r->pages[i] != own) td_request_windows_replaced(&r->windows, s->windows, i, r->pages[i]);
    }
}

/* How many whole pages two requests have in common that other publishes and r may take. */
static uint32_t common_pages(const td_scheduler *s, const td_request *r, const td_request *other) {
    uint32_t most = matchable_pages(s, r), n = cacheable_tokens(s, other) / TD_KV_PAGE, common = 0;
    if (n < most) most = n;
    while (common < most && !memcmp(other->keys + (size_t)common * TD_KV_PAGE, r->keys + (size_t)common * TD_KV_PAGE,
                                    TD_KV_PAGE * sizeof *r->keys))
        common++;
    return common;
}

/* A running request that is about to compute a page that r could share, beyond the r->n_pages that the cache has; or
 * NULL. */
static td_request *computes_for(const td_scheduler *s, const td_request *r) {
    size_t end = ((size_t)r->n_pages + 1) * TD_KV_PAGE;
    if (r->n_pages >= matchable_pages(s, r)) return NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        td_request *other = s->running[i];
        if (other->publishes && other->n_computed < end && end <= cacheable_tokens(s, other) &&
            !memcmp(other->keys, r->keys, end * sizeof *r->keys))
            return other;
    }
    return NULL;
}

/* Whether r waits for another request, which keeps for it what is needed to go on where their prompts go different ways. */
static bool should_wait(const td_scheduler *s, const td_request *r) {
    td_request *other = computes_for(s, r);
    if (other && s->states && other->state.branch <= other->n_computed)
        other->state.branch = common_pages(s, r, other) * TD_KV_PAGE;
    if (other && s->windows && other->windows.branch * TD_KV_PAGE <= other->n_computed)
        other->windows.branch = common_pages(s, r, other);
    return other != NULL;
}

/* The most of the pages that the cache has of r behind which all kinds of layers can go on. */
static uint32_t usable_pages(const td_scheduler *s, const td_request *r) {
    uint32_t n = r->n_pages, before;
    do {
        before = n;
        if (s->windows) n = td_window_pages_reach(s->windows, r->pages, n);
        if (s->states) n = td_state_slots_before(s->states, r->pages, n);
    } while (n < before);
    return n;
}

/* Take from the cache what r can use of it. */
static void begin_caches(td_scheduler *s, td_request *r) {
    const uint32_t found = r->n_pages, n = usable_pages(s, r);
    if (s->states) td_request_state_begin(&r->state, s->states, r->pages, n, found);
    if (s->windows) td_request_windows_begin(&r->windows, s->windows, r->pages, n, found);
    while (r->n_pages > n) td_prefix_cache_drop(s->cache, r->pages[--r->n_pages]);
}

void td_scheduler_flush_cache(td_scheduler *s) {
    td_page_exchange_flush(s->exchange);
    td_prefix_cache_flush(s->cache);
    for (uint32_t i = 0; i < s->n_running; i++) s->running[i]->publishes = false;
}

/* ---- admission ------------------------------------------------------------------------------- */

typedef enum { ADMITTED, SKIPPED, NO_ROOM } admission;

/* Tokens of r that are left to compute. */
static uint32_t left_of(const td_request *r) {
    return r->n_tokens - r->n_computed;
}

/* Those of them that can be computed now: before an image without features. */
static uint32_t ready_of(const td_request *r) {
    const uint32_t reach = td_request_images_reach(&r->images, r->n_computed);
    return (reach < r->n_tokens ? reach : r->n_tokens) - r->n_computed;
}

/* Whether a prompt of which so much is left may pass longer ones. */
static bool is_short(const td_scheduler *s, uint32_t left) {
    return left <= s->config.chunk / 2;
}

/* @param short_only whether a request of which more is left is skipped. */
static admission try_admit(td_scheduler *s, td_request *r, uint32_t generating, bool short_only) {
    r->n_pages = td_prefix_cache_match(s->cache, r->keys, matchable_pages(s, r), r->pages);
    admission result = ADMITTED;
    bool      waits = should_wait(s, r);
    if (!waits) begin_caches(s, r);
    r->n_published = r->n_pages;
    if (waits || (short_only && !is_short(s, r->n_tokens - r->n_pages * TD_KV_PAGE)))
        result = SKIPPED;
    else if (pages_wanted(r) + generating > td_prefix_cache_available(s->cache) && s->n_running > 0)
        result = NO_ROOM;
    else if (td_page_exchange_waits(s->exchange, r, r->n_pages, matchable_pages(s, r)))
        result = SKIPPED;
    if (result != ADMITTED) {
        drop_pages(s, r);
        return result;
    }
    r->n_computed = r->n_layer = r->n_pages * TD_KV_PAGE;
    if (!r->started) r->n_cached = r->n_computed < r->n_prompt ? r->n_computed : r->n_prompt;
    r->publishes = true;
    bool taken = take_pages(s, r);
    assert(taken);
    (void)taken;
    return ADMITTED;
}

/* What keeps requests waiting. */
typedef struct {
    uint32_t generating;
    uint32_t to_prefill, short_prefill; /* tokens of admitted prompts that can be computed, and of short ones among them */
    uint32_t imaging;                   /* admitted prompts that wait for features of images */
    int32_t  priority;                  /* the highest of requests that a short prompt would pass */
} admission_state;

static void count_admitted(const td_scheduler *s, const td_request *r, admission_state *a) {
    if (td_request_generates(r)) {
        a->generating++;
        return;
    }
    a->to_prefill += ready_of(r);
    if (is_short(s, ready_of(r))) a->short_prefill += ready_of(r);
    a->imaging += ready_of(r) < left_of(r);
    if (r->priority > a->priority) a->priority = r->priority;
}

static void admit(td_scheduler *s) {
    admission_state a = {.priority = INT32_MIN};
    for (uint32_t i = 0; i < s->n_running; i++) count_admitted(s, s->running[i], &a);
    for (td_request **at = &s->waiting; *at && s->n_running < s->config.max_running;) {
        td_request *r = *at;
        bool        short_only = a.to_prefill >= s->config.chunk;
        if (short_only && (a.short_prefill >= s->config.chunk / 2 || r->priority < a.priority)) break;
        const bool many_images = r->images.n && a.imaging >= (s->config.max_running + 1) / 2; /* text finds a place */
        admission  result = many_images ? SKIPPED : try_admit(s, r, a.generating, short_only);
        if (result == NO_ROOM) break; /* what comes later must not take the room that this one waits for */
        if (result == SKIPPED) {
            if (short_only && r->priority > a.priority) a.priority = r->priority;
            at = &r->next;
            continue;
        }
        *at = r->next;
        left_waiting(s, r);
        start_running(s, r);
        count_admitted(s, r, &a);
    }
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Read the images of what prompts compute next, and choose the one that is encoded next. Who finds no room waits for others to
 * leave theirs; if nobody has any, it was memory that the cache did not get. */
static void prepare_images(td_scheduler *s) {
    s->image = (td_scheduled_image){0};
    s->starved = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        td_request *r = s->running[i];
        if (!r->images.n || td_request_generates(r)) continue;
        const uint32_t at = td_request_images_prepare(&r->images, s->images, r->n_computed, r->n_computed + s->config.chunk);
        if (at < r->images.n && !s->image.known)
            s->image = (td_scheduled_image){.known = r->images.known[at], .image = r->images.images[at]};
        if (!s->images->n_read && !ready_of(r)) s->starved = r;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* How many parts more of the newest entry the step has room for, besides two for each request that may follow. */
static uint32_t splits_left(const td_scheduler *s, const td_scheduled_step *step, bool last) {
    uint32_t others = s->n_running - step->n_entries, wanted = step->rows.n_seq + (last ? 1 : 2) + 2 * others;
    return step->rows.max_seq > wanted ? step->rows.max_seq - wanted : 0;
}

/* Add rows begin .. end - 1 of the newest entry's request, which are all of its prompt or all generated. */
static void add_sequence(td_scheduler *s, td_scheduled_step *step, td_request *r, uint32_t begin, uint32_t end,
                         bool absorbed) {
    const td_step_entry *entry = &step->entries[step->n_entries - 1];
    const uint32_t       last = entry->first_pos + entry->n_rows + entry->drafted;
    td_step_sequence     seq = {.pages = r->pages,
                                .windows = s->windows ? r->windows.table : NULL,
                                .n_pages = r->n_pages,
                                .absorbed = absorbed,
                                .images = r->images.in_rows,
                                .n_images = r->images.n};
    td_snapshot_rule     rule = snapshot_rule(s, r);
    rule.drafted = entry->drafted;
    for (uint32_t part_end = end; begin < end; begin = part_end) {
        if (s->states)
            part_end = td_request_state_next_part(&r->state, s->states, rule, begin, end, splits_left(s, step, end == last),
                                                  &seq.state);
        td_step_rows_add(&step->rows, r->tokens + begin, begin, part_end - begin, &seq);
    }
}

/* Whether there is room for the draft behind the last token, and a page and a slot, and the request may have a token after
 * the draft. */
static bool may_draft(td_scheduler *s, td_request *r, uint32_t room) {
    if (r->draft == TD_NO_DRAFT || room < 1 || r->n_tokens + 1 >= r->n_prompt + r->max_tokens) return false;
    if (s->states && !td_request_state_can_draft(s->states, r->n_tokens)) return false;
    if (r->n_tokens / TD_KV_PAGE < r->n_pages) return true;
    bool taken = td_prefix_cache_take(s->cache, r->pages + r->n_pages, 1);
    r->n_pages += taken;
    return taken;
}

static void add_request(td_scheduler *s, td_scheduled_step *step, td_request *r, uint32_t n_rows, bool drafted) {
    uint32_t begin = r->n_computed, end = begin + n_rows, p = r->n_prompt;
    step->entries[step->n_entries++] = (td_step_entry){.request = r,
                                                       .first_row = step->rows.n_tok,
                                                       .first_pos = begin,
                                                       .n_rows = n_rows,
                                                       .last = end == r->n_tokens,
                                                       .drafted = drafted};
    if (drafted) r->tokens[end++] = r->draft;
    r->draft = TD_NO_DRAFT;
    step->n_drafts += drafted;
    if (s->windows) td_request_windows_extend(&r->windows, s->windows, r->pages, end);
    if (begin < p) add_sequence(s, step, r, begin, end < p ? end : p, false);
    if (end > p) add_sequence(s, step, r, begin > p ? begin : p, end, true);
}

static void add_prompt_rows(td_scheduler *s, td_scheduled_step *step, td_request *r, uint32_t n_rows) {
    step->prompt_work += td_prompt_work(r->n_computed, n_rows);
    step->n_prefill += n_rows;
    add_request(s, step, r, n_rows, false);
}

static void clear(td_scheduled_step *step) {
    step->n_entries = step->n_prefill = step->n_drafts = 0;
    step->prompt_work = 0;
    td_step_rows_clear(&step->rows);
}

/* Whether the step that is built may have prompt rows of r. */
static bool takes_rows(const td_scheduler *s, const td_request *r) {
    const td_request *aside = aside_request(s);
    return !td_request_generates(r) && r != aside && (!aside || is_short(s, left_of(r))) && ready_of(r);
}

static bool is_alone(const td_scheduler *s) {
    return s->n_running + s->n_waiting == 1;
}

static uint32_t first_prompt(const td_scheduler *s) {
    uint32_t first = 0;
    while (first < s->n_running && !takes_rows(s, s->running[first])) first++;
    return first;
}

/* ---- the step aside -------------------------------------------------------------------------- */

/* Rows of the next step, so that all have about as many: what is few costs more a row. */
static uint32_t even_rows(uint32_t left, uint32_t most) {
    const uint32_t steps = (left + most - 1) / most;
    return (left + steps - 1) / steps;
}

/* Set rows of the first prompt aside, if it does not fit a step beside others. One that is alone goes aside, too, as a request
 * may come. */
static void set_aside(td_scheduler *s) {
    const uint32_t first = first_prompt(s);
    if (!s->config.aside || s->aside.step.n_entries || first == s->n_running) return;
    td_request *r = s->running[first];
    bool        streams = false;
    for (uint32_t i = 0; i < s->n_running; i++) streams = streams || td_request_generates(s->running[i]);
    if (td_step_speed_has_room(&s->speed, td_prompt_work(r->n_computed, ready_of(r)), streams)) return;
    uint32_t rows = even_rows(ready_of(r), s->config.aside);
    if (!is_alone(s)) {
        const uint32_t fit = td_prompt_rows(r->n_computed, td_step_speed_fits(&s->aside_speed, r->n_computed, false));
        if (rows > fit) rows = fit;
    }
    clear(&s->aside.step);
    s->aside.begun = s->aside.failed = s->aside.computed = s->aside.gave_way = false;
    s->aside.longest_s = 0;
    add_prompt_rows(s, &s->aside.step, r, rows);
}

void td_scheduler_end_aside(td_scheduler *s) {
    s->aside.step.n_entries = 0;
}

/* A piece ends for requests that come, but the one behind it does not: whatever comes, what goes in pieces has half its time.
 * Who is alone need not leave before. */
td_piece td_scheduler_piece(const td_scheduler *s, bool gave_way, const atomic_bool *waited_for) {
    const double piece_s = s->config.max_step_s > 0 ? s->aside_speed.max_s : (double)INFINITY;
    td_piece     piece = {.budget_s = piece_s, .part_s = piece_s / PARTS_A_PIECE};
    if (!gave_way) piece.waited_for = waited_for;
    if (!gave_way && is_alone(s)) piece.budget_s = (double)INFINITY;
    return piece;
}

/* It is never as long as the whole of an image, which may take minutes. */
td_piece td_scheduler_image_piece(const td_scheduler *s, bool gave_way, const atomic_bool *waited_for) {
    td_piece piece = td_scheduler_piece(s, gave_way, waited_for);
    bool     streams = false;
    for (uint32_t i = 0; i < s->n_running; i++) streams = streams || td_request_generates(s->running[i]);
    piece.budget_s = fmin(piece.budget_s, streams && s->streams_s > 0 ? s->streams_s : IMAGE_PIECE_S);
    piece.part_s = fmin(piece.part_s, piece.budget_s / PARTS_A_PIECE);
    return piece;
}

/* ---- sharing out ----------------------------------------------------------------------------- */

typedef struct {
    bool prompts, generating;
} step_share;

static step_share choose_share(const td_scheduler *s) {
    uint32_t n = 0, prompts = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        n += td_request_generates(s->running[i]);
        prompts += takes_rows(s, s->running[i]);
    }
    if (s->config.mixed || n == 0 || prompts == 0) return (step_share){true, true};
    return s->prompts_last ? (step_share){.generating = true} : (step_share){.prompts = true};
}

/* Room for prompts in a step: rows, and work as td_prompt_work counts it. */
typedef struct {
    uint32_t rows;
    double   work;
} prompt_room;

/* Give running request i as many rows as it has and the room allows. */
static void give_rows(td_scheduler *s, uint32_t i, prompt_room *room) {
    const td_request *r = s->running[i];
    uint32_t pos = r->n_computed + s->given[i], n = ready_of(r) - s->given[i], fit = td_prompt_rows(pos, room->work);
    if (n > room->rows) n = room->rows;
    if (n > fit) n = fit;
    s->given[i] += n;
    room->rows -= n;
    room->work -= td_prompt_work(pos, n);
}

static void give_in_order(td_scheduler *s, prompt_room *room) {
    for (uint32_t i = 0; i < s->n_running; i++)
        if (takes_rows(s, s->running[i])) give_rows(s, i, room);
}

/* Give rows to the short prompt of the given priority of which least is left. @return whether there was one, and room. */
static bool give_shortest(td_scheduler *s, int32_t priority, prompt_room *room) {
    uint32_t found = s->n_running, least = UINT32_MAX, rows = room->rows;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const td_request *r = s->running[i];
        uint32_t          left = left_of(r) - s->given[i];
        if (!takes_rows(s, r) || r->priority != priority || !is_short(s, left) || s->given[i] >= ready_of(r) ||
            left >= least)
            continue;
        found = i;
        least = left;
    }
    if (found < s->n_running) give_rows(s, found, room);
    return room->rows < rows;
}

/* The work of prompts that a step of so much work can end: each has no more than half of it left. */
static double ending_work(const td_scheduler *s, int32_t priority, double work) {
    double sum = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const td_request *r = s->running[i];
        double            left = td_prompt_work(r->n_computed, left_of(r));
        if (takes_rows(s, r) && r->priority == priority && left <= work / 2) sum += left;
    }
    return sum;
}

/* The prompt work of a step that is not alone. */
static double limited_work(const td_scheduler *s, const td_request *first, bool streams) {
    double most = td_step_speed_fits(&s->speed, first->n_computed, streams);
    double least = td_prompt_work(first->n_computed, s->config.least_rows), ending = ending_work(s, first->priority, most);
    return s->config.max_step_s > 0 && ending > 0 ? fmin(most, fmax(least, 2 * ending)) : most;
}

/* Share out the step's prompt rows. @param room rows that are left of the chunk. @param streams as td_step_speed_fits has
 * it. */
static void share_rows(td_scheduler *s, uint32_t room, bool streams) {
    const uint32_t first = first_prompt(s);
    if (first == s->n_running) return;
    double      work = is_alone(s) ? (double)INFINITY : limited_work(s, s->running[first], streams);
    prompt_room ordered = {.rows = (room + 1) / 2, .work = work / 2}, rest;
    give_in_order(s, &ordered);
    rest = (prompt_room){.rows = room / 2 + ordered.rows, .work = work / 2 + ordered.work};
    while (give_shortest(s, s->running[first]->priority, &rest)) continue;
    give_in_order(s, &rest);
}

/* Whether the next n rows of r have a slot for their recurrent state. If not, r waits for a step in which others need
 * none. */
static bool has_slot(const td_scheduler *s, const td_request *r, uint32_t n) {
    return !s->states || td_request_state_can_step(&r->state, s->states, r->n_computed, r->n_computed + n);
}

bool td_scheduler_build(td_scheduler *s) {
    td_scheduled_step *step = &s->step;
    clear(step);
    if (!extend_running(s)) admit(s);
    prepare_images(s);
    set_aside(s);
    memset(s->given, 0, s->n_running * sizeof *s->given);
    step_share now = choose_share(s);
    uint32_t   room = s->config.chunk - (aside_request(s) ? s->config.aside : 0);
    for (uint32_t i = 0; now.generating && i < s->n_running; i++) {
        td_request *r = s->running[i];
        if (!td_request_generates(r)) continue;
        uint32_t left = left_of(r), most = room ? room : 1, n = left < most ? left : most;
        if (!has_slot(s, r, n)) continue;
        room -= n - 1;
        bool drafted = left == 1 && may_draft(s, r, room);
        add_request(s, step, r, n, drafted);
        room -= drafted;
    }
    if (now.prompts) share_rows(s, room, s->step.n_entries > 0);
    for (uint32_t i = 0; i < s->n_running; i++) {
        td_request *r = s->running[i];
        if (!s->given[i] || !has_slot(s, r, s->given[i])) continue;
        add_prompt_rows(s, step, r, s->given[i]);
    }
    s->prompts_last = step->n_prefill > 0;
    return step->n_entries > 0 || s->aside.step.n_entries > 0 || s->image.known || s->starved;
}

/* So many more tokens of r are computed. */
static void count_computed(td_scheduler *s, td_request *r, uint32_t n) {
    r->n_computed += n;
    td_request_images_pass(&r->images, s->images, r->n_computed);
    publish(s, r);
    if (s->windows) td_request_windows_pass(&r->windows, s->windows, r->n_computed, r->n_prompt);
}

void td_scheduler_commit_draft(td_scheduler *s, td_request *r) {
    count_computed(s, r, 1);
    if (r->state.awaits) commit_state(s, r);
}

void td_scheduler_drop_drafts(td_scheduler *s) {
    for (uint32_t i = 0; s->states && i < s->step.n_entries; i++)
        if (s->step.entries[i].request) td_request_state_take_back(&s->step.entries[i].request->state, s->states);
}

static void commit_rows(td_scheduler *s, const td_scheduled_step *step) {
    for (uint32_t i = 0; i < step->n_entries; i++) {
        td_request *r = step->entries[i].request;
        count_computed(s, r, step->entries[i].n_rows);
        r->failed_before = false;
        if (!r->state.awaits) commit_state(s, r);
    }
}

void td_scheduler_commit(td_scheduler *s, double seconds) {
    bool streams = s->step.rows.n_tok > s->step.n_prefill;
    td_step_speed_observe(&s->speed, s->step.n_prefill, s->step.prompt_work, streams, seconds);
    if (!s->step.n_prefill) s->streams_s = seconds;
    commit_rows(s, &s->step);
}

void td_scheduler_commit_aside(td_scheduler *s) {
    const td_scheduled_step *step = &s->aside.step;
    td_step_speed_observe(&s->aside_speed, step->n_prefill, step->prompt_work, false, s->aside.longest_s);
    commit_rows(s, step);
    s->aside.computed = true;
}

void td_scheduler_retract_step(td_scheduler *s) {
    for (uint32_t i = 0; i < s->step.n_entries; i++) {
        uint32_t at = 0;
        while (s->running[at] != s->step.entries[i].request) at++;
        s->running[at]->failed_before = true;
        retract(s, at);
    }
}
