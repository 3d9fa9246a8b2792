/* The devices by name: a backend is a folder and a line here. */
#include <stdio.h>
#include <string.h>

#include "core/cpu.h"
#include "core/error.h"
#include "npu/apart/apart_npu.h"
#include "npu/ascend/ascend_open.h"
#include "npu/cuda/cuda_cards.h"
#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_open.h"
#include "npu/host/host_npu.h"
#include "npu/npu.h"

typedef td_status (*opener)(const td_npu_config *config, td_npu **out, td_error *err);

typedef struct {
    const char *name;
    opener      open;
    uint32_t    alone, in_group; /* threads of its own that a card cannot do without, alone and among several */
    void (*facts)(td_npu_fact_fn tell, void *user);
    bool (*node)(uint32_t card, uint32_t *node); /* NULL: nothing tells */
} backend;

static void core_facts(td_npu_fact_fn tell, void *user) {
    tell(user, &(td_npu_fact){.what = "instructions", .found = td_cpu_tier_name(td_cpu_features())});
}

static const backend BACKENDS[] = {
    {"host", td_host_npu_open, 0, 1, core_facts, NULL},
    {"apart", td_apart_npu_open, 1, 1, core_facts, NULL},
    {"npu", td_ascend_npu_open, 0, 0, td_ascend_facts, NULL},
    {"ascend", td_ascend_npu_open, 0, 0, td_ascend_facts, NULL},
    {"cuda", td_cuda_npu_open, 0, 0, td_cuda_facts, td_cuda_card_node},
};

const char *td_npu_backend_name(size_t i) {
    return i < sizeof BACKENDS / sizeof *BACKENDS ? BACKENDS[i].name : NULL;
}

static const backend *find(const char *name) {
    for (size_t i = 0; i < sizeof BACKENDS / sizeof *BACKENDS; i++)
        if (!strcmp(name ? name : "host", BACKENDS[i].name)) return &BACKENDS[i];
    return NULL;
}

const char *td_npu_auto(char *why, size_t bytes) {
    td_cuda_card cards[TD_CUDA_CARDS_MAX];
    size_t       n = 0, usable = 0;
    td_error     err = {0};
    if (td_cuda_cards(cards, &n, &err) != TD_OK) {
        snprintf(why, bytes, "%s", err.text);
        return "host";
    }
    for (size_t i = 0; i < n; i++) usable += cards[i].capability >= TD_CUDA_CAPABILITY_OLDEST;
    snprintf(why, bytes, "%zu NVIDIA cards, %zu of compute capability %d.%d or later", n, usable,
             TD_CUDA_CAPABILITY_OLDEST / 10, TD_CUDA_CAPABILITY_OLDEST % 10);
    return usable ? "cuda" : "host";
}

uint32_t td_npu_threads_needed(const char *name, uint32_t n_cards) {
    const backend *b = find(name);
    return !b ? 0 : n_cards > 1 ? n_cards * b->in_group : b->alone;
}

void td_npu_wish(const char *name, uint32_t first_card, uint32_t n_cards, td_thread_wishes *wishes) {
    const backend *b = find(name);
    uint32_t       needed = td_npu_threads_needed(name, n_cards);
    if (wishes->npu_threads < needed) wishes->npu_threads = needed;
    wishes->near_card = b && b->node && b->node(first_card, &wishes->card_node);
}

void td_npu_facts(const char *name, td_npu_fact_fn tell, void *user) {
    const backend *b = find(name);
    if (b) b->facts(tell, user);
}

td_status td_npu_open(const char *name, const td_npu_config *config, td_npu **out, td_error *err) {
    const backend *b = find(name);
    *out = NULL;
    if (b) return b->open(config, out, err);
    return td_fail(err, TD_EINVAL,
                   "there is no device \"%s\"; this build has \"host\", \"npu\", \"cuda\", and \"apart\" for tests", name);
}
