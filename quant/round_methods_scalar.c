#define ROUND_METHODS td_round_methods_scalar
#include "quant/round_methods.inc"
