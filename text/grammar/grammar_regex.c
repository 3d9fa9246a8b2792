#include "text/grammar/grammar_regex.h"

#include <string.h>

#include "text/grammar/grammar_class.h"

#define GROUPS_MAX 100

/*
 * What a part of a regex matches, by how it is anchored: node[BEGIN] of the alternatives that start with ^, and so on.
 * Anchors thus need no states of their own; where they stand in the middle of a sequence the regex is refused.
 */
enum { BEGIN = 1, END = 2 };
#define NONE UINT32_MAX

typedef struct {
    uint32_t node[4];
    bool     only_empty; /* the part consists of anchors */
} piece;

typedef struct {
    td_gr_builder *b;
    td_gr_reader   r;
    bool           json;
    unsigned       depth;
} parser;

static piece plain(uint32_t node) {
    return (piece){.node = {node, NONE, NONE, NONE}};
}

static bool is_plain(const piece *p) {
    return p->node[BEGIN] == NONE && p->node[END] == NONE && p->node[BEGIN | END] == NONE;
}

static uint32_t class_node(parser *p, td_gr_class *c) {
    td_gr_class_sort(c);
    uint32_t node = p->json ? td_gr_class_json(p->b, c) : td_gr_class_utf8(p->b, c);
    td_gr_class_free(c);
    return node;
}

static piece read_alternatives(parser *p);

static piece read_group(parser *p) {
    td_gr_reader *r = &p->r;
    if (td_gr_take(r, "?")) {
        bool named = td_gr_take(r, "P<") || (r->end - r->at > 1 && r->at[0] == '<' && r->at[1] != '=' && r->at[1] != '!');
        if (named) {
            while (r->at < r->end && *r->at != '>') r->at++;
            if (!td_gr_take(r, ">")) return plain(td_gr_read_fail(p->b, r, "a group's name has no end"));
        } else if (!td_gr_take(r, ":")) {
            return plain(td_gr_read_fail(p->b, r, "'(?%c' is not supported; only (?: and named groups are",
                                         r->at<r->end && * r->at> ' ' && *r->at < 0x7F ? *r->at : ' '));
        }
    }
    if (++p->depth > GROUPS_MAX) return plain(td_gr_read_fail(p->b, r, "groups are nested more than %d deep", GROUPS_MAX));
    piece inner = read_alternatives(p);
    p->depth--;
    if (!td_gr_take(r, ")")) return plain(td_gr_read_fail(p->b, r, "a group has no end"));
    return inner;
}

static piece anchor(parser *p, int side) {
    piece a = {.node = {NONE, NONE, NONE, NONE}, .only_empty = true};
    a.node[side] = td_gr_empty(p->b);
    return a;
}

static piece read_atom(parser *p) {
    td_gr_reader *r = &p->r;
    td_gr_class   c = {0};
    if (td_gr_take(r, "(")) return read_group(p);
    if (td_gr_take(r, "^") || td_gr_take(r, "\\A")) return anchor(p, BEGIN);
    if (td_gr_take(r, "$") || td_gr_take(r, "\\z") || td_gr_take(r, "\\Z")) return anchor(p, END);
    if (td_gr_take(r, "[")) {
        td_gr_read_class(p->b, r, &c);
        return plain(class_node(p, &c));
    }
    if (*r->at == '*' || *r->at == '+' || *r->at == '?')
        return plain(td_gr_read_fail(p->b, r, "there is nothing to repeat"));
    if (td_gr_take(r, ".")) {
        td_gr_class_add(p->b, &c, 0, '\n' - 1);
        td_gr_class_add(p->b, &c, '\n' + 1, TD_GR_CHAR_MAX);
        return plain(class_node(p, &c));
    }
    uint32_t ch = td_gr_take(r, "\\") ? td_gr_read_escape(p->b, r, &c) : td_gr_take_char(r);
    if (ch != UINT32_MAX) td_gr_class_add(p->b, &c, ch, ch);
    return plain(class_node(p, &c));
}

static piece read_quantified(parser *p) {
    piece    atom = read_atom(p);
    uint32_t min, max;
    if (!td_gr_read_quantifier(p->b, &p->r, &min, &max)) return atom;
    if (!is_plain(&atom)) return plain(td_gr_read_fail(p->b, &p->r, "an anchor is repeated"));
    td_gr_take(&p->r, "?"); /* a lazy quantifier matches the same texts */
    if (p->r.at < p->r.end && (*p->r.at == '+' || *p->r.at == '*' || *p->r.at == '?'))
        return plain(td_gr_read_fail(p->b, &p->r, "a quantifier follows a quantifier"));
    return plain(td_gr_repeat(p->b, atom.node[0], min, max));
}

/* x, then y. */
static piece join(parser *p, const piece *x, const piece *y) {
    piece out = {.node = {NONE, NONE, NONE, NONE}, .only_empty = x->only_empty && y->only_empty};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            if (x->node[i] == NONE || y->node[k] == NONE) continue;
            bool late = (k & BEGIN) && !x->only_empty, early = (i & END) && !y->only_empty;
            if (late || early)
                return plain(td_gr_read_fail(p->b, &p->r, "'%c' is only supported where the text %s", late ? '^' : '$',
                                             late ? "begins" : "ends"));
            uint32_t both = td_gr_pair(p->b, TD_GR_SEQ, x->node[i], y->node[k]), *to = &out.node[i | k];
            *to = *to == NONE ? both : td_gr_pair(p->b, TD_GR_ALT, *to, both);
        }
    return out;
}

