/*
 * tandem.h: the public interface of libtandem.
 *
 *   td_engine        a loaded model with its scheduler, KV pages and both compute tiers
 *   td_request       one prompt and the tokens generated for it
 *   td_tokenizer     text <-> token ids
 *   td_chat_template a chat request (JSON) -> prompt text
 *   td_answer_parser an answer's text -> content, reasoning, tool calls
 *   td_grammar       JSON Schema, regex or EBNF: which texts may be generated
 *
 * The server uses nothing else of the library's upper layers; the command line has tandem_tools.h besides.
 *
 * Conventions: every fallible call returns a td_status and, where a person has to be told why, fills a
 * td_error with one sentence (err may be NULL). Strings are UTF-8. Pointers passed in stay the caller's
 * and are not kept after the call unless the comment says so. Handles are thread-safe where stated.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TD_NODISCARD __attribute__((warn_unused_result))
#define TD_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define TD_NODISCARD
#define TD_PRINTF(fmt_index, first_arg)
#endif

#define TD_VERSION "0.1.0"

/* ---- status ---------------------------------------------------------------------------------- */

#define TD_STATUS_MAP(X)                          \
    X(OK, 0, "ok")                                \
    X(EINVAL, -1, "bad argument or shape")        \
    X(ENOMEM, -2, "out of memory")                \
    X(EAGAIN, -3, "not ready; retry")             \
    X(EFORMAT, -4, "malformed file")              \
    X(EDEVICE, -5, "accelerator runtime failed")  \
    X(EIO, -6, "input or output failed")          \
    X(ENOTSUP, -7, "not supported")               \
    X(ENOTFOUND, -8, "not found")                 \
    X(EBUSY, -9, "queue full or resource in use") \
    X(ECANCELLED, -10, "cancelled")               \
    X(ESHUTDOWN, -11, "shutting down")            \
    X(ELOST, -12, "accelerator lost")             \
    X(ELIMIT, -13, "more work than is allowed")

typedef enum td_status {
#define TD_STATUS_ENUM(name, value, text) TD_##name = (value),
    TD_STATUS_MAP(TD_STATUS_ENUM)
#undef TD_STATUS_ENUM
} td_status;

/** One sentence per status, static storage; "unknown status" for a value outside the map. */
const char *td_status_text(td_status status);

#define TD_ERROR_TEXT_MAX 512

/** What went wrong, for a person. Zero-initialise before use. */
typedef struct {
    td_status status;
    char      text[TD_ERROR_TEXT_MAX]; /* one sentence, no newline, always terminated */
} td_error;

/* ---- tokenizer ------------------------------------------------------------------------------- */

typedef struct td_tokenizer td_tokenizer;

/**
 * Load tokenizer.json, or tiktoken.model with tokenizer_config.json, from a model folder.
 * @return TD_OK; TD_ENOTFOUND when the folder holds neither; TD_EFORMAT for a file that cannot be used; TD_ENOTSUP for a
 *         tokenizer type that is not byte-level BPE.
 */
TD_NODISCARD td_status td_tokenizer_open(const char *dir, td_tokenizer **out, td_error *err);
void                   td_tokenizer_close(td_tokenizer *tok);

/* Steps of a tokenizer's expressions that one text may take: some for every byte, and some for every text. A step is an item
 * of an expression or a character that it passes, where a match backtracks or is long; published tokenizers take 5 a
 * byte. */
#define TD_ENCODE_STEPS_PER_BYTE 64
#define TD_ENCODE_STEPS_FREE ((uint64_t)1 << 24)

/**
 * Encode text. Added tokens in the text become their ids, the special ones among them ("<|user|>") only when parse_special;
 * BOS/EOS of the post-processor or tokenizer_config.json are added when add_special. Invalid UTF-8 is encoded byte by byte,
 * so decode(encode(x)) == x but for what the tokenizer normalizes and for invalid bytes.
 * @return TD_ELIMIT when the expressions of the tokenizer file take too many steps on this text; TD_ECANCELLED as
 *         td_tokenizer_stop_when says.
 * @param ids  receives a malloc'd array of *n_ids ids; the caller frees it. NULL with *n_ids == 0 for empty output.
 * Thread-safe.
 */
TD_NODISCARD td_status td_tokenizer_encode(const td_tokenizer *tok, const char *text, size_t text_len, bool parse_special,
                                           bool add_special, uint32_t **ids, size_t *n_ids);

/**
 * Have encodings on this thread ask now and then whether to stop; they then end with TD_ECANCELLED. It may be some tenths of
 * a second between two questions, and more where a word has megabytes.
 * @param stops NULL: never.
 */
void td_tokenizer_stop_when(bool (*stops)(void *user), void *user);

/** The fewest tokens that a text of len bytes can have: what is longer than all of a context need not be encoded. 0 where
 * texts may lose bytes before they become tokens. */
size_t td_tokenizer_tokens_min(const td_tokenizer *tok, size_t len);

/**
 * Decode ids to bytes (terminated, length in *text_len; the caller frees). Special tokens are left out when skip_special.
 * Invalid UTF-8 sequences are replaced by U+FFFD. @return TD_EINVAL for an id outside the vocabulary. Thread-safe.
 */
