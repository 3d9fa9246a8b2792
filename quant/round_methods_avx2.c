#define ROUND_METHODS td_round_methods_avx2
#include "quant/round_methods.inc"
