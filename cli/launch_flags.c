#include "cli/launch_flags.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/yaml_pairs.h"
#include "core/log/log.h"
#include "npu/npu.h"

/* ---- the table ---- */

#define S(member) offsetof(td_launch_options, server.member)
#define O(member) offsetof(td_launch_options, member)
#define TITLE(text) \
    { .names = {NULL}, .help = text }

/* One row for each flag. clang-format would put every member on a line of its own. */
/* clang-format off */
static const td_flag FLAGS[] = {
    TITLE("Server"),
    {{"config"}, TD_FLAG_TEXT, O(config), .arg = "FILE.yaml", .on_line = true, .basic = true,
     .help = "File of 'flag: value' lines; the command line wins over it. Examples: configs/launch/."},
    {{"served-model-name", "alias", "a"}, TD_FLAG_TEXT, S(served_model_name), .takes_words = true, .arg = "NAME", .by_default = "the last part of --model-path",
     .help = "The model's name in the API, or several: a,b,c or a b c."},
    {{"host"}, TD_FLAG_TEXT, S(host), .basic = true, .arg = "HOST", .by_default = "127.0.0.1",
     .help = "Address to listen on; 0.0.0.0 for all."},
    {{"port"}, TD_FLAG_U16, S(port), .basic = true, .max = 65535, .arg = "PORT", .by_default = "30000",
     .help = "0 takes a free one. Taken before the model is loaded."},
    {{"api-key"}, TD_FLAG_TEXT, S(api_key), .basic = true, .arg = "KEY", .secret = true,
     .help = "Demand 'Authorization: Bearer KEY' or 'x-api-key: KEY' everywhere but on /health and the console's files. "
             "Better kept in a --config file than on the command line."},
    {{"allow-no-key"}, TD_FLAG_SWITCH, S(allow_no_key),
     .help = "Let everybody who reaches the server use it. Without this, and without --api-key, only addresses of this "
             "machine alone (127.0.0.1) are listened on."},
    {{"allowed-hosts"}, TD_FLAG_TEXT, S(allowed_hosts), .arg = "NAMES",
     .by_default = "local ones on a loopback address without --api-key, else all",
     .help = "Names in the header Host that are answered: a,b,c, or * for all. Others get a 403, so that no page of another "
             "site reaches this server by a name of its own."},
    {{"cors-origin"}, TD_FLAG_TEXT, S(cors_origin), .arg = "ORIGIN", .by_default = "none",
     .help = "Origin whose pages may call from a browser; * for all."},
    {{"max-connections"}, TD_FLAG_U32, S(connections_max), .min = 1, .max = TD_SERVER_CONNECTIONS_MAX, .arg = "N",
     .by_default = "1024",
     .help = "Open HTTP connections; a few more are answered by a 503, and on /health and /metrics, and closed."},
    {{"idle-timeout"}, TD_FLAG_U32, S(idle_timeout_s), .min = 1, .max = 86400, .arg = "SECONDS", .by_default = "120",
     .help = "A connection that neither sends nor takes anything for so long is closed."},
    {{"request-timeout"}, TD_FLAG_U32, S(request_timeout_s), .min = 1, .max = 86400, .arg = "SECONDS", .by_default = "60",
     .help = "The headers of a request, and then its body, must be there within so long."},
    {{"max-answers-mib"}, TD_FLAG_U32, S(answers_mib), .min = 1, .max = 65536, .arg = "MIB", .by_default = "64",
     .help = "Room for answers that their clients have not taken yet; a large one that finds none is a 503."},
    {{"stream-interval"}, TD_FLAG_U32, S(stream_interval), .min = 1, .max = 1024, .arg = "N", .by_default = "1",
     .help = "Tokens per event of a stream."},
    {{"max-stored-responses"}, TD_FLAG_U32, S(stored_responses_max), .max = 16384, .arg = "N", .by_default = "1024",
     .help = "Answers of /v1/responses kept for previous_response_id; the least recently used goes. 0 keeps none."},
    {{"stored-responses-mib"}, TD_FLAG_U32, S(stored_responses_mib), .min = 1, .max = 65536, .arg = "MIB", .by_default = "64",
     .help = "Room for these answers and what they were asked."},
    {{"max-background-responses"}, TD_FLAG_U32, S(background_max), .max = 4096, .arg = "N", .by_default = "64",
     .help = "Answers of /v1/responses that may run or wait in the background; one more is a 503. 0 takes none."},
    {{"background-timeout"}, TD_FLAG_U32, S(background_timeout_s), .min = 1, .max = 604800, .arg = "SECONDS",
     .by_default = "86400", .help = "One that has not ended in so long has failed."},
    {{"background-events-mib"}, TD_FLAG_U32, S(background_events_mib), .min = 1, .max = 65536, .arg = "MIB",
     .by_default = "64", .help = "Room for the events of those that are streams; when it is full, the oldest go."},
    {{"background-events-age"}, TD_FLAG_U32, S(background_events_s), .min = 1, .max = 86400, .arg = "SECONDS",
     .by_default = "300", .help = "How long after its end the events of a stream can still be asked for."},
    {{"enable-metrics"}, TD_FLAG_SWITCH, TD_FLAG_NOWHERE, .by_default = "on", .help = "Accepted; /metrics is always there."},
    {{"allow-get-flush"}, TD_FLAG_SWITCH, S(allow_get_flush),
     .help = "GET /flush_cache, as older clients of SGLang send it, empties the cache, too."},
    {{"disable-console"}, TD_FLAG_SWITCH, S(disable_console), .help = "No page for browsers at / (docs/console.md)."},
    {{"log-level"}, TD_FLAG_TEXT, O(log_level), .arg = "LEVEL", .choices = TD_CHOICES("debug", "info", "warning", "error"),
     .by_default = "info", .help = "Least severe log lines to print."},
    {{"log-format"}, TD_FLAG_TEXT, O(log_format), .arg = "FORMAT", .choices = TD_CHOICES("text", "json"),
     .by_default = "text", .help = "json writes each log line as one object, with its figures as members."},
    {{"trace"}, TD_FLAG_TEXT, O(trace), .arg = "FILE",
     .help = "Write a timeline of device, expert threads, scheduler and HTTP for ui.perfetto.dev, 1 GiB at most "
             "(docs/tracing.md)."},
    {{"watchdog-timeout"}, TD_FLAG_U32, S(watchdog_s), .max = 86400, .arg = "SECONDS", .by_default = "300",
     .help = "When no step ends for so long while requests run, the log and /health (then 503) name the stuck step; 0 "
             "turns this off."},
    {{"shutdown-delay"}, TD_FLAG_REAL, O(shutdown_delay_s), .max = 86400, .arg = "SECONDS", .by_default = "0",
     .help = "After SIGTERM, SIGINT or SIGHUP requests are still taken for so long, while /health says 503: time for a "
             "router to send them elsewhere."},
    {{"shutdown-grace"}, TD_FLAG_REAL, O(shutdown_grace_s), .max = 86400, .arg = "SECONDS", .by_default = "30",
     .help = "Time that running requests get after that; a second signal ends both."},
    {{"skip-server-warmup"}, TD_FLAG_SWITCH, O(skip_warmup),
     .help = "Be ready without having measured what the threads can do or generated a token first."},
    {{"reasoning-parser"}, TD_FLAG_TEXT, S(reasoning_parser), .arg = "NAME",
     .choices = TD_CHOICES("auto", "none", "deepseek-r1", "deepseek-v3", "deepseek-v4", "qwen3", "qwen3-thinking", "glm45", "kimi",
                           "kimi_k2", "minimax", "gpt-oss", "deepseek_r1=deepseek-r1", "deepseek_v4=deepseek-v4", "harmony=gpt-oss"),
     .by_default = "auto",
     .help = "How the model marks its reasoning, which is then the answer's reasoning_content. auto: by the chat template.",
     .refusal = TD_NOT_YET "; none leaves the reasoning in the text"},
    {{"tool-call-parser"}, TD_FLAG_TEXT, S(tool_call_parser), .arg = "NAME",
     .choices = TD_CHOICES("auto", "none", "deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "kimi_k2", "qwen25", "qwen3_coder",
                           "glm45", "glm47", "minimax-m2", "hermes", "llama3", "mistral", "gpt-oss", "pythonic",
                           "deepseek_v3=deepseekv3", "deepseek_v31=deepseekv31", "deepseek_v32=deepseekv32",
                           "deepseek_v4=deepseekv4", "qwen=qwen25",
                           "qwen3=qwen25", "glm=glm45", "minimax_m2=minimax-m2", "openai=gpt-oss", "harmony=gpt-oss"),
     .by_default = "auto",
     .help = "How the model writes tool calls, which then are the answer's tool_calls. auto: by the chat template.",
     .refusal = TD_NOT_YET "; none leaves tool calls in the text"},
    {{"kv-events-config"}, TD_FLAG_TEXT, O(kv_events_config), .arg = "JSON", .by_default = "none",
     .help = "Tell routers which pages the prefix cache holds, over ZeroMQ: {\"publisher\": \"zmq\", \"endpoint\": "
             "\"tcp://127.0.0.1:5557\"} (docs/scaling.md)."},
    {{"kv-store"}, TD_FLAG_TEXT, O(kv_store), .arg = "NAME", .choices = TD_CHOICES("none", "mooncake"), .by_default = "none",
     .help = "Share the pages of the prefix cache with other hosts through this store (docs/scaling.md).",
     .refusal = TD_NOT_YET},
    {{"kv-store-config"}, TD_FLAG_TEXT, O(kv_store_config), .arg = "FILE", .by_default = "none",
     .help = "What the store needs to know, as JSON: {\"master_server_address\": \"HOST:50051\", \"global_segment_size\": "
             "\"4GB\", \"local_hostname\": \"THIS HOST\"}."},
    {{"check"}, TD_FLAG_SWITCH, O(check), .on_line = true, .help = "Check the flags, the host and the model's folder (all but the weights themselves), say what the flags amount to, and exit."},
    {{"help-markdown"}, TD_FLAG_SWITCH, O(help_markdown), .on_line = true, .help = "Print the flags as docs/flags.md."},
};
/* clang-format on */

