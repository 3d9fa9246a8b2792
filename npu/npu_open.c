/* Devices by their backend's name. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "npu/npu.h"

static bool has_name(const td_backend *b, const char *name) {
    if (!strcmp(b->name, name)) return true;
    for (const char *const *alias = b->aliases; alias && *alias; alias++)
        if (!strcmp(*alias, name)) return true;
    return false;
}

const td_backend *td_backend_find(const char *name) {
    for (const td_backend *const *b = td_backends; *b; b++)
        if (has_name(*b, name ? name : "host")) return *b;
    return NULL;
}

static td_status refuse_name(const char *name, td_error *err) {
    char   names[256] = "";
    size_t used = 0;
    for (const td_backend *const *b = td_backends; *b && used < sizeof names; b++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s\"%s\"%s", used ? ", " : "", (*b)->name,
                                 (*b)->is_for_tests ? " for tests" : "");
    return td_fail(err, TD_EINVAL, "there is no device \"%s\"; this build has %s", name, names);
}

td_status td_npu_open(const char *name, const td_npu_config *config, td_npu **out, td_error *err) {
    const td_backend *b = td_backend_find(name);
    *out = NULL;
    return b ? b->open(config, out, err) : refuse_name(name, err);
}

/* How many of a backend's listed cards it computes on. */
static size_t count_usable(const td_backend *b, char *why, size_t bytes) {
    td_accelerator cards[TD_ACCELERATORS_MAX];
    size_t         n = 0, usable = 0;
    td_error       err = {0};
    if (b->list_accelerators(cards, &n, &err) != TD_OK) {
        snprintf(why, bytes, "%s", err.text);
        return 0;
    }
    for (size_t i = 0; i < n; i++) usable += cards[i].is_usable;
    snprintf(why, bytes, "%zu %s cards, %zu of %s", n, b->vendor, usable, b->usable);
    return usable;
}

const char *td_npu_auto(char *why, size_t bytes) {
    snprintf(why, bytes, "no backend lists cards");
    for (const td_backend *const *b = td_backends; *b; b++)
        if ((*b)->list_accelerators && count_usable(*b, why, bytes)) return (*b)->name;
    return "host";
}

static bool node_of_card(const td_backend *b, uint32_t card, uint32_t *node) {
    td_accelerator cards[TD_ACCELERATORS_MAX];
    size_t         n = 0;
    td_error       err = {0}; /* whoever opens the card is told */
    if (!b->list_accelerators || b->list_accelerators(cards, &n, &err) != TD_OK || card >= n || cards[card].node < 0)
        return false;
    *node = (uint32_t)cards[card].node;
    return true;
}

uint32_t td_npu_threads_needed(const char *name, uint32_t n_cards) {
    const td_backend *b = td_backend_find(name);
    return !b ? 0 : n_cards > 1 ? n_cards * b->threads_in_group : b->threads_alone;
}

void td_npu_wish(const char *name, uint32_t first_card, uint32_t n_cards, td_thread_wishes *wishes) {
    const td_backend *b = td_backend_find(name);
    uint32_t          needed = td_npu_threads_needed(name, n_cards);
    if (wishes->npu_threads < needed) wishes->npu_threads = needed;
    wishes->card = b && b->list_accelerators;
    wishes->near_card = b && node_of_card(b, first_card, &wishes->card_node);
}
