/*
 * The gate at which a program of the tests waits (server_process.py opens and shuts it): a file that TD_FAKE_GATE names, shut
 * while that file exists. Whoever waits there makes FILE.reached. Without the variable it is open.
 */
#ifndef TD_TESTS_GATE_H
#define TD_TESTS_GATE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline bool gate_is_shut(void) {
    const char *gate = getenv("TD_FAKE_GATE");
    return gate && access(gate, F_OK) == 0;
}

static inline void tell_gate(void) {
    char reached[512];
    snprintf(reached, sizeof reached, "%s.reached", getenv("TD_FAKE_GATE"));
    close(creat(reached, 0600));
}

static inline void wait_at_gate(void) {
    if (gate_is_shut()) tell_gate();
    while (gate_is_shut()) usleep(1000);
}

#endif
