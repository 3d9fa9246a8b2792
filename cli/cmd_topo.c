/* `tandem topo` shows the machine, the read bandwidth between its NUMA nodes, its cards, and the core that launch_server
 * would give to each thread. */
#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/engine_flags.h"
#include "cli/standard_output.h"
#include "core/error.h"
#include "core/log/log.h"
#include "core/machine/cpu.h"
#include "core/memory/mem.h"
#include "core/plural.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "npu/handover_time.h"
#include "npu/link_time.h"
#include "npu/npu.h"

#define EXIT_USAGE 2
#define MEASURE_S 0.5 /* longer than launch_server measures at a start, because these figures are shown */
#define TEXT_BYTES 512
#define COPY_BYTES ((size_t)32 << 20) /* enough that the link's speed decides the time */
#define COPY_ROUNDS 5
#define HANDOVER_ROUNDS 5
#define LISTS_MAX 4

typedef struct {
    td_thread_wishes wishes;
    bool             json;
} options;

/* Times of the link between a card and the host, in seconds; 0: not known. */
typedef struct {
    double   down_s, up_s;        /* a copy of COPY_BYTES to the card, and from it */
    double   host_call_s, bell_s; /* a hand-over and back, by a host call and by a bell */
    td_error why;                 /* why it could not be measured */
} card_link;

/* The cards that a backend's driver lists. */
typedef struct {
    const td_backend *backend;
    size_t            n;
    td_accelerator    info[TD_ACCELERATORS_MAX];
    card_link         link[TD_ACCELERATORS_MAX];
    td_error          none; /* why a driver that is installed lists no card; "" otherwise */
} card_list;

/* About 220 kB, which is too much for a stack. */
typedef struct {
    td_topology       topology;
    td_node_bandwidth bandwidth;
    td_thread_layout  layout;
    size_t            n_lists;
    card_list         lists[LISTS_MAX]; /* one for each backend that can list cards */
} facts;

static const td_flag FLAGS[] = {
    {{"json"}, TD_FLAG_SWITCH, offsetof(options, json), .help = "One JSON object instead of tables."},
};

/* @return -1 to go on, or the exit status. */
static int parse_options(int argc, char **argv, options *o) {
    td_engine_options     engine;
    td_flag_group         groups[] = {td_engine_flags(TD_IN_TOPO, &engine),
                                      {.flags = FLAGS, .n = sizeof FLAGS / sizeof *FLAGS, .options = o}};
    const td_flag_command command = {
        .name = "topo",
        .synopsis = "[flags]",
        .about =
            "The machine, its cards, the read bandwidth between its NUMA nodes (measured, less than a second), and the "
            "thread layout that launch_server makes\n"
            "with the same flags. HWLOC_SYNTHETIC=\"numa:2 core:8 pu:2\" in the environment "
            "plans for a machine that is not there.\n",
        .groups = groups,
        .n_groups = 2};
    td_engine_options_init(&engine);
    int rc = td_flags_take(&command, argc, argv);
    if (rc >= 0) return rc;
    td_engine_flags_settle(&engine);
    o->wishes = (td_thread_wishes){
        .cpuinfer = engine.cpuinfer, .subpool_count = engine.subpool_count, .npu_threads = engine.npu_threads};
    td_npu_wish(engine.device, engine.base_gpu_id, 1, &o->wishes);
    return rc;
}

static td_status measure_link(td_npu *d, card_link *l) {
    TD_TRY(td_link_time(d, TD_COPY_H2D, COPY_BYTES, COPY_ROUNDS, &l->down_s, &l->why));
    TD_TRY(td_link_time(d, TD_COPY_D2H, COPY_BYTES, COPY_ROUNDS, &l->up_s, &l->why));
    TD_TRY(td_handover_time(d, TD_HANDOVER_HOST_CALL, HANDOVER_ROUNDS, &l->host_call_s, &l->why));
    return td_handover_time(d, TD_HANDOVER_DOORBELL, HANDOVER_ROUNDS, &l->bell_s, &l->why);
}

