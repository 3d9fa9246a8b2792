#include "quant/coded_matrix.h"

#include <assert.h>
#include <math.h>

#include "core/math/small_float.h"
#include "kernels/rows/convert.h"

#define CHUNK 256 /* columns decoded at a time */
#define SEEN 256  /* groups remembered while a row is decoded */

static inline uint32_t word_at(const void *words, size_t i) {
    uint32_t w;
    memcpy(&w, (const char *)words + i * sizeof w, sizeof w);
    return w;
}

/* Where AWQ has row r of eight: the inverse of 0, 2, 4, 6, 1, 3, 5, 7. */
static inline uint32_t awq_shift(size_t r) {
    return 4 * (uint32_t)(r % 8 / 2 + (r & 1) * 4);
}

/* ---- windows --------------------------------------------------------------------------------- */

bool td_coded_divides(const td_coded_matrix *m, size_t columns) {
    return columns == m->k || (!m->group_of && (m->group >= m->k || columns % m->group == 0));
}

td_coded_matrix td_coded_window(const td_coded_matrix *m, size_t first_row, size_t n, size_t first_column, size_t k) {
    td_coded_matrix w = *m;
    assert(first_row + n <= m->n && first_column + k <= m->k && td_coded_divides(m, k) && first_column % k == 0);
    w.n = n;
    w.k = k;
    if (m->row_of) w.row_of += first_row;
    w.first_row += first_row;
    w.first_column += first_column;
    w.first_group = w.first_column / m->group;
    return w;
}

/* ---- scales and zeros ------------------------------------------------------------------------ */

static size_t stored_row(const td_coded_matrix *m, size_t row) {
    return m->row_of ? m->row_of[row] : m->first_row + row;
}

/* row: where it is stored; so in zero_at */
static float scale_at(const td_coded_matrix *m, size_t row, size_t g) {
    size_t         i = row / m->scale_rows * m->scale_row_step + (m->first_group + g) * m->scale_group_step;
    const uint8_t *bytes = m->scale;
    uint16_t       half;
    float          f;
    switch (m->scale_dtype) {
        case TD_DT_F8_E4M3: return td_e4m3_to_f32(bytes[i]);
        case TD_DT_F8_E8M0: return td_e8m0_to_f32(bytes[i]);
        case TD_DT_F32: memcpy(&f, bytes + i * sizeof f, sizeof f); return f;
        default: break;
    }
    memcpy(&half, bytes + i * sizeof half, sizeof half);
    return m->scale_dtype == TD_DT_F16 ? td_f16_to_f32(half) : td_bf16_to_f32(half);
}

#define CODE_LIMIT 512.0f /* beyond any code's value */

static bool scale_ok(const td_coded_matrix *m, float scale) {
    return isfinite(scale * CODE_LIMIT * m->factor) &&
           (scale > 0 || (scale < 0 && td_coded_is_unsigned(m)) || (scale == 0 && m->scale_dtype == TD_DT_F8_E4M3));
}

static uint8_t zero_at(const td_coded_matrix *m, size_t row, size_t g) {
    uint32_t per_word = 32u / m->bits, mask = (1u << m->bits) - 1, shift = (uint32_t)(row % per_word) * m->bits, word = 0;
    size_t   row_words = td_div_up(m->stored_n, per_word);
    g += m->first_group;
    switch (m->zeros) {
        case TD_ZEROS_NONE: return (uint8_t)(1u << (m->bits - 1));
        case TD_ZEROS_ROW_WORDS: word = word_at(m->zero, row / per_word * td_div_up(m->stored_k, m->group) + g); break;
        case TD_ZEROS_GPTQ: word = word_at(m->zero, g * row_words + row / per_word); break;
        case TD_ZEROS_AWQ:
            word = word_at(m->zero, g * row_words + row / per_word);
            shift = awq_shift(row);
            break;
    }
    return (uint8_t)(((word >> shift) + m->zero_add) & mask);
}

