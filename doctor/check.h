/* A check of the doctor, what it found, and the rig: the device it runs on, with everything it made there. */
#ifndef TD_DOCTOR_CHECK_H
#define TD_DOCTOR_CHECK_H

#include "doctor/doctor.h"

typedef struct {
    double      value, bound; /* NAN: none */
    const char *unit;
    char        said[TD_ERROR_TEXT_MAX];
    bool        is_note;
} td_finding;

/** A check. @return TD_ENOTSUP if the device lacks what is checked. Any other error, or a value above its bound, means that
 * the device is wrong. */
typedef td_status (*td_check_fn)(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err);

/** A subject on which a backend may have advice of its own (td_backend): the health of cards, or the group of cards. */
typedef enum { TD_SUBJECT_NONE, TD_SUBJECT_HEALTH, TD_SUBJECT_GROUP } td_subject;

typedef struct {
    const char *part, *what;
    td_check_fn run;
    const void *arg;
    const char *advice;  /* what to do when the check fails */
    td_subject  subject; /* the backend's advice on this subject is added */
} td_check;

typedef struct {
    const td_check *checks;
    size_t          n;
} td_check_list;

td_check_list td_exam_device(void);
td_check_list td_exam_blocks(void);
td_check_list td_exam_group(void);

/* ---- the rig ----------------------------------------------------------------------------------- */

#define TD_RIG_PIECES_MAX 96

typedef enum {
    TD_PIECE_DEVICE,
    TD_PIECE_PINNED,
    TD_PIECE_HOST,
    TD_PIECE_WEIGHT,
    TD_PIECE_BLOCK,
    TD_PIECE_GRAPH
} td_piece_kind;

/**
 * One device, and what a check has made on it. The first call that fails leaves its status and sentence in the rig; later
 * calls do nothing and return NULL. So a check is a plain list of calls and looks at the status once, at its end.
 */
typedef struct {
    td_npu           *npu;
    const td_npu_ops *ops;
    td_npu_stream    *stream;
    td_dtype          act;
    bool              unified, is_reference;
    td_status         st;
    td_error         *err;
    size_t            n_pieces;
    struct {
        td_piece_kind kind;
        void         *p;
        size_t        bytes;
    } pieces[TD_RIG_PIECES_MAX];
} td_rig;

void td_rig_open(td_rig *r, td_npu *npu, bool is_reference, td_error *err);
/** Free everything that the check made. @return the first failure. */
TD_NODISCARD td_status td_rig_close(td_rig *r);
/** Record a failure that the check itself has found, unless there is one already. */
void td_rig_fail(td_rig *r, td_status st, const char *what);

void  *td_rig_host(td_rig *r, size_t bytes); /* zeroed */
void  *td_rig_pinned(td_rig *r, size_t bytes);
void  *td_rig_alloc(td_rig *r, size_t bytes);
void   td_rig_put(td_rig *r, void *device, const void *from, size_t bytes);
void   td_rig_get(td_rig *r, const void *device, void *to, size_t bytes);
void   td_rig_sync(td_rig *r);
size_t td_rig_act_bytes(const td_rig *r, size_t n);

/** Random numbers in (-scale, scale) that bf16 holds exactly; a seed gives the same ones for each device. */
float *td_rig_noise(td_rig *r, uint64_t seed, size_t n, float scale);
/** Rows of k random whole numbers times 2^exponent, the largest 127: int8 and bf16 hold them exactly. */
float *td_rig_codes(td_rig *r, uint64_t seed, size_t rows, size_t k, int exponent);
/** The exponent for weights [., k] that makes outputs about as large as inputs. */
int td_rig_exponent(size_t k);

void          *td_rig_activations(td_rig *r, const float *x, size_t n); /* copies x to device memory, as act_dtype */
float         *td_rig_floats(td_rig *r, const void *device, size_t n);  /* activations, copied back as f32 */
td_npu_weight *td_rig_weight(td_rig *r, td_weight_format format, const float *w, size_t n,
                             size_t k); /* [n, k]; n 0: a vector of k */
/** The random weight of a linear; the reference device takes bf16 whatever the format. */
td_npu_weight *td_rig_linear(td_rig *r, td_weight_format format, uint64_t seed, size_t n, size_t k);
td_npu_block  *td_rig_block(td_rig *r, const td_block_desc *desc);

/** The arrays of a step in pinned memory and on the device. */
typedef struct {
    td_step step;
    char   *pinned, *device; /* equal with unified memory */
    size_t  bytes;
} td_rig_step;

td_rig_step td_rig_step_new(td_rig *r, uint32_t max_tok, uint32_t max_seq, uint32_t max_out, uint32_t block_stride);
/** Copy arrays to pinned memory; those that are NULL in `from` stay as they are. No operation that uses the step may be
 * under way. */
void td_rig_step_fill(td_rig *r, td_rig_step *s, const td_step_arrays *from);
void td_rig_step_upload(td_rig *r, const td_rig_step *s); /* enqueues the copy; may be captured */
void td_rig_enqueue(td_rig *r, td_npu_block *b, const td_rig_step *s);
/** Run a block over n rows that belong to no sequence, and wait. */
void td_rig_run_rows(td_rig *r, td_npu_block *b, uint32_t n);

#endif
