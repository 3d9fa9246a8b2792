#include "engine/images/image_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void td_image_cache_open(td_image_cache *c, uint64_t bytes_max, size_t token_bytes) {
    *c = (td_image_cache){.token_bytes = token_bytes, .bytes_max = bytes_max, .next_key = TD_IMAGE_KEY};
}

static void free_image(td_known_image *k) {
    free(k->features);
    free(k);
}

void td_image_cache_close(td_image_cache *c) {
    for (uint32_t i = 0; i < TD_IMAGE_BUCKETS; i++)
        for (td_known_image *k = c->buckets[i], *next; k; k = next) {
            next = k->chain;
            free_image(k);
        }
    *c = (td_image_cache){0};
}

/* ---- which are known ------------------------------------------------------------------------- */

static td_known_image **bucket_of(td_image_cache *c, const uint8_t *hash) {
    return &c->buckets[(hash[0] | (uint32_t)hash[1] << 8) % TD_IMAGE_BUCKETS];
}

static td_known_image *find(td_image_cache *c, const uint8_t *hash) {
    td_known_image *k = *bucket_of(c, hash);
    while (k && memcmp(k->hash, hash, TD_IMAGE_HASH_BYTES)) k = k->chain;
    return k;
}

static td_status add(td_image_cache *c, const td_image *image, td_known_image **out) {
    if (c->next_key > UINT32_MAX) return TD_ELIMIT;
    td_known_image *k = calloc(1, sizeof *k), **bucket = bucket_of(c, image->hash);
    if (!k) return TD_ENOMEM;
    memcpy(k->hash, image->hash, sizeof k->hash);
    k->key = (uint32_t)c->next_key++;
    k->n_tokens = td_image_tokens(image);
    k->chain = *bucket;
    *bucket = *out = k;
    c->n_unheld++;
    return TD_OK;
}

static uint64_t feature_bytes(const td_image_cache *c, const td_known_image *k) {
    return (uint64_t)k->n_tokens * c->token_bytes;
}

static void drop_features(td_image_cache *c, td_known_image *k) {
    if (k->features) c->bytes -= feature_bytes(c, k);
    free(k->features);
    k->features = NULL;
    k->encoded = false;
}

typedef bool (*is_one)(const td_known_image *k);

static bool is_unheld(const td_known_image *k) {
    return !k->n_holders;
}

static bool has_idle_features(const td_known_image *k) {
    return k->features && !k->n_readers;
}

/* Of the images that `is` says, the one that was used longest ago; NULL: there is none. */
static td_known_image *oldest(td_image_cache *c, is_one is) {
    td_known_image *found = NULL;
    for (uint32_t i = 0; i < TD_IMAGE_BUCKETS; i++)
        for (td_known_image *k = c->buckets[i]; k; k = k->chain)
            if (is(k) && (!found || k->used < found->used)) found = k;
    return found;
}

static void forget(td_image_cache *c, td_known_image *k) {
    td_known_image **at = bucket_of(c, k->hash);
    while (*at != k) at = &(*at)->chain;
    *at = k->chain;
    drop_features(c, k);
    free_image(k);
    c->n_unheld--;
}

td_status td_image_cache_hold(td_image_cache *c, const td_image *image, td_known_image **out) {
    td_known_image *k = find(c, image->hash);
    td_status       st = k ? TD_OK : add(c, image, &k);
    if (st != TD_OK) return st;
    c->n_unheld -= k->n_holders++ == 0;
    *out = k;
    return TD_OK;
}

void td_image_cache_let_go(td_image_cache *c, td_known_image *k) {
    assert(k->n_holders > 0);
    k->used = ++c->events;
    if (--k->n_holders) return;
    c->n_unheld++;
    if (c->n_unheld > TD_IMAGES_KEPT) forget(c, oldest(c, is_unheld));
}

/* ---- features -------------------------------------------------------------------------------- */

static bool make_room(td_image_cache *c, uint64_t bytes) {
    while (c->bytes + bytes > c->bytes_max) {
        td_known_image *k = oldest(c, has_idle_features);
        if (!k) return false;
        drop_features(c, k);
        c->evictions++;
    }
    return true;
}

bool td_image_cache_begin_read(td_image_cache *c, td_known_image *k) {
    const uint64_t bytes = feature_bytes(c, k);
    if (!k->features) {
        if (!make_room(c, bytes) || !(k->features = malloc(bytes))) return false;
        c->bytes += bytes;
    }
    c->n_read += k->n_readers++ == 0;
    return true;
}

void td_image_cache_join(td_known_image *k) {
    assert(k->n_holders && k->n_readers);
    k->n_holders++;
    k->n_readers++;
}

void td_image_cache_end_read(td_image_cache *c, td_known_image *k) {
    assert(k->n_readers > 0);
    c->n_read -= --k->n_readers == 0;
    k->used = ++c->events;
    if (!k->n_readers && !k->encoded) drop_features(c, k); /* nobody wants them any more */
}
