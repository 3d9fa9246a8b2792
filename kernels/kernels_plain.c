/* The list of tables on an architecture that has no vector kernels. */
#include "kernels/kernels.h"

const td_kernels *const td_kernels_all[] = {&td_kernels_scalar, NULL};
