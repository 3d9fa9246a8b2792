/* How fast a device's copies are: of what lies between its memory and the host's. */
#ifndef TD_NPU_LINK_TIME_H
#define TD_NPU_LINK_TIME_H

#include "npu/npu.h"

/**
 * Time copies of so many bytes over the link, one at a time, each from its call to the end of its wait.
 * @param rounds copies; the median counts. @param seconds  of one copy.
 * @return TD_ENOTSUP for a device with the host's memory; TD_EDEVICE or TD_ENOMEM with a sentence.
 */
TD_NODISCARD td_status td_link_time(td_npu *d, td_copy_kind kind, size_t bytes, uint32_t rounds, double *seconds,
                                    td_error *err);

#endif
