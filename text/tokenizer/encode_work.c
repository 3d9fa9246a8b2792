#include "text/tokenizer/encode_work.h"

static __thread bool (*asked)(void *user);
static __thread void *asked_user;

void td_tokenizer_stop_when(bool (*stops)(void *user), void *user) {
    asked = stops;
    asked_user = user;
}

void td_encode_work_begin(td_encode_work *w, size_t text_len) {
    *w = (td_encode_work){.steps_max = TD_ENCODE_STEPS_FREE + TD_ENCODE_STEPS_PER_BYTE * (uint64_t)text_len};
}

td_status td_encode_work_ask(td_encode_work *w) {
    w->unasked = 0;
    return w->end = asked && asked(asked_user) ? TD_ECANCELLED : TD_OK;
}

td_status td_encode_work_step(td_encode_work *w, size_t at) {
    uint64_t n = 1 + (at > w->at ? at - w->at : w->at - at);
    w->at = at;
    w->steps += n;
    if (w->steps > w->steps_max) return w->end = TD_ELIMIT;
    return td_encode_work_done(w, n);
}
