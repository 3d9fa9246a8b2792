/* The flags that say which model a command loads, and how: those of launch_server that make sense without a server. */
#ifndef TD_CLI_MODEL_FLAGS_H
#define TD_CLI_MODEL_FLAGS_H

#include "tandem.h"

/**
 * Take "--<prefix><flag> VALUE" and "--<prefix><flag>=VALUE" of every such flag out of argv and into o; the rest stays, in order.
 * Values are borrowed from argv; what names they may have is the engine's to check.
 * @param prefix "", or "against-" for a second model.
 * @return TD_EINVAL with a sentence that names the flag.
 */
TD_NODISCARD td_status td_model_flags_take(int *argc, char **argv, const char *prefix, td_engine_options *o, td_error *err);

/** For --help: a line a flag. */
extern const char TD_MODEL_FLAGS_HELP[];

#endif
