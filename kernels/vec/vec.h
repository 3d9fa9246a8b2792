/* The words (docs/kernels.md) of the instruction set that a file is compiled for. */
#ifndef TD_KERNELS_VEC_VEC_H
#define TD_KERNELS_VEC_VEC_H

#include "kernels/this_set.h"

#if TD_FOR_AVX2 || TD_FOR_AVXVNNI
#include "kernels/vec/vec_avx2.h"
#elif TD_FOR_AVX512 || TD_FOR_AVX512VNNI || TD_FOR_AMX
#include "kernels/vec/vec_avx512.h"
#elif TD_FOR_NEON || TD_FOR_DOTPROD || TD_FOR_I8MM || TD_FOR_SVE256
#include "kernels/vec/vec_neon.h"
#else
#include "kernels/vec/vec_scalar.h"
#endif

#endif
