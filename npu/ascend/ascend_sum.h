/* The sum over cards as a block, and what else blocks ask of a group. */
#ifndef TD_NPU_ASCEND_ASCEND_SUM_H
#define TD_NPU_ASCEND_ASCEND_SUM_H

#include "npu/ascend/ascend_op.h"

/** n words of device memory become those of the group's first card, on all cards. Every card runs it in the same place. */
void td_ascend_op_first_cards(td_ascend_run *r, td_npu_group *g, void *at, size_t n);

#endif
