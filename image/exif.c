#include "image/exif.h"

#include <stdbool.h>
#include <string.h>

#define TAG_ORIENTATION 0x0112
#define ENTRY_BYTES 12
enum { TYPE_BYTE = 1, TYPE_SHORT = 3, TYPE_LONG = 4 };

/* The data, with the order of bytes that their header tells. */
typedef struct {
    const uint8_t *bytes;
    size_t         n;
    bool           big_endian;
} tiff;

/* An integer of 1 to 4 bytes; 0 where it is not all there. */
static uint32_t number_at(const tiff *t, size_t at, size_t bytes) {
    uint32_t value = 0;
    if (at > t->n || t->n - at < bytes) return 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint32_t)t->bytes[at + i] << 8 * (t->big_endian ? bytes - 1 - i : i);
    return value;
}

uint32_t td_exif_orientation(const uint8_t *exif, size_t n) {
    if (n >= 6 && !memcmp(exif, "Exif\0\0", 6)) exif += 6, n -= 6;
    if (n < 8 || (memcmp(exif, "II*\0", 4) && memcmp(exif, "MM\0*", 4))) return 1;
    const tiff   t = {exif, n, exif[0] == 'M'};
    const size_t directory = number_at(&t, 4, 4), entries = number_at(&t, directory, 2);
    for (size_t i = 0; i < entries; i++) {
        const size_t entry = directory + 2 + i * ENTRY_BYTES;
        if (entry > n || n - entry < ENTRY_BYTES) return 1;
        if (number_at(&t, entry, 2) != TAG_ORIENTATION) continue;
        const uint32_t type = number_at(&t, entry + 2, 2), count = number_at(&t, entry + 4, 4);
        const size_t   bytes = type == TYPE_BYTE ? 1 : type == TYPE_SHORT ? 2 : type == TYPE_LONG ? 4 : 0;
        const uint32_t value = number_at(&t, entry + 8, bytes);
        return count == 1 && value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}
