/* What all stand-ins share: refusing with a sentence, reading settings, and the lock. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/standins/parts/standin_parts.h"

pthread_mutex_t standin_mutex = PTHREAD_MUTEX_INITIALIZER;

void standin_lock(void) {
    pthread_mutex_lock(&standin_mutex);
}
void standin_unlock(void) {
    pthread_mutex_unlock(&standin_mutex);
}
bool standin_locked(void) {
    standin_lock();
    return true;
}
void standin_unlocked(bool *lock) {
    (void)lock;
    standin_unlock();
}

uint64_t standin_setting(const char *variable, uint64_t otherwise) {
    const char *value = getenv(variable);
    return value && *value ? strtoull(value, NULL, 10) : otherwise;
}

bool standin_nth(const char *variable, _Atomic uint64_t *asked) {
    uint64_t which = standin_setting(variable, UINT64_MAX);
    return ++*asked == which;
}

void standin_refuse(const char *document, const char *format, ...) {
    char    text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "%s stand-in: %s (%s; seed %llu)\n", STANDIN_DOCUMENTS.name, text, document,
            (unsigned long long)standin_setting("TD_STANDIN_SEED", 1));
    abort();
}

void standin_keep(void *thing) {
    static void **kept;
    static size_t n, room;
    if (n == room) {
        room = room ? room * 2 : 256;
        kept = realloc(kept, room * sizeof *kept);
    }
    kept[n++] = thing;
}
