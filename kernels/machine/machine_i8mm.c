/* What the machine can do at most: `smmla`. */
#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains_neon.h"

NEON_PEAK(td_int8_peak_i8mm, "smmla", ".4s", ", v30.16b, v31.16b\n\t", 32 * 2)
