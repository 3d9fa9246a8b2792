/* Cutting a card's part out of a weight that was read whole. */
#ifndef TD_MODEL_SHARD_CUT_H
#define TD_MODEL_SHARD_CUT_H

#include "model/checkpoint/checkpoint.h"
#include "model/shard.h"

/**
 * A cut of rows is a view of the whole. A cut of columns is a copy. For a weight that the device keeps as W8A8 it has the
 * int8 codes and scales of the whole rows, so that the cards' codes together are those of one card.
 * @param v  in: the whole weight, of the spec's shape, with data; out: the part, in the whole's bytes or the scratch's.
 * @return TD_EFORMAT: an infinity or a NaN in a row that is rounded; TD_ENOMEM.
 */
TD_NODISCARD td_status td_shard_cut(const td_tensor_spec *spec, const td_shard_part *part, td_weight_format format,
                                    td_scratch *scratch, td_tensor_view *v, td_error *err);

/**
 * Likewise for a weight in codes, on a device that keeps them as they are.
 * @return TD_ENOTSUP: a group of columns that share a scale would be cut; TD_ENOMEM.
 */
TD_NODISCARD td_status td_shard_cut_codes(const td_tensor_spec *spec, const td_shard_part *part, td_scratch *scratch,
                                          td_tensor_view *v, td_error *err);

#endif
