/* The backend as a value, and what it tells of its installation: the driver and its cards. */
#include <stdio.h>

#include "npu/cuda/cuda_cards.h"
#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_open.h"

#define USABLE "compute capability 8.0 or later"
_Static_assert(TD_CUDA_CAPABILITY_OLDEST == 80, "USABLE says so");

static void tell_facts(td_npu_fact_fn tell, void *user) {
    td_accelerator cards[TD_ACCELERATORS_MAX];
    size_t         n = 0;
    td_error       err = {0};
    char           text[160];
    if (td_cuda_cards(cards, &n, &err) != TD_OK) {
        tell(user,
             &(td_npu_fact){.what = "NVIDIA driver", .found = "none that serves", .advice = err.text, .is_wrong = true});
        return;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%.80s, sm_%d, %.1f GiB, %s", cards[i].name, cards[i].compute_capability,
                 (double)cards[i].memory_bytes / (double)(1u << 30), cards[i].pci);
        tell(user, &(td_npu_fact){
                       .what = "card", .found = text, .advice = cards[i].is_usable ? NULL : "the kernels need " USABLE});
    }
}

const td_backend td_cuda_backend = {
    .name = "cuda",
    .help = "an NVIDIA card (docs/cuda.md)",
    .open = td_cuda_npu_open,
    .tell_facts = tell_facts,
    .list_accelerators = td_cuda_cards,
    .vendor = "NVIDIA",
    .usable = USABLE,
};
