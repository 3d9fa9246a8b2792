/* XXH3-64 for the avx2 tier. */
#define TD_CHECKSUM_PIECE td_checksum_piece_avx2
#include "core/checksum_body.h"
