/*
 * libnvidia-ml.so.1 of the driver, as far as the backend asks it. Source: "NVML API Reference Guide", Initialization and
 * Cleanup, Device Queries. The cards are those of the stand-in for the driver (cuDeviceGetPCIBusId), the last one first, as
 * NVML's order is its own; card n has 50 + n degrees. TD_STANDIN_NVML (0): the status of nvmlInit.
 */
#include <stdio.h>

#include "tests/standins/parts/standin_parts.h"

enum { INVALID_ARGUMENT = 2, NOT_FOUND = 6 };

#define CARDS_MAX 16

const standin_documents STANDIN_DOCUMENTS = {.name = "nvml"};

struct nvml_card {
    unsigned n;
};

static _Atomic bool     started;
static struct nvml_card cards[CARDS_MAX];

STANDIN_EXPORT int nvmlInit_v2(void);
STANDIN_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct nvml_card **card);
STANDIN_EXPORT int nvmlDeviceGetTemperature(struct nvml_card *card, unsigned sensor, unsigned *celsius);

int nvmlInit_v2(void) {
    int status = (int)standin_setting("TD_STANDIN_NVML", 0);
    started = status == 0;
    return status;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct nvml_card **card) {
    unsigned domain, bus, device, function;
    if (!started) standin_refuse("nvmlInit", "nvmlDeviceGetHandleByPciBusId before nvmlInit has succeeded");
    if (!pci || !card) return INVALID_ARGUMENT;
    if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return INVALID_ARGUMENT;
    uint64_t n = bus - 0x3b;
    if (domain || device || function || bus < 0x3b || n >= CARDS_MAX || n >= standin_setting("TD_STANDIN_DEVICES", 2))
        return NOT_FOUND;
    cards[n].n = (unsigned)n;
    *card = &cards[n];
    return 0;
}

int nvmlDeviceGetTemperature(struct nvml_card *card, unsigned sensor, unsigned *celsius) {
    if (!started) standin_refuse("nvmlInit", "nvmlDeviceGetTemperature before nvmlInit has succeeded");
    if (card < cards || card >= cards + CARDS_MAX)
        standin_refuse("nvmlDeviceGetTemperature", "the temperature of %p, which is no card", (void *)card);
    if (sensor != 0) standin_refuse("nvmlDeviceGetTemperature", "sensor %u: NVML_TEMPERATURE_GPU is the only one", sensor);
    if (!celsius) return INVALID_ARGUMENT;
    *celsius = 50 + card->n;
    return 0;
}