static piece read_sequence(parser *p) {
    td_gr_items seq = {0};
    piece       all = plain(td_gr_empty(p->b));
    bool        any = false;
    all.only_empty = true;
    while (p->b->status == TD_OK && p->r.at < p->r.end && *p->r.at != '|' && *p->r.at != ')') {
        piece next = read_quantified(p);
        if (is_plain(&next) && !next.only_empty) {
            td_gr_add(p->b, &seq, next.node[0]);
            any = true;
            continue;
        }
        piece before = plain(td_gr_of(p->b, TD_GR_SEQ, &seq));
        before.only_empty = !any;
        all = join(p, &all, &before);
        all = join(p, &all, &next);
        any = false;
    }
    piece rest = plain(td_gr_of(p->b, TD_GR_SEQ, &seq));
    rest.only_empty = !any;
    td_gr_items_free(&seq);
    return join(p, &all, &rest);
}

static piece read_alternatives(parser *p) {
    td_gr_items alternatives[4] = {0};
    piece       out = {.node = {NONE, NONE, NONE, NONE}, .only_empty = true};
    do {
        piece seq = read_sequence(p);
        for (int i = 0; i < 4; i++)
            if (seq.node[i] != NONE) td_gr_add(p->b, &alternatives[i], seq.node[i]);
        out.only_empty = out.only_empty && seq.only_empty;
    } while (p->b->status == TD_OK && td_gr_take(&p->r, "|"));
    for (int i = 0; i < 4; i++) {
        if (alternatives[i].n) out.node[i] = td_gr_of(p->b, TD_GR_ALT, &alternatives[i]);
        td_gr_items_free(&alternatives[i]);
    }
    return out;
}

/* ---- whole expressions ------------------------------------------------------------------------ */

/* Any text; spelled as classes are, so that what is taken out of it is not left in another spelling. */
static uint32_t any_text(parser *p) {
    td_gr_class all = {0};
    td_gr_class_add(p->b, &all, 0, TD_GR_CHAR_MAX);
    return td_gr_repeat(p->b, class_node(p, &all), 0, TD_GR_NO_MAX);
}

/* The texts that a piece matches somewhere: what is not anchored may have more before and behind it. */
static uint32_t anywhere(parser *p, const piece *all, bool begins) {
    td_gr_builder *b = p->b;
    td_gr_items    alternatives = {0};
    for (int i = 0; i < 4; i++) {
        if (all->node[i] == NONE) continue;
        uint32_t more = p->json ? td_gr_repeat(b, td_gr_json_char(b), 0, TD_GR_NO_MAX) : any_text(p), node = all->node[i];
        if (!(i & BEGIN) && !begins) node = td_gr_pair(b, TD_GR_SEQ, more, node);
        if (!(i & END)) node = td_gr_pair(b, TD_GR_SEQ, node, more);
        td_gr_add(b, &alternatives, node);
    }
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* Lookaheads right behind the first ^: conditions on the whole text. Elsewhere they are refused. */
typedef struct {
    td_gr_items positive, negative;
} lookaheads;

static void read_lookaheads(parser *p, lookaheads *l) {
    for (bool more = true; more && p->b->status == TD_OK;) {
        bool negative = td_gr_take(&p->r, "(?!");
        more = negative || td_gr_take(&p->r, "(?=");
        if (!more) break;
        piece inner = read_alternatives(p);
        if (!td_gr_take(&p->r, ")")) td_gr_read_fail(p->b, &p->r, "a group has no end");
        td_gr_add(p->b, negative ? &l->negative : &l->positive, anywhere(p, &inner, true));
    }
}

static piece read_regex(parser *p, const char *regex, size_t len, lookaheads *l) {
    if (!td_gr_read_open(p->b, &p->r, "regex", regex, len)) return plain(0);
    bool  looks = len > 3 && (!memcmp(regex, "^(?=", 4) || !memcmp(regex, "^(?!", 4));
    piece all;
    if (looks) {
        const piece begin = anchor(p, BEGIN);
        td_gr_take(&p->r, "^");
        read_lookaheads(p, l);
        piece rest = read_sequence(p);
        all = join(p, &begin, &rest);
        if (p->r.at < p->r.end && *p->r.at == '|')
            td_gr_read_fail(p->b, &p->r, "a lookahead, '(?=' or '(?!', beside '|' is not supported");
    } else {
        all = read_alternatives(p);
    }
    if (p->b->status == TD_OK && p->r.at < p->r.end) td_gr_read_fail(p->b, &p->r, "a ')' has no '('");
    return p->b->status == TD_OK ? all : plain(0);
}

static uint32_t with_lookaheads(parser *p, uint32_t node, lookaheads *l) {
    td_gr_builder *b = p->b;
    for (size_t i = 0; i < l->positive.n; i++) node = td_gr_pair(b, TD_GR_BOTH, node, l->positive.at[i]);
    if (l->negative.n) node = td_gr_pair(b, TD_GR_BOTH, any_text(p), node);
    for (size_t i = 0; i < l->negative.n; i++) node = td_gr_pair(b, TD_GR_MINUS, node, l->negative.at[i]);
    td_gr_items_free(&l->positive);
    td_gr_items_free(&l->negative);
    return node;
}

uint32_t td_gr_regex(td_gr_builder *b, const char *regex, size_t len) {
    parser      p = {.b = b};
    lookaheads  l = {0};
    piece       all = read_regex(&p, regex, len, &l);
    td_gr_items alternatives = {0};
    for (int i = 0; i < 4; i++)
        if (all.node[i] != NONE) td_gr_add(b, &alternatives, all.node[i]);
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return with_lookaheads(&p, node, &l);
}

uint32_t td_gr_regex_json(td_gr_builder *b, const char *regex, size_t len) {
    parser     p = {.b = b, .json = true};
    lookaheads l = {0};
    piece      all = read_regex(&p, regex, len, &l);
    return with_lookaheads(&p, anywhere(&p, &all, false), &l);
}
