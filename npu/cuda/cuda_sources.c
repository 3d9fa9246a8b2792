#include "npu/cuda/cuda_sources.h"

#define FILES(X)                  \
    X(shapes, "cuda_shapes.h")    \
    X(kernel, "kernel.cuh")       \
    X(rows, "rows.cuh")           \
    X(attention, "attention.cuh") \
    X(tiles, "experts.cuh")       \
    X(packed, "packed.cuh")       \
    X(bounds, "bounds.cu")        \
    X(cards, "cards.cu")          \
    X(embed, "embed.cu")          \
    X(experts, "experts.cu")      \
    X(gqa, "gqa.cu")              \
    X(handover, "handover.cu")    \
    X(bf16, "linear_bf16.cu")     \
    X(groups, "linear_groups.cu") \
    X(w8a8, "linear_w8a8.cu")     \
    X(mla, "mla.cu")              \
    X(norm, "norm.cu")            \
    X(router, "router.cu")        \
    X(top, "top.cu")

#define EMBED(symbol, name)                                                                           \
    extern const char cuda_source_##symbol[] __attribute__((visibility("hidden")));                   \
    __asm__(".pushsection .rodata\ncuda_source_" #symbol ":\n.incbin \"" TD_CUDA_KERNELS_DIR "/" name \
            "\"\n.byte 0\n.popsection");
FILES(EMBED)

#define ENTRY(symbol, name) {"npu/cuda/kernels/" name, cuda_source_##symbol},
const td_cuda_source TD_CUDA_SOURCES[] = {FILES(ENTRY)};
const size_t         TD_CUDA_SOURCES_N = sizeof TD_CUDA_SOURCES / sizeof *TD_CUDA_SOURCES;

#ifdef TD_CUDA_AHEAD_FILE
extern const char cuda_ahead[] __attribute__((visibility("hidden"))), cuda_ahead_end[] __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata\n.balign 16\ncuda_ahead:\n.incbin \"" TD_CUDA_AHEAD_FILE "\"\ncuda_ahead_end:\n.popsection");
const td_cuda_ahead TD_CUDA_AHEAD = {cuda_ahead, cuda_ahead_end, TD_CUDA_AHEAD_VERSION, {TD_CUDA_AHEAD_GENERATIONS}};
#else
const td_cuda_ahead TD_CUDA_AHEAD = {0};
#endif
