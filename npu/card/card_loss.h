/*
 * Whether a card still serves this process: told where its runtime fails for good, read by whoever has to answer for it
 * (td_npu_ops.lost). Which failures are for good is each backend's to know.
 */
#ifndef TD_NPU_CARD_CARD_LOSS_H
#define TD_NPU_CARD_CARD_LOSS_H

#include <stdatomic.h>

#include "tandem.h"

/** All zero: the card serves. */
typedef struct {
    _Atomic bool taken; /* somebody writes the text, or has */
    _Atomic bool told;  /* it is there */
    char         text[TD_ERROR_TEXT_MAX];
} td_card_loss;

/** The card can do nothing any more in this process. Any thread; the first sentence is kept, and logged. */
void td_card_loss_tell(td_card_loss *l, const char *format, ...) TD_PRINTF(2, 3);

/** Any thread. @param why NULL, or TD_ELOST and the sentence, where the card is lost. */
bool td_card_loss_get(td_card_loss *l, td_error *why);

#endif
