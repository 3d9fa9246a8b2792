/*
 * The kernels of one instruction set, as a table, and the choice of the table: once, by what the processor can do and what
 * TD_CPU_MASK leaves of it (core/machine/cpu.h). Everything that a wide vector is good for goes through here;
 * docs/kernels.md tells how to add an instruction set.
 *
 * A table is whole: where an instruction set has nothing better for some work, its table names the kernel of a lesser set.
 * Every build has the scalar table, which is plain C, the reference of all others, and enough to run.
 */
#ifndef TD_KERNELS_KERNELS_H
#define TD_KERNELS_KERNELS_H

#include "core/machine/node_bandwidth.h"
#include "kernels/attention/attn16.h"
#include "kernels/floats/delta_math.h"
#include "kernels/floats/float_math.h"
#include "kernels/product/tile_gemm.h"
#include "kernels/rounding/round_panel.h"
#include "kernels/rows/rows.h"

typedef struct {
    const char             *name;  /* "avx512vnni" */
    uint32_t                needs; /* TD_CPU_* bits, all required */
    const td_gemm_kernel   *product[TD_PRODUCTS];
    const td_attn16        *attn16;
    const td_float_math    *math;
    const td_delta_math    *delta;
    const td_rows          *rows;
    const td_round_methods *rounding;
    uint64_t (*checksum)(const void *data, size_t bytes); /* XXH3-64 */
    td_read_fn read;
    /** Multiply-adds from registers for a fraction of a millisecond. @return how many operations (two per multiply-add) they
     * were; 0: there are none such. */
    double (*int8_peak)(void), (*f32_peak)(void), (*bf16_peak)(void);
} td_kernels;

/** Every table of the build, best first; NULL behind the last, which is the scalar one. */
extern const td_kernels *const td_kernels_all[];

extern const td_kernels td_kernels_scalar;

/** The best table that these features allow. */
const td_kernels *td_kernels_for(uint32_t features);

/** That of td_cpu_features(). Thread-safe. */
const td_kernels *td_kernels_here(void);

/** Whether what the pointer at `member`, in t, points to is the work of t's own set: no lesser table has it. For lists of
 * kernels. */
bool td_kernels_own(const td_kernels *t, const void *member);

#endif
