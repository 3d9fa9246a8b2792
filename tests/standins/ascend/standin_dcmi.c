/*
 * libdcmi.so of the driver, as far as the backend asks it. Source: "DCMI API reference" of the Ascend driver. The cards are
 * two to a board, and as many as there are devices; card n has 40 + n degrees.
 */
#include "tests/standins/parts/standin_parts.h"

#define INVALID_PARAMETER (-8001)

static _Atomic bool started;

STANDIN_EXPORT int dcmi_init(void);
STANDIN_EXPORT int dcmi_get_card_id_device_id_from_logicid(int *board, int *chip, unsigned card);
STANDIN_EXPORT int dcmi_get_device_temperature(int board, int chip, int *celsius);

int dcmi_init(void) {
    started = true;
    return 0;
}

int dcmi_get_card_id_device_id_from_logicid(int *board, int *chip, unsigned card) {
    if (!started) standin_refuse("DCMI dcmi_init", "dcmi_get_card_id_device_id_from_logicid before dcmi_init");
    if (!board || !chip || card >= standin_setting("TD_STANDIN_DEVICES", 2)) return INVALID_PARAMETER;
    *board = (int)card / 2;
    *chip = (int)card % 2;
    return 0;
}

int dcmi_get_device_temperature(int board, int chip, int *celsius) {
    if (!started) standin_refuse("DCMI dcmi_init", "dcmi_get_device_temperature before dcmi_init");
    if (board < 0 || chip < 0 || chip > 1 || !celsius ||
        (uint64_t)(2 * board + chip) >= standin_setting("TD_STANDIN_DEVICES", 2))
        return INVALID_PARAMETER;
    *celsius = 40 + 2 * board + chip;
    return 0;
}
