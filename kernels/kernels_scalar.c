/* The table that every processor has. */
#include "kernels/kernel_sets.h"

const td_kernels td_kernels_scalar = {TD_SCALAR_SET, .name = "scalar"};
