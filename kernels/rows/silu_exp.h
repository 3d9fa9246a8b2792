/* The constants of exp. */
#ifndef TD_KERNELS_ROWS_SILU_EXP_H
#define TD_KERNELS_ROWS_SILU_EXP_H

/*
 * exp(x) for silu, the same operations in every tier: x clamped to [-87, 88]; n = rint(x log2 e);
 * r = fma(n, -ln2_low, fma(n, -ln2_high, x)); p = the polynomial of Cephes expf in r (Horner, fma);
 * exp = (fma(p, r*r, r) + 1) * 2^n.
 */
#define EXP_LOW -87.0f
#define EXP_HIGH 88.0f
#define EXP_LOG2E 1.44269504088896341f
#define EXP_LN2_HIGH 0.693359375f
#define EXP_LN2_LOW -2.12194440e-4f
#define EXP_P0 1.9875691500e-4f
#define EXP_P1 1.3981999507e-3f
#define EXP_P2 8.3334519073e-3f
#define EXP_P3 4.1665795894e-2f
#define EXP_P4 1.6666665459e-1f
#define EXP_P5 5.0000001201e-1f

#endif
