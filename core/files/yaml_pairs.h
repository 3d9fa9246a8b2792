/* YAML files of one flat mapping of keys to scalars: a server's flags, a machine's figures. */
#ifndef TD_CORE_FILES_YAML_PAIRS_H
#define TD_CORE_FILES_YAML_PAIRS_H

#include "tandem.h"

#define TD_YAML_PAIRS_BYTES_MAX 65536 /* longer files are refused */

/** Words for the sentences of errors. */
typedef struct {
    const char *flag; /* the flag that gives the path, without "--" */
    const char *noun; /* for a key: "flag" */
    const char *list; /* where people find all of them: "'tandem launch_server --help'" */
} td_yaml_words;

/** @param key index into the keys. @param value valid during the call. */
typedef td_status (*td_yaml_pair_fn)(void *user, size_t key, const char *value, td_error *err);

/**
 * Call fn for every "key: value" of a file, in the order of keys. In the file, a key's '-' may all be '_'; fn is called
 * twice for a key that is there in both spellings.
 * @param keys [n_keys] distinct names. @return TD_EINVAL, TD_EFORMAT, fn's status, or td_file_read's: the sentence has the
 * path, and the line where libcyaml knows it. Nothing is printed.
 */
TD_NODISCARD td_status td_yaml_pairs_read(const td_yaml_words *w, const char *path, const char *const *keys, size_t n_keys,
                                          td_yaml_pair_fn fn, void *user, td_error *err);

/** The same for a text in memory. @param path what the sentences call it. */
TD_NODISCARD td_status td_yaml_pairs_parse(const td_yaml_words *w, const char *path, const char *text, size_t len,
                                           const char *const *keys, size_t n_keys, td_yaml_pair_fn fn, void *user,
                                           td_error *err);

#endif