/* Measures one card after the other. A card that cannot be opened, because another process uses it, stays in the list
 * without times. */
static void measure_cards(card_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        td_npu       *d;
        card_link    *l = &list->link[i];
        td_npu_config config = {.act_dtype = TD_DT_BF16, .card = (uint32_t)i, .bare = true};
        if (list->backend->open(&config, &d, &l->why) != TD_OK) continue;
        if (measure_link(d, l) != TD_OK) *l = (card_link){.why = l->why};
        d->ops->close(d);
    }
}

/* Having no cards is no error. A driver that is installed but broken is reported. */
static void list_accelerators(card_list *list) {
    if (list->backend->list_accelerators(list->info, &list->n, &list->none) == TD_ENOTFOUND) list->none.text[0] = 0;
    measure_cards(list);
}

static td_status find_facts(const options *o, facts *f, td_error *err) {
    for (const td_backend *const *b = td_backends; *b; b++) {
        if (!(*b)->list_accelerators) continue;
        assert(f->n_lists < LISTS_MAX);
        f->lists[f->n_lists++].backend = *b;
    }
    TD_TRY(td_topology_read(&f->topology, err));
    if (f->topology.is_real) {
        TD_TRY(td_node_bandwidth_measure(&f->topology, td_kernels_here()->read, MEASURE_S, &f->bandwidth, err));
        for (size_t i = 0; i < f->n_lists; i++) list_accelerators(&f->lists[i]);
    }
    return td_thread_layout_of(&f->topology, &f->bandwidth, &o->wishes, &f->layout, err);
}

/* ---- for people -------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Writes a list of numbers as taskset reads it, for example "0-3,8,16-30:2". Sorts the list. */
static const char *ranges(uint32_t *cpus, uint32_t n, char text[TEXT_BYTES]) {
    size_t at = 0;
    text[0] = 0;
    qsort(cpus, n, sizeof *cpus, by_number);
    for (uint32_t i = 0, last; i < n && at < TEXT_BYTES; i = last + 1) {
        uint32_t step = i + 1 < n ? cpus[i + 1] - cpus[i] : 0;
        for (last = i; last + 1 < n && cpus[last + 1] == cpus[last] + step;) last++;
        if (step > 1 && last - i < 2) last = i; /* two numbers with a gap are written one by one */
        static const char *const FORMATS[] = {"%s%u", "%s%u-%u", "%s%u-%u:%u"};
        at += (size_t)snprintf(text + at, TEXT_BYTES - at,
                               FORMATS[last == i   ? 0
                                       : step == 1 ? 1
                                                   : 2],
                               i ? "," : "", cpus[i], cpus[last], step);
    }
    return text;
}

static const char *cpus_of_node(const td_topology *t, const td_numa_node *node, char text[TEXT_BYTES]) {
    uint32_t cpus[TD_POOL_WORKERS_MAX];
    for (uint32_t i = 0; i < node->n_cores; i++) cpus[i] = t->cores[node->first_core + i].cpu;
    return node->n_cores ? ranges(cpus, node->n_cores, text) : "none";
}

static const char *memory_text(uint32_t node, char text[TEXT_BYTES]) {
    if (node == TD_NODE_SPREAD) return "spread over all nodes with cores";
    if (node == TD_NODE_ANY) return "where it is touched first";
    snprintf(text, TEXT_BYTES, "on node %u", node);
    return text;
}

static void print_places(const td_worker_place *places, uint32_t n) {
    char     text[TEXT_BYTES], memory[TEXT_BYTES];
    uint32_t cpus[TD_POOL_WORKERS_MAX], n_cpus = 0;
    for (uint32_t i = 0; i < n; i++)
        if (places[i].cpu != TD_CPU_ANY) cpus[n_cpus++] = places[i].cpu;
    printf("%u thread%s", n, td_plural(n));
    if (n_cpus) printf(" on cpus %s", ranges(cpus, n_cpus, text));
    if (n_cpus < n) printf(", %u of them not pinned", n - n_cpus);
    printf("; memory %s\n", memory_text(places[0].node, memory));
}

