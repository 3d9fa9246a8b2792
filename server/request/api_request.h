/*
 * A generation request, common to all APIs: what was asked for, field by field, and the prompts.
 *
 * Its body has one of two forms, those of OpenAI with fields of other engines added: a chat or a completion. An API with
 * other bodies makes the JSON of one of these forms, so that messages, tools and sampling fields have one reader
 * (api_read.h).
 */
#ifndef TD_SERVER_REQUEST_API_REQUEST_H
#define TD_SERVER_REQUEST_API_REQUEST_H

#include <jansson.h>

#include "server/api/api.h"
#include "server/request/api_images.h"
#include "server/request/chat_form.h"
#include "server/request/grammar_cache.h"
#include "tandem.h"

#define TD_API_N_MAX 128        /* choices of one prompt, as OpenAI */
#define TD_API_CHOICES_MAX 1024 /* prompts x n of one request */
#define TD_API_STOP_IDS_MAX 256
#define TD_API_BIAS_MAX 1024
#define TD_API_CALLS_MAX 16           /* calls that one answer may be forced to have */
#define TD_API_GRAMMAR_WARNINGS_MAX 4 /* about grammars */
#define TD_API_WARNINGS_MAX (8 + TD_API_GRAMMAR_WARNINGS_MAX)
#define TD_API_NAME_MAX 256             /* bytes of rid */
#define TD_API_COMPLETION_MAX_TOKENS 16 /* OpenAI's default of /v1/completions */

/** The form that a request is read in. Bits: field tables combine them. */
typedef enum { TD_READ_CHAT = 1, TD_READ_COMPLETION = 2 } td_api_form;

/** One prompt: text to be encoded, or ids. */
typedef struct {
    const char      *text; /* borrowed from the JSON tree; NULL when the client sent ids */
    size_t           text_len;
    uint32_t        *ids; /* owned; a text has them after td_api_encode */
    size_t           n_ids;
    size_t           n_images; /* it has so many of the request's images, behind those of the prompts before it */
    td_prompt_image *images;   /* [n_images], owned, borrowing the images: from td_api_encode on, until they were given */
} td_api_prompt;

/** Frees what the prompt owns. */
void td_api_prompt_free(td_api_prompt *p);

/** What the client wants to see besides the answer's text, and how the text is written. */
typedef struct {
    bool     logprobs;     /* of the generated tokens, and with echo of the prompt's */
    uint32_t top_logprobs; /* 0 .. TD_LOGPROBS_MAX */
    bool     prompt_logprobs;
    uint32_t top_prompt_logprobs; /* with prompt_logprobs: 0 .. TD_LOGPROBS_MAX */
    bool     token_ids;           /* of the answer and of the prompt */
    bool     tokens_as_ids;       /* log-probabilities name tokens "token_id:N" */
    bool     echo;                /* a completion's prompt, before its text */
    bool     skips_special_tokens;
} td_api_shown;

/** Whether the answer is a stream of events, and what these say. */
typedef struct {
    bool on;
    bool usage;            /* the last event has the usage */
    bool continuous_usage; /* all events have it */
} td_api_streaming;

/** How long the answer may be, in tokens. */
typedef struct {
    bool     has_max; /* else td_api_encode sets max to what is left of the context */
    uint32_t max, min;
    bool     fits_max;     /* a max that does not fit the context is cut; else it is an error */
    bool     context_ends; /* max was cut */
} td_api_length;

/** What ends the answer before its length does. */
typedef struct {
    const char *texts[TD_STOP_MAX]; /* in root */
    size_t      n_texts;
    uint32_t   *ids; /* owned */
    size_t      n_ids;
    bool        ignores_eos;
    bool        is_shown; /* the text that ended it stays in the answer */
} td_api_stops;