TD_NODISCARD td_status td_tokenizer_decode(const td_tokenizer *tok, const uint32_t *ids, size_t n_ids, bool skip_special,
                                           char **text, size_t *text_len);

/**
 * Bytes of one token, *len of them, owned by tok; NULL for an id that has none. They need not be whole characters.
 * *special: what skip_special leaves out. Thread-safe.
 */
const char *td_tokenizer_token(const td_tokenizer *tok, uint32_t id, size_t *len, bool *special);

size_t td_tokenizer_vocab_size(const td_tokenizer *tok); /* largest id + 1, added tokens included */

/* Chat template text and BOS/EOS strings from tokenizer_config.json (or chat_template.jinja); NULL where absent. Owned by
 * tok. */
const char *td_tokenizer_chat_template(const td_tokenizer *tok);
const char *td_tokenizer_bos(const td_tokenizer *tok);
const char *td_tokenizer_eos(const td_tokenizer *tok);

/* ---- chat templates -------------------------------------------------------------------------- */

typedef struct td_chat_template td_chat_template;

/**
 * Compile a Jinja chat template (the subset of docs/templates.md). @return TD_EFORMAT for a syntax error, TD_ENOTSUP for a
 * construct outside the subset; err names the construct and the line.
 */
TD_NODISCARD td_status td_chat_template_compile(const char *source, size_t len, td_chat_template **out, td_error *err);
void                   td_chat_template_free(td_chat_template *tmpl);

/**
 * The encoding of chats of a model generation that is published without a chat template: DeepSeek-V3.2 and V4. It renders as
 * a template does (docs/templates.md). @param model_type of config.json. @return TD_ENOTFOUND for any other model; TD_ENOMEM.
 */
TD_NODISCARD td_status td_chat_template_of_model(const char *model_type, td_chat_template **out, td_error *err);

/** The text that was compiled, or one that has the markers of an encoding's answers; owned by tmpl. */
const char *td_chat_template_source(const td_chat_template *tmpl);

struct json_t; /* a JSON value of jansson's */

/**
 * Render a chat request. @param request an object {"messages", "tools"?, "add_generation_prompt"?, …}; every member is
 * a variable of the template, and the members of "chat_template_kwargs" too. bos/eos fill bos_token and eos_token (NULL:
 * undefined). @param text receives a malloc'd, terminated string of *text_len bytes; the caller frees it.
 * @return TD_EINVAL with the template's own message for raise_exception or a type error. Thread-safe.
 */
TD_NODISCARD td_status td_chat_template_render_value(const td_chat_template *tmpl, const struct json_t *request,
                                                     const char *bos, const char *eos, char **text, size_t *text_len,
                                                     td_error *err);

/** The same of a request that is text. @return TD_EINVAL, too, when it is not JSON. */
TD_NODISCARD td_status td_chat_template_render(const td_chat_template *tmpl, const char *request_json, size_t request_len,
                                               const char *bos, const char *eos, char **text, size_t *text_len,
                                               td_error *err);

/* ---- answers --------------------------------------------------------------------------------- */

typedef struct td_tool_list     td_tool_list;
typedef struct td_answer_parser td_answer_parser;

/**
 * The tools of a request, for its parsers: OpenAI's list of {"type", "function": {"name", "parameters"}}, or of functions.
 * @return TD_EINVAL for what is no JSON list; TD_ENOMEM. Thread-safe.
 */
TD_NODISCARD td_status td_tool_list_new(const char *json, size_t len, td_tool_list **out, td_error *err);
void                   td_tool_list_free(td_tool_list *tools);

typedef enum {
    TD_ANSWER_CONTENT,        /* text */
    TD_ANSWER_REASONING,      /* text */
    TD_ANSWER_CALL_BEGIN,     /* text: the tool's name; id: the model's own id of the call, or NULL */
    TD_ANSWER_CALL_ARGUMENTS, /* text: more of the arguments' JSON */
    TD_ANSWER_CALL_END,       /* all together the arguments are a JSON object */
    TD_ANSWER_CALL_DROPPED,   /* in place of CALL_END: it was no call, and its text follows as content */
} td_answer_event_kind;

/** A part of an answer. Borrowed: its pointers are valid during the callback only. */
typedef struct {
    td_answer_event_kind kind;
    uint32_t             call; /* number of the call, from 0, dropped ones counted */
    const char          *text;
    size_t               len;
    const char          *id;
    size_t               id_len;
} td_answer_event;

typedef void (*td_answer_event_fn)(void *user, const td_answer_event *event);

/** Where an answer begins. */
typedef enum {
    TD_REASONING_BY_FORMAT, /* as the format does by itself */
    TD_REASONING_OPEN,      /* in the reasoning: the prompt has opened it */
    TD_REASONING_CLOSED,    /* after it: there is none */
} td_reasoning_start;

/** Zero-initialise. */
typedef struct {
    const char         *tool_format;      /* SGLang's --tool-call-parser; NULL: calls stay in the text */
    const char         *reasoning_format; /* SGLang's --reasoning-parser; NULL: reasoning stays in the text */
    const td_tool_list *tools;            /* types of arguments, known names; must outlive the parser; NULL: not given */
    td_reasoning_start  start;
    td_answer_event_fn  on_event;
    void               *user;
} td_answer_parser_options;

