/* Reads a machine from YAML, by a table of keys with their units and ranges. A key of a node takes one number for all nodes,
 * or one number for each node. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/yaml_pairs.h"
#include "core/plural.h"
#include "plan/plan_machine.h"

typedef enum { ALWAYS, WITH_CARDS, WITH_SEVERAL_CARDS, OPTIONAL } key_need;

typedef struct {
    const char *name;
    const char *unit;            /* shown in the table and in errors */
    double      min, max, scale; /* range of the number in the file; the factor that makes it bytes, operations or seconds */
    size_t      offset;
    bool        of_node; /* true: offset into td_plan_node; false: into td_plan_machine */
    bool        whole;
    key_need    need;
    const char *help;
} machine_key;

#define N(member) offsetof(td_plan_node, member), true
#define M(member) offsetof(td_plan_machine, member), false
#define GIB 1073741824.0
#define SHARE "share", 0.01, 2, 1

/* clang-format off */
static const machine_key KEYS[] = {
    {"nodes", "", 1, TD_POOL_SUBPOOLS_MAX, 1, 0, false, true, ALWAYS, "NUMA nodes. The others of this kind may be one number, or one for each node."},
    {"node-cores", "cores", 1, TD_POOL_WORKERS_MAX, 1, N(cores), true, ALWAYS, "Cores of a node."},
    {"node-memory-gib", "GiB", 0.25, 65536, GIB, N(memory_bytes), false, ALWAYS, "Memory of a node that is free for Tandem."},
    {"node-read-gbps", "GB/s", 0.1, 10000, 1e9, N(read_bytes_per_s), false, ALWAYS, "What a node's cores read of its own memory, as `tandem bench roofline` or STREAM would measure it."},
    {"node-int8-gops", "GOP/s", 1, 10000000, 1e9, N(int8_ops_per_s), false, ALWAYS, "int8 operations of a node's cores, two a multiply-add."},
    {"node-f32-gflops", "GFLOP/s", 1, 1000000, 1e9, N(float_ops_per_s), false, ALWAYS, "The same in f32."},
    {"node-channels", "channels", 1, 64, 1, N(channels), true, OPTIONAL, "Memory channels of a node, for what one more would give."},
    {"cards", "cards", 0, 64, 1, M(cards.count), true, OPTIONAL, "Accelerator cards; without any the CPU is the device too."},
    {"card-memory-gib", "GiB", 0.25, 4096, GIB, M(cards.memory_bytes), false, WITH_CARDS, "Memory of a card."},
    {"card-read-gbps", "GB/s", 1, 100000, 1e9, M(cards.read_bytes_per_s), false, WITH_CARDS, "Bandwidth of that memory."},
    {"card-int8-tops", "TOP/s", 0.1, 100000, 1e12, M(cards.int8_ops_per_s), false, WITH_CARDS, "int8 operations of a card."},
    {"card-bf16-tflops", "TFLOP/s", 0.1, 100000, 1e12, M(cards.float_ops_per_s), false, WITH_CARDS, "bf16 operations of a card."},
    {"card-block-us", "us", 0.01, 100000, 1e-6, M(cards.block_s), false, WITH_CARDS, "Least time of a block (docs/devices.md) on a card: its launches within a replayed step."},
    {"link-gbps", "GB/s", 0.1, 10000, 1e9, M(cards.link_bytes_per_s), false, WITH_CARDS, "Between host and card, each way."},
    {"link-latency-us", "us", 0.01, 100000, 1e-6, M(cards.link_s), false, WITH_CARDS, "Least time of a copy over the link."},
    {"handover-us", "us", 0.01, 100000, 1e-6, M(cards.handover_s), false, WITH_CARDS, "Until one side has seen what the other told it; twice a layer."},
    {"card-sum-gbps", "GB/s", 0.1, 100000, 1e9, M(cards.sum_bytes_per_s), false, WITH_SEVERAL_CARDS, "Between cards, for tensor parallel's sums."},
    {"card-sum-us", "us", 0.01, 100000, 1e-6, M(cards.sum_s), false, WITH_SEVERAL_CARDS, "Least time of such a sum."},
    {"cpu-block-us", "us", 0.01, 100000, 1e-6, M(block_s), false, OPTIONAL, "Least time of a block on the CPU."},
    {"step-us", "us", 0.01, 1000000, 1e-6, M(step_s), false, OPTIONAL, "Between two steps: sampling, delivering, scheduling."},
    {"cpu-linear-read", SHARE, M(cpu.linear_read), false, OPTIONAL, "Share of node-read-gbps that the device tier's products reach, where the CPU is the device."},
    {"cpu-linear-int8", SHARE, M(cpu.linear_int8), false, OPTIONAL, "Share of node-int8-gops that they reach."},
    {"cpu-float", SHARE, M(cpu.float_ops), false, OPTIONAL, "Share of node-f32-gflops that the router reaches."},
    {"cpu-attention-read", SHARE, M(cpu.attention_read), false, OPTIONAL, "Share of node-read-gbps at which the KV cache is read."},
    {"cpu-attention-float", SHARE, M(cpu.attention_float), false, OPTIONAL, "What attention reaches, of node-f32-gflops: above 1 where 16-bit integers are faster than floats."},
    {"cpu-attention-row", "keys", 0, 100000, 1, M(cpu.attention_row), false, OPTIONAL, "What a row of a prompt costs in attention beside its keys, in keys."},
    {"expert-read", SHARE, M(cpu.expert_read), false, OPTIONAL, "Share of node-read-gbps at which the experts are read."},
    {"expert-int8", SHARE, M(cpu.expert_int8), false, OPTIONAL, "Share of node-int8-gops that they reach."},
    {"expert-row", "rows", 0, 1000, 1, M(cpu.expert_row), false, OPTIONAL, "What an expert costs beside its rows, in rows: its codes are unpacked once."},
    {"card-linear-read", SHARE, M(card.linear_read), false, OPTIONAL, "The same of a card: of card-read-gbps."},
    {"card-linear-int8", SHARE, M(card.linear_int8), false, OPTIONAL, "Of card-int8-tops."},
    {"card-float", SHARE, M(card.float_ops), false, OPTIONAL, "Of card-bf16-tflops."},
    {"card-attention-read", SHARE, M(card.attention_read), false, OPTIONAL, "Of card-read-gbps."},
    {"card-attention-float", SHARE, M(card.attention_float), false, OPTIONAL, "Of card-bf16-tflops."},
    {"card-attention-row", "keys", 0, 100000, 1, M(card.attention_row), false, OPTIONAL, "As cpu-attention-row."},
};
/* clang-format on */

