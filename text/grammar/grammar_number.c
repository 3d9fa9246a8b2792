/* Numbers in an interval, and multiples of a number. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_json.h"

#define MULTIPLE_STATES_MAX 20000

/* ---- decimals ---- */

bool td_gr_decimal_of(const json_t *number, td_gr_decimal *out) {
    char   s[64];
    double x = json_number_value(number);
    *out = (td_gr_decimal){.negative = x < 0};
    if (json_is_integer(number)) {
        int64_t i = (int64_t)json_integer_value(number);
        out->whole = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
        return true;
    }
    if (!(fabs(x) <= 9e18)) return false;
    for (int precision = 0; precision < TD_GR_FRACTION_MAX; precision++) {
        snprintf(s, sizeof s, "%.*f", precision, fabs(x));
        if (strtod(s, NULL) != fabs(x)) continue;
        char *point = NULL;
        out->whole = strtoull(s, &point, 10);
        snprintf(out->fraction, sizeof out->fraction, "%.*s", TD_GR_FRACTION_MAX, *point ? point + 1 : "");
        return true;
    }
    return false;
}

int td_gr_decimal_compare(const td_gr_decimal *x, const td_gr_decimal *y) {
    if (x->negative != y->negative) return x->negative ? -1 : 1;
    int size = x->whole != y->whole ? (x->whole > y->whole ? 1 : -1) : strcmp(x->fraction, y->fraction);
    return x->negative ? -size : size;
}

/* ---- numbers in an interval ------------------------------------------------------------------ */

/* Numbers lo..hi, which have n digits each. */
static uint32_t same_length(td_gr_builder *b, const char *lo, const char *hi, size_t n) {
    if (n == 0) return td_gr_empty(b);
    if (lo[0] == hi[0])
        return td_gr_seq(b, td_gr_byte(b, (uint8_t)lo[0], (uint8_t)lo[0]), same_length(b, lo + 1, hi + 1, n - 1));
    bool        low_whole = strspn(lo + 1, "0") >= n - 1, high_whole = strspn(hi + 1, "9") >= n - 1;
    char        from = low_whole ? lo[0] : (char)(lo[0] + 1), to = high_whole ? hi[0] : (char)(hi[0] - 1);
    td_gr_items list = {0};
    if (!low_whole)
        td_gr_add(b, &list,
                  td_gr_seq(b, td_gr_byte(b, (uint8_t)lo[0], (uint8_t)lo[0]),
                            same_length(b, lo + 1, "9999999999999999999", n - 1)));
    if (from <= to)
        td_gr_add(
            b, &list,
            td_gr_seq(b, td_gr_byte(b, (uint8_t)from, (uint8_t)to), td_gr_digits(b, (uint32_t)n - 1, (uint32_t)n - 1)));
    if (!high_whole)
        td_gr_add(b, &list,
                  td_gr_seq(b, td_gr_byte(b, (uint8_t)hi[0], (uint8_t)hi[0]),
                            same_length(b, "0000000000000000000", hi + 1, n - 1)));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &list);
    td_gr_items_free(&list);
    return node;
}

/* Whole numbers lo..hi without sign; has_hi false: all from lo. */
static uint32_t whole_numbers(td_gr_builder *b, uint64_t lo, uint64_t hi, bool has_hi) {
    char        low[24], high[24];
    td_gr_items list = {0};
    for (uint64_t from = lo;;) {
        size_t n = (size_t)snprintf(low, sizeof low, "%" PRIu64, from);
        memset(high, '9', n);
        high[n] = 0;
        bool last = has_hi && (size_t)snprintf(NULL, 0, "%" PRIu64, hi) == n;
        if (last) snprintf(high, sizeof high, "%" PRIu64, hi);
        td_gr_add(b, &list, same_length(b, low, high, n));
        if (last) break;
        if (!has_hi) {
            td_gr_add(b, &list, td_gr_seq(b, td_gr_byte(b, '1', '9'), td_gr_digits(b, (uint32_t)n, TD_GR_NO_MAX)));
            break;
        }
        from = strtoull(high, NULL, 10) + 1;
    }
    uint32_t node = td_gr_of(b, TD_GR_ALT, &list);
    td_gr_items_free(&list);
    return node;
}

