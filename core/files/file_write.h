/* Bytes to a place of a file: through the page cache, or past it; and whether it is another one. */
#ifndef TD_CORE_FILES_FILE_WRITE_H
#define TD_CORE_FILES_FILE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TD_WRITE_BYTES ((size_t)16 << 20) /* of one write past the cache */

/** All of it, through the page cache. @return 0 or an errno. */
int td_file_write_at(int fd, const void *data, size_t bytes, uint64_t offset);

/**
 * All of it, past the page cache as far as it fills whole pages of the file, which whoever writes gigabytes wants: a fresh
 * page of that cache can cost more than the disk, and nobody reads them soon. Where the file system cannot, and what does
 * not fill a page: through the cache. One thread at a time for a descriptor.
 * @param bounce  TD_WRITE_BYTES, page-aligned, for data that does not lie in memory as it will in the file; NULL: such data
 * goes through the cache.
 * @return 0 or an errno.
 */
int td_file_write_past_cache(int fd, const void *data, size_t bytes, uint64_t offset, void *bounce);

/** Whether two paths are one file that is there: writing to a would destroy b. NULL is none. */
bool td_same_file(const char *a, const char *b);

#endif