/**
 * A parser of one answer, for text in pieces. What comes out does not depend on how the text is cut, but for where text of
 * one kind is cut. What is no call is content, byte for byte; white space between calls, and between a call and an end of
 * the content, is part of the syntax. At most 1 MiB of text is held. Not thread-safe.
 * @return TD_EINVAL for an unknown format, or two that do not go together; TD_ENOMEM.
 */
TD_NODISCARD td_status td_answer_parser_new(const td_answer_parser_options *o, td_answer_parser **out, td_error *err);
void                   td_answer_parser_free(td_answer_parser *p);

/** A piece of the text. @return TD_ENOMEM: the answer is not whole any more. */
TD_NODISCARD td_status td_answer_parser_feed(td_answer_parser *p, const char *text, size_t len);
/** The end of the text: what was held back comes. */
TD_NODISCARD td_status td_answer_parser_end(td_answer_parser *p);
bool                   td_answer_parser_reasons(const td_answer_parser *p); /* whether it is in the reasoning */

/** The formats that a chat template makes a model write, by SGLang's names; NULL: none is known by it. Static strings. */
const char *td_tool_format_of_template(const char *template_text);
const char *td_reasoning_format_of_template(const char *template_text);

/** Whether a marker of these formats (NULL: none) is a special token, which text without special tokens has not. tok may be
 * NULL. */
bool td_answer_in_special_tokens(const char *tool_format, const char *reasoning_format, const td_tokenizer *tok);

/** Whether the content follows the reasoning in the same text, so that a grammar can begin there: not in gpt-oss's messages.
 */
bool td_reasoning_format_ends(const char *reasoning_format);

/** Where an answer to this prompt begins. answer_len: bytes at the prompt's end that are an answer which is continued. */
td_reasoning_start td_reasoning_after(const char *format, const char *prompt, size_t len, size_t answer_len);

/* ---- grammars -------------------------------------------------------------------------------- */

typedef struct td_grammar td_grammar;

typedef enum {
    TD_GRAMMAR_JSON_SCHEMA, /* texts are JSON that a JSON Schema accepts */
    TD_GRAMMAR_JSON_OBJECT, /* any JSON object; the source is not read */
    TD_GRAMMAR_REGEX,       /* the whole text matches a regular expression */
    TD_GRAMMAR_EBNF,        /* rules as llama.cpp's GBNF or xgrammar's EBNF has them; the first is called root */
    TD_GRAMMAR_CHOICES      /* one of the strings of a JSON array */
} td_grammar_kind;

/**
 * Compile a grammar; what each kind may say is in docs/structured-output.md. Time and memory are bounded whatever the source
 * is.
 * @param out  one reference; td_grammar_release. Grammars are immutable: threads and requests may share one.
 * @return TD_EINVAL for a source with a mistake or too large, TD_ENOTSUP for what no grammar can say, by its name;
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_grammar_compile(td_grammar_kind kind, const char *source, size_t len, td_grammar **out,
                                          td_error *err);
td_grammar            *td_grammar_hold(td_grammar *g);    /* one reference more; returns g */
void                   td_grammar_release(td_grammar *g); /* g may be NULL */

/** A sentence that names the parts of a JSON Schema that the grammar does not follow; the grammar's. NULL: there are
 * none. */
const char *td_grammar_warning(const td_grammar *g);

/**
 * Whether a text is of the grammar's language. *at: how many of its bytes some text of the language begins with.
 * @return TD_OK, also for a text that is not; TD_EINVAL when the grammar has too many readings of the text to follow;
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_grammar_check(td_grammar *g, const char *text, size_t len, bool *accepted, size_t *at);

/* ---- images ---------------------------------------------------------------------------------- */

/** A picture that is ready for one engine's model (td_engine_load_image). It never changes; any thread may use it. */
typedef struct td_image td_image;

void     td_image_hold(td_image *image);         /* one reference more */
void     td_image_release(td_image *image);      /* NULL is fine */
uint32_t td_image_tokens(const td_image *image); /* tokens of a prompt that stand for it */

/* ---- engine ---------------------------------------------------------------------------------- */

typedef struct td_engine  td_engine;
typedef struct td_request td_request;

/**
 * Told what the prefix cache holds: which tokens are in which KV page. All but open are called on the engine's thread and
 * must not block; an engine's page is told stored and removed by turns.
 */
typedef struct {
    /** Before any other, in td_engine_open. @return TD_OK, or the engine is not opened. */
    td_status (*open)(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err);
    /** @param parent page of the tokens before, which the cache holds; UINT32_MAX: there are none before.
     *  @param tokens [page_tokens], the caller's. */
    void (*stored)(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens);
    void (*removed)(void *user, uint32_t page); /* after all pages whose parent it is */
    void (*cleared)(void *user);                /* the cache is empty */
    void *user;
    bool
        images; /* it is told of pages at and behind an image, too: an image's tokens are a number that is this engine's own,
                     2^31 at least */
} td_cache_listener;

