/*
 * Which prompts share a step, and how many of their rows. A machine of given speed stands in for the model: it tells the
 * scheduler what each step took, and no clock is read.
 */
#include <math.h>

#include "engine/step/scheduler.h"
#include "tests/td_test.h"

#define PAGES 1024
#define CHUNK 4096
#define LEAST 256
#define ASIDE (3 * CHUNK / 4)
#define OPERATIONS 8 /* of a pass in pieces, which take equally long */
#define LONGEST (PAGES * TD_KV_PAGE)
#define REQUESTS_MAX 8
#define IMAGE_TOKEN 90

/* Seconds of a step: its weights, each row, and each key that a prompt row attends to. */
typedef struct {
    double step_s, row_s, key_s;
} machine;

static const machine g_machine = {.step_s = 0.020, .row_s = 0.0004, .key_s = 15e-9};

typedef struct {
    td_kv_pages      pages;
    td_prefix_cache  cache;
    td_page_exchange exchange;
    td_waker        *waker;
    td_inbox        *inbox;
    td_image_cache   images;
    td_scheduler     s;
    td_request      *all[REQUESTS_MAX]; /* [n] */
    uint32_t         n;
    double           now_s, step_s; /* what has passed, and what the last step took */
} fixture;

static void open_with(fixture *f, double max_step_s, uint32_t aside) {
    td_scheduler_config c = WITH(td_scheduler_config, .max_running = REQUESTS_MAX, .chunk = CHUNK, .max_seq_tokens = LONGEST,
                                 .max_step_s = max_step_s, .least_rows = LEAST, .aside = aside, .mixed = true);
    memset(f, 0, sizeof *f);
    OK(td_kv_pages_open(&f->pages, PAGES, NULL));
    OK(td_prefix_cache_open(&f->cache, &f->pages, true, NULL));
    OK(td_waker_create(&f->waker, NULL));
    OK(td_inbox_create(f->waker, REQUESTS_MAX, 1, &f->inbox, NULL));
    td_scheduler_caches caches = {.cache = &f->cache, .images = &f->images, .exchange = &f->exchange};
    OK(td_scheduler_open(&f->s, &c, &caches, f->inbox, NULL));
}

static void open_fixture(fixture *f, double max_step_s) {
    open_with(f, max_step_s, 0);
}

static void close_fixture(fixture *f) {
    for (uint32_t i = 0; i < f->n; i++) {
        td_scheduler_remove(&f->s, f->all[i]);
        td_request_release(f->all[i]); /* the scheduler's */
        td_request_release(f->all[i]); /* the test's */
    }
    td_scheduler_close(&f->s);
    td_inbox_close(f->inbox);
    td_waker_release(f->waker);
    td_prefix_cache_close(&f->cache);
    td_kv_pages_close(&f->pages);
    td_image_cache_close(&f->images);
}

static void no_event(void *user, const td_event *ev) {
    (void)user, (void)ev;
}

static void submit(fixture *f, td_request *r) {
    OK(td_inbox_put(f->inbox, &r, 1));
    assert_ptr_equal(td_inbox_take(f->inbox, 0).requests, r);
    OK(td_scheduler_add(&f->s, r));
    f->all[f->n++] = r;
}

/* A request whose tokens are all `token`. */
static td_request *add(fixture *f, uint32_t n_prompt, uint32_t token, int32_t priority) {
    static const td_request_limits limits = {
        .vocab = 100, .image_token = UINT32_MAX, .context_length = LONGEST, .kv_tokens = LONGEST};
    static uint32_t   prompt[LONGEST];
    td_request_params p;
    td_request       *r;
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = token;
    td_request_params_init(&p);
    p.prompt = prompt;
    p.n_prompt = n_prompt;
    p.max_tokens = 1000;
    p.priority = priority;
    p.on_event = no_event;
    OK(td_request_create(&p, &limits, f->waker, &r, NULL));
    submit(f, r);
    return r;
}

