/* `tandem launch_server` over the fake engine, and the process in which an image of its requests is decoded. */
#include <string.h>

#include "cli/cli.h"
#include "image/image_worker.h"

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], TD_IMAGE_COMMAND)) return td_image_worker_run();
    return td_cmd_launch_server(argc - 1, argv + 1);
}
