/*
 * How busy the server is, for routers and dashboards: /v1/loads and the older /get_load, with SGLang's names and meanings.
 * There is one data-parallel rank.
 */
#include <string.h>
#include <time.h>

#include "server/answer/answer.h"
#include "server/server_state.h"

/* Parts of an answer that `include` chooses from, by SGLang's names. */
enum { CORE = 1, MEMORY = 2, QUEUES = 4, DISAGG = 8, SPEC = 16, LORA = 32, ALL = 63 };
static const struct {
    const char *name;
    unsigned    bit;
} SECTIONS[] = {{"core", CORE}, {"memory", MEMORY}, {"queues", QUEUES}, {"disagg", DISAGG},
                {"spec", SPEC}, {"lora", LORA},     {"all", ALL}};
#define N_SECTIONS (sizeof SECTIONS / sizeof *SECTIONS)

/* A figure of a rank: in JSON under its section's object (the core's at the top), for Prometheus as sglang_SECTION_NAME. */
typedef struct {
    unsigned    section;
    const char *object, *name;
    bool        whole; /* a count */
    double      value;
} figure;

#define N_FIGURES 22 /* one more than there are: the last has no name */

static double ratio(double part, double all) {
    return all > 0 ? part / all : 0;
}

static void list_figures(const td_engine_info *i, const td_engine_stats *st, figure out[N_FIGURES]) {
    double usage = ratio((double)st->kv_tokens_used, (double)i->max_total_tokens),
           busy = ratio(st->running, i->max_running_requests);
    const figure all[N_FIGURES] = {
        {CORE, NULL, "num_running_reqs", true, st->running},
        {CORE, NULL, "num_waiting_reqs", true, st->queued},
        {CORE, NULL, "num_total_reqs", true, (double)st->running + st->queued},
        {CORE, NULL, "num_waiting_uncached_tokens", true, (double)st->queued_tokens},
        {CORE, NULL, "num_used_tokens", true, (double)st->kv_tokens_used},
        {CORE, NULL, "num_total_tokens", true, (double)(st->kv_tokens_used + st->queued_tokens)},
        {CORE, NULL, "num_cached_tokens", true, (double)st->kv_tokens_cached},
        {CORE, NULL, "max_total_num_tokens", true, (double)i->max_total_tokens},
        {CORE, NULL, "max_running_requests", true, i->max_running_requests},
        {CORE, NULL, "token_usage", false, usage},
        {CORE, NULL, "gen_throughput", false, st->decode_tokens_per_s},
        {CORE, NULL, "cache_hit_rate", false, ratio((double)st->cached_tokens, (double)st->prompt_tokens)},
        {CORE, NULL, "utilization", false, usage > busy ? usage : busy},
        {MEMORY, "memory", "weight_gb", false, TD_GIB(i->weight_bytes)},
        {MEMORY, "memory", "kv_cache_gb", false, TD_GIB(i->kv_bytes)},
        {MEMORY, "memory", "graph_gb", false, 0},
        {MEMORY, "memory", "token_capacity", true, (double)i->max_total_tokens},
        {QUEUES, "queues", "waiting", true, st->queued},
        {QUEUES, "queues", "grammar", true, 0},
        {QUEUES, "queues", "paused", true, 0},
        {QUEUES, "queues", "retracted", true, st->retracted},
    };
    memcpy(out, all, sizeof all);
}

static void write_number(td_jbuf *b, const figure *f) {
    if (f->whole)
        td_jw_int(b, (int64_t)f->value);
    else
        td_jw_real(b, f->value, 6);
}

static void write_rank(td_jbuf *b, const figure *figures, unsigned sections, double now_s) {
    const char *object = NULL;
    td_jw_open(b, '{');
    td_jw_member_int(b, "dp_rank", 0);
    td_jw_key(b, "timestamp");
    td_jw_real(b, now_s, 15);
    for (const figure *f = figures; f->name; f++) {
        if (!(f->section & sections)) continue;
        if (object && object != f->object) td_jw_close(b, '}');
        if (f->object && object != f->object) {
            td_jw_key(b, f->object);
            td_jw_open(b, '{');
        }
        object = f->object;
        td_jw_key(b, f->name);
        write_number(b, f);
    }
    if (object) td_jw_close(b, '}');
    if (sections & DISAGG) {
        td_jw_key(b, "disaggregation");
        td_jw_open(b, '{');
        td_jw_member_str(b, "mode", "null");
        td_jw_close(b, '}');
    }
    td_jw_close(b, '}');
}

