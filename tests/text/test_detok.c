/* The streaming detokeniser equals td_tokenizer_decode, gives whole characters only, and allocates nothing per token. */
#include "tests/td_test.h"
#include "tests/text/tokenizer_fixture.h"

#include <time.h>

#include "text/tokenizer/detok.h"
#include "text/tokenizer/tokenizer_utf8.h"

void         *__real_malloc(size_t n);
void         *__wrap_malloc(size_t n);
static size_t mallocs;
void         *__wrap_malloc(size_t n) {
            mallocs++;
            return __real_malloc(n);
}

static uint64_t next_random(uint64_t *s) { /* xorshift64*, Vigna 2016 */
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 2685821657736338717u;
}

static void joined_pieces_equal_decode(const char *dir, uint64_t seed) {
    td_tokenizer *tok = fixture_open(dir);
    uint32_t      vocab = (uint32_t)td_tokenizer_vocab_size(tok);
    for (int skip = 0; skip < 2; skip++) {
        td_detok *d;
        OK(td_detok_create(tok, skip, &d));
        for (int round = 0; round < 300; round++) {
            uint32_t    ids[64];
            size_t      n = next_random(&seed) % 64, whole_len, joined = 0, len;
            char       *whole, pieces[1 << 16];
            const char *piece;
            /* low ids are the single bytes in these vocabularies: cuts and wrong sequences abound */
            for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)(next_random(&seed) % (next_random(&seed) & 1 ? 300 : vocab));
            OK(td_tokenizer_decode(tok, ids, n, skip, &whole, &whole_len));
            size_t before = mallocs;
            for (size_t i = 0; i < n; i++) {
                OK(td_detok_push(d, ids[i], &piece, &len));
                if (td_utf8_valid_prefix(piece, len) != len)
                    fail_msg("half a character (seed state %llu)", (unsigned long long)seed);
                memcpy(pieces + joined, piece, len);
                joined += len;
            }
            td_detok_flush(d, &piece, &len);
            memcpy(pieces + joined, piece, len);
            joined += len;
            assert_int_equal(mallocs, before);
            assert_int_equal(joined, whole_len);
            assert_memory_equal(pieces, whole, joined);
            free(whole);
        }
        const char *piece = NULL;
        size_t      len = 0;
        assert_int_equal(td_detok_push(d, vocab, &piece, &len), TD_EINVAL);
        assert_int_equal(td_detok_push(d, UINT32_MAX, &piece, &len), TD_EINVAL);
        td_detok_free(d);
    }
    td_tokenizer_close(tok);
}

TEST(random_ids) {
    uint64_t seed = (uint64_t)time(NULL) | 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    joined_pieces_equal_decode(DATA "kimi", seed);
    joined_pieces_equal_decode(TD_SOURCE_DIR "/models/tale-v3-14m", seed);
}

/* "😀" byte by byte comes out at its last byte; a cut one as U+FFFD at the flush or at the byte that cannot follow. */
TEST(character_by_bytes) {
    td_tokenizer *tok = fixture_open(DATA "kimi"); /* ids 0..255 are the bytes */
    td_detok     *d;
    const char   *s;
    size_t        n;
    OK(td_detok_create(tok, true, &d));
    static const uint8_t FACE[] = {0xF0, 0x9F, 0x98, 0x80};
    for (int i = 0; i < 4; i++) {
        OK(td_detok_push(d, FACE[i], &s, &n));
        assert_int_equal(n, i == 3 ? 4 : 0);
    }
    assert_memory_equal(s, FACE, 4);
    for (int i = 0; i < 3; i++) OK(td_detok_push(d, FACE[i], &s, &n));
    OK(td_detok_push(d, 'x', &s, &n));
    assert_int_equal(n, 4);
    assert_memory_equal(s, "\xEF\xBF\xBDx", 4);
    OK(td_detok_push(d, FACE[0], &s, &n));
    td_detok_flush(d, &s, &n);
    assert_int_equal(n, 3);
    td_detok_flush(d, &s, &n);
    assert_int_equal(n, 0);
    OK(td_detok_push(d, 1001, &s, &n)); /* [EOS] is special */
    assert_int_equal(n, 0);
    td_detok_free(d);
    td_tokenizer_close(tok);
}
