/* What the server tells about itself: models, and what it runs with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/files/json_text.h"
#include "server/answer/answer.h"
#include "server/server_state.h"

static void write_model(td_jbuf *b, const td_server *s, const char *name) {
    td_jw_open(b, '{');
    td_jw_member_str(b, "id", name);
    td_jw_member_str(b, "object", "model");
    td_jw_member_int(b, "created", s->started_s);
    td_jw_member_str(b, "owned_by", "tandem");
    td_jw_member_str(b, "root", s->model.name);
    td_jw_member_null(b, "parent");
    td_jw_member_int(b, "max_model_len", s->model.info.context_length);
    /* Anthropic's clients read these. */
    char      created[32];
    time_t    at = s->started_s;
    struct tm utc;
    gmtime_r(&at, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    td_jw_member_str(b, "type", "model");
    td_jw_member_str(b, "display_name", name);
    td_jw_member_str(b, "created_at", created);
    td_jw_close(b, '}');
}

enum MHD_Result td_route_models(td_call *c) {
    td_jbuf b = {0};
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "object", "list");
    td_jw_key(&b, "data");
    td_jw_open(&b, '[');
    for (uint32_t i = 0; i < c->server->model.n_names; i++) write_model(&b, c->server, c->server->model.names[i]);
    td_jw_close(&b, ']');
    td_jw_member_bool(&b, "has_more", false);
    td_jw_member_str(&b, "first_id", c->server->model.names[0]);
    td_jw_member_str(&b, "last_id", c->server->model.names[c->server->model.n_names - 1]);
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}

enum MHD_Result td_route_model(td_call *c) {
    td_api_error err;
    if (td_check_model(&c->server->model, c->rest, &err) != TD_OK) return td_answer_error(c, &err);
    td_jbuf b = {0};
    write_model(&b, c->server, c->rest);
    return td_answer_json(c, 200, &b);
}

static void write_default(td_jbuf *b, const char *key, double v) {
    if (isnan(v)) return;
    td_jw_key(b, key);
    td_jw_real(b, v, 17);
}

enum MHD_Result td_route_model_info(td_call *c) {
    const td_server *s = c->server;
    td_jbuf          b = {0};
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "model_path", s->model.info.model_path);
    td_jw_member_str(&b, "tokenizer_path", s->opt.tokenizer_path ? s->opt.tokenizer_path : s->model.info.model_path);
    td_jw_member_bool(&b, "is_generation", true);
    td_jw_member_str(&b, "served_model_name", s->model.name);
    td_jw_member_str(&b, "architecture", s->model.info.architecture);
    td_jw_key(&b, "architectures");
    td_jw_open(&b, '[');
    td_jw_str(&b, s->model.info.architecture);
    td_jw_close(&b, ']');
    td_jw_member_str(&b, "model_type", s->model.info.model_type);
    td_jw_member_int(&b, "context_length", s->model.info.context_length);
    td_jw_member_int(&b, "vocab_size", s->model.info.vocab_size);
    td_jw_member_bool(&b, "has_chat_template", s->model.chat.tmpl != NULL);
    td_jw_member_bool(&b, "has_image_understanding", s->model.chat.shows_images);
    td_jw_key(&b, "preferred_sampling_params");
    td_jw_open(&b, '{');
    write_default(&b, "temperature", s->model.info.default_temperature);
    write_default(&b, "top_p", s->model.info.default_top_p);
    if (s->model.info.default_top_k) td_jw_member_int(&b, "top_k", s->model.info.default_top_k);
    write_default(&b, "repetition_penalty", s->model.info.default_repetition_penalty);
    td_jw_close(&b, '}');
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}

/* The flags in force; SGLang puts them at the top level. */
static json_t *flags_of(const td_server *s) {
    json_t      *flags = NULL;
    json_error_t why;
    if (!s->opt.flags_json) return json_object();
    return td_json_load(s->opt.flags_json, strlen(s->opt.flags_json), 0, &flags, &why) == TD_OK ? flags : NULL;
}

/* What flags that leave a choice have resolved to. */
static json_t *settled_of(const td_server *s) {
    const td_engine_info *i = &s->model.info;
    uint64_t              longest = i->context_length < i->max_total_tokens ? i->context_length : i->max_total_tokens;
    return json_pack("{s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:s?}",
                     "version", TD_VERSION, "served_model_name", td_json_name(s->model.name), "architecture",
                     i->architecture, "device", i->device, "quantization", i->quantization, "expert_quantization",
                     i->expert_quantization, "expert_kernel", i->expert_kernel, "dp_size", (json_int_t)1, "port",
                     (json_int_t)atoi(strrchr(s->url, ':') + 1), "context_length", (json_int_t)i->context_length,
                     "max_req_input_len", (json_int_t)longest - 1, "max_total_tokens", (json_int_t)i->max_total_tokens,
                     "max_total_num_tokens", (json_int_t)i->max_total_tokens, "max_running_requests",
                     (json_int_t)i->max_running_requests, "max_queued_requests", (json_int_t)i->max_queued_requests,
                     "chunked_prefill_size", (json_int_t)i->chunked_prefill_size, "tool_call_parser", s->model.tool_format,
                     "reasoning_parser", s->model.reasoning_format);
}

static json_t *memory_of(const td_engine_info *i) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "weight_bytes", (json_int_t)i->weight_bytes, "device_weight_bytes",
                     (json_int_t)(i->weight_bytes - i->expert_weight_bytes), "expert_weight_bytes",
                     (json_int_t)i->expert_weight_bytes, "kv_bytes", (json_int_t)i->kv_bytes, "scratch_bytes",
                     (json_int_t)i->scratch_bytes);
}

/* The state of the only data-parallel rank. */
static json_t *state_of(const td_engine_info *i, const td_engine_stats *st) {
    return json_pack("{s:f, s:I, s:I, s:I, s:I, s:{s:f, s:f, s:f, s:I}}", "last_gen_throughput",
                     st->last_decode_tokens_per_s, "effective_max_running_requests_per_dp",
                     (json_int_t)i->max_running_requests, "num_running_reqs", (json_int_t)st->running, "num_queue_reqs",
                     (json_int_t)st->queued, "kv_tokens_used", (json_int_t)st->kv_tokens_used, "memory_usage", "weight",
                     TD_GIB(i->weight_bytes), "kvcache", TD_GIB(i->kv_bytes), "graph", 0.0, "token_capacity",
                     (json_int_t)i->max_total_tokens);
}

enum MHD_Result td_route_server_info(td_call *c) {
    const td_server *s = c->server;
    td_engine_stats  st;
    td_jbuf          b = {0};
    td_engine_get_stats(s->engine, &st);
    json_t *info = flags_of(s), *settled = settled_of(s), *memory = memory_of(&s->model.info);
    bool    made = json_object_update(info, settled) == 0 && json_object_update(info, memory) == 0 &&
                json_object_set_new(info, "internal_states", json_pack("[o]", state_of(&s->model.info, &st))) == 0;
    char *text = made ? td_json_dump(info, JSON_COMPACT) : NULL;
    if (text)
        td_jw_raw(&b, text, strlen(text));
    else
        b.failed = true;
    free(text);
    json_decref(info);
    json_decref(settled);
    json_decref(memory);
    return td_answer_json(c, 200, &b);
}
