/* The folder that --model-path names, looked at before anything else: sentences for what people give in its place. */
#ifndef TD_ENGINE_MODEL_FOLDER_H
#define TD_ENGINE_MODEL_FOLDER_H

#include <stdbool.h>

#include "tandem.h"

/**
 * Whether a path is a model's folder: one with a config.json.
 * @param weights whether weights will be read from it; without them the path may also be the config.json itself.
 * @return TD_ENOTFOUND for a path that does not exist, a model's name on a hub for example, and for a folder without
 * config.json. TD_ENOTSUP for GGUF, TD_EINVAL for a file in place of a folder, TD_EIO.
 */
TD_NODISCARD td_status td_model_folder_check(const char *path, bool weights, td_error *err);

#endif
