/* Writes bytes at an offset of a file, through the page cache or past it. */
#ifndef TD_CORE_FILES_FILE_WRITE_H
#define TD_CORE_FILES_FILE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TD_WRITE_BYTES ((size_t)16 << 20) /* bytes of one write past the cache */

/** Write all bytes, through the page cache. @return 0 or an errno. */
int td_file_write_at(int fd, const void *data, size_t bytes, uint64_t offset);

/**
 * Write all bytes; those that fill whole pages of the file go past the page cache, if the file system can do that. This is
 * for gigabytes that nobody reads soon: a fresh page of the cache can cost more than the disk. One thread at a time for a
 * descriptor.
 * @param bounce  TD_WRITE_BYTES, page-aligned, for data whose alignment in memory differs from that in the file; NULL: such
 * data goes through the cache.
 * @return 0 or an errno.
 */
int td_file_write_past_cache(int fd, const void *data, size_t bytes, uint64_t offset, void *bounce);

/** Whether two paths are one existing file, so that writing to a would destroy b. NULL is no file. */
bool td_same_file(const char *a, const char *b);

#endif
