/* A card's temperature. */
#ifndef TD_NPU_ASCEND_ASCEND_TEMPERATURE_H
#define TD_NPU_ASCEND_ASCEND_TEMPERATURE_H

#include "npu/ascend/acl_api.h"

/**
 * As the driver's library for management tells it, which the first call looks for. Any thread; it may take milliseconds.
 * @param card as this process numbers them.
 * @return degrees Celsius; NAN where there is no such library, or it does not tell.
 */
double td_ascend_temperature(const td_acl *acl, int32_t card);

#endif
