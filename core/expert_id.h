/*
 * A routed expert's id on its way from the router to those who compute it: its number in the layer, and whether the device
 * keeps it. The router sets that bit, so that both tiers see one choice: the device computes the experts that have it, the
 * CPU tier the others.
 */
#ifndef TD_CORE_EXPERT_ID_H
#define TD_CORE_EXPERT_ID_H

#include <stdbool.h>
#include <stdint.h>

#define TD_ID_RESIDENT 0x8000u

static inline bool td_id_is_resident(uint16_t id) {
    return id & TD_ID_RESIDENT;
}

static inline uint16_t td_id_number(uint16_t id) {
    return (uint16_t)(id & ~TD_ID_RESIDENT);
}

#endif
