/* Which NVIDIA cards the machine has, for people: what the driver says, and where Linux says that a card is. */
#ifndef TD_NPU_CUDA_CUDA_CARDS_H
#define TD_NPU_CUDA_CUDA_CARDS_H

#include "npu/cuda/cuda_api.h"
#include "npu/npu.h"

/**
 * Load the driver, ask it, and unload it. Makes no context. Any thread, but not two at once.
 * @param n out: cards in out, at most TD_ACCELERATORS_MAX
 * @return TD_OK; as td_cuda_load: TD_ENOTFOUND where there is no driver or no card
 */
TD_NODISCARD td_status td_cuda_cards(td_accelerator out[TD_ACCELERATORS_MAX], size_t *n, td_error *err);

/** A card's place on the PCI bus. @return as the driver does */
td_cu_status td_cuda_pci_of(const td_cuda *cu, td_cu_device device, char pci[TD_PCI_BYTES]);

/** The node of such a place. @return -1: unknown */
int td_cuda_node_of(const char *pci);

#endif
