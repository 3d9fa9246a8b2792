/* XXH3-64 for the base instruction set. */
#define TD_CHECKSUM_PIECE td_checksum_piece_plain
#include "core/checksum_body.h"