/* Digits that make a fraction of at least `least` (its last digit is not 0), or above it. */
static uint32_t digits_from(td_gr_builder *b, const char *least, bool above) {
    if (!*least) {
        uint32_t some = td_gr_seq(b, td_gr_byte(b, '1', '9'), td_gr_digits(b, 0, TD_GR_NO_MAX));
        return above ? td_gr_seq(b, td_gr_repeat(b, td_gr_word(b, "0"), 0, TD_GR_NO_MAX), some)
                     : td_gr_digits(b, 0, TD_GR_NO_MAX);
    }
    uint32_t same = td_gr_seq(b, td_gr_byte(b, (uint8_t)*least, (uint8_t)*least), digits_from(b, least + 1, above));
    if (*least == '9') return same;
    return td_gr_alt(b, same, td_gr_seq(b, td_gr_byte(b, (uint8_t)(*least + 1), '9'), td_gr_digits(b, 0, TD_GR_NO_MAX)));
}

/* Digits, at least one, that make a fraction of at most `most` (not empty, its last digit is not 0), or below it. */
static uint32_t digits_to(td_gr_builder *b, const char *most, bool below) {
    uint32_t after = most[1] ? td_gr_optional(b, digits_to(b, most + 1, below))
                     : below ? td_gr_never(b)
                             : td_gr_repeat(b, td_gr_word(b, "0"), 0, TD_GR_NO_MAX);
    uint32_t same = td_gr_seq(b, td_gr_byte(b, (uint8_t)*most, (uint8_t)*most), after);
    if (*most == '0') return same;
    return td_gr_alt(b, same, td_gr_seq(b, td_gr_byte(b, '0', (uint8_t)(*most - 1)), td_gr_digits(b, 0, TD_GR_NO_MAX)));
}

/* What may follow an integer for a fraction of at least `least`, or above it. */
static uint32_t fraction_from(td_gr_builder *b, const char *least, bool above) {
    if (!*least && !above) return td_gr_optional(b, td_gr_seq(b, td_gr_word(b, "."), td_gr_digits(b, 1, TD_GR_NO_MAX)));
    return td_gr_seq(b, td_gr_word(b, "."), digits_from(b, least, above));
}

static uint32_t fraction_to(td_gr_builder *b, const char *most, bool below) {
    if (!*most && below) return td_gr_never(b);
    if (!*most)
        return td_gr_optional(b, td_gr_seq(b, td_gr_word(b, "."), td_gr_repeat(b, td_gr_word(b, "0"), 1, TD_GR_NO_MAX)));
    return td_gr_optional(b, td_gr_seq(b, td_gr_word(b, "."), digits_to(b, most, below)));
}

static uint32_t integer_text(td_gr_builder *b, uint64_t x) {
    char s[24];
    snprintf(s, sizeof s, "%" PRIu64, x);
    return td_gr_word(b, s);
}

/* Sizes of numbers: whole ones between two bounds whose fractions are empty. */
static uint32_t whole_sizes(td_gr_builder *b, const td_gr_bound *lo, const td_gr_bound *hi) {
    if (hi->is_given && hi->is_open && hi->at.whole == 0) return td_gr_never(b);
    uint64_t from = lo->at.whole + lo->is_open, to = hi->at.whole - (hi->is_given && hi->is_open);
    return hi->is_given && from > to ? td_gr_never(b) : whole_numbers(b, from, to, hi->is_given);
}

/* Sizes of numbers, which may have a fraction. */
static uint32_t sizes(td_gr_builder *b, const td_gr_bound *lo, const td_gr_bound *hi) {
    td_gr_items list = {0};
    uint64_t    from = lo->at.whole + 1;
    uint32_t    least = fraction_from(b, lo->at.fraction, lo->is_open);
    uint32_t    most = hi->is_given ? fraction_to(b, hi->at.fraction, hi->is_open) : 0;
    if (hi->is_given && lo->at.whole > hi->at.whole) return td_gr_never(b);
    if (hi->is_given && lo->at.whole == hi->at.whole)
        return td_gr_seq(b, integer_text(b, lo->at.whole), td_gr_pair(b, TD_GR_BOTH, least, most));
    td_gr_add(b, &list, td_gr_seq(b, integer_text(b, lo->at.whole), least));
    if (!hi->is_given || from < hi->at.whole)
        td_gr_add(b, &list,
                  td_gr_seq(b, whole_numbers(b, from, hi->at.whole - 1, hi->is_given), fraction_from(b, "", false)));
    if (hi->is_given) td_gr_add(b, &list, td_gr_seq(b, integer_text(b, hi->at.whole), most));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &list);
    td_gr_items_free(&list);
    return node;
}

uint32_t td_gr_json_interval(td_gr_json *j, const td_gr_bound *min, const td_gr_bound *max, bool fraction) {
    td_gr_builder    *b = j->b;
    td_gr_items       list = {0};
    const td_gr_bound zero = {.is_given = true}, above_zero = {.is_given = true, .is_open = true};
    uint32_t (*const between)(td_gr_builder *, const td_gr_bound *, const td_gr_bound *) = fraction ? sizes : whole_sizes;
    bool from_min = min->is_given && !min->at.negative, from_max = max->is_given && max->at.negative;
    if (!from_max) td_gr_add(b, &list, between(b, from_min ? min : &zero, max));
    if (!from_min) td_gr_add(b, &list, td_gr_seq(b, td_gr_word(b, "-"), between(b, from_max ? max : &above_zero, min)));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &list);
    td_gr_items_free(&list);
    return node;
}