static bool zero_ok(const td_coded_matrix *m, uint8_t zero) {
    return !m->symmetric || zero == 1u << (m->bits - 1);
}

bool td_coded_scales(const td_coded_matrix *m, size_t row, float *scale) {
    bool ok = true;
    row = stored_row(m, row);
    for (size_t g = 0; g < td_coded_groups(m); g++) {
        scale[g] = scale_at(m, row, g);
        ok &= scale_ok(m, scale[g]);
    }
    return ok;
}

bool td_coded_zeros(const td_coded_matrix *m, size_t row, uint8_t *zero) {
    bool ok = true;
    assert(td_coded_is_unsigned(m));
    row = stored_row(m, row);
    for (size_t g = 0; g < td_coded_groups(m); g++) {
        zero[g] = zero_at(m, row, g);
        ok &= zero_ok(m, zero[g]);
    }
    return ok;
}

td_coded_fault td_coded_check(const td_coded_matrix *m, size_t *row, size_t *group) {
    for (*row = 0; *row < m->n; ++*row)
        for (*group = 0; *group < td_coded_groups(m); ++*group) {
            if (!scale_ok(m, scale_at(m, stored_row(m, *row), *group))) return TD_CODED_SCALE;
            if (td_coded_is_unsigned(m) && !zero_ok(m, zero_at(m, stored_row(m, *row), *group))) return TD_CODED_ZERO;
        }
    return TD_CODED_OK;
}

/* ---- codes ----------------------------------------------------------------------------------- */

static void nibbles(const uint8_t *bytes, size_t first, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++) out[i] = bytes[(first + i) / 2] >> 4 * ((first + i) & 1) & 15;
}

void td_coded_codes(const td_coded_matrix *m, size_t row, size_t first, size_t n, uint8_t *out) {
    uint32_t       per_word = 32u / m->bits, mask = (1u << m->bits) - 1, shift;
    const uint8_t *bytes = m->data;
    row = stored_row(m, row);
    first += m->first_column;
    switch (m->codes) {
        case TD_CODES_INT8:
        case TD_CODES_E4M3: memcpy(out, bytes + row * m->stored_k + first, n); break;
        case TD_CODES_E2M1: nibbles(bytes + row * (m->stored_k / 2), first, n, out); break;
        case TD_CODES_ROW_WORDS: /* little-endian words are bytes, or nibbles from the low one on */
            bytes += row * td_div_up(m->stored_k, per_word) * sizeof(uint32_t);
            if (m->bits == 8)
                memcpy(out, bytes + first, n);
            else
                nibbles(bytes, first, n, out);
            break;
        case TD_CODES_COLUMN_WORDS:
            for (size_t i = 0; i < n; i++) {
                size_t c = first + i;
                out[i] = (uint8_t)(word_at(bytes, c / per_word * m->stored_n + row) >> c % per_word * m->bits & mask);
            }
            break;
        case TD_CODES_AWQ_WORDS:
            shift = awq_shift(row);
            for (size_t i = 0; i < n; i++) out[i] = word_at(bytes, (first + i) * (m->stored_n / 8) + row / 8) >> shift & 15;
            break;
    }
}

/* value(code) * scale of n codes that share a scale and a zero. */
static void values(const td_coded_matrix *m, const uint8_t *codes, size_t n, float scale, int zero, float *out) {
    switch (m->codes) {
        case TD_CODES_INT8:
            for (size_t i = 0; i < n; i++) out[i] = (float)(int8_t)codes[i] * scale;
            break;
        case TD_CODES_E4M3:
            td_e4m3_to_f32_n(codes, n, out);
            for (size_t i = 0; i < n; i++) out[i] *= scale;
            break;
        case TD_CODES_E2M1:
            for (size_t i = 0; i < n; i++) out[i] = 0.5f * (float)td_e2m1_twice(codes[i]) * scale;
            break;
        default:
            for (size_t i = 0; i < n; i++) out[i] = (float)(codes[i] - zero) * scale;
    }
    if (m->factor != 1)
        for (size_t i = 0; i < n; i++) out[i] *= m->factor;
}