/* The sums over the ranks, as earlier versions of SGLang give them. */
static void write_aggregate(td_jbuf *b, const figure *figures) {
    static const struct {
        const char *name, *of;
    } sums[] = {{"total_running_reqs", "num_running_reqs"}, {"total_waiting_reqs", "num_waiting_reqs"},
                {"total_used_tokens", "num_used_tokens"},   {"total_tokens", "num_total_tokens"},
                {"avg_token_usage", "token_usage"},         {"avg_throughput", "gen_throughput"},
                {"avg_utilization", "utilization"}};
    td_jw_open(b, '{');
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        for (const figure *f = figures; f->name; f++)
            if (!strcmp(f->name, sums[i].of)) {
                td_jw_key(b, sums[i].name);
                write_number(b, f);
            }
    td_jw_member_int(b, "total_reqs", (int64_t)(figures[0].value + figures[1].value));
    td_jw_close(b, '}');
}

static void write_json(td_jbuf *b, const td_server *s, const figure *figures, unsigned sections) {
    struct timespec now;
    struct tm       utc;
    char            text[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
    td_jw_open(b, '{');
    td_jw_member_str(b, "timestamp", text);
    td_jw_member_str(b, "version", TD_VERSION);
    td_jw_member_str(b, "accelerator", s->model.info.device);
    td_jw_member_int(b, "dp_rank_count", 1);
    td_jw_key(b, "loads");
    td_jw_open(b, '[');
    write_rank(b, figures, sections, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    td_jw_close(b, ']');
    td_jw_key(b, "aggregate");
    write_aggregate(b, figures);
    td_jw_close(b, '}');
}

static void write_prometheus(td_jbuf *b, const figure *figures, unsigned sections) {
    for (const figure *f = figures; f->name; f++) {
        if (!(f->section & sections)) continue;
        char name[64];
        snprintf(name, sizeof name, "sglang_%s%s%s", f->object ? f->object : "", f->object ? "_" : "", f->name);
        td_jbuf_printf(b, "# TYPE %s gauge\n%s{dp_rank=\"0\"} %.17g\n", name, name, f->value);
    }
}

/* "core,queues" (NULL: all). */
static td_status parse_include(const char *include, unsigned *sections, td_api_error *err) {
    *sections = include ? 0 : ALL;
    for (const char *p = include; p;) {
        size_t n = strcspn(p, ","), i = 0;
        while (i < N_SECTIONS && (strlen(SECTIONS[i].name) != n || memcmp(SECTIONS[i].name, p, n) != 0)) i++;
        if (i == N_SECTIONS)
            return td_api_bad(err, "include",
                              "'include' has '%.*s'; there are core, memory, queues, disagg, spec, lora and all.",
                              n < 40 ? (int)n : 40, p);
        *sections |= SECTIONS[i].bit;
        p = p[n] ? p + n + 1 : NULL;
    }
    return TD_OK;
}

static td_status parse_query(struct MHD_Connection *connection, unsigned *sections, bool *prometheus, td_api_error *err) {
    const char *rank = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "dp_rank");
    const char *format = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "format");
    if (rank && strcmp(rank, "0") != 0)
        return td_api_bad(err, "dp_rank", "There is no 'dp_rank' %.40s; the only one is 0.", rank);
    if (format && strcmp(format, "json") != 0 && strcmp(format, "prometheus") != 0)
        return td_api_bad(err, "format", "'format' must be json or prometheus.");
    *prometheus = format && !strcmp(format, "prometheus");
    return parse_include(MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "include"), sections, err);
}

enum MHD_Result td_route_loads(td_call *c) {
    figure          figures[N_FIGURES];
    td_engine_stats st;
    td_api_error    err;
    td_jbuf         b = {0};
    unsigned        sections = 0;
    bool            prometheus = false;
    if (parse_query(c->connection, &sections, &prometheus, &err) != TD_OK) return td_answer_error(c, &err);
    td_engine_get_stats(c->server->engine, &st);
    list_figures(&c->server->model.info, &st, figures);
    if (prometheus) {
        write_prometheus(&b, figures, sections);
        return td_answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    }
    write_json(&b, c->server, figures, sections);
    return td_answer_json(c, 200, &b);
}

enum MHD_Result td_route_load(td_call *c) {
    td_engine_stats st;
    td_jbuf         b = {0};
    td_engine_get_stats(c->server->engine, &st);
    td_jw_open(&b, '[');
    td_jw_open(&b, '{');
    td_jw_member_int(&b, "dp_rank", 0);
    td_jw_member_int(&b, "num_reqs", (int64_t)st.running + st.queued);
    td_jw_member_int(&b, "num_waiting_reqs", st.queued);
    td_jw_member_int(&b, "num_tokens", (int64_t)(st.kv_tokens_used + st.queued_tokens));
    td_jw_member_int(&b, "num_pending_tokens", (int64_t)st.queued_tokens);
    td_jw_close(&b, '}');
    td_jw_close(&b, ']');
    return td_answer_json(c, 200, &b);
}
