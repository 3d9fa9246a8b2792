/* Words for people that go with a number. */
#ifndef TD_CORE_PLURAL_H
#define TD_CORE_PLURAL_H

#include <stdint.h>

/** What ends the name of n things: "s", or nothing for one: "%u core%s". Static. */
static inline const char *td_plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

#endif
