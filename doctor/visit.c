/* Opens the devices of an examination, reports on their installation, and closes them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/thread.h"
#include "doctor/doctor.h"
#include "npu/host/host_npu.h"

#define CARDS_PLAYED 2

typedef struct {
    const char *device;
    uint32_t    n_cards;   /* how many to open; 0: all */
    bool        is_played; /* this machine's cores stand in for cards */
    td_npu     *cards[TD_CARDS_MAX], *reference;
    td_pool    *pools[TD_CARDS_MAX + 1];
    uint32_t    n_opened, n_pools;
} devices;

typedef struct {
    td_doctor_tell tell;
    void          *user;
    bool           is_whole;
} listener;

static void tell_fact(void *user, const td_npu_fact *fact) {
    listener         *l = user;
    td_doctor_outcome outcome = fact->is_wrong ? TD_DOCTOR_FAILED : fact->advice ? TD_DOCTOR_NOTE : TD_DOCTOR_OK;
    if (fact->is_wrong) l->is_whole = false;
    l->tell(l->user, &(td_doctor_row){.part = "installation",
                                      .what = fact->what,
                                      .outcome = outcome,
                                      .found = fact->found,
                                      .advice = fact->advice,
                                      .value = NAN,
                                      .bound = NAN});
}

static uint32_t cpus(void) {
    cpu_set_t set;
    uint32_t  n = td_thread_cpus(&set) ? (uint32_t)CPU_COUNT(&set) : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > TD_POOL_WORKERS_MAX ? TD_POOL_WORKERS_MAX : n;
}

static td_status open_pool(devices *v, uint32_t threads, td_pool **out, td_error *err) {
    td_worker_place *places = calloc(threads, sizeof *places);
    if (!places) return td_fail(err, TD_ENOMEM, "out of memory for threads");
    for (uint32_t i = 0; i < threads; i++) places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    td_status st = td_pool_create(places, threads, out, err);
    if (st == TD_OK) v->pools[v->n_pools++] = *out;
    free(places);
    return st;
}

static td_status open_card(devices *v, td_error *err) {
    td_host_npu_config host = {.own_threads = true};
    td_npu_config      config = {.act_dtype = TD_DT_BF16, .host = v->is_played ? &host : NULL, .card = v->n_opened};
    if (v->is_played) {
        uint32_t each = cpus() / v->n_cards;
        TD_TRY(open_pool(v, each ? each : 1, &host.pool, err));
    }
    TD_TRY(td_npu_open(v->device, &config, &v->cards[v->n_opened], err));
    v->n_opened++;
    return TD_OK;
}

static td_status open_devices(devices *v, td_error *err) {
    td_host_npu_config host = {0};
    TD_TRY(open_pool(v, cpus(), &host.pool, err));
    TD_TRY(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_F32, .host = &host}, &v->reference, err));
    while (v->n_opened < TD_CARDS_MAX && (!v->n_cards || v->n_opened < v->n_cards)) {
        td_status st = open_card(v, err);
        if (st == TD_EINVAL && !v->n_cards && v->n_opened) break; /* the card does not exist, so all are open */
        TD_TRY(st);
    }
    return TD_OK;
}

static void close_devices(devices *v) {
    while (v->n_opened) {
        td_npu *card = v->cards[--v->n_opened];
        card->ops->close(card);
    }
    if (v->reference) v->reference->ops->close(v->reference);
    while (v->n_pools) td_pool_destroy(v->pools[--v->n_pools]);
}

static void tell_opened(const devices *v, td_status st, const td_error *err, td_doctor_tell tell, void *user) {
    char text[TD_ERROR_TEXT_MAX];
    if (st == TD_OK) {
        td_npu_caps caps;
        v->cards[0]->ops->caps(v->cards[0], &caps);
        snprintf(text, sizeof text, "%u x %s", v->n_opened, caps.text);
    } else {
        snprintf(text, sizeof text, "%s", err->text);
    }
    tell(user, &(td_doctor_row){.part = "device",
                                .what = "opens",
                                .outcome = st == TD_OK ? TD_DOCTOR_OK : TD_DOCTOR_FAILED,
                                .found = text,
                                .value = NAN,
                                .bound = NAN});
}

td_status td_doctor_visit(const char *device, uint32_t n_cards, uint32_t patience_s, td_doctor_tell tell, void *user,
                          td_error *err) {
    listener l = {tell, user, true};
    devices  v = {.device = device};
    td_backend_find(device)->tell_facts(tell_fact, &l);
    if (!l.is_whole) return TD_OK; /* rows were reported that say what is missing */
    v.is_played = td_npu_threads_needed(device, CARDS_PLAYED) > 0;
    v.n_cards = !n_cards && v.is_played ? CARDS_PLAYED : n_cards;
    td_status st = open_devices(&v, err);
    tell_opened(&v, st, err, tell, user);
    if (st == TD_OK)
        st = td_doctor_run(&(td_doctor_exam){.cards = v.cards,
                                             .n_cards = v.n_opened,
                                             .reference = v.reference,
                                             .patience_s = patience_s,
                                             .tell = tell,
                                             .user = user},
                           err);
    else
        st = TD_OK;
    if (st == TD_EDEVICE) return st; /* a check hangs and still uses the devices, so they stay open */
    close_devices(&v);
    return st;
}