#define N_FLAGS (sizeof FLAGS / sizeof *FLAGS)
static_assert(N_FLAGS <= TD_LAUNCH_FLAGS_MAX && TD_LAUNCH_FLAGS_MAX <= TD_ENGINE_FLAGS_MAX,
              "`given` has room for every row of both tables");

/* ---- --config ---- */

/* Every name of every flag, with the row that it names. */
typedef struct {
    td_launch_options *options;
    const char        *names[(TD_ENGINE_FLAGS_MAX + TD_LAUNCH_FLAGS_MAX) * TD_FLAG_NAMES_MAX];
    const td_flag     *flags[(TD_ENGINE_FLAGS_MAX + TD_LAUNCH_FLAGS_MAX) * TD_FLAG_NAMES_MAX];
    td_flag_group     *groups[(TD_ENGINE_FLAGS_MAX + TD_LAUNCH_FLAGS_MAX) * TD_FLAG_NAMES_MAX];
    size_t             n;
} config_keys;

static void list_keys(config_keys *keys) {
    for (td_flag_group *g = keys->options->groups; g < keys->options->groups + 2; g++)
        for (const td_flag *f = g->flags; f < g->flags + g->n; f++)
            for (size_t k = 0; f->names[k]; k++) {
                keys->names[keys->n] = f->names[k];
                keys->flags[keys->n] = f;
                keys->groups[keys->n++] = g;
            }
}