static uint32_t subpool_threads(const td_thread_layout *p, uint32_t subpool, uint32_t *first) {
    uint32_t n = 0;
    for (uint32_t i = p->n_experts; i-- > 0;)
        if (p->experts[i].subpool == subpool) {
            *first = i;
            n++;
        }
    return n;
}

static uint32_t device_memory(const td_thread_layout *p) {
    if (p->n_npu) return p->npu[0].node;
    for (uint32_t i = 1; i < p->n_experts; i++)
        if (p->experts[i].node != p->experts[0].node) return TD_NODE_SPREAD;
    return p->experts[0].node;
}

static void print_cards(const card_list *list) {
    const td_backend *b = list->backend;
    if (list->none.text[0]) printf("\n%s cards: %s\n", b->vendor, list->none.text);
    if (!list->n) return;
    printf("\n%-6s %6s %12s %8s %-12s %9s %10s %9s %9s   %s cards (--device %s)\n", "card", "node", "memory, GiB", "compute",
           "PCI", "to, GB/s", "from, GB/s", "call, us", "bell, us", b->vendor, b->name);
    for (size_t i = 0; i < list->n; i++) {
        const td_accelerator *c = &list->info[i];
        char                  node[16] = "-";
        if (c->node >= 0) snprintf(node, sizeof node, "%d", c->node);
        printf("%-6zu %6s %12.1f %6d.%d %-12s ", i, node, (double)c->memory_bytes / (1 << 30), c->compute_capability / 10,
               c->compute_capability % 10, c->pci);
        const card_link *l = &list->link[i];
        if (l->bell_s > 0)
            printf("%9.1f %10.1f %9.1f %9.1f   %s\n", COPY_BYTES / l->down_s * 1e-9, COPY_BYTES / l->up_s * 1e-9,
                   l->host_call_s * 1e6, l->bell_s * 1e6, c->name);
        else
            printf("%9s %10s %9s %9s   %s\n", "-", "-", "-", "-", c->name);
        if (l->why.text[0]) printf("       not measured: %s\n", l->why.text);
    }
}

static void print_tables(const options *o, const facts *f) {
    const td_topology      *t = &f->topology;
    const td_machine       *m = &t->machine;
    const td_thread_layout *p = &f->layout;
    char                    text[TEXT_BYTES];
    printf("%s: %u core%s, %u hardware thread%s, %u L3 (%llu MiB), %.1f GiB of memory\n\n",
           m->cpu[0] ? m->cpu : "this machine", m->n_cores, td_plural(m->n_cores), m->n_cpus, td_plural(m->n_cpus), m->n_l3,
           (unsigned long long)m->l3_bytes >> 20, (double)m->memory_bytes / (1 << 30));
    if (t->is_real)
        printf("Kernels: %s; they fetch memory %u bytes ahead into L2 and %u into L1\n\n",
               td_cpu_tier_name(td_cpu_features()), td_cpu_prefetch_here().far_bytes, td_cpu_prefetch_here().near_bytes);
    if (isfinite(m->cpu_time))
        printf("The cgroup leaves the time of %.1f cores, which --cpuinfer follows unless it is given\n\n", m->cpu_time);
    printf("%-6s %6s %4s %12s   %s\n", "node", "cores", "L3", "memory, GiB", "cpus (first hardware thread of each core)");
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const td_numa_node *node = &t->nodes[i];
        printf("%-6u %6u %4u %12.1f   %s\n", node->os_index, node->n_cores, node->n_l3,
               (double)node->memory_bytes / (1 << 30), cpus_of_node(t, node, text));
    }
    if (t->is_real) {
        printf("\nread bandwidth in GB/s: the cores of a node (rows), the memory of a node (columns)\n%-6s", "");
        for (uint32_t j = 0; j < t->n_nodes; j++) printf(" %8u", t->nodes[j].os_index);
        for (uint32_t i = 0; i < t->n_nodes; i++) {
            if (!t->nodes[i].n_cores) continue;
            printf("\n%-6u", t->nodes[i].os_index);
            for (uint32_t j = 0; j < t->n_nodes; j++) {
                if (f->bandwidth.read[i][j] > 0)
                    printf(" %8.1f", f->bandwidth.read[i][j] * 1e-9);
                else
                    printf(" %8s", "-");
            }
        }
        puts("");
    } else {
        puts("\nThis machine is made up: nothing is measured.");
    }
    for (size_t i = 0; i < f->n_lists; i++) print_cards(&f->lists[i]);
    printf("\nlaunch_server --cpuinfer %u --subpool-count %u --npu-threads %u\n", o->wishes.cpuinfer,
           o->wishes.subpool_count, o->wishes.npu_threads);
    for (uint32_t s = 0; s < p->n_subpools; s++) {
        uint32_t first = 0, n = subpool_threads(p, s, &first);
        printf("subpool %-3u node %-3u  ", s, t->nodes[p->home[s]].os_index);
        print_places(p->experts + first, n);
    }
    printf("%-21s ", "device");
    if (p->n_npu)
        print_places(p->npu, p->n_npu);
    else if (o->wishes.card)
        printf("%u core%s left to the card's driver; memory %s\n", p->n_left, td_plural(p->n_left),
               memory_text(device_memory(p), text));
    else
        printf("shares the experts' threads; memory %s\n", memory_text(device_memory(p), text));
}

