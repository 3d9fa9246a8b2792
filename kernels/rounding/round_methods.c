/* The rounding methods over a panel, compiled for each instruction set. */
#include "kernels/rounding/scale_search.inc"

#include "kernels/rounding/error_feedback.inc"

#include "kernels/rounding/code_descent.inc"
#include "kernels/this_set.h"

const td_round_methods TD_OF_SET(round_methods) = {panel_clip, panel_feedback, panel_descend};
