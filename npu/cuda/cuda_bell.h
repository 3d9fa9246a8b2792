/*
 * Doorbells of an NVIDIA card, in three ways.
 *   calls    a ring is a copy of a word; a wait is a function on a host thread that polls (cuLaunchHostFunc)
 *   words    the stream writes a word and waits for one by itself (cuStreamWriteValue32, cuStreamWaitValue32)
 *   kernels  a kernel carries the rows and writes the word, another one polls and carries the rows (kernels/handover.cu)
 * With calls and words rows go by copies.
 *
 * Of words, the driver's manual says:
 * "Synchronization ordering established through these APIs is not visible to CUDA. CUDA tasks that are (even indirectly)
 * ordered by these APIs should also have that order expressed with CUDA-visible dependencies" ("Stream Memory Operations").
 * Here a word stands between a stream and the host, and all that a bell orders on the card is on the one stream that rings
 * and waits, in that order. The memory is pinned and the card's only by copies of that stream, so no flush of remote writes
 * is wanted; a write comes behind "a memory fence before the write" (CUstreamWriteValue_flags).
 */
#ifndef TD_NPU_CUDA_CUDA_BELL_H
#define TD_NPU_CUDA_CUDA_BELL_H

#include "npu/cuda/cuda_device.h"

/**
 * Choose the way: all are measured that the driver takes, kernels where the card was opened with them and its driver lets
 * them run for long. Kernels are taken unless they are far slower, else the fastest. Or the one that TD_CUDA_BELLS names.
 * To be called last when a card is opened.
 * @return TD_EINVAL for a TD_CUDA_BELLS that names none; TD_ENOTFOUND for kernels that the card was opened without; what
 * td_handover_time returns for the calls.
 */
TD_NODISCARD td_status td_cuda_bells_open(td_cuda_npu *d, td_error *err);

/* The table's functions, as in td_npu_ops. */
TD_NODISCARD td_status td_cuda_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
TD_NODISCARD td_status td_cuda_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);

#endif
