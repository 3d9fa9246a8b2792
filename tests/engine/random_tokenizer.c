#include "random_tokenizer.h"

#include <unistd.h>
/* after the above, as cmocka wants it */
#include <jansson.h>

#include "core/math/rng.h"
#include "tests/td_test.h"

#define MERGES 250
#define PIECE_MAX 256 /* bytes of a token as the file writes it */

/* A byte as the files of byte-level BPE write it: GPT-2's table. */
static void put_byte(char *to, unsigned char byte) {
    unsigned moved = 0, at = byte;
    bool     shown = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    for (unsigned b = 0; b < byte; b++) moved += !((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD));
    if (!shown) at = 256 + moved;
    char *end = to + strlen(to);
    if (at < 0x80) *end++ = (char)at;
    if (at >= 0x80) *end++ = (char)(0xC0 | at >> 6);
    if (at >= 0x80) *end++ = (char)(0x80 | (at & 0x3F));
    *end = 0;
}

/* A new token of two that are there. */
static void merge(json_t *vocab, json_t *merges, const char *a, const char *b, uint32_t *id) {
    char whole[2 * PIECE_MAX], pair[2 * PIECE_MAX];
    snprintf(whole, sizeof whole, "%s%s", a, b);
    snprintf(pair, sizeof pair, "%s %s", a, b);
    if (json_object_get(vocab, whole)) return;
    json_object_set_new(vocab, whole, json_integer((*id)++));
    json_array_append_new(merges, json_string(pair));
}

/* Tokens of one text, as far as merges were drawn. */
typedef struct {
    char   piece[512][PIECE_MAX];
    size_t n;
} cut_text;

static void join(cut_text *t, const char *a, const char *b) {
    for (size_t i = 0; i + 1 < t->n; i++) {
        if (strcmp(t->piece[i], a) != 0 || strcmp(t->piece[i + 1], b) != 0) continue;
        strcat(t->piece[i], b);
        memmove(t->piece + i + 1, t->piece + i + 2, (t->n - i - 2) * sizeof *t->piece);
        t->n--;
    }
}

static void draw_merges(uint64_t seed, const char *const *texts, size_t n_texts, json_t *vocab, json_t *merges,
                        uint32_t *id) {
    FREED cut_text *cut = calloc(n_texts, sizeof *cut);
    for (size_t i = 0; i < n_texts; i++)
        for (const char *c = texts[i]; *c && cut[i].n < 512; c++) put_byte(cut[i].piece[cut[i].n++], (unsigned char)*c);
    for (uint64_t m = 0; m < MERGES; m++) {
        cut_text *t = &cut[td_rng_u64(seed, 1, m) % n_texts];
        if (t->n < 2) continue;
        size_t at = td_rng_u64(seed, 2, m) % (t->n - 1);
        char   a[PIECE_MAX], b[PIECE_MAX];
        strcpy(a, t->piece[at]);
        strcpy(b, t->piece[at + 1]);
        if (strlen(a) + strlen(b) + 2 > PIECE_MAX) continue;
        merge(vocab, merges, a, b, id);
        for (size_t i = 0; i < n_texts; i++) join(&cut[i], a, b);
    }
}

static json_t *added(uint32_t id, const char *content, bool special) {
    return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", content, "single_word", 0, "lstrip", 0,
                     "rstrip", 0, "normalized", 0, "special", special);
}

void random_tokenizer_write(uint64_t seed, const char *const *texts, size_t n_texts, marker_tokens markers, const char *open,
                            const char *close, char *dir) {
    static const char *const specials[] = {"<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"};
    json_t                  *vocab = json_object(), *merges = json_array(), *extra = json_array();
    uint32_t                 id = 4;
    char                     path[RANDOM_TOKENIZER_DIR_MAX + 32];
    for (uint32_t i = 0; i < 4; i++) json_array_append_new(extra, added(i, specials[i], true));
    for (unsigned b = 0; b < 256; b++) {
        char piece[8] = "";
        put_byte(piece, (unsigned char)b);
        json_object_set_new(vocab, piece, json_integer(id++));
    }
    draw_merges(seed, texts, n_texts, vocab, merges, &id);
    merge(vocab, merges, ">", "\u010A", &id); /* ">\n" */
    merge(vocab, merges, "k", ">", &id);
    merge(vocab, merges, "k>", "\u0120", &id);
    if (markers != MARKERS_IN_PIECES) {
        json_array_append_new(extra, added(id++, open, markers == MARKERS_SPECIAL));
        json_array_append_new(extra, added(id++, close, markers == MARKERS_SPECIAL));
    }
    json_t *bytes =
        json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1);
    json_auto_t *all =
        json_pack("{s:s, s:o, s:n, s:O, s:n, s:o, s:{s:s, s:n, s:n, s:b, s:b, s:o, s:o}}", "version", "1.0", "added_tokens",
                  extra, "normalizer", "pre_tokenizer", bytes, "post_processor", "decoder", bytes, "model", "type", "BPE",
                  "dropout", "unk_token", "fuse_unk", 0, "byte_fallback", 0, "vocab", vocab, "merges", merges);
    assert_non_null(all);
    strcpy(dir, "/tmp/tandem_tokenizer_XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(json_dump_file(all, path, JSON_COMPACT), 0);
}

void random_tokenizer_remove(const char *dir) {
    char path[RANDOM_TOKENIZER_DIR_MAX + 32];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
}
