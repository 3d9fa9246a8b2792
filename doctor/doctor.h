/*
 * `tandem doctor` checks whether a device computes what it should, and how fast it exchanges data with this machine. It
 * needs no model and less than a minute.
 *
 * DESIGN. A check (check.h) makes what it needs on a device, runs it, and returns a figure with the bound that it must keep.
 * Results of a device are compared with those of the host device in f32 over the same numbers. These numbers are exact in
 * bf16 and, for blocks with int8 inputs, in int8. So a bound covers only what the block itself rounds. exam_blocks.c,
 * exam_device.c and exam_group.c have the lists of checks, rig.c the functions that checks are made of, and visit.c opens
 * the devices. Checks run on a thread of their own, so that a check that hangs can be reported.
 */
#ifndef TD_DOCTOR_DOCTOR_H
#define TD_DOCTOR_DOCTOR_H

#include "npu/npu.h"

typedef enum {
    TD_DOCTOR_OK,
    TD_DOCTOR_NOTE, /* nothing is wrong: the device lacks the feature, or the row is for information */
    TD_DOCTOR_FAILED,
} td_doctor_outcome;

/** The result of one check. Its texts are valid during the call of td_doctor_tell. */
typedef struct {
    const char       *part; /* "block" */
    const char       *what; /* "mlp, w8a8" */
    td_doctor_outcome outcome;
    const char       *found;        /* a sentence; "" if value and bound say enough */
    const char       *advice;       /* what to do, or NULL */
    double            value, bound; /* NAN: none */
    const char       *unit;         /* of value and bound */
    double            seconds;      /* duration of the check */
} td_doctor_row;

typedef void (*td_doctor_tell)(void *user, const td_doctor_row *row);

typedef struct {
    td_npu *const *cards; /* [n_cards] of one backend, with bf16 activations; all take part in checks of sums */
    uint32_t       n_cards;
    td_npu        *reference;  /* the host device with f32 activations, whose operations run when they are enqueued */
    uint32_t       patience_s; /* the longest that a check may take */
    td_doctor_tell tell;       /* called on the thread that runs the doctor */
    void          *user;
} td_doctor_exam;

/**
 * Run every check.
 * @return TD_OK when all checks have ended, whatever they found; TD_ENOMEM when their thread cannot be started; TD_EDEVICE
 * when a check took longer than patience_s, as its row says. Its thread still uses the cards then, so the caller can only
 * end the process.
 */
TD_NODISCARD td_status td_doctor_run(const td_doctor_exam *e, td_error *err);

/**
 * Examine a device: report what its backend finds out about the installation, open its cards, and run the checks.
 * @param device a backend's name. @param n_cards 0: all cards, or two if this machine's cores stand in for cards.
 * @return as td_doctor_run; a card that does not open is reported as a row.
 */
TD_NODISCARD td_status td_doctor_visit(const char *device, uint32_t n_cards, uint32_t patience_s, td_doctor_tell tell,
                                       void *user, td_error *err);

#endif
