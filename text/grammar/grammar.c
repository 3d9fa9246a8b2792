#include "text/grammar/grammar.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "text/grammar/grammar_ebnf.h"
#include "text/grammar/grammar_regex.h"
#include "text/grammar/grammar_schema.h"

struct td_grammar {
    atomic_uint     refs; /* acq_rel: the last owner frees */
    td_gr_pda       pda;
    char           *warning; /* a sentence; NULL: none */
    pthread_mutex_t lock;    /* guards the opening of masks */
    td_gr_masks     masks;   /* masks.trie NULL: no vocabulary yet */
};

struct td_grammar_place {
    td_grammar   *grammar;
    td_gr_matcher matcher;
    td_gr_walk    walk;
    uint32_t     *mask; /* [TD_TRIE_WORDS(vocab)] */
};

/* ---- grammars -------------------------------------------------------------------------------- */

static void read_source(td_gr_builder *b, td_grammar_kind kind, const char *source, size_t len) {
    switch (kind) {
        case TD_GRAMMAR_JSON_SCHEMA: td_gr_schema(b, source, len); break;
        case TD_GRAMMAR_JSON_OBJECT: td_gr_any_object(b); break;
        case TD_GRAMMAR_EBNF: td_gr_ebnf(b, source, len); break;
        case TD_GRAMMAR_CHOICES: td_gr_choices(b, source, len); break;
        case TD_GRAMMAR_REGEX:
            b->root = td_gr_rule_new(b, "regex");
            td_gr_define(b, b->root, td_gr_regex(b, source, len));
            break;
        default: td_gr_fail(b, TD_EINVAL, "%d is no kind of grammar", (int)kind);
    }
}

static char *make_warning(td_gr_builder *b) {
    static const char begin[] = "The schema is not followed in all: these have no effect: ";
    size_t            size = sizeof begin + strlen(b->warnings) + 1;
    char             *out = malloc(size);
    if (out)
        snprintf(out, size, "%s%s.", begin, b->warnings);
    else
        td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
    return out;
}

td_status td_grammar_compile(td_grammar_kind kind, const char *source, size_t len, td_grammar **out, td_error *err) {
    td_gr_builder b;
    td_grammar   *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return td_fail(err, TD_ENOMEM, "out of memory for a grammar");
    td_gr_open(&b, err);
    read_source(&b, kind, source, len);
    if (b.status == TD_OK) td_gr_pda_make(&b, &g->pda);
    if (b.status == TD_OK && b.warnings) g->warning = make_warning(&b);
    td_status st = b.status;
    td_gr_close(&b);
    if (st != TD_OK) {
        td_gr_pda_free(&g->pda);
        free(g->warning);
        free(g);
        return st;
    }
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return TD_OK;
}

td_grammar *td_grammar_hold(td_grammar *g) {
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void td_grammar_release(td_grammar *g) {
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    if (g->masks.trie) td_gr_masks_close(&g->masks);
    td_gr_pda_free(&g->pda);
    pthread_mutex_destroy(&g->lock);
    free(g->warning);
    free(g);
}

const char *td_grammar_warning(const td_grammar *g) {
    return g->warning;
}

td_status td_grammar_check(td_grammar *g, const char *text, size_t len, bool *accepted, size_t *at) {
    td_gr_matcher m;
    td_status     st = td_gr_matcher_open(&m, &g->pda);
    if (st == TD_OK) {
        *at = td_gr_matcher_advance(&m, text, len);
        *accepted = *at == len && m.sets[m.current].may_end;
        if (m.overflow) st = TD_EINVAL;
    }
    td_gr_matcher_close(&m);
    return st;
}

/* ---- places ---------------------------------------------------------------------------------- */

static td_status bind_vocabulary(td_grammar *g, td_vocab_trie *trie, td_error *err) {
    td_status st = TD_OK;
    pthread_mutex_lock(&g->lock);
    if (!g->masks.trie) {
        st = td_gr_masks_open(&g->masks, &g->pda, trie);
        if (st != TD_OK) td_gr_masks_close(&g->masks);
    }
    bool other = st == TD_OK && g->masks.trie != trie;
    pthread_mutex_unlock(&g->lock);
    if (st != TD_OK) return td_fail(err, st, "out of memory for a grammar");
    return other ? td_fail(err, TD_EINVAL, "grammar: it is used with another vocabulary") : TD_OK;
}

td_status td_grammar_place_open(td_grammar *g, td_vocab_trie *trie, td_grammar_place **out, td_error *err) {
    *out = NULL;
    TD_TRY(bind_vocabulary(g, trie, err));
    td_grammar_place *p = calloc(1, sizeof *p);
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a grammar");
    p->grammar = td_grammar_hold(g);
    p->mask = malloc(TD_TRIE_WORDS(trie->vocab) * sizeof *p->mask);
    if (!p->mask || td_gr_matcher_open(&p->matcher, &g->pda) != TD_OK || td_gr_walk_open(&p->walk, trie) != TD_OK ||
        td_gr_masks_warm(&g->masks, &p->walk) != TD_OK) {
        td_grammar_place_close(p);
        return td_fail(err, TD_ENOMEM, "out of memory for a grammar");
    }
    *out = p;
    return TD_OK;
}

void td_grammar_place_close(td_grammar_place *p) {
    if (!p) return;
    td_gr_matcher_close(&p->matcher);
    td_gr_walk_close(&p->walk);
    td_grammar_release(p->grammar);
    free(p->mask);
    free(p);
}

td_status td_grammar_place_mask(td_grammar_place *p, uint32_t **mask) {
    *mask = p->mask;
    return td_gr_mask(&p->grammar->masks, &p->matcher, &p->walk, p->mask);
}

uint64_t td_grammar_place_work(const td_grammar_place *p) {
    return p->matcher.work;
}

td_status td_grammar_place_advance(td_grammar_place *p, const char *bytes, size_t n) {
    return td_gr_matcher_advance(&p->matcher, bytes, n) == n && !p->matcher.overflow ? TD_OK : TD_EINVAL;
}

td_status td_grammar_place_rewind(td_grammar_place *p) {
    td_gr_matcher_close(&p->matcher);
    return td_gr_matcher_open(&p->matcher, &p->grammar->pda);
}

size_t td_grammar_place_forced(td_grammar_place *p, char *bytes, size_t room, bool *ends) {
    return td_gr_matcher_forced(&p->matcher, bytes, room, ends);
}

bool td_grammar_place_may_end(const td_grammar_place *p) {
    return p->matcher.sets[p->matcher.current].may_end;
}

bool td_grammar_place_must_end(const td_grammar_place *p) {
    const td_gr_set *s = &p->matcher.sets[p->matcher.current];
    return s->may_end && s->n == 0;
}
