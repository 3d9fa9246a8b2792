/* XXH3-64 for the avx512 tier. */
#define TD_CHECKSUM_PIECE td_checksum_piece_avx512
#include "core/checksum_body.h"