/** A hash of the tokens of a page and of all before it, and of everything else that the bits of its KV depend on. */
typedef struct {
    uint64_t low, high;
} td_page_key;

/** The pages of one engine, for who keeps them beyond it. */
typedef struct {
    uint32_t    page_tokens, max_pages; /* tokens of a page; pages of the longest prompt */
    size_t      page_bytes;             /* KV of all layers */
    td_page_key fingerprint;  /* of what a page's bits depend on besides its tokens; the parent of first pages in keys */
    void (*wake)(void *user); /* make the engine look at its lookups; any thread, from open on until close returns */
    void *wake_user;
} td_page_format;

typedef struct {
    td_page_key     key, parent; /* parent: of the page before; the fingerprint for a first page */
    const uint32_t *tokens;      /* [page_tokens] */
} td_page_name;

typedef enum { TD_PAGES_COMING, TD_PAGES_HERE, TD_PAGES_OVER } td_pages_state;

typedef struct {
    bool     up;                                     /* the store can be reached */
    uint64_t pages_out, pages_in;                    /* sent, received and found whole */
    uint64_t pages_bad;                              /* received, and not what was asked for: thrown away */
    uint64_t pages_unsent;                           /* that found no room on the way out, or were refused */
    uint64_t lookups, lookups_late, lookups_refused; /* begun; given up at their deadline; not begun: too many, or down */
    uint64_t failures;                               /* calls of the store that failed */
    double   out_s, in_s;                            /* time that calls took which sent and which received pages */
    size_t   page_bytes;                             /* of a page as it is sent */
    uint32_t buffers_used, buffers, lookups_open;    /* page buffers that hold something, of all; lookups not ended */
} td_page_store_stats;

/**
 * Keeps pages of the prefix cache outside the engine, where other engines find them. All but open, close and stats are
 * called on the engine's thread, and return at once. Which pages it has, and whether it has any, changes no bit of an
 * answer.
 */
typedef struct {
    /** In td_engine_open. @return TD_OK, or the engine is not opened. */
    td_status (*open)(void *user, const td_page_format *f, td_error *err);
    void (*close)(void *user); /* after the last call of the others but stats; wake is not called any more */
    /** Memory [page_bytes] for a page that is to go out, to be filled before put_end; NULL: it is not wanted now. */
    void *(*put)(void *user, const td_page_name *name);
    void (*put_end)(void *user, void *memory, bool filled);
    /**
     * Look for pages that follow each other. They come in order, up to the first that is not there.
     * @param parent of the first; @param keys [n]; @param tokens [n, page_tokens]; all copied. n is 1..max_pages.
     * @return to be given to `end` once; NULL: there is no looking now.
     */
    void *(*look)(void *user, td_page_key parent, const td_page_key *keys, const uint32_t *tokens, uint32_t n);
    /** HERE: *page [page_bytes] is the next one, valid until `taken` or `end`. */
    td_pages_state (*next)(void *user, void *lookup, const void **page);
    void (*taken)(void *user, void *lookup); /* the page that `next` gave: go on to the one after it */
    void (*end)(void *user, void *lookup, bool late);
    void (*stats)(void *user, td_page_store_stats *out); /* any thread, also after close */
    double wait_s;                                       /* how long a prompt waits for its pages at most */
    void  *user;
} td_page_store;

#define TD_GPU_EXPERTS_AUTO UINT32_MAX

