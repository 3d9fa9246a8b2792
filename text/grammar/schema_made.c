#include "text/grammar/schema_made.h"

#define MERGES_MAX 20000

json_t *td_schema_keep(td_schema_merger *m, json_t *made) {
    if (++m->count > MERGES_MAX)
        td_gr_fail(m->b, TD_EINVAL, "the schema combines others too often");
    else if (made && json_array_append(m->made, made) == 0) {
        json_decref(made);
        return made;
    } else {
        td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    }
    json_decref(made);
    return NULL;
}

json_t *td_schema_both(json_t *x, json_t *y) {
    return json_pack("{s:[O,O]}", "allOf", x, y);
}
