#include "engine/kv/page_fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/machine/cpu.h"
#include "model/layer_caches.h"
#include "npu/npu.h"

#define FORM "tandem KV page 1" /* changes when pages with the same bits are laid out differently */
#define NAMES_BYTES 1024

/* The probe's tokens: spread over the vocabulary, always the same. */
static uint32_t probe_token(uint32_t i, uint32_t vocab) {
    return (uint32_t)((i * (uint64_t)2654435761u + 12345) % vocab);
}

static td_status run_probe(td_model *m, uint32_t chunk, td_error *err) {
    const uint32_t page = 0, vocab = td_model_get_config(m)->vocab, n = chunk < TD_KV_PAGE ? chunk : TD_KV_PAGE;
    uint32_t       tokens[TD_KV_PAGE];
    td_step_rows   rows;
    const float   *logits;
    for (uint32_t i = 0; i < TD_KV_PAGE; i++) tokens[i] = probe_token(i, vocab);
    TD_TRY(td_step_rows_open(&rows, n, 1, TD_KV_PAGE, err));
    td_status st = TD_OK;
    for (uint32_t at = 0, now; at < TD_KV_PAGE && st == TD_OK; at += now) {
        now = TD_KV_PAGE - at < n ? TD_KV_PAGE - at : n;
        td_step_rows_clear(&rows);
        td_step_sequence seq = {.pages = &page, .n_pages = 1, .state = td_own_state(0, at)};
        td_step_rows_add(&rows, tokens + at, at, now, &seq);
        st = td_model_forward(m, &rows, (td_out_rows){0}, &logits);
    }
    td_step_rows_close(&rows);
    return st == TD_OK ? TD_OK : td_fail(err, st, "kv-store: the probe of the model failed: %s", td_model_why(m, st));
}

static td_status hash_page(td_model *m, XXH128_hash_t *out, td_error *err) {
    size_t bytes = td_model_page_bytes(m);
    void  *page = malloc(bytes);
    if (!page) return td_fail(err, TD_ENOMEM, "out of memory for a KV page");
    td_status st = td_model_read_page(m, 0, page);
    if (st == TD_OK) *out = XXH3_128bits(page, bytes);
    free(page);
    return st == TD_OK ? TD_OK : td_fail(err, st, "kv-store: the probe's KV cannot be read: %s", td_status_text(st));
}

/* The attention windows of all layers. A window as long as the probe, or longer, would not show in the probe's KV. */
static uint64_t hash_windows(const td_model_config *c) {
    uint64_t       hash = 0;
    td_layer_range all = td_all_layers(c);
    for (uint32_t layer = all.first; layer < all.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            hash = XXH3_64bits_withSeed(&list.cache[i].window, sizeof list.cache[i].window, hash);
    }
    return hash;
}

td_status td_page_fingerprint_take(const td_engine_config *config, td_model *m, uint64_t source_hash, td_page_key *out,
                                   td_error *err) {
    const td_model_config *c = td_model_get_config(m);
    const td_model_spec   *spec = &config->model;
    const char            *override_json = spec->override_json ? spec->override_json : "";
    XXH128_hash_t          probe = {0};
    char                   names[NAMES_BYTES];
    TD_TRY(run_probe(m, config->chunk, err));
    TD_TRY(hash_page(m, &probe, err));
    int n =
        snprintf(names, sizeof names,
                 "%s|%s|%s|%s|%s|%u cards|%s|%s|%s|%s|%u deferred|%u of %zu bytes|%016llx|%016llx|%016llx|%016llx%016llx",
                 FORM, TD_VERSION, __VERSION__, td_cpu_tier_name(td_cpu_features()), spec->device, spec->n_cards,
                 c->arch_name, config->quantization, td_model_expert_quantization(m), td_model_expert_kernel(m),
                 spec->experts.max_deferred, TD_KV_PAGE, td_model_page_bytes(m), (unsigned long long)source_hash,
                 (unsigned long long)XXH3_64bits(override_json, strlen(override_json)), (unsigned long long)hash_windows(c),
                 (unsigned long long)probe.high64, (unsigned long long)probe.low64);
    if (n < 0 || (size_t)n >= sizeof names) return td_fail(err, TD_EINVAL, "kv-store: the model's names are too long");
    XXH128_hash_t h = XXH3_128bits(names, (size_t)n);
    *out = (td_page_key){h.low64, h.high64};
    return TD_OK;
}
