#define ROUND_METHODS td_round_methods_avx512
#include "quant/round_methods.inc"