/** The form that the answer must have: a grammar. */
typedef struct {
    bool            is_asked; /* else nothing of the rest is set */
    td_grammar_kind kind;
    const char     *source; /* [len], in td_api_request.root or in owned */
    size_t          len;
    char           *owned;                   /* NULL: the source is a string of root */
    char            param[TD_API_PARAM_MAX]; /* the field that asked for it */
    td_grammar     *compiled;                /* a reference; NULL: not compiled yet */
    bool            forces_call;             /* the text is a list of calls of tools, [{"name", "arguments"}, …] */
} td_api_grammar;

/** How the text of a chat's answer is divided into content, reasoning and calls of tools. */
typedef struct {
    td_tool_list *tools; /* the tools that the model may call; owned; NULL: none */
    bool          separate_reasoning, parallel_calls;

    /* set by td_api_prepare and td_api_encode */
    const char        *tool_format, *reasoning_format; /* names of formats; NULL: not looked for */
    bool               keeps_special;                  /* the parsers need the text of special tokens */
    td_reasoning_start reasoning_start;
} td_api_parts;

/** A chat until it is encoded. */
typedef struct {
    json_t *template_doc; /* what the template renders (td_chat_form_render); owned; NULL once it is encoded */
    json_t *continued;    /* continue_final_message: the string that the answer starts from, in root; NULL: none */
} td_api_chat_doc;

struct td_api_request {
    const td_api *api;
    void         *own; /* what the API keeps with the request; freed by its free_own */
    td_api_form   form;
    json_t       *root; /* the body in this form: owns the strings that other members borrow */

    const char *model; /* NULL: not given */
    const char *rid;   /* the client's id for the request; NULL: none */
    int32_t     priority;
    /* sentences about what has no effect here: static, or of the request's grammars */
    const char *warnings[TD_API_WARNINGS_MAX];
    size_t      n_warnings;

    td_api_prompt
            *prompts; /* [n_prompts], owned; a chat has one, filled by td_api_encode unless the client sent input_ids */
    size_t   n_prompts;
    uint32_t n;                         /* choices of each prompt */
    td_api_request *each;               /* [n_prompts], owned: a prompt's own parameters; NULL: all prompts have these */
    bool            add_special_tokens; /* prompts that are text get BOS and the like */
    uint32_t        prompt_tokens_max;  /* only the last tokens of a prompt are used; 0: all */
    td_api_chat_doc chat;
    td_api_images   images; /* of all prompts */

    td_sampling      sampling; /* bias arrays are owned */
    td_api_length    length;
    td_api_stops     stop;
    td_api_grammar   grammar;
    td_api_parts     parts;
    td_api_shown     shown;
    td_api_streaming stream;
};

/** Frees what the request owns, and zeroes it. */
void td_api_request_free(td_api_request *r);

/** The request that has the parameters of a prompt. */
static inline const td_api_request *td_api_of_prompt(const td_api_request *r, size_t prompt) {
    return r->each ? &r->each[prompt] : r;
}

/** How many best tokens are kept beside each position of the prompt. */
static inline uint32_t td_api_prompt_top(const td_api_shown *shown) {
    return shown->prompt_logprobs ? shown->top_prompt_logprobs : shown->top_logprobs;
}

/** Write "warnings": […], or nothing where there are none. */
void td_api_write_warnings(td_jbuf *b, const td_api_request *r);

/** Whether the answer is divided into reasoning and content. With forced calls it is even if the client wants the reasoning
 * in the text, because the calls begin behind the reasoning. */
static inline bool td_api_divides_reasoning(const td_api_request *r) {
    return r->parts.reasoning_format && (r->parts.separate_reasoning || r->grammar.forces_call);
}

/** Look for the request's grammar in the cache. @return false if it has to be compiled; else the request has it, or has
 * none. */
bool td_api_find_grammar(td_api_request *r, td_grammar_cache *cache);

/** Add what the request's grammars, which are compiled, do not follow to its warnings. */
void td_api_add_grammar_warnings(td_api_request *r);

/** Compile the grammar that the request asks for, if any; refuses one that cannot be followed, by its field. */
TD_NODISCARD td_status td_api_compile_grammar(td_api_request *r, td_grammar_cache *cache, td_api_error *err);

#endif
