/* Fuzz target: any text as a machine file. It is refused with a sentence, or gives figures within their ranges, with which a
 * plan can be made. */
#include <assert.h>
#include <math.h>
#include <stdint.h>

#include "plan/plan_machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rate(double x) {
    assert(isfinite(x) && x > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static td_plan_machine m;
    td_error               err = {0};
    td_status              st = td_plan_machine_parse("fuzz", (const char *)data, size, &m, &err);
    if (st != TD_OK) {
        assert(err.text[0] && err.status == st);
        return 0;
    }
    double cores = 0;
    assert(m.n_nodes >= 1 && m.n_nodes <= TD_POOL_SUBPOOLS_MAX && m.kernels && m.name[0]);
    for (uint32_t i = 0; i < m.n_nodes; i++) {
        const td_plan_node *n = &m.node[i];
        assert(n->cores >= 1 && n->cores == floor(n->cores));
        cores += n->cores;
        check_rate(n->memory_bytes);
        check_rate(n->read_bytes_per_s);
        check_rate(n->int8_ops_per_s);
        check_rate(n->float_ops_per_s);
    }
    assert(cores <= TD_POOL_WORKERS_MAX);
    assert(m.cards.count >= 0 && m.cards.count == floor(m.cards.count));
    if (m.cards.count > 0) {
        check_rate(m.cards.memory_bytes);
        check_rate(m.cards.read_bytes_per_s);
        check_rate(m.cards.link_bytes_per_s);
    }
    if (m.cards.count > 1) check_rate(m.cards.sum_bytes_per_s);
    return 0;
}