#define N_NUMBERS (sizeof KEYS / sizeof *KEYS)
/* The keys in the order in which they are applied: `kernels` sets all shares, and later keys replace single ones. */
enum { KEY_NAME, KEY_KERNELS, KEY_NUMBERS, N_KEYS = KEY_NUMBERS + N_NUMBERS };

typedef struct {
    td_plan_machine *m;
    bool             given[N_KEYS];
    const char      *names[N_KEYS];
} reader;

static td_status refuse_number(const machine_key *k, const char *value, td_error *err) {
    return td_fail(err, TD_EINVAL, "'%s' must be a %snumber from %.15g to %.15g%s%s, not '%.60s'", k->name,
                   k->whole ? "whole " : "", k->min, k->max, *k->unit ? " " : "", k->unit, value);
}

/* Reads one number of a list and moves *text behind it. */
static td_status take_number(const machine_key *k, const char *value, const char **text, double *out, td_error *err) {
    char *end;
    errno = 0;
    double x = strtod(*text, &end);
    bool   ends = end > *text && (!*end || *end == ' ' || *end == ',');
    if (!ends || errno || !(x >= k->min && x <= k->max) || (k->whole && x != floor(x))) return refuse_number(k, value, err);
    *text = end + strspn(end, " ,");
    *out = x * k->scale;
    return TD_OK;
}

static td_status take_nodes(const machine_key *k, const char *value, td_plan_machine *m, td_error *err) {
    const char *text = value;
    uint32_t    n = 0;
    double      x[TD_POOL_SUBPOOLS_MAX];
    do {
        if (n == TD_POOL_SUBPOOLS_MAX)
            return td_fail(err, TD_EINVAL, "'%s' has more than %d numbers", k->name, TD_POOL_SUBPOOLS_MAX);
        TD_TRY(take_number(k, value, &text, &x[n++], err));
    } while (*text);
    if (!m->n_nodes) return TD_OK; /* "nodes" is missing, and the check of missing keys will say so */
    if (n != 1 && n != m->n_nodes)
        return td_fail(err, TD_EINVAL, "'%s' has %u number%s: give one, or one for each of the %u node%s", k->name, n,
                       td_plural(n), m->n_nodes, td_plural(m->n_nodes));
    for (uint32_t i = 0; i < m->n_nodes; i++) *(double *)((char *)&m->node[i] + k->offset) = x[n == 1 ? 0 : i];
    return TD_OK;
}

