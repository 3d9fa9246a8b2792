/*
 * An NVIDIA card as the contract of npu/npu.h has it.
 *
 * DESIGN. Every function makes the card's primary context the calling thread's first: threads come and go. A stream is the
 * driver's; a capture is a graph of it. Kernels are our own (npu/cuda/kernels) and read from the device how many rows and
 * keys there are, so what is launched for a bucket serves every step of it, and a replay needs no new arguments. Rows beyond
 * the counts are not computed.
 *
 * Hand-over. A host call is cuLaunchHostFunc, in captures too. A ring is a copy of a word to pinned memory, in stream order;
 * a wait for a bell is a host call that polls it, so the form that suits the card is host calls.
 *
 * A failure on the card is for good: every later call in its context returns it (cuCtxSynchronize's section of the manual).
 * The backend says so (cuda_loss) and gives back what it took; the process has to be started again.
 *
 *   cuda_open    the card, its memory           cuda_kernels  the kernels by name
 *   cuda_temperature  its temperature
 *   cuda_stream  streams, captures              cuda_block    blocks in general: made, launched, their scratch
 *   cuda_weight  weights as the kernels read them
 *   cuda_op      a launch, products of rows     cuda_rows     embed, norm, combine, head, top
 *   cuda_linear  linear, mlp                    cuda_router   cuda_experts   cuda_gqa   cuda_mla
 *   cuda_group   several cards: the sum over them
 */
#ifndef TD_NPU_CUDA_CUDA_DEVICE_H
#define TD_NPU_CUDA_CUDA_DEVICE_H

#include <stdatomic.h>

#include "npu/card_meter.h"
#include "npu/cuda/cuda_cards.h"
#include "npu/cuda/cuda_kernels.h"
#include "npu/cuda/cuda_loss.h"
#include "npu/npu.h"

#define TD_CUDA_RETIRED_MAX 64

typedef struct {
    td_npu           base; /* first */
    const td_cuda   *cu;
    int              version; /* of CUDA that the driver serves: 1000 * major + 10 * minor */
    td_npu_config    config;
    td_cu_device     device;
    td_cu_context    context; /* NULL: not retained */
    td_cu_stream     setup;   /* fills memory, uploads weights */
    td_cuda_kernels  kernels;
    unsigned         shared_most, shared_of[TD_CUDA_KERNEL_COUNT]; /* dynamic shared memory: the card's most, a kernel's */
    char             name[96];
    char             pci[TD_CUDA_PCI_BYTES];
    uint32_t         pinned_node;          /* of pinned memory; TD_NODE_ANY: nothing tells where the card hangs */
    bool             registers;            /* memory of ours can be pinned */
    int              capability;           /* 10 * major + minor */
    char            *staging;              /* pinned: what is uploaded goes through it */
    void            *one;                  /* device memory: the word that a ring copies, 1 */
    _Atomic uint64_t down_bytes, up_bytes; /* over the link, of what was enqueued */
    td_npu_group    *group;                /* that it sums with, or NULL */
    td_card_meter    given;
    td_card_loss     loss;
    /* of blocks; all are of the thread that calls */
    size_t block_bytes; /* that the blocks want of the scratch */
    char  *scratch;
    size_t scratch_bytes;
    void  *retired[TD_CUDA_RETIRED_MAX]; /* what the scratch was before it grew: captures hold its address */
    size_t n_retired;
} td_cuda_npu;

/**
 * Open a card.
 * @param config act_dtype must be TD_DT_BF16; card [0, number of cards).
 * @return TD_OK; what td_cuda_load and td_cuda_kernels_open return; TD_EINVAL for a card that there is not; TD_ENOTSUP for
 * one that is too old; TD_EDEVICE when it cannot be opened; each with a sentence.
 */
TD_NODISCARD td_status td_cuda_npu_open(const td_npu_config *config, td_npu **out, td_error *err);

/** What is installed: driver and cards. Opens no card. */
void td_cuda_facts(td_npu_fact_fn tell, void *user);

/** Make the card's context the calling thread's. */
TD_NODISCARD td_status td_cuda_enter(td_cuda_npu *d);
/** A call of the driver has failed: what and the driver's words as a sentence, in err where there is one, else in the log.
 * @return TD_ENOMEM for no memory, else TD_EDEVICE */
td_status td_cuda_failed(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err);
/** The same where it succeeded: TD_OK. */
static inline td_status td_cuda_done(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err) {
    return said == TD_CUDA_SUCCESS ? TD_OK : td_cuda_failed(d, what, said, err);
}

/** Device memory, not zeroed; not in captures. */
TD_NODISCARD td_status td_cuda_take(td_cuda_npu *d, size_t bytes, void **out, td_error *err);
void                   td_cuda_give(td_cuda_npu *d, void *p); /* NULL is fine */
/** Copies to device memory that are done when they return; not in captures. */
TD_NODISCARD td_status td_cuda_upload(td_cuda_npu *d, void *dev, const void *host, size_t bytes, td_error *err);
/** Make the scratch as large as the blocks want; not in captures. */
TD_NODISCARD td_status td_cuda_scratch_ready(td_cuda_npu *d);

/** A pointer of the contract as the driver takes it. */
static inline td_cu_address td_cuda_address(const void *p) {
    return (td_cu_address)(uintptr_t)p;
}

/* The table's functions, as in td_npu_ops: of cuda_block.c, */
size_t                 td_cuda_block_scratch_bytes(td_npu *d, const td_block_desc *desc);
TD_NODISCARD td_status td_cuda_block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err);
void                   td_cuda_block_destroy(td_npu *d, td_npu_block *b);
TD_NODISCARD td_status td_cuda_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step);
size_t                 td_cuda_kv_page_bytes(td_npu *d, td_kv_rows what, size_t n);

/* of cuda_weight.c, */
size_t                 td_cuda_weight_bytes(td_npu *d, td_weight_format format, size_t n, size_t k);
TD_NODISCARD td_status td_cuda_weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src,
                                             td_npu_weight **out, td_error *err);
void                   td_cuda_weight_destroy(td_npu *d, td_npu_weight *w);

/* and of cuda_stream.c. */
TD_NODISCARD td_status td_cuda_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void                   td_cuda_stream_destroy(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_stream_sync(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes,
                                    td_copy_kind kind);
TD_NODISCARD td_status td_cuda_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
TD_NODISCARD td_status td_cuda_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_cuda_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_cuda_graph_begin(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
TD_NODISCARD td_status td_cuda_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
void                   td_cuda_graph_destroy(td_npu *d, td_npu_graph *g);

#endif
