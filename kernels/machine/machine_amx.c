/* What the machine can do at most: AMX-INT8. */
#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains.h"
#include "kernels/vec/amx.h"

/* Four tiles of sums, which cover a product's 52 cycles with its 16 (Intel's optimization manual). */
double td_int8_peak_amx(void) {
    td_amx_config whole = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        whole.rows[t] = TD_AMX_ROWS;
        whole.bytes[t] = TD_AMX_BYTES;
    }
    td_amx_configure(&whole);
    td_amx_zero(0);
    td_amx_zero(1);
    td_amx_zero(2);
    td_amx_zero(3);
    td_amx_zero(4);
    td_amx_zero(5);
    td_amx_zero(6);
    td_amx_zero(7);
    for (int loop = 0; loop < PEAK_LOOPS / 4; loop++) {
        td_amx_dot_su(0, 4, 6);
        td_amx_dot_su(1, 4, 7);
        td_amx_dot_su(2, 5, 6);
        td_amx_dot_su(3, 5, 7);
    }
    td_amx_release();
    return (PEAK_LOOPS / 4) * 4.0 * 2 * TD_AMX_ROWS * 16 * TD_AMX_BYTES;
}
