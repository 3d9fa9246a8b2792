#include "npu/card/card_loss.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"
#include "core/log/log.h"

void td_card_loss_tell(td_card_loss *l, const char *format, ...) {
    va_list list;
    if (atomic_exchange_explicit(&l->taken, true, memory_order_relaxed)) return;
    va_start(list, format);
    vsnprintf(l->text, sizeof l->text, format, list);
    va_end(list);
    atomic_store_explicit(&l->told, true, memory_order_release); /* with td_card_loss_get */
    td_err(TD_FIGURE("event", "lost") ": %s; this process has to be started anew", l->text);
}

bool td_card_loss_get(td_card_loss *l, td_error *why) {
    if (!atomic_load_explicit(&l->told, memory_order_acquire)) return false; /* with td_card_loss_tell */
    (void)td_fail(why, TD_ELOST, "%s", l->text);
    return true;
}
