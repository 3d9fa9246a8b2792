#include "server/openai/responses_store.h"

#include <stdlib.h>
#include <string.h>

void td_response_store_init(td_response_store *s, uint32_t n_max, size_t bytes_max) {
    *s = (td_response_store){.n_max = n_max, .bytes_max = bytes_max};
    pthread_mutex_init(&s->lock, NULL);
}

static size_t bytes_of(const td_stored_response *r) {
    return sizeof *r + r->input_len + r->text_len;
}

static void unlink_locked(td_response_store *s, td_stored_response *r) {
    *(r->newer ? &r->newer->older : &s->newest) = r->older;
    *(r->older ? &r->older->newer : &s->oldest) = r->newer;
    r->newer = r->older = NULL;
    s->n--;
}

static void link_newest_locked(td_response_store *s, td_stored_response *r) {
    r->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = r;
    s->newest = r;
    s->n++;
}

/* Give a reference back. A response without references goes to the front of `gone` (linked by `older`), which is freed after
 * the lock is released; then the same for the response before it. */
static td_stored_response *release_locked(td_response_store *s, td_stored_response *r, td_stored_response *gone) {
    while (r && --r->refs == 0) {
        td_stored_response *previous = r->previous;
        s->bytes -= bytes_of(r);
        r->older = gone;
        gone = r;
        r = previous;
    }
    return gone;
}

static void free_all(td_stored_response *gone) {
    while (gone) {
        td_stored_response *next = gone->older;
        free(gone->input);
        free(gone->text);
        free(gone);
        gone = next;
    }
}

static td_stored_response *forget_locked(td_response_store *s, td_stored_response *r, td_stored_response *gone) {
    unlink_locked(s, r);
    return release_locked(s, r, gone);
}

td_status td_response_store_put(td_response_store *s, const td_stored_response *r) {
    td_stored_response *kept = malloc(sizeof *kept), *gone = NULL;
    if (!kept) {
        td_response_store_release(s, r->previous);
        free(r->input);
        free(r->text);
        return TD_ENOMEM;
    }
    *kept = *r;
    kept->refs = 1;
    kept->newer = kept->older = NULL;
    pthread_mutex_lock(&s->lock);
    s->bytes += bytes_of(kept);
    link_newest_locked(s, kept);
    while (s->oldest && (s->n > s->n_max || s->bytes > s->bytes_max)) gone = forget_locked(s, s->oldest, gone);
    pthread_mutex_unlock(&s->lock);
    free_all(gone);
    return TD_OK;
}

static td_stored_response *find_locked(const td_response_store *s, const char *id) {
    td_stored_response *r = s->newest;
    while (r && strcmp(r->id, id) != 0) r = r->older;
    return r;
}

td_stored_response *td_response_store_find(td_response_store *s, const char *id) {
    pthread_mutex_lock(&s->lock);
    td_stored_response *r = find_locked(s, id);
    if (r) {
        unlink_locked(s, r);
        link_newest_locked(s, r);
        r->refs++;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

void td_response_store_release(td_response_store *s, td_stored_response *r) {
    if (!r) return;
    pthread_mutex_lock(&s->lock);
    td_stored_response *gone = release_locked(s, r, NULL);
    pthread_mutex_unlock(&s->lock);
    free_all(gone);
}

bool td_response_store_delete(td_response_store *s, const char *id) {
    pthread_mutex_lock(&s->lock);
    td_stored_response *r = find_locked(s, id), *gone = r ? forget_locked(s, r, NULL) : NULL;
    pthread_mutex_unlock(&s->lock);
    free_all(gone);
    return r != NULL;
}

void td_response_store_close(td_response_store *s) {
    td_stored_response *gone = NULL;
    pthread_mutex_lock(&s->lock);
    while (s->oldest) gone = forget_locked(s, s->oldest, gone);
    pthread_mutex_unlock(&s->lock);
    free_all(gone);
    pthread_mutex_destroy(&s->lock);
}
