#include "server/request/api_request.h"

#include <stdlib.h>

#include "core/error.h"

void td_api_request_free(td_api_request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) free(r->prompts[i].ids);
    for (size_t i = 0; r->each && i < r->n_prompts; i++) td_api_request_free(&r->each[i]);
    free(r->each);
    free(r->prompts);
    json_decref(r->template_doc);
    td_tool_list_free(r->tools);
    free(r->grammar_owned);
    td_grammar_release(r->grammar);
    free(r->stop_ids);
    free((void *)r->sampling.bias_ids);
    free((void *)r->sampling.bias);
    json_decref(r->root);
    if (r->own) r->api->free_own(r->own);
    *r = (td_api_request){0};
}

void td_api_write_warnings(td_jbuf *b, const td_api_request *r) {
    if (!r->n_warnings) return;
    td_jw_key(b, "warnings");
    td_jw_open(b, '[');
    for (size_t i = 0; i < r->n_warnings; i++) td_jw_str(b, r->warnings[i]);
    td_jw_close(b, ']');
}

bool td_api_find_grammar(td_api_request *r, td_grammar_cache *cache) {
    bool all = true;
    for (size_t i = 0; r->each && i < r->n_prompts; i++) all = td_api_find_grammar(&r->each[i], cache) && all;
    if (!r->has_grammar || r->each) return all;
    if (!r->grammar) r->grammar = td_grammar_cache_find(cache, r->grammar_kind, r->grammar_source, r->grammar_len);
    return r->grammar;
}

td_status td_api_compile_grammar(td_api_request *r, td_grammar_cache *cache, td_api_error *err) {
    td_error cause = {0};
    for (size_t i = 0; r->each && i < r->n_prompts; i++) TD_TRY(td_api_compile_grammar(&r->each[i], cache, err));
    if (!r->has_grammar || r->each || r->grammar) return TD_OK;
    td_status st = td_grammar_cache_get(cache, r->grammar_kind, r->grammar_source, r->grammar_len, &r->grammar, &cause);
    if (st == TD_OK) return TD_OK;
    if (st == TD_ENOMEM) return td_api_no_memory(err);
    return td_api_bad(err, r->grammar_param, "'%s' cannot be followed: %.350s.", r->grammar_param, cause.text);
}
