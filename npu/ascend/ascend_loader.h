/*
 * The vendor's libraries, found and opened at run time: Tandem neither links with them nor needs them to start.
 *
 * DESIGN. One folder is looked for that has the runtime library, first where the environment points (ASCEND_HOME_PATH,
 * ASCEND_TOOLKIT_HOME), then as the dynamic linker finds plain names (LD_LIBRARY_PATH), then where CANN installs itself.
 * Every library is taken from that place. A symbol is looked up in each of them in turn, because CANN moves symbols from one
 * file to another between versions. Where the environment does not say where the operations' kernels are, it is made to
 * (ASCEND_HOME_PATH and ASCEND_OPP_PATH), before the operations are opened. Nothing is opened twice and nothing is mixed: a card's operations come from the same
 * CANN as its runtime.
 */
#ifndef TD_NPU_ASCEND_ASCEND_LOADER_H
#define TD_NPU_ASCEND_ASCEND_LOADER_H

#include "npu/ascend/acl_api.h"
#include "npu/ascend/aclnn_api.h"
#include "tandem.h"

#define TD_ASCEND_LIBRARIES_MAX 32
#define TD_ASCEND_FOLDER_MAX 512
#define TD_ASCEND_CANN_OLDEST 801 /* 100 * major + minor: 8.1 */
#define TD_ASCEND_CANN_NEWEST 999 /* of those whose documents were read */

typedef struct {
    td_acl      acl;
    td_aclnn    ops;
    bool        has_hccl;                     /* its functions are all there */
    char        folder[TD_ASCEND_FOLDER_MAX]; /* where the libraries are; "" as the dynamic linker found them */
    char        cann[TD_ACL_VERSION_CHARS];   /* "8.2.RC1"; "" unknown */
    uint32_t    cann_number;                  /* 100 * major + minor; 0 unknown */
    size_t      n_libraries;
    void       *libraries[TD_ASCEND_LIBRARIES_MAX]; /* as dlopen gave them */
    const char *names[TD_ASCEND_LIBRARIES_MAX];     /* [n_libraries] file names; owned */
} td_ascend_libraries;

/**
 * Open the libraries and find every function of acl_api.h and aclnn_api.h. Touches no device. Any thread, but not two at
 * once.
 * @param out zeroed by the call. The libraries stay open until the process ends.
 * @return TD_OK; TD_ENOTFOUND without the libraries, TD_ENOTSUP for a CANN that is too old or lacks what cannot be done
 * without, each with a sentence that names file, symbol and version; out is empty then.
 */
TD_NODISCARD td_status td_ascend_load(td_ascend_libraries *out, td_error *err);

/** What the libraries do not have and the backend does without, a sentence a line into text. @return how many. */
size_t td_ascend_missing(const td_ascend_libraries *l, char *text, size_t text_bytes);

/** "8.2.RC1", "9.0.0-beta.1" -> 802, 900. @return 0: not a version. */
uint32_t td_ascend_cann_number(const char *version);

/** Whether the libraries have what routed experts on the card need. */
bool td_ascend_has_experts(const td_ascend_libraries *l);

#endif
