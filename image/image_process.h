/* The loader's side of a picture's process: start it, ask, check the answer, and see that it ends. */
#ifndef TD_IMAGE_IMAGE_PROCESS_H
#define TD_IMAGE_IMAGE_PROCESS_H

#include "image/image_protocol.h"
#include "image/picture.h"

/**
 * Have a file decoded and made ready.
 * @param program what has the subcommand decode-image.
 * @param time_ms from now until the process has ended; it is killed when they are over.
 * @param q       what is asked; its magic and time_s are filled in.
 * @param file    q->bytes bytes.
 * @param out     the canvas; the caller's. Untouched unless TD_OK.
 * @return as td_image_load. The process has ended whatever comes back. Thread-safe.
 */
TD_NODISCARD td_status td_image_process_ask(const char *program, uint32_t time_ms, td_image_question *q, const uint8_t *file,
                                            td_picture *out, td_error *err);

#endif
