/* Cutting a card's part out of a weight that was read whole. */
#ifndef TD_MODEL_SHARD_CUT_H
#define TD_MODEL_SHARD_CUT_H

#include "model/checkpoint/checkpoint.h"
#include "model/shard.h"

/**
 * Rows are a view of the whole. Columns are copied; of a weight that the device keeps as W8A8 as the int8 codes and scales
 * that the whole rows have, so that the cards' codes together are those of one card.
 * @param v  in: the whole weight, of the spec's shape, with data; out: the part, in the whole's bytes or the scratch's.
 * @return TD_EFORMAT: an infinity or a NaN in a row that is rounded; TD_ENOMEM.
 */
TD_NODISCARD td_status td_shard_cut(const td_tensor_spec *spec, const td_shard_part *part, td_weight_format format,
                                    td_scratch *scratch, td_tensor_view *v, td_error *err);

/**
 * The same of a view of codes, for a device that keeps them as they are.
 * @return TD_ENOTSUP: a group of columns that share a scale would be cut; TD_ENOMEM.
 */
TD_NODISCARD td_status td_shard_cut_codes(const td_tensor_spec *spec, const td_shard_part *part, td_scratch *scratch,
                                          td_tensor_view *v, td_error *err);

#endif
