/*
 * What a loader and the process of a picture say to each other, over a socket that is the process's standard input. Both are
 * the same program, so numbers lie as in memory; each side checks all that the other sends.
 *
 *   loader   td_image_question, `bytes` bytes of the file
 *   process  td_image_answer, with TD_OK canvas_height * canvas_width * 3 bytes; then it ends
 */
#ifndef TD_IMAGE_IMAGE_PROTOCOL_H
#define TD_IMAGE_IMAGE_PROTOCOL_H

#include "image/image_rule.h"

#define TD_IMAGE_QUESTION 0x31717469u /* "itq1": the number is the protocol's */
#define TD_IMAGE_ANSWER 0x31617469u   /* "ita1" */

#define TD_IMAGE_SIZE_MAX (1ull << 32) /* bytes of a file, and pixels of its picture */

typedef struct {
    uint32_t      magic;
    uint32_t      time_s;       /* of the processor */
    uint64_t      memory_bytes; /* beside what the process has when it starts */
    uint64_t      pixels_max, bytes;
    td_image_rule rule;
} td_image_question;

typedef struct {
    uint32_t magic;
    int32_t  status;                      /* TD_OK, TD_EFORMAT, TD_ENOTSUP or TD_ELIMIT */
    uint32_t height, width;               /* of the file's picture, as its orientation says */
    uint32_t canvas_height, canvas_width; /* what td_image_size_of makes of it */
    char     text[TD_ERROR_TEXT_MAX];     /* a sentence, unless TD_OK */
} td_image_answer;

#endif
