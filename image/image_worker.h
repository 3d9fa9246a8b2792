/* The process of a picture: `tandem decode-image`, which a loader starts (image/image.h). */
#ifndef TD_IMAGE_IMAGE_WORKER_H
#define TD_IMAGE_IMAGE_WORKER_H

/** The subcommand. It is for no person, so no help lists it. */
#define TD_IMAGE_COMMAND "decode-image"

/**
 * Answer the question that comes over standard input, a socket (image/image_protocol.h), and give up all rights before the
 * file is looked at (image/image_sandbox.h).
 * @return main's: 0 when an answer was written, also one that refuses the picture; 2 where standard input is no socket or
 *         the question is none; 1 where the other side is gone, or no limits could be set.
 */
int td_image_worker_run(void);

#endif
