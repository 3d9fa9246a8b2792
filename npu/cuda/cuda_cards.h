/* Which NVIDIA cards the machine has, for people: what the driver says, and where Linux says that a card is. */
#ifndef TD_NPU_CUDA_CUDA_CARDS_H
#define TD_NPU_CUDA_CUDA_CARDS_H

#include "npu/cuda/cuda_api.h"
#include "tandem.h"

#define TD_CUDA_CARDS_MAX 64
#define TD_CUDA_PCI_BYTES 16 /* domain:bus:device.function, as in /sys/bus/pci/devices */

typedef struct {
    char   name[96];
    char   pci[TD_CUDA_PCI_BYTES];
    int    capability; /* compute capability, 10 * major + minor: 90 is an H100 */
    size_t memory_bytes;
    int    node; /* Linux' number of the NUMA node that it hangs on; -1 unknown */
} td_cuda_card;

/**
 * Load the driver, ask it, and unload it. Makes no context. Any thread, but not two at once.
 * @param n out: cards in out, at most TD_CUDA_CARDS_MAX
 * @return TD_OK; as td_cuda_load: TD_ENOTFOUND where there is no driver or no card
 */
TD_NODISCARD td_status td_cuda_cards(td_cuda_card out[TD_CUDA_CARDS_MAX], size_t *n, td_error *err);

/** The node of one of them. @return false: there is no such card, or nothing tells. */
bool td_cuda_card_node(uint32_t card, uint32_t *node);

/** A card's place on the PCI bus. @return as the driver does */
td_cu_status td_cuda_pci_of(const td_cuda *cu, td_cu_device device, char pci[TD_CUDA_PCI_BYTES]);

/** The node of such a place. @return -1: unknown */
int td_cuda_node_of(const char *pci);

#endif
