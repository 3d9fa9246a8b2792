/* Loops about the machine, by instruction set: checksums, reading, and multiply-adds from registers (kernels/kernels.h). */
#ifndef TD_KERNELS_MACHINE_MACHINE_LOOPS_H
#define TD_KERNELS_MACHINE_MACHINE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

uint64_t td_checksum_scalar(const void *data, size_t bytes);
uint64_t td_checksum_avx2(const void *data, size_t bytes);
uint64_t td_checksum_avx512(const void *data, size_t bytes);

void td_read_scalar(const char *p, size_t bytes);
void td_read_avx2(const char *p, size_t bytes);
void td_read_avx512(const char *p, size_t bytes);
void td_read_neon(const char *p, size_t bytes);

double td_int8_peak_scalar(void);
double td_int8_peak_avx2(void);
double td_int8_peak_avxvnni(void);
double td_int8_peak_avx512vnni(void);
double td_int8_peak_amx(void);
double td_int8_peak_neon(void);
double td_int8_peak_dotprod(void);
double td_int8_peak_i8mm(void);
double td_f32_peak_scalar(void);
double td_f32_peak_avx2(void);
double td_f32_peak_avx512(void);
double td_f32_peak_neon(void);
double td_bf16_peak_avx512(void); /* vdpbf16ps; 0 on a processor without it */
double td_bf16_peak_none(void);   /* 0 */

#endif
