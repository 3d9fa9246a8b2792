/* What the machine can do at most: AVX512-VNNI. */
#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains.h"

ZMM_PEAK(td_int8_peak_avx512vnni, "vpdpbusd", 64 * 2)
