#include "npu/cuda/cuda_cards.h"

#include <ctype.h>
#include <stdio.h>

#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_loader.h"

int td_cuda_node_of(const char *pci) {
    char  path[64];
    int   node = -1;
    FILE *f;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
    f = fopen(path, "r");
    if (f && fscanf(f, "%d", &node) != 1) node = -1;
    if (f) fclose(f);
    return node;
}

td_cu_status td_cuda_pci_of(const td_cuda *cu, td_cu_device device, char pci[TD_PCI_BYTES]) {
    td_cu_status st = cu->cuDeviceGetPCIBusId(pci, TD_PCI_BYTES, device);
    pci[st == TD_CUDA_SUCCESS ? TD_PCI_BYTES - 1 : 0] = 0;
    for (char *c = pci; *c; c++) *c = (char)tolower((unsigned char)*c); /* as Linux writes it */
    return st;
}

static td_cu_status ask(const td_cuda *cu, int ordinal, td_accelerator *card) {
    td_cu_device device;
    int          major = 0, minor = 0;
    td_cu_status st = cu->cuDeviceGet(&device, ordinal);
    *card = (td_accelerator){0};
    if (st == TD_CUDA_SUCCESS) st = cu->cuDeviceGetName(card->name, sizeof card->name, device);
    if (st == TD_CUDA_SUCCESS) st = td_cuda_pci_of(cu, device, card->pci);
    if (st == TD_CUDA_SUCCESS) st = cu->cuDeviceTotalMem(&card->memory_bytes, device);
    if (st == TD_CUDA_SUCCESS)
        st = cu->cuDeviceGetAttribute(&major, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (st == TD_CUDA_SUCCESS)
        st = cu->cuDeviceGetAttribute(&minor, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    card->compute_capability = 10 * major + minor;
    card->is_usable = card->compute_capability >= TD_CUDA_CAPABILITY_OLDEST;
    card->name[sizeof card->name - 1] = 0;
    card->node = td_cuda_node_of(card->pci);
    return st;
}

td_status td_cuda_cards(td_accelerator out[TD_ACCELERATORS_MAX], size_t *n, td_error *err) {
    td_cuda_driver driver;
    td_status      st = td_cuda_load(&driver, err);
    *n = 0;
    for (int i = 0; st == TD_OK && i < driver.n_cards && i < TD_ACCELERATORS_MAX; i++) {
        char         what[64];
        td_cu_status said = ask(&driver.api, i, &out[*n]);
        snprintf(what, sizeof what, "NVIDIA's driver does not describe its card %d", i);
        if (said == TD_CUDA_SUCCESS)
            ++*n;
        else
            st = td_cuda_fail(&driver.api, err, what, said);
    }
    td_cuda_unload(&driver);
    return st;
}