/** Zero-initialise, then td_engine_options_init. Strings must live until td_engine_open returns. */
typedef struct {
    const char *model_path;          /* Hugging Face folder */
    const char *tokenizer_path;      /* NULL: model_path */
    const char *cpu_weight_path;     /* folder of packed experts written by td_quantize; NULL: quantise on load */
    const char *load_format;         /* "auto", "safetensors", "dummy" */
    bool        copy_weights;        /* read packed files into memory instead of mapping them */
    const char *model_override_json; /* object merged over config.json; NULL: none */
    const char *chat_template;       /* path of a template file; NULL: the model's own */
    const char *device;              /* a name that td_engine_device_name gives; NULL: "host" */
    uint32_t    base_gpu_id;         /* the first card, of those that the process sees; the host has none */
    const char *attention_backend;   /* NULL: the device's own */
    const char *quantization;        /* NPU tier: "auto", "none" (bf16 weights, f32 arithmetic), "w8a8_int8" */
    /**
     * CPU tier: "none", "int4", "int8", "int4-g32", "int4-g64", "int4-g128", "mxfp4", "nvfp4", or "auto": what packed files
     * hold; none when quantization is none; what carries a quantised checkpoint exactly; else int4.
     */
    const char *expert_quantization;
    /** "auto", "bf16" (16 bits a value: the host device keeps integers with a scale per row), "int8" (8 bits, on the host
     * alone), "f32". */
    const char *kv_cache_dtype;
    uint32_t    context_length; /* tokens; 0: the model's max_position_embeddings */
    /** Share of each memory (the host's, the device's own) for weights, working memory and KV, (0, 1]. */
    double   mem_fraction_static;
    uint64_t max_total_tokens;     /* KV capacity in tokens; 0: as many as fit, capped sensibly */
    uint32_t page_size;            /* tokens per KV page; only 128 */
    uint32_t chunked_prefill_size; /* tokens of prefill per step; 0: unchunked (up to max_prefill_tokens) */
    uint32_t max_prefill_tokens;
    uint32_t max_step_ms; /* a step that is not one request's alone has no more prompt tokens than fit; 0: no limit */
    uint32_t max_running_requests; /* 0: default */
    uint32_t max_queued_requests;  /* 0: default */
    /** Expert threads; 0: one per physical core of the allowed cpu set, or as many as the cgroup leaves time. */
    uint32_t cpuinfer;
    uint32_t subpool_count;        /* NUMA subpools of the expert threads; 0: one per NUMA node in use */
    uint32_t tensor_parallel_size; /* cards that share the work; 1 */
    /** Routed experts of a layer that the device keeps: 0, all of them, or those of most use (docs/residency.md);
     * TD_GPU_EXPERTS_AUTO: of these as many as its memory holds beside weights and KV. */
    uint32_t num_gpu_experts;
    /** With num_gpu_experts, fewer than all: in steps with many prompt rows, other experts pass through the device's memory
     * where that is faster. */
    bool stream_experts;
    /** Of routed experts that the device keeps while others take their places: "keep" has them in host memory too; "drop"
     * has them there no more, and reads them again from cpu_weight_path. */
    const char *expert_memory;
    uint32_t    npu_threads; /* host device: threads of its own, of all cards; 0: shares the expert threads, or one a card */
    bool        enable_defer;
    uint32_t    max_deferred_experts_per_token; /* D, less than the model's experts per token; 0 with enable_defer: 1 */
    bool disable_two_chunk_overlap; /* with npu_threads, large steps go through as two halves whose layers alternate */
    /** "NEXTN": the model's MTP layer drafts one token a step, where that pays; NULL: none. */
    const char *speculative_algorithm;
    bool        speculative_always; /* in every step, whether it pays or not: for measuring */
    uint64_t    random_seed;
    uint32_t    decode_log_interval; /* steps between log lines; 0: none */
    bool   measure_bounds; /* measure at start what the tiers' threads can do: td_engine_info's bounds; about 0.2 s a pool */
    bool   log_requests;
    bool   disable_radix_cache; /* no page of a request is kept for later ones */
    double state_snapshots_gib; /* memory for snapshots of recurrent layers' states; ignored without them */
    /** Tokens of an image at most: larger pictures are made smaller. 0: images are refused. Ignored by models without an
     * encoder. */
    uint32_t max_image_tokens;
    double
         image_cache_gib; /* host memory for what the encoder makes of images: what prompts wait for, and what comes again */
    bool disable_mixed_chunk;                /* prompts and generating requests take turns instead of sharing steps */
    const td_cache_listener *cache_listener; /* NULL: nobody; must live as long as the engine */
    const td_page_store     *page_store;     /* NULL: none; must live as long as the engine */
} td_engine_options;

void td_engine_options_init(td_engine_options *o); /* the defaults of docs/flags and --help */

/** The names that options.device may have in this build, from 0; NULL after the last. */
const char *td_engine_device_name(size_t i);

/**
 * Load a model and start its engine thread. Plans memory first: refuses with TD_ENOMEM and the largest figure that fits.
 * Logs progress. Takes seconds to minutes. Handles are thread-safe from then on.
 */
TD_NODISCARD td_status td_engine_open(const td_engine_options *o, td_engine **out, td_error *err);

/**
 * Check what td_engine_open would read, without threads, cards or weights: the options, config.json, the names, types and
 * shapes of all weights, the tokenizer and the chat template. Whether memory is enough is not looked at. Takes less than a
 * second for most models.
 * @return the statuses of td_engine_open.
 */
TD_NODISCARD td_status td_engine_check(const td_engine_options *o, td_error *err);

/** Stop: no new requests; running ones get grace_s seconds, then are cancelled. Frees everything. No calls after. */
void td_engine_close(td_engine *e, double grace_s);

/** What a tier's threads can do at most, measured at start; all 0: not measured. Operations: two per multiply-add. */
typedef struct {
    double read_bytes_per_s, int8_ops_per_s, f32_ops_per_s;
} td_bounds;

/** A NUMA node's part of the routed experts. */
typedef struct {
    uint32_t node;  /* OS index; UINT32_MAX: not bound to one */
    double   share; /* of every expert's bytes */
} td_expert_node;

#define TD_EXPERT_NODES_MAX 64

