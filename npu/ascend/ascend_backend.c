/* The backend as a value (td_backend), and the facts of its installation: driver, firmware, CANN, its functions, the files
 * of the cards. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/plural.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_open.h"

#define TEXT 512
#define INSTALLED "/etc/ascend_install.info" /* where the driver's installer notes its folder */
#define FOLDER "/usr/local/Ascend"

typedef struct {
    td_npu_fact_fn tell;
    void          *user;
} listener;

static void say(const listener *l, const char *what, const char *found, const char *advice) {
    l->tell(l->user, &(td_npu_fact){.what = what, .found = found, .advice = advice});
}

/* ---- files ------------------------------------------------------------------------------------- */

/* The value of the line "key=value" of a file. @return false: there is none. */
static bool value_of(const char *path, const char *key, char *out, size_t bytes) {
    char   line[TEXT];
    FILE  *f = fopen(path, "r");
    size_t n = strlen(key);
    bool   found = false;
    while (f && !found && fgets(line, sizeof line, f))
        if (!strncasecmp(line, key, n) && line[n] == '=') {
            line[strcspn(line, "\r\n")] = 0;
            snprintf(out, bytes, "%s", line + n + 1);
            found = true;
        }
    if (f) fclose(f);
    return found;
}

static void tell_version(const listener *l, const char *what, const char *advice) {
    char folder[TEXT / 2] = FOLDER, path[TEXT], version[128];
    (void)value_of(INSTALLED, "Driver_Install_Path_Param", folder, sizeof folder);
    snprintf(path, sizeof path, "%s/%s/version.info", folder, what);
    if (value_of(path, "Version", version, sizeof version))
        say(l, what, version, NULL);
    else
        say(l, what, "no version.info of it", advice);
}

static void tell_device_files(const listener *l) {
    static const char *const CONTROL[] = {"/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"};
    char                     text[TEXT];
    size_t                   used = 0;
    unsigned                 cards = 0, locked = 0;
    DIR                     *dev = opendir("/dev");
    for (struct dirent *e; dev && (e = readdir(dev));) {
        char     path[sizeof "/dev/" + sizeof e->d_name];
        unsigned number;
        if (sscanf(e->d_name, "davinci%u", &number) != 1) continue;
        snprintf(path, sizeof path, "/dev/%s", e->d_name);
        cards++;
        locked += access(path, R_OK | W_OK) != 0;
    }
    if (dev) closedir(dev);
    used = (size_t)snprintf(text, sizeof text, "%u card%s (/dev/davinci*), %u of them out of this user's reach", cards,
                            td_plural(cards), locked);
    bool whole = cards > locked;
    for (size_t i = 0; i < sizeof CONTROL / sizeof *CONTROL; i++)
        if (access(CONTROL[i], R_OK | W_OK) != 0) {
            used += (size_t)snprintf(text + used, sizeof text - used, ", no access to %s", CONTROL[i]);
            whole = false;
        }
    say(l, "device files", text,
        whole
            ? NULL
            : "install the driver; let this user into the group HwHiAiUser; give a container these files (docs/ascend.md)");
}

/* ---- libraries --------------------------------------------------------------------------------- */

static void tell_missing(const listener *l, const td_ascend_libraries *libraries) {
    char   text[16 * TEXT];
    size_t n = td_ascend_missing(libraries, text, sizeof text);
    char   all[96];
    snprintf(all, sizeof all, "all that cannot be done without, %zu that can are missing", n);
    say(l, "functions", all, NULL);
    for (char *line = n ? text : NULL, *end; line; line = end) {
        end = strchr(line, '\n');
        if (end) *end++ = 0;
        say(l, "missing", line, "a newer CANN may have it");
    }
}

static void tell_libraries(const listener *l) {
    const td_ascend_libraries *libraries;
    td_error                   err = {0};
    char                       text[TEXT] = "";
    if (td_ascend_libraries_get(&libraries, &err) != TD_OK) {
        l->tell(l->user, &(td_npu_fact){.what = "CANN",
                                        .found = err.text,
                                        .advice = "source CANN's set_env.sh; docs/ascend.md tells how it is installed",
                                        .is_wrong = true});
        return;
    }
    say(l, "CANN", *libraries->cann ? libraries->cann : "of an unknown version", NULL);
    size_t used = (size_t)snprintf(text, sizeof text, "%s:", *libraries->folder ? libraries->folder : "LD_LIBRARY_PATH");
    for (size_t i = 0; i < libraries->n_libraries && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", libraries->names[i]);
    say(l, "libraries", text, NULL);
    tell_missing(l, libraries);
}

static void tell_facts(td_npu_fact_fn tell, void *user) {
    listener    l = {tell, user};
    const char *visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
    tell_version(&l, "driver", "install it: docs/ascend.md");
    tell_version(&l, "firmware", "install it: docs/ascend.md");
    tell_device_files(&l);
    if (visible) say(&l, "ASCEND_RT_VISIBLE_DEVICES", visible, NULL);
    tell_libraries(&l);
}

/* There is no list_accelerators: AscendCL tells nothing of a card before it is open. */
const td_backend td_ascend_backend = {
    .name = "npu",
    .aliases = (const char *const[]){"ascend", NULL},
    .help = "an Ascend card (docs/ascend.md)",
    .open = td_ascend_npu_open,
    .tell_facts = tell_facts,
    .health_advice = "npu-smi info shows the health of the cards and what uses them",
    .group_advice = TD_ASCEND_GROUP_ADVICE,
};
