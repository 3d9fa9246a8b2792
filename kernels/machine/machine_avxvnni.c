/* What the machine can do at most: AVX-VNNI. */
#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains.h"

YMM_PEAK(td_int8_peak_avxvnni, "%{vex%} vpdpbusd %%ymm14, %%ymm14, ", 32 * 2)