/* ---- multiples ---- */

/*
 * A number is read digit by digit, with the remainder so far as the state. The divisor is `divisor` over ten to the power
 * of `places`: so many digits of the fraction count, and behind them only zeros may follow.
 */
typedef struct {
    td_gr_builder *b;
    td_gr_items    edges;
    uint32_t       divisor, places;
    bool           fraction;
} multiples;

enum { BEGIN, END, ZEROS, FIRST_REMAINDER };

/* The state behind so many digits of the fraction (0: its point), or in the integer (level 0). */
static uint32_t state_of(const multiples *m, uint32_t level, uint32_t remainder) {
    return FIRST_REMAINDER + level * m->divisor + remainder;
}

static void add_digits(multiples *m, uint32_t from, uint32_t level, uint32_t remainder, unsigned first) {
    for (unsigned digit = first; digit <= 9; digit++) {
        uint8_t byte = (uint8_t)('0' + digit);
        td_gr_add_edge_of(m->b, &m->edges, td_gr_byte(m->b, byte, byte), from,
                          state_of(m, level, (uint32_t)((10ull * remainder + digit) % m->divisor)));
    }
}

static bool divides(const multiples *m, uint32_t remainder, uint32_t places_left) {
    uint64_t r = remainder;
    for (uint32_t i = 0; i < places_left; i++) r = r * 10 % m->divisor;
    return r % m->divisor == 0;
}

/* Levels: 0 is the integer, 1 its point, 1 + k behind k digits of the fraction. */
static void add_level(multiples *m, uint32_t level) {
    uint32_t fraction_digits = level ? level - 1 : 0;
    for (uint32_t r = 0; r < m->divisor; r++) {
        uint32_t at = state_of(m, level, r), left = m->places - fraction_digits;
        if (level != 1 && divides(m, r, left)) td_gr_add_edge_of(m->b, &m->edges, td_gr_empty(m->b), at, END);
        if (level == 0) add_digits(m, at, 0, r, 0);
        if (level == 0 && m->fraction) td_gr_add_edge_of(m->b, &m->edges, td_gr_word(m->b, "."), at, state_of(m, 1, r));
        if (level > 0 && left > 0) add_digits(m, at, level + 1, r, 0);
        if (level > 0 && left == 0 && r == 0) td_gr_add_edge_of(m->b, &m->edges, td_gr_word(m->b, "0"), at, ZEROS);
    }
}

uint32_t td_gr_json_multiple(td_gr_json *j, const td_gr_decimal *of, bool fraction) {
    multiples m = {.b = j->b, .places = (uint32_t)strlen(of->fraction), .fraction = fraction};
    uint64_t  divisor = of->whole;
    for (uint32_t i = 0; i < m.places; i++) divisor = divisor * 10 + (uint64_t)(of->fraction[i] - '0');
    if (m.places > 15 || of->whole > MULTIPLE_STATES_MAX || divisor > MULTIPLE_STATES_MAX / (m.places + 2))
        return td_gr_fail(j->b, TD_ENOTSUP, "'multipleOf': a number with that many digits is not supported");
    m.divisor = (uint32_t)divisor;
    /* 0 is alone before a point: it is the zero of level 0 without digits behind it. */
    uint32_t zero = state_of(&m, m.places + 2, 0);
    td_gr_add_edge_of(m.b, &m.edges, td_gr_word(m.b, "0"), BEGIN, zero);
    td_gr_add_edge_of(m.b, &m.edges, td_gr_empty(m.b), zero, END);
    if (fraction) td_gr_add_edge_of(m.b, &m.edges, td_gr_word(m.b, "."), zero, state_of(&m, 1, 0));
    add_digits(&m, BEGIN, 0, 0, 1);
    for (uint32_t level = 0; level <= (fraction ? m.places + 1 : 0); level++) add_level(&m, level);
    td_gr_add_edge_of(m.b, &m.edges, td_gr_word(m.b, "0"), ZEROS, ZEROS);
    td_gr_add_edge_of(m.b, &m.edges, td_gr_empty(m.b), ZEROS, END);
    uint32_t node = td_gr_graph(m.b, zero + 1, &m.edges);
    td_gr_items_free(&m.edges);
    return td_gr_seq(m.b, td_gr_optional(m.b, td_gr_word(m.b, "-")), node);
}
