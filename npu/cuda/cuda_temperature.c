/*
 * NVML, the driver's library for management, is asked for a card's temperature and nothing else. Source: "NVML API
 * Reference Guide" (docs.nvidia.com/deploy/nvml-api), "Initialization and Cleanup" and "Device Queries": nvmlInit comes
 * first; a card is found by its place on the PCI bus; 0 is success, and so is NVML_TEMPERATURE_GPU.
 */
#include "npu/cuda/cuda_temperature.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "core/log/log.h"

#define LIBRARY "libnvidia-ml.so.1"
#define OF_THE_CHIP 0 /* NVML_TEMPERATURE_GPU */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool looked, there;
    int (*start)(void);
    int (*find)(const char *pci, void **card);
    int (*temperature)(void *card, unsigned sensor, unsigned *celsius);
} nvml; /* under the lock; never unloaded */

/* POSIX has a function's address come as void *; a copy of the bytes is what ISO C leaves. */
static bool find(void *library, const char *symbol, void *function) {
    void *at = dlsym(library, symbol);
    memcpy(function, &at, sizeof at);
    return at != NULL;
}

static void look(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    nvml.looked = true;
    if (!library) return;
    nvml.there = find(library, "nvmlInit_v2", &nvml.start) &&
                 find(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml.find) &&
                 find(library, "nvmlDeviceGetTemperature", &nvml.temperature);
    int code = nvml.there ? nvml.start() : 0;
    if (code) td_info("the cards' temperatures are not known: nvmlInit failed with %d", code);
    nvml.there = nvml.there && code == 0;
}

double td_cuda_temperature(const char *pci) {
    void    *card = NULL;
    unsigned celsius = 0;
    pthread_mutex_lock(&lock);
    if (!nvml.looked) look();
    bool told = nvml.there && nvml.find(pci, &card) == 0 && nvml.temperature(card, OF_THE_CHIP, &celsius) == 0;
    pthread_mutex_unlock(&lock);
    return told ? celsius : NAN;
}
