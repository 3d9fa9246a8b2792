#include "text/grammar/grammar_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_class.h"

uint32_t td_gr_json_bracket(td_gr_json *j, char open, uint32_t inside, char close) {
    td_gr_builder *b = j->b;
    uint32_t       first = td_gr_seq(b, td_gr_byte(b, (uint8_t)open, (uint8_t)open), j->space);
    return td_gr_seq(b, td_gr_seq(b, first, inside), td_gr_seq(b, j->space, td_gr_byte(b, (uint8_t)close, (uint8_t)close)));
}

uint32_t td_gr_json_member(td_gr_json *j, uint32_t key, uint32_t value) {
    td_gr_builder *b = j->b;
    return td_gr_seq(b, td_gr_seq(b, key, td_gr_word(b, ":")), td_gr_seq(b, td_gr_optional(b, td_gr_word(b, " ")), value));
}

uint32_t td_gr_json_integer(td_gr_json *j) {
    td_gr_builder *b = j->b;
    uint32_t       whole =
        td_gr_alt(b, td_gr_word(b, "0"), td_gr_seq(b, td_gr_byte(b, '1', '9'), td_gr_digits(b, 0, TD_GR_NO_MAX)));
    return td_gr_seq(b, td_gr_optional(b, td_gr_word(b, "-")), whole);
}

static uint32_t any_number(td_gr_json *j) {
    td_gr_builder *b = j->b;
    uint32_t       fraction = td_gr_seq(b, td_gr_word(b, "."), td_gr_digits(b, 1, TD_GR_NO_MAX));
    uint32_t       sign = td_gr_optional(b, td_gr_alt(b, td_gr_word(b, "+"), td_gr_word(b, "-")));
    uint32_t       exponent = td_gr_seq(b, td_gr_alt(b, td_gr_word(b, "e"), td_gr_word(b, "E")),
                                        td_gr_seq(b, sign, td_gr_digits(b, 1, TD_GR_NO_MAX)));
    return td_gr_seq(b, td_gr_json_integer(j), td_gr_seq(b, td_gr_optional(b, fraction), td_gr_optional(b, exponent)));
}

/* Any number of these, with commas. */
static uint32_t list_of(td_gr_json *j, uint32_t item) {
    td_gr_items list = {0};
    td_gr_add(j->b, &list, j->comma);
    td_gr_add(j->b, &list, item);
    td_gr_add(j->b, &list, TD_GR_ITEM_MANY);
    uint32_t node = td_gr_of(j->b, TD_GR_LIST, &list);
    td_gr_items_free(&list);
    return node;
}

void td_gr_json_open(td_gr_json *j, td_gr_builder *b) {
    *j = (td_gr_json){.b = b};
    uint32_t blank = td_gr_alt(b, td_gr_word(b, " "), td_gr_word(b, "\t"));
    uint32_t line = td_gr_seq(b, td_gr_word(b, "\n"), td_gr_repeat(b, blank, 0, TD_GR_INDENT_MAX));
    j->space = td_gr_optional(b, td_gr_alt(b, td_gr_word(b, " "), line));
    j->comma = td_gr_seq(b, td_gr_word(b, ","), j->space);
    j->character = td_gr_rule_new(b, "character");
    j->string = td_gr_rule_new(b, "string");
    j->number = td_gr_rule_new(b, "number");
    j->object = td_gr_rule_new(b, "object");
    j->array = td_gr_rule_new(b, "array");
    j->any = td_gr_rule_new(b, "value");

    uint32_t string = td_gr_use(b, j->string), any = td_gr_use(b, j->any);
    uint32_t body = td_gr_repeat(b, td_gr_use(b, j->character), 0, TD_GR_NO_MAX);
    td_gr_define(b, j->character, td_gr_json_char(b));
    td_gr_define(b, j->string, td_gr_seq(b, td_gr_word(b, "\""), td_gr_seq(b, body, td_gr_word(b, "\""))));
    td_gr_define(b, j->number, any_number(j));
    td_gr_define(b, j->object, td_gr_json_bracket(j, '{', list_of(j, td_gr_json_member(j, string, any)), '}'));
    td_gr_define(b, j->array, td_gr_json_bracket(j, '[', list_of(j, any), ']'));
    td_gr_items list = {0};
    td_gr_add(b, &list, string);
    td_gr_add(b, &list, td_gr_use(b, j->number));
    td_gr_add(b, &list, td_gr_use(b, j->object));
    td_gr_add(b, &list, td_gr_use(b, j->array));
    td_gr_add(b, &list, td_gr_word(b, "true"));
    td_gr_add(b, &list, td_gr_word(b, "false"));
    td_gr_add(b, &list, td_gr_word(b, "null"));
    td_gr_define(b, j->any, td_gr_of(b, TD_GR_ALT, &list));
    td_gr_items_free(&list);
}

/* ---- fixed values ---------------------------------------------------------------------------- */

static uint32_t fixed_real(td_gr_builder *b, double x) {
    char s[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(s, sizeof s, "%.*g", precision, x);
        if (strtod(s, NULL) == x) break;
    }
    if (x != floor(x) || fabs(x) >= 1e15) return td_gr_word(b, s);
    snprintf(s, sizeof s, "%.0f", x);
    return td_gr_seq(b, td_gr_word(b, s), td_gr_optional(b, td_gr_word(b, ".0")));
}

static uint32_t fixed_list(td_gr_json *j, const json_t *value) {
    td_gr_builder *b = j->b;
    td_gr_items    list = {0};
    bool           object = json_is_object(value);
    const char    *key = NULL;
    json_t        *item;
    size_t         i;
    if (object) {
        json_object_foreach((json_t *)value, key, item) {
            if (list.n) td_gr_add(b, &list, j->comma);
            td_gr_add(b, &list, td_gr_json_member(j, td_gr_json_text(b, key, strlen(key)), td_gr_json_value(j, item)));
        }
    } else {
        json_array_foreach(value, i, item) {
            if (list.n) td_gr_add(b, &list, j->comma);
            td_gr_add(b, &list, td_gr_json_value(j, item));
        }
    }
    uint32_t inside = td_gr_of(b, TD_GR_SEQ, &list);
    td_gr_items_free(&list);
    return td_gr_json_bracket(j, object ? '{' : '[', inside, object ? '}' : ']');
}

uint32_t td_gr_json_value(td_gr_json *j, const json_t *value) {
    char s[32];
    if (j->b->status != TD_OK) return 0;
    switch (json_typeof(value)) {
        case JSON_NULL: return td_gr_word(j->b, "null");
        case JSON_TRUE: return td_gr_word(j->b, "true");
        case JSON_FALSE: return td_gr_word(j->b, "false");
        case JSON_STRING: return td_gr_json_text(j->b, json_string_value(value), json_string_length(value));
        case JSON_REAL: return fixed_real(j->b, json_real_value(value));
        case JSON_INTEGER:
            snprintf(s, sizeof s, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            return td_gr_word(j->b, s);
        default: return fixed_list(j, value);
    }
}
