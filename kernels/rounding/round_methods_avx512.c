#define ROUND_METHODS td_round_methods_avx512
#include "kernels/rounding/round_methods.inc"