typedef struct {
    const char *architecture; /* "DeepseekV3ForCausalLM" */
    const char *model_type;   /* "deepseek_v3" */
    const char *model_path;
    const char *device;       /* "host (2 threads, avx512vnni)" */
    const char *quantization; /* NPU tier */
    const char *expert_quantization;
    const char *expert_kernel; /* "int4c_avx512vnni_…" */
    uint32_t    vocab_size;
    uint32_t    context_length;
    uint64_t    max_total_tokens; /* KV capacity */
    uint32_t    kv_page_tokens;   /* tokens of a page of it */
    /* the memory plan */
    uint64_t       weight_bytes;        /* of both tiers */
    uint64_t       expert_weight_bytes; /* of those, the routed experts' */
    uint64_t       kv_bytes;
    uint64_t       scratch_bytes; /* working memory */
    uint32_t       max_running_requests, max_queued_requests;
    uint32_t       chunked_prefill_size;         /* prompt tokens per step at most */
    td_bounds      device_bounds, expert_bounds; /* of the same threads when the tiers share them */
    uint32_t       n_expert_nodes;               /* 0: no routed experts */
    td_expert_node expert_nodes[TD_EXPERT_NODES_MAX];
    uint32_t       bos_id;      /* UINT32_MAX: none */
    uint32_t       image_token; /* the token that stands for images; UINT32_MAX: the model is served for text only */
    /* sampling defaults of generation_config.json, or NAN / 0 where it has none */
    double   default_temperature, default_top_p, default_repetition_penalty;
    uint32_t default_top_k;
} td_engine_info;

void                    td_engine_get_info(const td_engine *e, td_engine_info *info); /* strings live as long as e */
const td_tokenizer     *td_engine_tokenizer(const td_engine *e);     /* NULL: dummy weights and a folder without one */
const td_chat_template *td_engine_chat_template(const td_engine *e); /* NULL: the model has none */

/** What a tier (the device, or the expert threads) has done since the start; docs/metrics.md says what is counted. */
typedef struct {
    uint64_t bytes;             /* of weights and KV that had to be read */
    uint64_t int8_ops, f32_ops; /* two per multiply-add */
    uint64_t busy_ns;           /* time of its operations, without waits */
} td_tier_work;

/** Routed experts that pass through the device's memory in steps with many prompt rows (docs/residency.md), since the
 * start. */
typedef struct {
    uint64_t steps;           /* that ended well */
    uint64_t uploads, failed; /* copies of an expert to the device that have ended */
    uint64_t upload_bytes, upload_ns;
    uint32_t slots;     /* experts that the device has room for; 0: none is streamed */
    uint32_t share;     /* experts of a layer that the last such step was to stream */
    uint32_t crossover; /* rows of a step from which on it pays, by the speeds measured last; 0: it does not */
} td_stream_counts;

/** Routed experts that move between host and device (docs/residency.md), since the start. */
typedef struct {
    /** (token, expert) pairs of steps that ended well: computed on the device, of a resident expert; of a streamed one; on
     * the CPU. */
    uint64_t         hits, streamed, misses;
    uint64_t         uploads, failed;         /* copies of an expert to the device that have ended */
    uint64_t         upload_bytes, upload_ns; /* the time is that of reads too */
    uint32_t         resident, slots;         /* experts that are on the device now, of all layers; that it has room for */
    td_stream_counts stream;
    bool             drops; /* expert_memory is "drop"; else what follows is 0 */
    uint64_t reads, unread; /* experts read again from their file to leave the device; that could not be, and stayed */
    uint64_t dropped_bytes; /* host memory that resident experts do not take */
} td_residency_counts;

/** Images of requests, and what the encoder makes of them, since the start. */
typedef struct {
    uint64_t encoded, tokens, ns;          /* images that were encoded; their tokens, and the time of it */
    uint64_t pieces;                       /* of the encoder's work, between which steps run */
    uint64_t cache_bytes, cache_bytes_max; /* host memory of what was made of them; max 0: the model takes no images */
    uint64_t evictions;                    /* of an image from it, for others */
} td_image_counts;

/** Over an interval: bytes per second of the tier's busy time, and the share of that time that its bounds would have taken.
 */
typedef struct {
    double bytes_per_s, bound_fraction; /* bound_fraction NAN: the bounds were not measured; both 0: the tier did nothing */
} td_tier_rate;

#define TD_HISTOGRAM_MAX 20
typedef struct {
    uint32_t n;                         /* buckets */
    double   bound_s[TD_HISTOGRAM_MAX]; /* upper bounds, seconds, ascending; +inf is implied */
    uint64_t count[TD_HISTOGRAM_MAX + 1];
    double   sum_s;
} td_histogram;

