/* How long a hand-over takes in either form: what a device's choice of one is measured with. */
#ifndef TD_NPU_HANDOVER_TIME_H
#define TD_NPU_HANDOVER_TIME_H

#include "npu/npu.h"

/**
 * Time hand-overs as the bridge makes them: the device says that a slot is filled, a thread of this machine answers, the
 * device goes on. Where memory is not shared, a row of a large model's goes up before and one comes down behind. They are
 * captured and replayed, as in a step; without inline_work only.
 * @param rounds replays; the median counts. @param seconds  of one hand-over.
 * @return TD_ENOTSUP for a device that runs its work inline; TD_EDEVICE or TD_ENOMEM with a sentence.
 */
TD_NODISCARD td_status td_handover_time(td_npu *d, td_handover form, uint32_t rounds, double *seconds, td_error *err);

#endif
