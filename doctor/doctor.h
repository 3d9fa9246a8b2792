/*
 * `tandem doctor`: does a device compute what it should, and how fast does it talk to this machine? Without a model, in less
 * than a minute.
 *
 * DESIGN. A check (check.h) makes what it needs on a device, runs it, and finds a figure and the bound that it has to keep.
 * What a device computes is held against the host device in f32 over the same numbers. The numbers are chosen so that they
 * can be kept exactly in bf16 and, where int8 is a block's input, in int8 too; so a bound is what the block itself rounds.
 * The checks are lists: exam_blocks.c, exam_device.c, exam_group.c; what they are made with is rig.c, and visit.c opens the
 * devices. They run on a thread of their own, so that one which
 * hangs can be told.
 */
#ifndef TD_DOCTOR_DOCTOR_H
#define TD_DOCTOR_DOCTOR_H

#include "npu/npu.h"

typedef enum {
    TD_DOCTOR_OK,
    TD_DOCTOR_NOTE, /* nothing is wrong: the device does not have it, or it is a figure to know */
    TD_DOCTOR_FAILED,
} td_doctor_outcome;

/** What was found. Texts are valid during the call that tells it. */
typedef struct {
    const char       *part; /* "block" */
    const char       *what; /* "mlp, w8a8" */
    td_doctor_outcome outcome;
    const char       *found;        /* a sentence; "" where value and bound say it all */
    const char       *advice;       /* what to do; NULL: nothing */
    double            value, bound; /* NAN: none */
    const char       *unit;         /* of both */
    double            seconds;      /* that the check took */
} td_doctor_row;

typedef void (*td_doctor_tell)(void *user, const td_doctor_row *row);

typedef struct {
    td_npu *const *cards; /* [n_cards] of one backend with bf16 activations; the first one is examined, all of them sum */
    uint32_t       n_cards;
    td_npu        *reference;  /* the host device with f32 activations, inline */
    uint32_t       patience_s; /* that a check may take */
    td_doctor_tell tell;       /* called on the caller's thread */
    void          *user;
} td_doctor_exam;

/**
 * Run every check.
 * @return TD_OK: all have ended; TD_EDEVICE: one did not within the patience, which its row tells: its thread uses the cards
 * for ever, and all that is left is to end the process; TD_ENOMEM: there is no thread for them.
 */
TD_NODISCARD td_status td_doctor_run(const td_doctor_exam *e, td_error *err);

/**
 * All about a device: what its backend finds out about its installation, whether its cards open, then the checks.
 * @param device a backend's name. @param n_cards 0: all that there are, or two that this machine's cores play.
 * @return as td_doctor_run; what does not open is a row.
 */
TD_NODISCARD td_status td_doctor_visit(const char *device, uint32_t n_cards, uint32_t patience_s, td_doctor_tell tell,
                                       void *user, td_error *err);

#endif