/** A snapshot of the counters since start. */
typedef struct {
    uint64_t requests_total, requests_stopped, requests_length, requests_aborted,
        requests_failed; /* all, and how they ended */
    uint64_t        prompt_tokens, cached_tokens, generation_tokens;
    uint32_t        running, queued;                          /* queued: retracted ones too */
    uint64_t        queued_tokens;                            /* that those have so far */
    uint32_t        retracted;                                /* waiting again because no KV page was free */
    uint64_t        retractions;                              /* times that happened */
    uint32_t        prefill_requests;                         /* running ones whose prompt is not all computed */
    uint64_t        prefill_tokens_done, prefill_tokens_left; /* of those: tokens with KV, and to be computed */
    uint64_t        kv_tokens_used, kv_tokens_total;          /* used: by requests */
    td_image_counts images;
    uint64_t        kv_tokens_cached; /* held by the prefix cache alone: dropped when room is needed */
    uint64_t        cache_evictions;  /* pages that were */
    uint64_t window_tokens; /* room in layers with a sliding window, which give back what is behind it; 0: there are none */
    uint64_t window_tokens_used;   /* of these, those that requests hold */
    uint64_t window_tokens_cached; /* those kept at ends of cached prefixes, until they are needed */
    uint64_t state_snapshots;      /* of recurrent layers' states, at the ends of pages that the prefix cache holds */
    uint64_t state_evictions;      /* snapshots that were dropped because room was needed */
    uint64_t steps_prefill, steps_decode;
    uint64_t pieces;     /* of steps of one long prompt between which other steps run (docs/server.md) */
    bool     has_drafts; /* the engine drafts (options.speculative_algorithm); what follows */
    uint64_t drafts_verified, drafts_accepted; /* tokens */
    uint64_t drafted_steps;                    /* decode steps with at least one draft */
    uint64_t drafted_seqs, drafted_tokens;     /* in those steps: sequences, and the tokens that they gave */
    double   draft_gain;                       /* tokens per second with drafts, of those without, as measured last */
    uint64_t expert_pairs, experts_deferred;   /* (token, expert) pairs: computed, and of those added one layer later */
    td_residency_counts residency;             /* its slots are 0 if no experts move */
    td_tier_work        device, experts;
    td_tier_rate        device_rate, expert_rate; /* over the last log interval; 0 when idle */
    double              decode_tokens_per_s;      /* over the last log interval; 0 when idle */
    double              last_decode_tokens_per_s; /* the same, kept when idle */
    td_histogram ttft, tpot, queue_time, e2e;     /* tpot: between two tokens of a request; e2e: from arrival to the end */
    bool         has_page_store;
    td_page_store_stats page_store;
} td_engine_stats;

void td_engine_get_stats(td_engine *e, td_engine_stats *s);

/** A card, a device with memory of its own, since it was opened. */
typedef struct {
    uint64_t memory_total, memory_free;   /* bytes; both 0: its runtime does not say */
    uint64_t launches;                    /* calls that enqueued work: an operation, a copy, a call of the host, a replay */
    uint64_t captures, replays;           /* steps that were captured, and launches of them */
    uint64_t failures;                    /* calls that failed, and waits that ended with a failed operation */
    double   temperature_c;               /* NAN: nothing tells it */
    uint64_t streamed_bytes, streamed_ns; /* of streamed experts that came to it: their bytes, and how long its link took */
} td_card_stats;

#define TD_CARDS_MAX 64

/** Asks the cards' drivers, and waits as long as they do. @return how many there are; 0: the device is the host. */
uint32_t td_engine_get_cards(td_engine *e, td_card_stats out[TD_CARDS_MAX]);

/**
 * Whether a card can do nothing any more in this process: then every request ends with TD_ELOST, and none is taken. Any
 * thread. @param why NULL, or TD_ELOST and a sentence, where it is so.
 */
bool td_engine_is_lost(td_engine *e, td_error *why);

typedef enum {
    TD_STEP_NONE,
    TD_STEP_SCHEDULING,
    TD_STEP_FORWARD,
    TD_STEP_HEAD,
    TD_STEP_SAMPLING,
    TD_STEP_DELIVERING,
    TD_STEP_DRAFTING,
    TD_STEP_ENCODING /* an image, between steps */
} td_step_phase;

/** The step that the engine is in, for a watchdog. */
typedef struct {
    td_step_phase phase;             /* NONE: between steps */
    uint64_t      number;            /* from 1; 0 before the first */
    uint32_t      tokens, sequences; /* 0 while it is scheduled */
    double        seconds;           /* since it began */
    char          where[96]; /* what the tiers are in, "mla of layer 12 on the device, experts of layer 11"; or empty */
} td_engine_step;

void td_engine_get_step(td_engine *e, td_engine_step *s);

/** Empty the prefix cache: requests that are submitted later find nothing of earlier ones in it. */
void td_engine_flush_cache(td_engine *e);

/* ---- requests -------------------------------------------------------------------------------- */

#define TD_LOGPROBS_MAX 20
#define TD_STOP_MAX 16

typedef struct {
    double          temperature;        /* 0: greedy */
    uint32_t        top_k;              /* 0: off */
    double          top_p;              /* 1: off */
    double          min_p;              /* 0: off */
    double          frequency_penalty;  /* 0: off */
    double          presence_penalty;   /* 0: off */
    double          repetition_penalty; /* 1: off */
    bool            has_seed;
    uint64_t        seed;     /* drawn from the engine's generator when !has_seed */
    const uint32_t *bias_ids; /* [n_bias] */
    const float    *bias;     /* [n_bias] added to the logits */
    size_t          n_bias;
} td_sampling;

typedef enum { TD_FINISH_NONE, TD_FINISH_STOP, TD_FINISH_LENGTH, TD_FINISH_ABORT, TD_FINISH_ERROR } td_finish;

typedef struct {
    uint32_t id;
    float    logprob;
} td_token_logprob;

/** Log-probabilities at one position, of the distribution before temperature and penalties. */
typedef struct {
    uint32_t         id;      /* the token at this position */
    float            logprob; /* NAN for the first prompt token: nothing predicts it */
    uint32_t         n_top;
    td_token_logprob top[TD_LOGPROBS_MAX]; /* descending */
} td_position_logprobs;

