#include "cli/standard_output.h"

#include <stdio.h>

int td_standard_output_end(const char *command) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fprintf(stderr, "%s: cannot write standard output\n", command);
    return 1;
}
