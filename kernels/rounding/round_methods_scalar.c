#define ROUND_METHODS td_round_methods_scalar
#include "kernels/rounding/round_methods.inc"
