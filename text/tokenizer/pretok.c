/* Pre-tokenizer stages: reading them from tokenizer.json and running them as a chain. */
#include "text/tokenizer/pretok.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* GPT-2's pattern, which ByteLevel applies when use_regex is set. */
#define BYTE_LEVEL_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define SEQUENCE_DEPTH_MAX 8

static const struct {
    const char        *name;
    td_split_behaviour behaviour;
} BEHAVIOURS[] = {
    {"Isolated", TD_SPLIT_ISOLATED},
    {"Removed", TD_SPLIT_REMOVED},
    {"MergedWithPrevious", TD_SPLIT_WITH_PREVIOUS},
    {"MergedWithNext", TD_SPLIT_WITH_NEXT},
    {"Contiguous", TD_SPLIT_CONTIGUOUS},
};

/* An empty stage at the end; NULL with err set when there is no room. */
static td_pretok_stage *new_stage(td_pretok *p, td_error *err) {
    if (p->n == TD_PRETOK_STAGES_MAX) {
        td_fail(err, TD_ENOTSUP, "pre_tokenizer has more than %d stages", TD_PRETOK_STAGES_MAX);
        return NULL;
    }
    p->stages[p->n] = (td_pretok_stage){0};
    return &p->stages[p->n++];
}

td_status td_pretok_add_split(td_pretok *p, const char *pattern, td_error *err) {
    td_pretok_stage *stage = new_stage(p, err);
    if (!stage) return TD_ENOTSUP;
    return td_regex_compile(pattern, strlen(pattern), &stage->regex, err);
}

/* A plain string as a pattern that matches just it. */
static td_status compile_literal(const char *s, size_t len, td_regex **out, td_error *err) {
    char  *pattern = malloc(2 * len + 1);
    size_t n = 0;
    if (!pattern) return td_fail(err, TD_ENOMEM, "pre_tokenizer: out of memory");
    for (size_t i = 0; i < len; i++) {
        if (strchr("\\^$.[]|()?*+{}&-#", s[i])) pattern[n++] = '\\';
        pattern[n++] = s[i];
    }
    td_status st = td_regex_compile(pattern, n, out, err);
    free(pattern);
    return st;
}

static td_status parse_split(td_pretok *p, const json_t *spec, td_error *err) {
    const json_t    *pattern = json_object_get(spec, "pattern");
    const json_t    *regex = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    const char      *behaviour = json_string_value(json_object_get(spec, "behavior"));
    td_pretok_stage *stage = new_stage(p, err);
    if (!stage) return TD_ENOTSUP;
    stage->invert = json_is_true(json_object_get(spec, "invert"));
    size_t k = 0, n = sizeof BEHAVIOURS / sizeof *BEHAVIOURS;
    while (k < n && (!behaviour || strcmp(behaviour, BEHAVIOURS[k].name) != 0)) k++;
    if (k == n)
        return td_fail(err, TD_ENOTSUP, "pre_tokenizer Split: behavior '%.40s' is not supported",
                       behaviour ? behaviour : "");
    stage->behaviour = BEHAVIOURS[k].behaviour;
    if (json_is_string(regex))
        return td_regex_compile(json_string_value(regex), json_string_length(regex), &stage->regex, err);
    if (json_is_string(literal) && json_string_length(literal) > 0)
        return compile_literal(json_string_value(literal), json_string_length(literal), &stage->regex, err);
    return td_fail(err, TD_EFORMAT, "pre_tokenizer Split: pattern must hold a Regex or a String");
}

static td_status parse_byte_level(td_pretok *p, const json_t *spec, td_error *err) {
    const json_t    *use_regex = json_object_get(spec, "use_regex");
    td_pretok_stage *stage = new_stage(p, err);
    if (!stage) return TD_ENOTSUP;
    stage->prefix_space = json_is_true(json_object_get(spec, "add_prefix_space"));
    if (use_regex && !json_is_true(use_regex)) return TD_OK;
    return td_regex_compile(BYTE_LEVEL_PATTERN, strlen(BYTE_LEVEL_PATTERN), &stage->regex, err);
}