static td_status from_config(void *user, size_t key, const char *value, td_error *err) {
    config_keys       *keys = user;
    td_launch_options *o = keys->options;
    const td_flag     *f = keys->flags[key];
    td_flag_group     *g = keys->groups[key];
    uint8_t           *given = &g->given[f - g->flags];
    if (f->on_line) return td_fail(err, TD_EINVAL, "'%s' belongs on the command line", keys->names[key]);
    if (*given == TD_GIVEN_IN_CONFIG) return td_fail(err, TD_EINVAL, "'%s' is there twice", keys->names[key]);
    if (*given == TD_GIVEN) return TD_OK; /* the command line wins */
    *given = TD_GIVEN_IN_CONFIG;
    if (f->type == TD_FLAG_TEXT) value = td_flag_strings_keep(&o->strings, value);
    if (!value) return td_fail(err, TD_ENOMEM, "out of memory");
    return td_flag_set(f, NULL, g->options, value, err);
}

static td_status read_config(td_launch_options *o, td_error *err) {
    config_keys *keys = calloc(1, sizeof *keys);
    if (!keys) return td_fail(err, TD_ENOMEM, "out of memory");
    keys->options = o;
    list_keys(keys);
    static const td_yaml_words WORDS = {"config", "flag", "'tandem launch_server --help'"};
    td_status                  st = td_yaml_pairs_read(&WORDS, o->config, keys->names, keys->n, from_config, keys, err);
    free(keys);
    return st;
}

