/*
 * Captured graphs as text, for bench/cuda_step.py: a line "graph <nodes>", then one for each node, of columns between tabs.
 *   kernel          name, blocks along x, y and z, threads of a block, bytes of dynamic shared memory, arguments
 *   cublasLtMatmul  outputs, rows and k of the product
 *   others          the manual's name of the call, bytes that a copy moves
 * Records of events and waits for them are nodes of no time: they are not written, and not counted.
 */
#include <stdlib.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

static bool is_event(const standin_op *op) {
    return op->kind == STANDIN_RECORD || op->kind == STANDIN_WAIT;
}

void standin_graph_write(const standin_node *nodes, size_t n) {
    const char *path = getenv("TD_STANDIN_GRAPHS");
    if (!path || !*path) return;
    FILE  *to = fopen(path, "a");
    size_t written = 0;
    if (!to) standin_refuse("stand-in", "TD_STANDIN_GRAPHS: %s cannot be written", path);
    for (size_t i = 0; i < n; i++) written += !is_event(nodes[i].op);
    fprintf(to, "graph\t%zu\n", written);
    for (size_t i = 0; i < n; i++) {
        const standin_op *op = nodes[i].op;
        if (op->write)
            op->write(op, to);
        else if (!is_event(op))
            fprintf(to, "%s\t%zu\n", op->name, op->kind == STANDIN_COPY ? op->uses[0].bytes : 0);
    }
    fclose(to);
}
