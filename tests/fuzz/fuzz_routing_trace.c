/* Fuzz target: any bytes as a routing trace. They are read or refused, and every id in an accepted trace is an expert. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "residency/routing_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    td_routing_trace t;
    td_error         err = {0};
    void            *copy = malloc(size ? size : 1); /* aligned, and of its own size: what is read beyond it is seen */
    if (!copy) abort();
    if (size) memcpy(copy, data, size);
    if (td_routing_trace_parse(copy, size, "input", &t, &err) == TD_OK) {
        for (uint64_t i = 0; i < t.n_tok; i++)
            for (uint32_t l = 0; l < t.n_layers; l++)
                for (uint32_t k = 0; k < t.top_k; k++) assert(td_routing_ids(&t, i, l)[k] < t.n_experts);
        assert(sizeof(td_routing_header) + t.n_tok * t.n_layers * t.top_k * sizeof(uint16_t) == size);
    } else {
        assert(err.status == TD_EFORMAT && err.text[0] && !strchr(err.text, '\n'));
    }
    free(copy);
    return 0;
}
