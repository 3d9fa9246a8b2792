/*
 * What the stand-in of NVRTC makes, and the stand-in of the driver loads, in place of compiled kernels.
 *
 * Lines of text: STANDIN_IMAGE; "sm_90 12080", a generation and the compiler's version (without it, one as old as the
 * driver), or "compute_90 12080" in place of PTX; the path of a library of kernels (cuda_launch.h).
 */
#ifndef TD_TESTS_CUDA_STANDIN_IMAGE_H
#define TD_TESTS_CUDA_STANDIN_IMAGE_H

#define STANDIN_IMAGE "tandem cuda stand-in image"

#endif