/* ---- for programs ------------------------------------------------------------------------------ */

/* A node's number, or a word if it has none. */
static json_t *memory_json(uint32_t node) {
    return node == TD_NODE_SPREAD ? json_string("spread") : node == TD_NODE_ANY ? json_null() : json_integer(node);
}

static json_t *places_json(const td_worker_place *places, uint32_t n) {
    json_t *cpus = json_array(), *o = json_object();
    for (uint32_t i = 0; i < n; i++)
        if (places[i].cpu != TD_CPU_ANY) json_array_append_new(cpus, json_integer(places[i].cpu));
    json_object_set_new(o, "unpinned", json_integer((json_int_t)(n - json_array_size(cpus))));
    json_object_set_new(o, "cpus", cpus);
    return o;
}

static json_t *nodes_json(const td_topology *t) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const td_numa_node *node = &t->nodes[i];
        json_t             *cpus = json_array();
        for (uint32_t c = 0; c < node->n_cores; c++)
            json_array_append_new(cpus, json_integer(t->cores[node->first_core + c].cpu));
        json_array_append_new(
            list, json_pack("{s:i,s:i,s:i,s:I,s:o}", "node", (int)node->os_index, "cores", (int)node->n_cores, "l3",
                            (int)node->n_l3, "memory_bytes", (json_int_t)node->memory_bytes, "cpus", cpus));
    }
    return list;
}

