/*
 * Whole-file reads into page-aligned memory, and atomic writes, for the packed expert files.
 *
 * Reads go through io_uring with O_DIRECT, several in flight, so that a file goes from the disk directly to the huge pages
 * in which it will be used. Without io_uring, which containers often block, or without O_DIRECT, plain pread does the same.
 */
#ifndef TD_CPU_EXPERTS_PACKED_IO_H
#define TD_CPU_EXPERTS_PACKED_IO_H

#include "tandem.h"

/** A piece of a file and where it goes. Offset, size and destination are multiples of TD_FILE_BLOCK (core/memory/mem.h). */
typedef struct {
    uint64_t offset;
    size_t   bytes;
    void    *dst;
} packed_span;

typedef struct {
    bool no_uring, no_direct; /* for tests: take the other paths */
} packed_read_options;

/** Read all spans. @return TD_EIO (also when the file ends early), TD_ENOTFOUND; the sentence names the file. */
TD_NODISCARD td_status td_packed_read(const char *path, const packed_span *spans, size_t n_spans,
                                      const packed_read_options *options, td_error *err);

/** Read one piece of a file that is open, at any offset and size, and keep nothing of it in the page cache.
 * @param path names the file in sentences. @return TD_EIO, also when the file ends early. */
TD_NODISCARD td_status td_packed_read_piece(int fd, const char *path, packed_span piece, td_error *err);

typedef struct {
    const void *data;
    size_t      bytes;
} packed_part;

/**
 * Write the parts to a file that has no name yet, past the page cache as far as they are aligned to TD_FILE_BLOCK in memory
 * and file. Then sync the file, name it path.tmp.PID, rename that to path, and sync the folder. On failure nothing is left
 * behind. A killed process leaves nothing either, except on file systems where every file has a name. @return TD_EIO.
 */
TD_NODISCARD td_status td_packed_write(const char *path, const packed_part *parts, size_t n_parts, td_error *err);

#endif
