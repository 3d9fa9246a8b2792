#include "cli/option_number.h"

#include <stdio.h>
#include <stdlib.h>

bool td_option_number(const char *command, const char *option, const char *text, uint64_t max, uint64_t *out) {
    char              *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && n >= 1 && n <= max) {
        *out = n;
        return true;
    }
    fprintf(stderr, "tandem %s: %s is '%.60s', expected a number from 1 to %llu\n", command, option, text, (unsigned long long)max);
    return false;
}
