/*
 * Several NVIDIA cards as one tensor-parallel device.
 *
 * DESIGN. A group has for each card an exchange: words by which the cards meet, and two places for the card's part of a sum
 * (cards.cu). It lies in the card's memory where all cards can reach each other's (peer access), else in pinned memory of
 * the host, which every card reaches; the kernels are the same. What is larger than a place goes through in pieces.
 *
 * A sum that waits for a card which will not come polls a word in pinned memory, too: an abort sets it. The kernel then says
 * so in another word. Everything behind it on the stream still runs, on unspecified numbers, and leaves the places of parts
 * alone. The stream's next synchronisation returns the failure.
 */
#ifndef TD_NPU_CUDA_CUDA_GROUP_H
#define TD_NPU_CUDA_CUDA_GROUP_H

#include "npu/cuda/cuda_device.h"

#define TD_CUDA_SIGNALS_BYTES 256             /* in front of the places */
#define TD_CUDA_PLACE_BYTES ((size_t)2 << 20) /* a card's part of a sum, or of a piece of it */
#define TD_CUDA_PLACE_VALUES (TD_CUDA_PLACE_BYTES / sizeof(td_bf16))

typedef struct {
    td_cuda_npu *d;
    void        *exchange;                   /* device memory, or pinned */
    void        *state;                      /* device memory: meetings, sums, gave up */
    void        *stop, *gave_up;             /* as the card sees them */
    char        *exchange_of[TD_CUDA_CARDS]; /* of each card, as this one sees it */
    uint32_t     opened;                     /* a bit for each card whose memory it was given access to */
} td_cuda_member;

struct td_npu_group {
    uint32_t       n;
    bool           is_direct; /* by peer access */
    char          *words;     /* pinned, on lines of their own: stop; of each card whether it gave up */
    td_cuda_member members[TD_CUDA_CARDS];
};

/* The table's functions, as in td_npu_ops. */
TD_NODISCARD td_status td_cuda_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err);
void                   td_cuda_group_destroy(td_npu_group *g);
void                   td_cuda_group_abort(td_npu_group *g);
void                   td_cuda_group_reset(td_npu_group *g);

/** Whether the card has given up a sum since the group was reset. After its stream was synchronised. */
bool td_cuda_group_gave_up(const td_cuda_npu *d);

/** Whether an abort has come since the last reset. */
bool td_cuda_group_is_aborted(const td_npu_group *g);
/** The card's own part of a group; NULL: the group is NULL, or the card is not in it. */
td_cuda_member *td_cuda_group_member(td_npu_group *g, const td_cuda_npu *d);

#endif
