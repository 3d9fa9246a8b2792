/*
 * Fuzz target: bodies of the APIs, without a network. The first byte chooses the API, the rest is the body. A request that
 * generates is followed to the parameters that are submitted; /v1/responses has two kept responses to continue, resp_1 and,
 * after it, resp_2. A request that only works on text is followed to its reply. Accepted requests must be within their
 * limits; refused ones must get an error in valid JSON.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/anthropic/messages.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"
#include "server/request/api_read.h"
#include "server/server_state.h"
#include "server/sglang/generate.h"
#include "server/token_answer.h"

static void require(int condition) {
    if (!condition) abort();
}

static void check_parameters(const td_api_request *r, const td_engine_info *info) {
    const td_sampling *s = &r->sampling;
    require(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    require(s->repetition_penalty > 0 && fabs(s->frequency_penalty) <= 2 && fabs(s->presence_penalty) <= 2);
    require(r->n >= 1 && r->n_prompts * r->n <= TD_API_CHOICES_MAX && r->stop.n_texts <= TD_STOP_MAX &&
            r->shown.top_logprobs <= TD_LOGPROBS_MAX);
    for (size_t i = 0; i < s->n_bias; i++) require(s->bias_ids[i] < info->vocab_size && fabsf(s->bias[i]) <= 100);
    for (size_t i = 0; i < r->stop.n_ids; i++) require(r->stop.ids[i] < info->vocab_size);
}

/* The images' tokens are where the prompt says, and nowhere else. */
static void check_images(const td_api_prompt *p, uint32_t token) {
    size_t at = 0;
    for (size_t i = 0; i < p->n_images; i++) {
        uint32_t n = td_image_tokens(p->images[i].image);
        for (; at < p->images[i].first; at++) require(p->ids[at] != token);
        for (size_t end = at + n; at < end; at++) require(at < p->n_ids && p->ids[at] == token);
    }
    for (; at < p->n_ids; at++) require(p->ids[at] != token);
}

static void check_accepted(const td_api_request *r, const td_engine_info *info) {
    check_parameters(r, info);
    for (size_t i = 0; i < r->n_prompts; i++) {
        const td_api_request *own = td_api_of_prompt(r, i);
        check_parameters(own, info);
        require(own->n == r->n && own->stream.on == r->stream.on && own->shown.top_logprobs == r->shown.top_logprobs);
        require(r->prompts[i].n_ids > 0 && r->prompts[i].n_ids + own->length.max <= info->context_length);
        for (size_t k = 0; k < r->prompts[i].n_ids; k++) require(r->prompts[i].ids[k] < info->vocab_size);
        check_images(&r->prompts[i], info->image_token);
    }
}

static void check_refused(const td_api *api, const td_api_error *err) {
    td_jbuf b = {0};
    require(err->http >= 400 && err->http < 600 && err->message[0]);
    api->write_error(&b, err);
    json_t *doc = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, NULL);
    require(json_is_string(json_object_get(json_object_get(doc, "error"), "message")));
    json_decref(doc);
    td_jbuf_free(&b);
}

static void keep(td_response_store *store, const char *id, const char *input, const char *text, const char *output) {
    td_stored_response r = {.input = strdup(input),
                            .input_len = strlen(input),
                            .text = strdup(text),
                            .text_len = strlen(text),
                            .output = (size_t)(strstr(text, output) - text),
                            .output_len = strlen(output)};
    r.previous = td_response_store_find(store, "resp_1");
    strcpy(r.id, id);
    require(td_response_store_put(store, &r) == TD_OK);
}

static void keep_two(td_response_store *store) {
#define ASKED \
    "[{\"id\":\"msg_1_i0\",\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Q\"}]}]"
#define SAID                                                                                                                \
    "[{\"id\":\"rs_1_0\",\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"R\"}]}" \
    ","                                                                                                                     \
    "{\"id\":\"fc_1_1\",\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"}]"