static td_status take_kernels(const char *value, td_plan_machine *m, td_error *err) {
    m->kernels = td_plan_kernels_find(value);
    if (m->kernels) {
        m->cpu = m->kernels->shares;
        return TD_OK;
    }
    char   names[128] = "";
    size_t at = 0;
    for (size_t i = 0; td_plan_kernels_at(i); i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", td_plan_kernels_at(i)->name);
    return td_fail(err, TD_EINVAL, "'kernels' must be one of %s, not '%.60s'", names, value);
}

/* Refuses control characters, because names appear in tables and JSON. */
static td_status take_name(const char *value, td_plan_machine *m, td_error *err) {
    bool fine = *value && strlen(value) < sizeof m->name;
    for (const char *c = value; *c && fine; c++) fine = (unsigned char)*c >= ' ' && *c != 127;
    if (!fine)
        return td_fail(err, TD_EINVAL, "'name' must have 1 to %zu characters, no control characters among them",
                       sizeof m->name - 1);
    strcpy(m->name, value);
    return TD_OK;
}

static td_status take_pair(void *user, size_t key, const char *value, td_error *err) {
    reader *r = user;
    if (r->given[key]) return td_fail(err, TD_EINVAL, "'%s' is there twice", r->names[key]);
    r->given[key] = true;
    if (key == KEY_NAME) return take_name(value, r->m, err);
    if (key == KEY_KERNELS) return take_kernels(value, r->m, err);
    const machine_key *k = &KEYS[key - KEY_NUMBERS];
    const char        *text = value;
    double             x;
    if (k->of_node) return take_nodes(k, value, r->m, err);
    TD_TRY(take_number(k, value, &text, &x, err));
    if (*text) return refuse_number(k, value, err);
    if (key == KEY_NUMBERS)
        r->m->n_nodes = (uint32_t)x;
    else
        *(double *)((char *)r->m + k->offset) = x;
    return TD_OK;
}

/* ---- what is missing --------------------------------------------------------------------------- */

static bool is_needed(const machine_key *k, const td_plan_machine *m) {
    return k->need == ALWAYS || (k->need == WITH_CARDS && m->cards.count >= 1) ||
           (k->need == WITH_SEVERAL_CARDS && m->cards.count > 1);
}

static td_status check_given(const reader *r, td_error *err) {
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const machine_key *k = &KEYS[i];
        if (is_needed(k, r->m) && !r->given[KEY_NUMBERS + i])
            return td_fail(err, TD_EINVAL, "'%s' is missing: a %snumber from %.15g to %.15g%s%s", k->name,
                           k->whole ? "whole " : "", k->min, k->max, *k->unit ? " " : "", k->unit);
    }
    double cores = 0;
    for (uint32_t i = 0; i < r->m->n_nodes; i++) cores += r->m->node[i].cores;
    if (cores > TD_POOL_WORKERS_MAX)
        return td_fail(err, TD_EINVAL, "'node-cores' of all nodes are %.0f together: at most %d are supported", cores,
                       TD_POOL_WORKERS_MAX);
    return TD_OK;
}

static const td_yaml_words WORDS = {"machine", "key", "docs/plan.md"};

static void open_reader(reader *r, td_plan_machine *out) {
    *r = (reader){.m = out, .names = {[KEY_NAME] = "name", [KEY_KERNELS] = "kernels"}};
    for (size_t i = 0; i < N_NUMBERS; i++) r->names[KEY_NUMBERS + i] = KEYS[i].name;
    td_plan_machine_init(out);
    strcpy(out->name, "a machine without a name");
}

static td_status close_reader(const reader *r, const char *path, td_error *err) {
    td_status st = check_given(r, err);
    return st == TD_OK ? st : td_fail_within(err, "%s", path);
}

td_status td_plan_machine_read(const char *path, td_plan_machine *out, td_error *err) {
    reader r;
    open_reader(&r, out);
    TD_TRY(td_yaml_pairs_read(&WORDS, path, r.names, N_KEYS, take_pair, &r, err));
    return close_reader(&r, path, err);
}

td_status td_plan_machine_parse(const char *path, const char *text, size_t len, td_plan_machine *out, td_error *err) {
    reader r;
    open_reader(&r, out);
    TD_TRY(td_yaml_pairs_parse(&WORDS, path, text, len, r.names, N_KEYS, take_pair, &r, err));
    return close_reader(&r, path, err);
}

void td_plan_machine_print_keys(FILE *f) {
    static const char *const NEEDS[] = {
        [ALWAYS] = "yes", [WITH_CARDS] = "with cards", [WITH_SEVERAL_CARDS] = "with several cards", [OPTIONAL] = ""};
    fprintf(f,
            "| key | unit, range | needed | what it is |\n|---|---|---|---|\n"
            "| `name` | text | | What the report calls the machine. |\n"
            "| `kernels` | name | | The CPU kernels whose shares are taken where the file gives none: ");
    for (size_t i = 0; td_plan_kernels_at(i); i++) fprintf(f, "%s`%s`", i ? ", " : "", td_plan_kernels_at(i)->name);
    fprintf(f, "; `%s` without the key. |\n", td_plan_kernels_at(0)->name);
    for (const machine_key *k = KEYS; k < KEYS + N_NUMBERS; k++)
        fprintf(f, "| `%s` | %s%s%.15g to %.15g | %s | %s |\n", k->name, k->unit, *k->unit ? ", " : "", k->min, k->max,
                NEEDS[k->need], k->help);
}
