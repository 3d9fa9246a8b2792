/* config.json and generation_config.json -> td_model_config. What a family's keys mean is in its file of model/arch/. What
 * this engine cannot compute is refused with the key's name. */
#ifndef TD_MODEL_ARCH_CONFIG_FILE_H
#define TD_MODEL_ARCH_CONFIG_FILE_H

#include "model/arch/model_config.h"

/**
 * Read config.json (path: a folder or the file itself) and generation_config.json beside it. The members of override_json
 * are merged over the former: objects member by member, recursively, anything else replaced. Absent keys have the defaults
 * of transformers' configuration classes, except bos and eos, which are then absent, and num_nextn_predict_layers, which is
 * then 0.
 * @return TD_ENOTFOUND, TD_EFORMAT (a missing or impossible value: err names the key), TD_ENOTSUP (architecture, rope type,
 * activation …).
 */
TD_NODISCARD td_status td_model_config_read(const char *path, const char *override_json, td_model_config *out,
                                            td_error *err);

/** The same from texts in memory. generation and override_json may be NULL. */
TD_NODISCARD td_status td_model_config_parse(const char *config, size_t config_len, const char *generation,
                                             size_t generation_len, const char *override_json, td_model_config *out,
                                             td_error *err);

#endif
