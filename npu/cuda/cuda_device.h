/*
 * An NVIDIA card as the contract of npu/npu.h has it.
 *
 * DESIGN. The card is a td_card (npu/card/card.h), and most functions of its table are those of npu/card. Its context is the
 * card's primary one. A stream is the driver's; so is a graph. Kernels are our own (npu/cuda/kernels) and read
 * from the device how many rows and keys there are. So what is launched for a bucket serves every step of it, and a replay
 * needs no new arguments. Rows beyond the counts are not computed.
 *
 * Hand-over. A host call is cuLaunchHostFunc, in captures too. Doorbells are cuda_bell.h's.
 *
 * A failure on the card is for good: every later call in its context returns it (cuCtxSynchronize's section of the manual).
 * The backend says so (cuda_loss) and gives back what it took; the process has to be started again.
 *
 *   cuda_device   the card: its failures, its memory   cuda_loss     which failures are for good
 *   cuda_kernels  the kernels by name                  cuda_group    several cards: where their parts meet
 *   cuda_stream   streams, captures                    cuda_bell     doorbells, in two ways
 *   cuda_weight   weights as the kernels read them     cuda_op       a launch
 *   cuda_product  products of rows: by our kernels, of many rows by cuBLASLt (cuda_blas)
 *   cuda_kind     a block, and what a kind of blocks is
 *   cuda_rows     embed, norm, combine, head, top      cuda_linear   linear, mlp
 *   cuda_router   cuda_gqa   cuda_mla   cuda_sum      the sum over cards
 *   cuda_decode   rows whose attention is computed by spans
 *   cuda_experts  routed experts, all of a layer       cuda_resident some of them, in slots; join
 *   cuda_chosen   rows by the experts that they chose, for both
 *   cuda_block    blocks in general: made, launched, their scratch
 *   cuda_bounds   what the card can do at most, measured
 *   cuda_temperature  its temperature
 *   cuda_open     opening a card, and its table of functions
 *   cuda_loader   the driver, opened at run time       cuda_cards    the cards that there are
 *   cuda_backend  the backend as a value, and its installation
 */
#ifndef TD_NPU_CUDA_CUDA_DEVICE_H
#define TD_NPU_CUDA_CUDA_DEVICE_H

#include "npu/card/card.h"
#include "npu/cuda/cuda_blas.h"
#include "npu/cuda/cuda_cards.h"
#include "npu/cuda/cuda_kernels.h"
#include "npu/cuda/cuda_loss.h"

#define TD_CUDA_STAGING_BYTES ((size_t)8 << 20)

/** The ways of a card's bells: cuda_bell.h. */
typedef enum { TD_CUDA_BELLS_CALLS, TD_CUDA_BELLS_WORDS, TD_CUDA_BELLS_KERNELS, TD_CUDA_BELLS_COUNT } td_cuda_bells;

typedef struct {
    td_card         base; /* first */
    const td_cuda  *cu;
    int             version; /* of CUDA that the driver serves: 1000 * major + 10 * minor */
    td_cu_device    device;
    td_cu_context   context; /* NULL: not retained */
    td_cu_stream    setup;   /* fills memory, uploads weights */
    td_cuda_kernels kernels;
    td_cuda_blas    blas;                                         /* cuBLASLt, where it is there */
    unsigned        shared_most, shared_of[TD_CUDA_KERNEL_COUNT]; /* dynamic shared memory: the card's most, a kernel's */
    char            name[96];
    char            pci[TD_PCI_BYTES];
    uint32_t        pinned_node; /* of pinned memory; TD_NODE_ANY: nothing tells where the card hangs */
    bool            registers;   /* memory of ours can be pinned */
    int             capability;  /* 10 * major + minor */
    unsigned        multiprocessors;
    char           *staging;           /* pinned: what is uploaded goes through it */
    td_npu_group   *group;             /* that it sums with, or NULL */
    bool            ends_long_kernels; /* its driver ends kernels that run for seconds: a display may hang on it */
    bool            starts_early;      /* kernels of TD_CUDA_EARLY, before the one before them has ended */
    td_cuda_bells   bells;
    void           *came; /* device memory: a word for the blocks of a hand-over's kernel (kernels/handover.cu) */
    /* of blocks; all are of the thread that calls */
    size_t block_bytes; /* that the blocks want of the scratch */
} td_cuda_npu;

/** A call of the driver has failed: what and the driver's words as a sentence, in err where there is one, else in the log.
 * @return TD_ENOMEM for no memory, else TD_EDEVICE */
td_status td_cuda_failed(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err);
/** The same where it succeeded: TD_OK. */
static inline td_status td_cuda_done(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err) {
    return said == TD_CUDA_SUCCESS ? TD_OK : td_cuda_failed(d, what, said, err);
}

/** What a call of the driver in a stream has returned: TD_OK, or TD_EDEVICE and a line in the log. */
TD_NODISCARD td_status td_cuda_accepted(td_cuda_npu *d, const char *call, td_cu_status said);

/** Make the scratch as large as the blocks want; not in captures. */
TD_NODISCARD td_status td_cuda_scratch_ready(td_cuda_npu *d);

/** A pointer of the contract as the driver takes it. */
static inline td_cu_address td_cuda_address(const void *p) {
    return (td_cu_address)(uintptr_t)p;
}

/* Entries of td_card_driver. */
TD_NODISCARD td_status td_cuda_enter(td_card *c);
void                   td_cuda_memory(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes);
TD_NODISCARD td_status td_cuda_take(td_card *c, size_t bytes, void **out, td_error *err);
void                   td_cuda_give(td_card *c, void *p);
TD_NODISCARD td_status td_cuda_zero(td_card *c, void *p, size_t bytes, td_error *err);
/** Goes through the staging memory. */
TD_NODISCARD td_status td_cuda_upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err);
TD_NODISCARD td_status td_cuda_pin(td_card *c, size_t bytes, void **out, td_error *err);
void                   td_cuda_unpin(td_card *c, void *p, size_t bytes);
TD_NODISCARD td_status td_cuda_register_host(td_card *c, void *p, size_t bytes, td_error *err);
void                   td_cuda_unregister_host(td_card *c, void *p, size_t bytes);

#endif