/* ---- all of it ---- */

static td_status settle_kv_store(td_launch_options *o, td_error *err) {
    o->has_kv_store = strcmp(o->kv_store, "none") != 0;
    if (o->has_kv_store != (o->kv_store_config != NULL))
        return td_fail(err, TD_EINVAL, "--kv-store and --kv-store-config belong together: %s is missing",
                       o->has_kv_store ? "--kv-store-config FILE" : "--kv-store mooncake");
    if (!o->has_kv_store) return TD_OK;
    if (o->engine.disable_radix_cache)
        return td_fail(err, TD_EINVAL, "--kv-store has nothing to share with --disable-radix-cache");
    if (td_kv_store_config_read(o->kv_store_config, &o->kv_store_settings, err) != TD_OK)
        return td_fail_within(err, "--kv-store-config");
    return TD_OK;
}

static td_status settle(td_launch_options *o, td_error *err) {
    td_engine_flags_settle(&o->engine);
    o->server.tokenizer_path = o->engine.tokenizer_path;
    o->engine.measure_bounds = !o->skip_warmup;
    /* Each device has one attention backend, its own, so --attention-backend may only name the device, by any of its names.
     */
    const char **backend = &o->engine.attention_backend, *device = o->engine.device;
    if (*backend && td_backend_find(*backend) == td_backend_find(device)) *backend = device;
    if (*backend && strcmp(*backend, device) != 0) {
        td_warn("the attention backend '%s' is not there on device '%s'; using the device's own", *backend, device);
        *backend = NULL;
    }
    if (o->kv_events_config && td_kv_events_config_parse(o->kv_events_config, &o->kv_events, err) != TD_OK)
        return td_fail_within(err, "--kv-events-config");
    if (o->kv_events.on && o->engine.disable_radix_cache)
        return td_fail(err, TD_EINVAL, "--kv-events-config has nothing to tell with --disable-radix-cache");
    TD_TRY(settle_kv_store(o, err));
    if (!o->engine.model_path) return td_fail(err, TD_EINVAL, "--model-path is missing: the folder of the model to serve");
    return TD_OK;
}

td_status td_launch_flags_parse(int argc, char **argv, td_launch_options *o, td_error *err) {
    *o = (td_launch_options){.shutdown_grace_s = 30, .log_level = "info", .log_format = "text", .kv_store = "none"};
    td_engine_options_init(&o->engine);
    td_server_options_init(&o->server);
    o->groups[0] = td_engine_flags(TD_IN_LAUNCH, &o->engine);
    o->groups[1] = (td_flag_group){.flags = FLAGS, .n = N_FLAGS, .options = o};
    for (int i = 0; i < 2; i++) o->groups[i].given = o->given[i];
    o->command = (td_flag_command){.name = "launch_server",
                                   .synopsis = "--model-path DIR [flags]",
                                   .about = "Serves a model over OpenAI's HTTP API.\n",
                                   .short_help = true,
                                   .strings = &o->strings,
                                   .groups = o->groups,
                                   .n_groups = 2};
    td_status st = td_flags_parse(&o->command, argc, argv, &o->help, err);
    if (st != TD_OK || o->help || o->help_markdown) return st;
    if (o->config) TD_TRY(read_config(o, err));
    return settle(o, err);
}

void td_launch_options_free(td_launch_options *o) {
    td_flag_strings_free(&o->strings);
    *o = (td_launch_options){0};
}

void td_launch_flags_print_markdown(const td_launch_options *o, FILE *f) {
    fprintf(f,
            "# Flags of `tandem launch_server`\n\n"
            "[中文](flags.zh.md)\n\n"
            "Written by `tandem launch_server --help-markdown`; the tables are in `cli/engine_flags.c` and "
            "`cli/launch_flags.c`.\n"
            "Any flag may also stand in a `--config FILE.yaml` as `flag: value` (switches as `true` or `false`; `_` may "
            "stand for `-`);\n"
            "the command line wins. A flag that is known but not supported yet, or a value of it, is refused with one "
            "sentence and exit\n"
            "status 2.\n");
    td_flags_print_markdown(&o->command, f);
}