/** News of a request. Borrowed: all pointers are valid during the callback only. */
typedef struct {
    const char     *text; /* new text in whole characters; may be empty while a character or stop string is undecided */
    size_t          text_len;
    const uint32_t *tokens; /* [n_tokens] new tokens, the one that stopped the request included */
    size_t          n_tokens;
    const td_position_logprobs *logprobs;        /* [n_tokens], when asked for, else NULL */
    const td_position_logprobs *prompt_logprobs; /* [n_prompt_logprobs], once, with the first event, when asked for */
    size_t                      n_prompt_logprobs;
    td_finish                   finish;      /* != NONE in exactly one event, the last */
    const char                 *stop_reason; /* stop string that matched, or NULL */
    uint32_t                    stop_token;  /* token id that stopped it, or UINT32_MAX */
    const td_error             *error;       /* finish == ERROR */
    uint32_t                    prompt_tokens, cached_tokens, completion_tokens; /* so far */
    double                      age_s; /* with tokens: of the request, since td_engine_submit */
} td_event;

/** Called on the engine thread; must not block or call back into the request. */
typedef void (*td_event_fn)(void *user, const td_event *event);

/**
 * Make a picture ready for the model, as its image processor does. It waits for a process of its own, which decodes and
 * resizes the picture; any thread.
 * @param text len bytes: a data URL with ";base64", or base64 alone, of a JPEG, PNG or WebP.
 * @param out  one reference (td_image_release). Untouched unless TD_OK.
 * @return TD_ENOTSUP (also: the model is served for text only), TD_EFORMAT, TD_ELIMIT: the picture is at fault, and err says
 *         in a sentence for its sender how; TD_ENOMEM, TD_EIO: this machine is.
 */
TD_NODISCARD td_status td_engine_load_image(td_engine *e, const char *text, size_t len, td_image **out, td_error *err);

/** Tokens [first, first + td_image_tokens(image)) of a prompt, which stand for an image. */
typedef struct {
    uint32_t  first;
    td_image *image; /* of the engine that gets the request */
} td_prompt_image;

typedef struct {
    const uint32_t *prompt; /* [n_prompt] */
    size_t          n_prompt;
    /** [n_images] in the order of their tokens, which are td_engine_info.image_token and stand nowhere else. The request holds
     * the images. */
    const td_prompt_image *images;
    size_t                 n_images;
    uint32_t           max_tokens; /* 0: only the prompt's logprobs; the context length and the KV capacity bound it too */
    uint32_t           min_tokens; /* before, no EOS or stop id is chosen and no stop string counts */
    td_sampling        sampling;
    const char *const *stop; /* [n_stop] strings */
    size_t             n_stop;
    const uint32_t    *stop_ids;
    size_t             n_stop_ids;
    bool               ignore_eos;
    bool               skip_special_tokens; /* in text */
    bool               include_stop;        /* leave the stop string in the text */
    bool               logprobs;            /* of generated tokens */
    bool               prompt_logprobs;
    uint32_t           n_top_logprobs; /* 0..TD_LOGPROBS_MAX */
    int32_t            priority;       /* higher is served first; equal ones in order of arrival */
    /**
     * The text is of this grammar's language, and the request stops where nothing can follow; NULL: any text. The request
     * holds the grammar, which requests of one engine only may use.
     */
    td_grammar *grammar;
    /**
     * With a grammar: the model may reason before the grammar's text, in this one of td_answer_parser's formats. NULL: the
     * grammar's text begins with the first token.
     */
    const char        *reasoning_format;
    td_reasoning_start reasoning_start; /* with reasoning_format */
    td_event_fn        on_event;
    void              *user;
} td_request_params;

void td_request_params_init(td_request_params *p);

/**
 * Find what all requests with a grammar share, so that the first one's td_engine_submit does not take the time: some tenths
 * of a second. @return TD_EINVAL for a model without a tokenizer, or when the grammar is another engine's; TD_ENOMEM.
 */
TD_NODISCARD td_status td_engine_prepare_grammar(td_engine *e, td_grammar *g, td_error *err);

/**
 * Queue a request; copies all it needs. *out must be released with td_request_release, at any time after.
 * @return TD_EINVAL with a sentence that names the field (a prompt that does not fit the context, an id outside the
 * vocabulary, …); TD_EBUSY when the queue is full; TD_ESHUTDOWN while closing; TD_ELOST: td_engine_is_lost.
 */
TD_NODISCARD td_status td_engine_submit(td_engine *e, const td_request_params *p, td_request **out, td_error *err);
/** The same of n requests at once: all of them are queued, or none. @param out [n], filled before the first event comes; all
 * NULL on failure. */
TD_NODISCARD td_status td_engine_submit_all(td_engine *e, const td_request_params *p, size_t n, td_request **out,
                                            td_error *err);
void                   td_request_cancel(td_request *r);  /* its last event has finish ABORT, unless it ended before */
void                   td_request_release(td_request *r); /* the callback may still run until its last event */

#ifdef __cplusplus
}
#endif
#endif