#define RESULT "[{\"id\":\"fco_2_i0\",\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"done\"}]"
#define ENDED                                                                                                           \
    "[{\"id\":\"msg_2_0\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":" \
    "\"A\"}]}]"
    td_response_store_init(store, 4, 1 << 20);
    keep(store, "resp_1", ASKED, "{\"output\":" SAID "}", SAID);
    keep(store, "resp_2", RESULT, "{\"output\":" ENDED "}", ENDED);
}

/* Works on a body as the server's route does, up to the reply. */
static void check_text_work(td_work_fn work, td_server *s, const td_api *api, const uint8_t *body, size_t size) {
    td_call c = {.server = s};
    td_jbuf_put(&c.body, (const char *)body, size);
    while ((c.text.kind = work(&c)) != TD_TEXT_ENDED) {
    }
    if (c.failed) {
        check_refused(api, &c.err);
    } else {
        char piece[4096];
        for (ssize_t n;
             c.tokens && (n = td_token_answer_read(&c, piece, sizeof piece)) != MHD_CONTENT_READER_END_OF_STREAM;) {
            require(n > 0);
            td_jbuf_put(&c.reply, piece, (size_t)n);
        }
        json_t *reply = json_loadb(c.reply.data, c.reply.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        require(json_is_object(reply));
        json_decref(reply);
    }
    td_token_answer_free(c.tokens);
    td_api_request_free(&c.req);
    td_jbuf_free(&c.body);
    td_jbuf_free(&c.reply);
}

static void open_server(td_server *s) {
    td_engine_options o; /* the fake engine: its tokenizer and template are what is needed */
    td_engine_options_init(&o);
    o.model_path = "/fuzz-images";
    o.context_length = 512;
    require(td_engine_open(&o, &s->engine, NULL) == TD_OK);
    s->model.engine = s->engine;
    s->model.tokenizer = td_engine_tokenizer(s->engine);
    s->model.names[s->model.n_names++] = "fuzz";
    td_engine_get_info(s->engine, &s->model.info);
    td_chat_markers markers = {.bos = td_tokenizer_bos(s->model.tokenizer), .eos = td_tokenizer_eos(s->model.tokenizer)};
    bool            special;
    markers.image = td_tokenizer_token(s->model.tokenizer, s->model.info.image_token, &markers.image_len, &special);
    td_chat_form_learn(&s->model.chat, td_engine_chat_template(s->engine), &markers);
    keep_two(&s->responses);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const td_api *const APIS[] = {&td_api_completion, &td_api_chat, &td_api_response, &td_api_messages,
                                         &td_api_generate};
    static const struct {
        td_work_fn    work;
        const td_api *api; /* that writes the errors */
    } TEXT_WORK[] = {{td_work_count_tokens, &td_api_messages},
                     {td_work_tokenize, &td_api_completion},
                     {td_work_detokenize, &td_api_completion}};
    static td_server s;
    td_api_request   r;
    td_api_error     err = {0};
    size_t           n_apis = sizeof APIS / sizeof *APIS, which = size ? data[0] - (size_t)'0' : SIZE_MAX;
    if (size == 0) return 0;
    if (!s.engine) open_server(&s);
    if (which >= n_apis + sizeof TEXT_WORK / sizeof *TEXT_WORK) return 0;
    if (which >= n_apis) {
        check_text_work(TEXT_WORK[which - n_apis].work, &s, TEXT_WORK[which - n_apis].api, data + 1, size - 1);
        return 0;
    }
    const td_api *api = APIS[which];
    td_status     st =
        td_api_read(api, (const char *)data + 1, size - 1, &(td_api_context){&s.model.info, &s.responses}, &r, &err);
    while (st == TD_OK && td_api_images_left(&r.images))
        st = td_api_images_load(&r.images, s.engine, &s.model.images, true, &err);
    const td_api_encoding encoding = td_served_encoding(&s.model);
    if (st == TD_OK) st = td_api_encode(&r, &encoding, &err);
    if (st == TD_OK)
        check_accepted(&r, &s.model.info);
    else
        check_refused(api, &err);
    td_api_rename_error(api->names, &err);
    if (st != TD_OK) check_refused(api, &err);
    td_api_request_free(&r);
    require(s.responses.n == 2);
    return 0;
}