/* One row for each node, with null for what is not known. */
static json_t *bandwidth_json(const facts *f) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < f->topology.n_nodes; i++) {
        json_t *row = json_array();
        for (uint32_t j = 0; j < f->topology.n_nodes; j++) {
            double read = f->bandwidth.read[i][j];
            json_array_append_new(row, read > 0 ? json_real(read * 1e-9) : json_null());
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* A quotient, or null if either number is not known. */
static json_t *measured(double of, double by) {
    return of > 0 && by > 0 ? json_real(of / by) : json_null();
}

static json_t *cards_json(const card_list *cards) {
    json_t *list = json_array();
    for (size_t i = 0; i < cards->n; i++) {
        const td_accelerator *c = &cards->info[i];
        const card_link      *l = &cards->link[i];
        json_t               *name = json_string(c->name); /* NULL if the name is not UTF-8 */
        json_array_append_new(
            list, json_pack("{s:o,s:s,s:I,s:i,s:o,s:o,s:o,s:o,s:o,s:o}", "name", name ? name : json_null(), "pci", c->pci,
                            "memory_bytes", (json_int_t)c->memory_bytes, "compute_capability", c->compute_capability, "node",
                            c->node < 0 ? json_null() : json_integer(c->node), "to_card_gbps",
                            measured(COPY_BYTES * 1e-9, l->down_s), "from_card_gbps", measured(COPY_BYTES * 1e-9, l->up_s),
                            "host_call_us", measured(l->host_call_s, 1e-6), "doorbell_us", measured(l->bell_s, 1e-6),
                            "not_measured", l->why.text[0] ? json_string(l->why.text) : json_null()));
    }
    return list;
}

static json_t *plan_json(const td_thread_wishes *wishes, const facts *f) {
    const td_thread_layout *p = &f->layout;
    json_t                 *subpools = json_array(), *device = places_json(p->npu, p->n_npu);
    for (uint32_t s = 0; s < p->n_subpools; s++) {
        uint32_t first = 0, n = subpool_threads(p, s, &first);
        json_t  *o = places_json(p->experts + first, n);
        json_object_set_new(o, "subpool", json_integer(s));
        json_object_set_new(o, "node", json_integer(f->topology.nodes[p->home[s]].os_index));
        json_object_set_new(o, "memory", memory_json(p->experts[first].node));
        json_array_append_new(subpools, o);
    }
    json_object_set_new(device, "memory", memory_json(device_memory(p)));
    json_object_set_new(device, "shares_experts", json_boolean(p->n_npu == 0 && !wishes->card));
    return json_pack("{s:i,s:o,s:i,s:o}", "cpuinfer", (int)p->n_experts, "subpools", subpools, "npu_threads", (int)p->n_npu,
                     "device", device);
}

/* Adds NAME_cards and NAME_error for each backend that can list cards. */
static void add_cards_json(json_t *o, const facts *f) {
    char key[64];
    for (const card_list *list = f->lists; list < f->lists + f->n_lists; list++) {
        snprintf(key, sizeof key, "%s_cards", list->backend->name);
        json_object_set_new(o, key, cards_json(list));
        snprintf(key, sizeof key, "%s_error", list->backend->name);
        json_object_set_new(o, key, list->none.text[0] ? json_string(list->none.text) : json_null());
    }
}

static void print_json(const td_thread_wishes *wishes, const facts *f) {
    const td_machine *m = &f->topology.machine;
    json_t *o = json_pack("{s:s,s:b,s:i,s:i,s:i,s:I,s:I,s:o,s:o,s:o}", "cpu", m->cpu, "real", f->topology.is_real, "cores",
                          (int)m->n_cores, "threads", (int)m->n_cpus, "l3", (int)m->n_l3, "l3_bytes",
                          (json_int_t)m->l3_bytes, "memory_bytes", (json_int_t)m->memory_bytes, "cpu_time",
                          isfinite(m->cpu_time) ? json_real(m->cpu_time) : json_null(), "nodes", nodes_json(&f->topology),
                          "read_gbps", bandwidth_json(f));
    add_cards_json(o, f);
    json_object_set_new(o, "plan", plan_json(wishes, f));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(o);
}

int td_cmd_topo(int argc, char **argv) {
    options  o = {0};
    td_error err = {0};
    int      rc = parse_options(argc, argv, &o);
    if (rc >= 0) return rc;
    td_log_set_level(TD_LOG_WARNING);
    facts *f = calloc(1, sizeof *f);
    if (!f) {
        fprintf(stderr, "tandem topo: out of memory\n");
        return 1;
    }
    td_status st = find_facts(&o, f, &err);
    if (st == TD_OK) {
        if (o.json)
            print_json(&o.wishes, f);
        else
            print_tables(&o, f);
    }
    if (st != TD_OK) fprintf(stderr, "tandem topo: %s\n", err.text);
    free(f);
    return st == TD_OK ? td_standard_output_end("tandem topo") : 1;
}
