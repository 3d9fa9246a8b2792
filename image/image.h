/*
 * From a picture file to the patches that a vision tower takes.
 *
 *   file or data URL -> bytes -> [worker process: RGB -> resized, padded] -> td_image -> patches
 *
 * Files come from strangers and decoders have faults. So every picture has a process of its own, which decodes it, resizes
 * it and ends: `program decode-image` (image/image_worker.h). It has no files and no network, limited memory and time, and
 * knows nothing but this picture. What it answers is checked here as a file is: a process that lies, dies or hangs costs its
 * picture, and nothing else.
 *
 * Threads: a loader may be used by any number of threads at a time; those beyond its workers wait for one. A td_image never
 * changes: any thread may read, hold and release it (tandem.h).
 */
#ifndef TD_IMAGE_IMAGE_H
#define TD_IMAGE_IMAGE_H

#include <stdatomic.h>

#include "image/image_rule.h"

#define TD_IMAGE_HASH_BYTES 32
#define TD_IMAGE_WORKERS_MAX 64

typedef struct td_image_loader td_image_loader;

typedef struct {
    const char *program;      /* what has the subcommand decode-image; NULL: the program of this process (/proc/self/exe) */
    uint32_t    workers;      /* processes at a time, 1..TD_IMAGE_WORKERS_MAX */
    uint64_t    bytes_max;    /* of a file, 1..2^32 */
    uint64_t    pixels_max;   /* of a file's picture, height x width, 1..2^32 */
    uint64_t    memory_bytes; /* of a process, beside what it has when it starts */
    uint32_t    time_ms;      /* for a picture, from the start of its process; processor time is limited likewise */
} td_image_options;

/** This program; 2 processes; files of 64 MiB and 100 million pixels; 1.5 GiB; 30 s. Of four files of 100 million pixels the
 * largest took 1.2 GiB, and the longest 20 s beside other work on two cores: progressive JPEG, also in CMYK; PNG and lossless
 * WebP with alpha. */
td_image_options td_image_default_options(void);

/**
 * @param options copied, with program.
 * @param out     the caller's (td_image_loader_close).
 * @return TD_EINVAL for a member out of range; TD_ENOMEM. No process is started.
 */
TD_NODISCARD td_status td_image_loader_open(const td_image_options *options, td_image_loader **out, td_error *err);

/** No call may use the loader any more. NULL is fine. */
void td_image_loader_close(td_image_loader *loader);

/* A picture that is ready for a model. */
struct td_image {
    atomic_uint   refs;       /* acq_rel: the last owner sees what the others wrote */
    td_image_rule rule;       /* by which it was made */
    uint32_t      rows, cols; /* of patches: multiples of rule.merge. A model gets rows * cols / merge^2 tokens */
    uint8_t      *rgb;        /* [rows * patch, cols * patch, 3], red first; owned */
    uint8_t       hash[TD_IMAGE_HASH_BYTES]; /* SHA-256 of patch, rows, cols and rgb: the name of its content in caches */
};

/**
 * Make a file ready. It waits for a process, until this one has decoded and resized the picture.
 * @param rule  valid (td_image_rule_is_valid).
 * @param bytes n bytes of a JPEG, PNG or WebP (image/decode.h says how each is read), the caller's.
 * @param out   one reference, the caller's (td_image_release). Untouched unless TD_OK.
 * @return TD_ENOTSUP, TD_EFORMAT, TD_ELIMIT: the picture is at fault, and err says in a sentence for its sender how;
 *         TD_ENOMEM, TD_EIO: this machine is.
 */
TD_NODISCARD td_status td_image_load(td_image_loader *loader, const td_image_rule *rule, const uint8_t *bytes, size_t n,
                                     td_image **out, td_error *err);

/**
 * The same for a file as requests have it: a data URL (RFC 2397) with ";base64", or base64 alone (RFC 4648, section 4; with
 * padding or without). The media type of the URL counts for nothing.
 * @param text len bytes.
 * @return as td_image_load; TD_ENOTSUP for another URL.
 */
TD_NODISCARD td_status td_image_load_text(td_image_loader *loader, const td_image_rule *rule, const char *text, size_t len,
                                          td_image **out, td_error *err);

/** Values of a patch: 3 * frames * patch^2. */
size_t td_image_patch_values(const td_image_rule *rule);

/**
 * Write patches as the tower takes them: value = (byte - 255 mean) / (255 std), in float, of the channel.
 * Their order is that of transformers' image processors: Kimi's go row by row; all others block by block of merge x merge,
 * blocks and patches within them row by row.
 * @param first, n patches of [0, rows * cols).
 * @param out      [n, 3, frames, patch, patch] f32; every frame is the same.
 */
void td_image_patches(const td_image *image, size_t first, size_t n, float *out);

#endif
