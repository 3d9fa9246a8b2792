/* A running loop, as the name `loop` in its body shows it. */
#ifndef TD_TEXT_JINJA_LOOP_H
#define TD_TEXT_JINJA_LOOP_H

#include "text/jinja/jinja_value.h"

/* jinja2.runtime.LoopContext. Items are drawn one at a time, since a filter may depend on the body. */
struct jj_loop {
    jj_cursor cursor;
    jj_value  before, current, after; /* MISSING where there is none, or not yet drawn */
    jj_value  changed;                /* arguments of the last loop.changed() */
    int64_t   index0;                 /* of current; -1: the loop has not begun */
    bool      has_length;
    size_t    length;

    /* The loop's filter, an expression over the item; NULL: none. Drawing an item evaluates it. */
    bool (*passes)(jj_loop *loop, jj_value item);
    const struct jj_stmt *stmt; /* this and the rest is for passes */
    struct jj_scope      *outer;
    struct jj_render     *render;
};

/** A loop over a value that has not begun; fails for what is not iterable. */
jj_loop *td_jj_loop_begin(jj_state *s, jj_value over);
/** Go to the next item, `current`; false: there is none. */
bool td_jj_loop_advance(jj_state *s, jj_loop *loop);
/** The number of its items. If they have no length, they are drawn to the end and kept. */
size_t td_jj_loop_length(jj_state *s, jj_loop *loop);
/** loop.name; false: no such attribute. */
bool td_jj_loop_attr(jj_state *s, jj_loop *loop, const jj_str *name, jj_value *out);

#endif
