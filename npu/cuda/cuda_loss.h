/*
 * Which statuses of the driver mean that a card is lost. An error of its hardware or of a kernel is for good: "This leaves
 * the process in an inconsistent state and any further CUDA work will return the same error. To continue using CUDA, the
 * process must be terminated and relaunched" ("Data types used by CUDA driver", CUresult).
 */
#ifndef TD_NPU_CUDA_CUDA_LOSS_H
#define TD_NPU_CUDA_CUDA_LOSS_H

#include "npu/card/card_loss.h"
#include "npu/cuda/cuda_types.h"

/**
 * The driver has said no. Any thread.
 * @param said  no success.
 * @param again it says the same when it is asked again: the card is lost whatever the status is, as one that has fallen off
 * the bus, which no document gives a status. Else only those statuses count that are for good.
 */
void td_cuda_loss_note(td_card_loss *l, uint32_t card, td_cu_status said, bool again);

#endif