/* A request whose image stands between two texts of so many tokens. */
static td_request *add_image(fixture *f, uint32_t before, uint32_t image_tokens, uint32_t behind) {
    static const td_request_limits limits = {
        .vocab = 100, .image_token = IMAGE_TOKEN, .context_length = LONGEST, .kv_tokens = LONGEST};
    static uint32_t   prompt[LONGEST];
    const uint32_t    n = before + image_tokens + behind;
    td_image         *image = calloc(1, sizeof *image);
    td_request_params p;
    td_request       *r;
    assert_true(image && n <= LONGEST);
    atomic_init(&image->refs, 1);
    image->rule.merge = 2;
    image->rows = 2;
    image->cols = 2 * image_tokens;
    memcpy(image->hash, &f->n, sizeof f->n); /* each is another */
    for (uint32_t i = 0; i < n; i++) prompt[i] = i >= before && i < before + image_tokens ? IMAGE_TOKEN : f->n;
    td_request_params_init(&p);
    p.prompt = prompt;
    p.n_prompt = n;
    p.images = &(td_prompt_image){.first = before, .image = image};
    p.n_images = 1;
    p.max_tokens = 1000;
    p.on_event = no_event;
    OK(td_request_create(&p, &limits, f->waker, &r, NULL));
    td_image_release(image);
    submit(f, r);
    return r;
}

/* Rows of r in the step that was built. */
static uint32_t rows_of(const fixture *f, const td_request *r) {
    for (uint32_t i = 0; i < f->s.step.n_entries; i++)
        if (f->s.step.entries[i].request == r) return f->s.step.entries[i].n_rows;
    return 0;
}

static bool generates(const td_request *r) {
    return r->n_tokens > r->n_prompt;
}

static double seconds_of(const td_scheduled_step *s, machine m) {
    double sum = m.step_s;
    for (uint32_t i = 0; i < s->n_entries; i++) {
        const td_step_entry *e = &s->entries[i];
        sum += e->n_rows * (m.row_s + m.key_s * (e->first_pos + 0.5 * e->n_rows));
    }
    return sum;
}

/* Whoever has all its tokens computed gets one more. */
static void generate(const td_scheduled_step *s) {
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].last) s->entries[i].request->tokens[s->entries[i].request->n_tokens++] = 1;
}

/* Build a step and have the machine run it; whoever has all its tokens computed gets one more. @return its prompt rows. */
static uint32_t step(fixture *f, machine m) {
    assert_true(td_scheduler_build(&f->s));
    f->step_s = seconds_of(&f->s.step, m);
    f->now_s += f->step_s;
    td_scheduler_commit(&f->s, f->step_s);
    generate(&f->s.step);
    return f->s.step.n_prefill;
}

/* The step aside has all its pieces. @return what its longest operation took */
static double end_aside(fixture *f, machine m) {
    f->s.aside.longest_s = seconds_of(&f->s.aside.step, m) / OPERATIONS;
    td_scheduler_commit_aside(&f->s);
    generate(&f->s.aside.step);
    td_scheduler_end_aside(&f->s);
    return f->s.aside.longest_s;
}

static void add_streams(fixture *f, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) add(f, 10, 1, 0);
    for (uint32_t i = 0; i < 40; i++) step(f, g_machine);
}

