/*
 * DCMI, the driver's library for management, is asked for a card's temperature and nothing else. Source: "DCMI API
 * reference" of the Ascend driver: dcmi_init comes first; a card there is a board and a chip on it, which
 * dcmi_get_card_id_device_id_from_logicid gives; 0 is success.
 */
#include "npu/ascend/ascend_temperature.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/log/log.h"

static const char *const NAMES[] = {"libdcmi.so", "/usr/local/dcmi/libdcmi.so"}; /* the driver puts it there */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool looked, there;
    int (*start)(void);
    int (*place)(int *board, int *chip, unsigned card);
    int (*temperature)(int board, int chip, int *celsius);
} dcmi; /* under the lock; never unloaded */

/* POSIX has a function's address come as void *; a copy of the bytes is what ISO C leaves. */
static bool find(void *library, const char *symbol, void *function) {
    void *at = dlsym(library, symbol);
    memcpy(function, &at, sizeof at);
    return at != NULL;
}

static void look(void) {
    void *library = NULL;
    dcmi.looked = true;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !library; i++) library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    dcmi.there = find(library, "dcmi_init", &dcmi.start) &&
                 find(library, "dcmi_get_card_id_device_id_from_logicid", &dcmi.place) &&
                 find(library, "dcmi_get_device_temperature", &dcmi.temperature);
    int code = dcmi.there ? dcmi.start() : 0;
    if (code) td_info("the cards' temperatures are not known: dcmi_init failed with %d", code);
    dcmi.there = dcmi.there && code == 0;
}

/* What the driver calls the card; ASCEND_RT_VISIBLE_DEVICES gives the process numbers of its own. */
static bool logical(const td_acl *acl, int32_t card, int32_t *out) {
    const char *visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
    *out = card;
    if (acl->aclrtGetLogicDevIdByUserDevId) return acl->aclrtGetLogicDevIdByUserDevId(card, out) == TD_ACL_SUCCESS;
    return !visible || !*visible;
}

double td_ascend_temperature(const td_acl *acl, int32_t card) {
    int32_t driver_card;
    int     board, chip, celsius = 0;
    pthread_mutex_lock(&lock);
    if (!dcmi.looked) look();
    bool told = dcmi.there && logical(acl, card, &driver_card) && dcmi.place(&board, &chip, (unsigned)driver_card) == 0 &&
                dcmi.temperature(board, chip, &celsius) == 0;
    pthread_mutex_unlock(&lock);
    return told ? celsius : NAN;
}
