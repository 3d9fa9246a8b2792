/* A running loop: jinja2.runtime.LoopContext. */
#include "text/jinja/jinja_loop.h"

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"

static const jj_value MISSING = {JJ_MISSING, {.i = 0}};

jj_loop *td_jj_loop_begin(jj_state *s, jj_value over) {
    jj_loop *loop = td_jj_alloc(s, sizeof *loop);
    *loop = (jj_loop){.cursor = td_jj_begin(s, over),
                      .before = MISSING,
                      .current = MISSING,
                      .after = MISSING,
                      .changed = MISSING,
                      .index0 = -1};
    return loop;
}

/* The next item that passes the loop's filter, or MISSING. */
static jj_value draw(jj_state *s, jj_loop *loop) {
    jj_value item;
    while (td_jj_next(s, &loop->cursor, &item))
        if (!loop->passes || loop->passes(loop, item)) return item;
    return MISSING;
}

static jj_value peek(jj_state *s, jj_loop *loop) {
    if (loop->after.kind == JJ_MISSING) loop->after = draw(s, loop);
    return loop->after;
}

bool td_jj_loop_advance(jj_state *s, jj_loop *loop) {
    jj_value item = peek(s, loop);
    if (item.kind == JJ_MISSING) return false;
    loop->after = MISSING;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return true;
}

size_t td_jj_loop_length(jj_state *s, jj_loop *loop) {
    if (loop->has_length) return loop->length;
    loop->has_length = true;
    if (!loop->passes && td_jj_len(&loop->cursor.over, &loop->length)) return loop->length;
    jj_value rest = td_jj_list(s, JJ_LIST), item;
    while ((item = draw(s, loop)).kind != JJ_MISSING) td_jj_append(s, rest.u.list, item);
    loop->length = rest.u.list->n + (size_t)(loop->index0 + 1) + (loop->after.kind != JJ_MISSING);
    loop->cursor = td_jj_begin(s, rest);
    loop->passes = NULL;
    return loop->length;
}

bool td_jj_loop_attr(jj_state *s, jj_loop *loop, const jj_str *name, jj_value *out) {
    if (td_jj_str_is(name, "index"))
        *out = jj_int(loop->index0 + 1);
    else if (td_jj_str_is(name, "index0"))
        *out = jj_int(loop->index0);
    else if (td_jj_str_is(name, "first"))
        *out = jj_bool(loop->index0 == 0);
    else if (td_jj_str_is(name, "last"))
        *out = jj_bool(peek(s, loop).kind == JJ_MISSING);
    else if (td_jj_str_is(name, "length"))
        *out = jj_int((int64_t)td_jj_loop_length(s, loop));
    else if (td_jj_str_is(name, "revindex"))
        *out = jj_int((int64_t)td_jj_loop_length(s, loop) - loop->index0);
    else if (td_jj_str_is(name, "revindex0"))
        *out = jj_int((int64_t)td_jj_loop_length(s, loop) - loop->index0 - 1);
    else if (td_jj_str_is(name, "depth"))
        *out = jj_int(1);
    else if (td_jj_str_is(name, "depth0"))
        *out = jj_int(0);
    else if (td_jj_str_is(name, "previtem"))
        *out = loop->index0 == 0 ? td_jj_undefined_hint(s, "there is no previous item") : loop->before;
    else if (td_jj_str_is(name, "nextitem"))
        *out = peek(s, loop).kind == JJ_MISSING ? td_jj_undefined_hint(s, "there is no next item") : loop->after;
    else
        return false;
    return true;
}

static jj_value loop_cycle(jj_state *s, const jj_value *self, const jj_args *args) {
    if (!args->n || args->n_kw) td_jj_fail(s, TD_EINVAL, "no items for cycling given");
    return args->at[(size_t)self->u.loop->index0 % args->n];
}

static jj_value loop_changed(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value now = td_jj_list(s, JJ_TUPLE);
    for (size_t k = 0; k < args->n; k++) td_jj_append(s, now.u.list, args->at[k]);
    jj_loop *loop = self->u.loop;
    bool     same = loop->changed.kind == JJ_TUPLE && td_jj_equal(s, &loop->changed, &now);
    loop->changed = now;
    return jj_bool(!same);
}

const jj_method_def TD_JJ_LOOP_METHODS[] = {{"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};
