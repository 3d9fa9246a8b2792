#include "npu/cuda/cuda_loss.h"

#define BY_A_KERNEL                                                                                           \
    "a kernel did what it may not, or the card is broken: the kernel log (dmesg, Xid) knows more; report it " \
    "with that"

/* What to think of each status that is for good. */
static const struct {
    td_cu_status status;
    const char  *name, *words;
} LOSSES[] = {
#define LOSS(name, words) \
    { TD_##name, #name, words }
    LOSS(CUDA_ERROR_ECC_UNCORRECTABLE,
         "its memory has an error that ECC cannot correct: nvidia-smi -q -d ECC,ROW_REMAPPER shows it, and a reset of the "
         "card "
         "may mend it; if it comes again, the card has to be replaced"),
    LOSS(CUDA_ERROR_NVLINK_UNCORRECTABLE,
         "NVLink has an error that cannot be corrected: nvidia-smi nvlink -e shows it; look at bridge and fabric manager"),
    LOSS(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel took longer than the driver lets it: does a display hang on this card?"),
    LOSS(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS server has ended what this process had under way"),
    LOSS(CUDA_ERROR_ILLEGAL_ADDRESS, BY_A_KERNEL),
    LOSS(CUDA_ERROR_ASSERT, BY_A_KERNEL),
    LOSS(CUDA_ERROR_HARDWARE_STACK_ERROR, BY_A_KERNEL),
    LOSS(CUDA_ERROR_ILLEGAL_INSTRUCTION, BY_A_KERNEL),
    LOSS(CUDA_ERROR_MISALIGNED_ADDRESS, BY_A_KERNEL),
    LOSS(CUDA_ERROR_INVALID_ADDRESS_SPACE, BY_A_KERNEL),
    LOSS(CUDA_ERROR_INVALID_PC, BY_A_KERNEL),
    LOSS(CUDA_ERROR_LAUNCH_FAILED, BY_A_KERNEL),
#undef LOSS
};

void td_cuda_loss_note(td_card_loss *l, uint32_t card, td_cu_status said, bool again) {
    for (size_t i = 0; i < sizeof LOSSES / sizeof *LOSSES; i++) {
        if (LOSSES[i].status != said) continue;
        td_card_loss_tell(l, "CUDA card %u is lost (%s, %u): %s", card, LOSSES[i].name, said, LOSSES[i].words);
        return;
    }
    if (again)
        td_card_loss_tell(l,
                          "CUDA card %u is lost (status %u): its work has failed, and the driver takes no more of this "
                          "process; the kernel log (dmesg, Xid) may know more",
                          card, said);
}