/* What the columns of a group share, in one row. */
typedef struct {
    size_t  group; /* SIZE_MAX: none yet */
    float   scale;
    uint8_t zero;
} group_numbers;

/* @return false on a fault of what *x had to be filled with. */
static bool find_group(const td_coded_matrix *m, size_t row, size_t g, group_numbers *x) {
    if (x->group == g) return true;
    *x = (group_numbers){.group = g, .scale = scale_at(m, row, g), .zero = td_coded_is_unsigned(m) ? zero_at(m, row, g) : 0};
    return scale_ok(m, x->scale) && (!td_coded_is_unsigned(m) || zero_ok(m, x->zero));
}

bool td_coded_row(const td_coded_matrix *m, size_t row, float *out) {
    size_t stored = stored_row(m, row), n_seen = m->group_of ? SEEN : 1; /* columns of one group may lie all over the row */
    group_numbers seen[SEEN];
    uint8_t       codes[CHUNK];
    bool          ok = true;
    for (size_t i = 0; i < n_seen; i++) seen[i].group = SIZE_MAX;
    for (size_t first = 0; first < m->k; first += CHUNK) {
        size_t n = m->k - first < CHUNK ? m->k - first : CHUNK, end;
        td_coded_codes(m, row, first, n, codes);
        for (size_t i = 0; i < n; i = end) {
            size_t c = first + i, g = m->group_of ? m->group_of[c] : c / m->group;
            end = m->group_of ? i + 1 : (g + 1) * m->group - first;
            if (end > n) end = n;
            group_numbers *shared = &seen[g % n_seen];
            ok &= find_group(m, stored, g, shared);
            values(m, codes + i, end - i, shared->scale, shared->zero, out + c);
        }
    }
    return ok;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

td_coded_tiles td_coded_exact_tiles(const td_coded_matrix *m, td_gemm_groups *groups) {
    bool           fp4 = m->codes == TD_CODES_E2M1, whole_rows = m->group >= m->k && !fp4;
    td_gemm_groups g = {.scale_dtype = m->scale_dtype, .zero_points = !fp4 && m->zeros != TD_ZEROS_NONE && !m->symmetric};
    g.size = whole_rows ? TD_CODED_ROW_GROUP : m->group <= 128 ? (uint16_t)m->group : 0;
    if (m->bits != 4 || !(fp4 || td_coded_is_unsigned(m)) || m->group_of || m->scale_rows != 1 || (m->factor != 1 && !fp4))
        return TD_CODED_ROUNDED;
    if (!(fp4 ? td_fp4g_takes : td_int4g_takes)(&g)) return TD_CODED_ROUNDED;
    *groups = g;
    return fp4 ? TD_CODED_FP4G : TD_CODED_INT4G;
}

bool td_coded_tile_row(const td_coded_matrix *m, size_t row, const td_gemm_groups *groups, size_t k,
                       const td_gemm_weights *out) {
    bool fp4 = m->codes == TD_CODES_E2M1, zeros_ok = fp4 || td_coded_zeros(m, row, out->zero),
         scales_ok = td_coded_scales(m, row, out->scale);
    size_t size = groups->size;
    assert(td_coded_groups(m) == 1 || m->group == size);
    td_coded_codes(m, row, 0, m->k, out->rows);
    memset((uint8_t *)out->rows + m->k, fp4 ? 0 : 8, k - m->k);
    if (fp4) *out->factor = m->factor;
    for (size_t g = td_coded_groups(m); g < k / size;
         g++) { /* a scale of the whole row serves all its groups; beyond the columns there is nothing */
        bool within = g * size < m->k;
        out->scale[g] = within ? out->scale[0] : 0;
        out->zero[g] = within ? out->zero[0] : 8;
    }
    return zeros_ok && scales_ok;
}
