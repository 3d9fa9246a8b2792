/*
 * The instruction set that a file of kernels is compiled for. Such a file is compiled once for each set that it is written
 * for (td_kernel in kernels/CMakeLists.txt). The build defines TD_SET, the set's word, and TD_FOR_AVX2 for the set avx2 and
 * so on, by which the file chooses.
 */
#ifndef TD_KERNELS_THIS_SET_H
#define TD_KERNELS_THIS_SET_H

#define TD_WITH_SET_(name, set) td_##name##_##set
#define TD_WITH_SET(name, set) TD_WITH_SET_(name, set)
#define TD_TEXT_(word) #word
#define TD_TEXT(word) TD_TEXT_(word)

/** The set's function or table: TD_OF_SET(rows) is td_rows_avx2. */
#define TD_OF_SET(name) TD_WITH_SET(name, TD_SET)
#define TD_SET_NAME TD_TEXT(TD_SET)

#endif
