/* `tandem launch_server` over the fake engine. */
#include "cli/cli.h"

int main(int argc, char **argv) {
    return td_cmd_launch_server(argc - 1, argv + 1);
}
