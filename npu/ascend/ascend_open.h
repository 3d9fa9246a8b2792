/* An Ascend card from the outside: opening one, and the vendor's libraries. */
#ifndef TD_NPU_ASCEND_ASCEND_OPEN_H
#define TD_NPU_ASCEND_ASCEND_OPEN_H

#include "npu/ascend/ascend_loader.h"
#include "npu/npu.h"

/**
 * Open a card.
 * @param config act_dtype must be TD_DT_BF16; card [0, number of cards).
 * @return TD_OK; what td_ascend_load returns; TD_EINVAL for a card that there is not; TD_EDEVICE when it cannot be opened;
 * each with a sentence.
 */
TD_NODISCARD td_status td_ascend_npu_open(const td_npu_config *config, td_npu **out, td_error *err);

/** The vendor's libraries: loaded by the first call, the process's, never unloaded. Any thread. @return as td_ascend_load.
 */
TD_NODISCARD td_status td_ascend_libraries_get(const td_ascend_libraries **out, td_error *err);

#endif