TEST(alone_it_has_the_whole_chunk) {
    AT_END(close_fixture) fixture f;
    td_request                   *r;
    open_fixture(&f, 0.250);
    r = add(&f, 3 * CHUNK, 2, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(step(&f, g_machine), CHUNK);
    assert_true(generates(r));
}

TEST(without_a_limit_too) {
    AT_END(close_fixture) fixture f;
    open_fixture(&f, 0);
    add_streams(&f, 2);
    add(&f, 2 * CHUNK, 2, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(step(&f, g_machine), CHUNK);
}

/* The first step has the least rows; from then on steps take the time, however much context there is. */
TEST(beside_streams_steps_fit_the_time) {
    AT_END(close_fixture) fixture f;
    td_request                   *r;
    uint32_t                      n = 0;
    open_fixture(&f, 0.250);
    add_streams(&f, 4);
    r = add(&f, 32768, 2, 0);
    assert_int_equal(step(&f, g_machine), LEAST);
    for (double begin_s = f.now_s; !generates(r); n++) {
        uint32_t rows = step(&f, g_machine);
        assert_true((rows >= LEAST || generates(r)) && f.step_s < 1.5 * 0.250);
        if (n == 30) print_message("    step 30: %u rows behind %u, %.0f ms\n", rows, r->n_computed, 1e3 * f.step_s);
        if (n > 8 && !generates(r)) assert_true(f.step_s > 0.7 * 0.250);
        if (generates(r)) print_message("    %u steps, mean %.0f ms\n", n, 1e3 * (f.now_s - begin_s) / n);
    }
}

/* A machine on which the least rows take longer gets no fewer, and one that becomes slower gets less. */
TEST(rows_follow_the_machine) {
    static const machine slow = {.step_s = 0.020, .row_s = 0.002, .key_s = 0},
                         fast = {.step_s = 0.020, .row_s = 0.0002, .key_s = 0};
    AT_END(close_fixture) fixture f;
    open_fixture(&f, 0.250);
    add_streams(&f, 4);
    add(&f, 100000, 2, 0);
    for (int i = 0; i < 10; i++) step(&f, fast);
    assert_true(f.s.step.n_prefill > 2 * LEAST);
    for (int i = 0; i < 10; i++) step(&f, slow);
    assert_int_equal(f.s.step.n_prefill, LEAST);
    for (int i = 0; i < 10; i++) step(&f, fast);
    assert_true(f.s.step.n_prefill > 2 * LEAST);
}

/* Steps of a few rows say nothing of the speed of many. */
TEST(few_rows_are_not_measured) {
    AT_END(close_fixture) fixture f;
    double                        unit_s;
    open_fixture(&f, 0.250);
    add_streams(&f, 2);
    add(&f, 8 * LEAST, 2, 0);
    for (int i = 0; i < 4; i++) step(&f, g_machine);
    unit_s = f.s.speed.unit_s;
    add(&f, 5, 3, 0);
    while (f.s.step.n_prefill) step(&f, g_machine);
    assert_true(unit_s > 0 && fabs(f.s.speed.unit_s - unit_s) < unit_s);
}

TEST(a_short_prompt_does_not_wait_behind_a_long_one) {
    AT_END(close_fixture) fixture f;
    td_request                   *longs[2], *shorts[2];
    open_fixture(&f, 0.250);
    add_streams(&f, 2);
    for (uint32_t i = 0; i < 2; i++) longs[i] = add(&f, 30000, 2 + i, 0);
    for (int i = 0; i < 20; i++) step(&f, g_machine);
    assert_int_equal(longs[1]->n_computed, 0); /* among long ones, one after the other */
    shorts[0] = add(&f, 1000, 4, 0);
    shorts[1] = add(&f, 128, 5, 0);
    uint32_t before = longs[0]->n_computed, rows = step(&f, g_machine);
    assert_true(generates(shorts[1]) && !generates(shorts[0])); /* the shortest first */
    assert_true(rows >= LEAST && f.step_s < 1.5 * 0.250);
    assert_true(longs[0]->n_computed - before >= LEAST / 3); /* half of the work; its rows have context */
    for (int i = 0; i < 5; i++) step(&f, g_machine);
    assert_true(generates(shorts[0]));
}

/* A step in which prompts end holds few rows of others, but the least that a step has. */
TEST(steps_in_which_prompts_end_are_short) {
    fixture     f;
    td_request *r;
    open_fixture(&f, 0.500);
    add_streams(&f, 2);
    add(&f, 30000, 2, 0);
    for (int i = 0; i < 20; i++) step(&f, g_machine);
    assert_true(f.s.step.n_prefill > 2 * LEAST);
    r = add(&f, LEAST / 4, 3, 0);
    uint32_t rows = step(&f, g_machine);
    assert_true(generates(r) && rows < 1.25 * LEAST); /* a row without context is less work than one of the long prompt */
    r = add(&f, LEAST - 1, 4, 0);
    rows = step(&f, g_machine);
    assert_true(generates(r) && rows >= LEAST && rows <= 2 * LEAST && f.step_s < 0.350);
    step(&f, g_machine);
    assert_true(f.s.step.n_prefill > 2 * LEAST);
    close_fixture(&f);
}

/* However many short prompts come, the long one has its half of each step. */
TEST(a_long_prompt_is_not_starved) {
    AT_END(close_fixture) fixture f;
    td_request                   *r, *newest = NULL;
    uint32_t                      steps = 0;
    open_fixture(&f, 0.250);
    add_streams(&f, 1);
    r = add(&f, 20000, 2, 0);
    for (uint32_t i = 0; !generates(r); i++) {
        if (!newest || generates(newest)) { /* the next one comes at once, and takes the place of one that has ended */
            if (newest) {
                td_scheduler_remove(&f.s, newest);
                td_request_release(newest);
                td_request_release(newest);
                f.n--;
            }
            newest = add(&f, 2000, 3 + i % 90, 0);
        }
        step(&f, g_machine);
        steps++;
        assert_true(rows_of(&f, r) >= LEAST / 2 || generates(r));
    }
    assert_true(steps <= 20000 / (LEAST / 2) + 1);
}

/* Of one priority a short prompt passes a long one, of a lower one it does not. */
TEST(priority_comes_first) {
    AT_END(close_fixture) fixture f;
    td_request                   *first, *low, *same;
    open_fixture(&f, 0.250);
    first = add(&f, 3 * CHUNK, 2, 1);
    step(&f, g_machine);
    low = add(&f, 100, 3, 0);
    same = add(&f, 100, 4, 1);
    step(&f, g_machine);
    assert_true(generates(same) && !rows_of(&f, low) && !generates(first));
    while (!generates(first)) step(&f, g_machine);
    assert_false(generates(low) && low->n_tokens > first->n_tokens);
}

/* A prompt whose beginning is in the cache is as short as what is left of it. */
TEST(what_the_cache_has_does_not_count) {
    AT_END(close_fixture) fixture f;
    td_request                   *told, *r;
    open_fixture(&f, 0.250);
    told = add(&f, 3 * CHUNK, 2, 0);
    while (!generates(told)) step(&f, g_machine);
    add(&f, 100000, 3, 0);
    step(&f, g_machine);
    r = add(&f, 3 * CHUNK + 100, 2, 0);
    while (!generates(r)) {
        step(&f, g_machine);
        assert_true(f.s.step.n_prefill && f.s.running[1]->n_computed < 10 * LEAST);
    }
    assert_true(r->n_cached > 2 * CHUNK);
}

/* ---- aside ------------------------------------------------------------------------------------- */

/* Streams go on in every step, and never with a row of the prompt. As many of its rows are set aside as an operation has time
 * for, the least at first. */
TEST(a_long_prompt_is_set_aside) {
    AT_END(close_fixture) fixture f;
    td_request                   *r;
    double                        longest_s = 0;
    open_with(&f, 0.250, ASIDE);
    add_streams(&f, 2);
    r = add(&f, 60000, 2, 0);
    for (uint32_t n = 0; !generates(r); n++) {
        for (int piece = 0; piece < 3; piece++) { /* the same rows stay aside */
            step(&f, g_machine);
            assert_true(f.s.step.n_entries == 2 && !f.s.step.n_prefill && f.s.aside.step.n_entries == 1);
            assert_ptr_equal(f.s.aside.step.entries->request, r);
            assert_int_equal(f.s.aside.step.entries->first_pos, r->n_computed);
        }
        uint32_t rows = f.s.aside.step.n_prefill;
        assert_true(rows <= ASIDE && (n ? rows > LEAST || r->n_tokens - r->n_computed == rows : rows == LEAST));
        longest_s = end_aside(&f, g_machine);
        assert_true(longest_s < 1.5 * td_scheduler_piece(&f.s, f.s.aside.gave_way, NULL).budget_s);
    }
}

TEST(one_that_fits_is_not) {
    AT_END(close_fixture) fixture f;
    open_with(&f, 0.250, ASIDE);
    td_request *r = add(&f, LEAST / 2, 2, 0);
    step(&f, g_machine);
    assert_true(generates(r) && !f.s.aside.step.n_entries);
}

/* All rows that there are, and no end of a piece, until a request comes. The piece behind one that gave way does not. */
TEST(one_that_is_alone_is_set_aside) {
    enum { STEPS = (2 * CHUNK + ASIDE - 1) / ASIDE, STEP = (2 * CHUNK + STEPS - 1) / STEPS }; /* of equal length */
    static const atomic_bool      COMES = false;
    AT_END(close_fixture) fixture f;
    open_with(&f, 0.250, ASIDE);
    add(&f, 2 * CHUNK, 2, 0);
    step(&f, g_machine);
    assert_true(!f.s.step.n_entries && f.s.aside.step.n_prefill == STEP);
    td_piece alone = td_scheduler_piece(&f.s, f.s.aside.gave_way, &COMES);
    assert_true(isinf(alone.budget_s) && alone.waited_for == &COMES);
    f.s.aside.gave_way = true;
    td_piece behind = td_scheduler_piece(&f.s, f.s.aside.gave_way, &COMES);
    assert_true(behind.budget_s < 0.250 && !behind.waited_for && behind.part_s == alone.part_s);
    f.s.aside.gave_way = false;
    add(&f, 20, 3, 0);
    td_piece beside = td_scheduler_piece(&f.s, f.s.aside.gave_way, &COMES);
    assert_true(beside.budget_s == behind.budget_s && beside.waited_for == &COMES);
}

/* Beside streams a piece of an image takes as long as a step of theirs; else, as long as one of a prompt. */
TEST(pieces_of_images) {
    AT_END(close_fixture) fixture f;
    open_with(&f, 0.250, ASIDE);
    add(&f, 10, 2, 0);
    add(&f, 10, 3, 0);
    assert_true(td_scheduler_image_piece(&f.s, true, NULL).budget_s == td_scheduler_piece(&f.s, true, NULL).budget_s);
    add_streams(&f, 2);
    td_piece beside = td_scheduler_image_piece(&f.s, false, NULL);
    assert_false(isinf(beside.part_s));
    assert_true(beside.budget_s == f.step_s && beside.part_s < f.step_s &&
                f.step_s < td_scheduler_piece(&f.s, false, NULL).budget_s);
}

/* Prompts compute what is before their images; texts are admitted though more images wait than fit a chunk, and the other half
 * of the places is theirs. */
TEST(texts_pass_images) {
    AT_END(close_fixture) fixture f;
    td_request                   *image[6], *text;
    open_fixture(&f, 0);
    td_image_cache_open(&f.images, 1 << 20, 1);
    for (uint32_t i = 0; i < 6; i++) image[i] = add_image(&f, 10, 2100, 5);
    text = add(&f, 20, 80, 0);
    step(&f, g_machine);
    assert_true(generates(text));
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(image[i]->n_computed, i < REQUESTS_MAX / 2 ? 10 : 0);
    assert_ptr_equal(f.s.image.known, image[0]->images.known[0]);
    image[0]->images.known[0]->encoded = true;
    step(&f, g_machine);
    assert_true(image[0]->n_computed == 2115 && !image[1]->images.known[0]->encoded);
    assert_ptr_equal(f.s.image.known, image[1]->images.known[0]);
}

/* An image that has no room waits for others to leave theirs; nobody is ended. */
TEST(an_image_waits_for_room) {
    AT_END(close_fixture) fixture f;
    td_request                   *first, *second;
    open_fixture(&f, 0);
    td_image_cache_open(&f.images, 200, 1);
    first = add_image(&f, 10, 150, 5);
    second = add_image(&f, 10, 150, 5);
    step(&f, g_machine);
    assert_true(f.s.image.known == first->images.known[0] && !f.s.starved);
    first->images.known[0]->encoded = true;
    step(&f, g_machine); /* the first one's rows are computed, and the second has room */
    assert_true(generates(first) && second->n_computed == 10);
    step(&f, g_machine);
    assert_true(f.s.image.known == second->images.known[0] && !f.s.starved);
}

/* Short prompts come into the steps beside it; a second long one waits. */
TEST(prompts_beside_a_step_aside) {
    AT_END(close_fixture) fixture f;
    td_request                   *first, *second, *r;
    open_with(&f, 0.250, ASIDE);
    add_streams(&f, 2);
    first = add(&f, 20000, 2, 0);
    step(&f, g_machine);
    second = add(&f, 20000, 3, 0);
    r = add(&f, 100, 4, 0);
    step(&f, g_machine);
    assert_true(generates(r) && !rows_of(&f, second) && !rows_of(&f, first));
    while (!generates(first)) {
        if (f.s.aside.step.n_entries) end_aside(&f, g_machine);
        assert_int_equal(second->n_computed, 0);
        step(&f, g_machine);
    }
    step(&f, g_machine);
    assert_ptr_equal(f.s.aside.step.entries->request, second);
    for (uint32_t i = 0; i < 3; i++) add(&f, CHUNK / 2, 5 + i, 0);
    for (int i = 0; i < 10; i++) {
        step(&f, (machine){.row_s = 1e-9}); /* however fast */
        assert_true(f.s.step.rows.n_tok <= CHUNK - ASIDE + REQUESTS_MAX);
    }
}

/* Nothing is aside when its request has left, and another prompt may be. */
TEST(who_leaves_takes_the_step_along) {
    AT_END(close_fixture) fixture f;
    td_request                   *r;
    open_with(&f, 0.250, ASIDE);
    add_streams(&f, 2);
    r = add(&f, 20000, 2, 0);
    step(&f, g_machine);
    assert_true(f.s.aside.step.n_entries);
    td_scheduler_remove(&f.s, r);
    assert_false(f.s.aside.step.n_entries);
    td_request_release(r);
    td_request_release(r);
    f.n--;
    step(&f, g_machine);
    assert_false(f.s.aside.step.n_entries);
    r = add(&f, 20000, 3, 0);
    step(&f, g_machine);
    assert_ptr_equal(f.s.aside.step.entries->request, r);
    assert_false(f.s.aside.begun);
}

/* Prompts and generating requests that take turns: a prompt that is aside takes no turn. */
TEST(turns_beside_a_step_aside) {
    AT_END(close_fixture) fixture f;
    open_with(&f, 0.250, ASIDE);
    f.s.config.mixed = false;
    add_streams(&f, 2);
    add(&f, 20000, 2, 0);
    for (int i = 0; i < 6; i++) {
        step(&f, g_machine);
        assert_true(f.s.step.n_entries == 2 && f.s.aside.step.n_entries == 1);
    }
}