/* Read a "pre_tokenizer". @param byte_level whether the stage read last is ByteLevel. */
static td_status parse(td_pretok *p, const json_t *spec, int depth, bool *byte_level, td_error *err) {
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type) return td_fail(err, TD_ENOTSUP, "pre_tokenizer is missing: only byte-level tokenizers are supported");
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(spec, "pretokenizers");
        if (!json_is_array(list) || depth == SEQUENCE_DEPTH_MAX)
            return td_fail(err, TD_EFORMAT, "pre_tokenizer Sequence: pretokenizers is not a list or nests too deeply");
        size_t  i;
        json_t *item;
        json_array_foreach(list, i, item) TD_TRY(parse(p, item, depth + 1, byte_level, err));
        return TD_OK;
    }
    /* ByteLevel turns text into its own alphabet, which no later stage here understands. */
    if (*byte_level) return td_fail(err, TD_ENOTSUP, "pre_tokenizer: '%.40s' after ByteLevel is not supported", type);
    if (!strcmp(type, "Split")) return parse_split(p, spec, err);
    if (!strcmp(type, "Digits"))
        return td_pretok_add_split(p, json_is_true(json_object_get(spec, "individual_digits")) ? "\\p{N}" : "\\p{N}+", err);
    if (strcmp(type, "ByteLevel") != 0)
        return td_fail(err, TD_ENOTSUP, "pre_tokenizer: type '%.40s' is not supported", type);
    *byte_level = true;
    return parse_byte_level(p, spec, err);
}

td_status td_pretok_parse(td_pretok *p, const json_t *spec, td_error *err) {
    bool byte_level = false;
    TD_TRY(parse(p, spec, 0, &byte_level, err));
    if (!byte_level)
        return td_fail(err, TD_ENOTSUP, "pre_tokenizer does not end in ByteLevel: only byte-level tokenizers are supported");
    return TD_OK;
}

void td_pretok_free(td_pretok *p) {
    for (size_t i = 0; i < p->n; i++) td_regex_free(p->stages[i].regex);
    *p = (td_pretok){0};
}

typedef struct {
    const td_pretok      *pretok;
    td_tokenizer_scratch *scratch;
    td_word_fn            on_word;
    void                 *user;
} run;

static td_status run_stage(const run *r, size_t k, const char *s, size_t len);

/* Whether a span joins the one before it into one piece. */
static bool joins(td_split_behaviour behaviour, bool previous_is_match, bool is_match) {
    switch (behaviour) {
        case TD_SPLIT_WITH_PREVIOUS: return is_match && !previous_is_match;
        case TD_SPLIT_WITH_NEXT: return !is_match && previous_is_match;
        case TD_SPLIT_CONTIGUOUS: return is_match == previous_is_match;
        default: return false;
    }
}

/* The spans of one piece arrive in order; a piece is passed on when the next span does not join it. */
typedef struct {
    const run  *r;
    size_t      stage;
    const char *s;
    size_t      start, end; /* the piece that is open; empty: none */
    bool        is_match;   /* of the last span in it */
} splitter;

static td_status split_flush(splitter *sp) {
    if (sp->start == sp->end) return TD_OK;
    td_status st = run_stage(sp->r, sp->stage + 1, sp->s + sp->start, sp->end - sp->start);
    sp->start = sp->end;
    return st;
}

static td_status split_span(splitter *sp, size_t start, size_t end, bool matched) {
    const td_pretok_stage *stage = &sp->r->pretok->stages[sp->stage];
    bool                   is_match = matched != stage->invert;
    if (start == end) return TD_OK;
    if (sp->start != sp->end && joins(stage->behaviour, sp->is_match, is_match)) {
        sp->end = end;
    } else {
        TD_TRY(split_flush(sp));
        if (!(is_match && stage->behaviour == TD_SPLIT_REMOVED)) {
            sp->start = start;
            sp->end = end;
        }
    }
    sp->is_match = is_match;
    return TD_OK;
}

static td_status run_regex(const run *r, size_t k, const char *s, size_t len) {
    splitter sp = {.r = r, .stage = k, .s = s};
    for (size_t at = 0, start, end; at < len; at = end) {
        TD_TRY(td_regex_find(r->pretok->stages[k].regex, r->scratch, s, len, at, &start, &end));
        TD_TRY(split_span(&sp, at, start, false));
        TD_TRY(split_span(&sp, start, end, true));
    }
    return split_flush(&sp);
}

static td_status run_stage(const run *r, size_t k, const char *s, size_t len) {
    if (k == r->pretok->n) return r->on_word(r->user, s, len);
    const td_pretok_stage *stage = &r->pretok->stages[k];
    char                  *prefixed = NULL;
    if (stage->prefix_space && len > 0 && s[0] != ' ') {
        prefixed = malloc(len + 1);
        if (!prefixed) return TD_ENOMEM;
        prefixed[0] = ' ';
        memcpy(prefixed + 1, s, len);
        s = prefixed;
        len++;
    }
    td_status st = stage->regex ? run_regex(r, k, s, len) : run_stage(r, k + 1, s, len);
    free(prefixed);
    return st;
}

td_status td_pretok_run(const td_pretok *p, td_tokenizer_scratch *scratch, const char *text, size_t len, td_word_fn on_word,
                        void *user) {
    run r = {.pretok = p, .scratch = scratch, .on_word = on_word, .user = user};
    return len ? run_stage(&r, 0, text, len) : TD_OK;
}
