/* What other programs computed, as tests of whole models read it (tests/data/golden/README.md). */
#ifndef TD_TESTS_GOLDEN_FILES_H
#define TD_TESTS_GOLDEN_FILES_H

#include <jansson.h>

#include "model_run.h"
#include "tests/td_test.h"

static inline json_t *read_json(const char *path_in_repo) {
    json_error_t e;
    json_t      *v = json_load_file(repo_path(path_in_repo), 0, &e);
    if (!v) fail_msg("%s: %s", path_in_repo, e.text);
    return v;
}

static inline json_t *read_manifest(const char *folder) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/golden/%s/manifest.json", folder);
    return read_json(path);
}

/* The folder of a manifest's model. */
static inline const char *model_of(const json_t *manifest) {
    return json_string_value(json_object_get(manifest, "model"));
}

/* A list of at most `max` ids. @return how many */
static inline uint32_t read_ids(const json_t *list, uint32_t *ids, size_t max) {
    size_t n = json_array_size(list);
    assert_true(n && n <= max);
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

/* Of prompt number `index` of a manifest. */
static inline uint32_t read_prompt(const json_t *manifest, size_t index, uint32_t *ids, size_t max) {
    return read_ids(json_object_get(json_array_get(json_object_get(manifest, "prompts"), index), "ids"), ids, max);
}

#endif
