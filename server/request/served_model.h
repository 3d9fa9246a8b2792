/*
 * What requests need to know of the served model: what it is called, how text becomes tokens, which formats its answers
 * have. It is set when the server starts, and then only read, by all threads. The cache of grammars has a lock of its own; what
 * images hold is a count.
 */
#ifndef TD_SERVER_REQUEST_SERVED_MODEL_H
#define TD_SERVER_REQUEST_SERVED_MODEL_H

#include "server/request/api_read.h"

#define TD_MODEL_NAMES_MAX 16

typedef struct {
    td_engine          *engine; /* compiles grammars for its vocabulary */
    td_engine_info      info;
    const td_tokenizer *tokenizer; /* NULL: none */
    td_chat_form        chat;
    char                name_bytes[1024];
    const char         *names[TD_MODEL_NAMES_MAX]; /* in name_bytes, each terminated */
    uint32_t            n_names;
    const char         *name;                                   /* the first */
    const char         *tool_format, *reasoning_format;         /* of answers; NULL: they stay in the text */
    bool                tools_in_special, reasoning_in_special; /* their markers are special tokens */
    td_grammar_cache    grammars;
    td_api_image_counts images;
} td_served_model;

/** By what its prompts become tokens. */
static inline td_api_encoding td_served_encoding(const td_served_model *m) {
    return (td_api_encoding){m->tokenizer, &m->chat, &m->info};
}

/** What of the server's options is about the model; as td_server_options has them. */
typedef struct {
    const char *names;            /* with commas between; NULL: the last part of the model's path */
    const char *tool_call_parser; /* a format's name, "none", or "auto": by the chat template */
    const char *reasoning_parser; /* the same */
} td_served_model_options;

/** Fill *m, all zero but for the cache. It borrows the engine.
 * @return TD_EINVAL for names or formats that are none, with a sentence. */
TD_NODISCARD td_status td_served_model_open(td_served_model *m, td_engine *engine, const td_served_model_options *o,
                                            td_error *err);

/** 404 in err unless the name (NULL: any) is one of the model's. */
TD_NODISCARD td_status td_check_model(const td_served_model *m, const char *name, td_api_error *err);

/** Make a request that was read ready for the engine: its grammar, its formats, its prompts' tokens. Compiling a grammar
 * takes long. */
TD_NODISCARD td_status td_api_prepare(td_api_request *r, td_served_model *m, td_api_error *err);

#endif
