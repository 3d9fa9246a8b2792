#include "server/request/api_request.h"

#include <stdlib.h>

#include "core/error.h"

void td_api_prompt_free(td_api_prompt *p) {
    free(p->ids);
    free(p->images);
}

void td_api_request_free(td_api_request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) td_api_prompt_free(&r->prompts[i]);
    for (size_t i = 0; r->each && i < r->n_prompts; i++) td_api_request_free(&r->each[i]);
    free(r->each);
    free(r->prompts);
    json_decref(r->chat.template_doc);
    td_api_images_free(&r->images);
    td_tool_list_free(r->parts.tools);
    free(r->grammar.owned);
    td_grammar_release(r->grammar.compiled);
    free(r->stop.ids);
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

void td_api_add_grammar_warnings(td_api_request *r) {
    for (size_t i = 0; i < (r->each ? r->n_prompts : 1); i++) {
        const td_grammar *g = td_api_of_prompt(r, i)->grammar.compiled;
        const char       *warning = g ? td_grammar_warning(g) : NULL;
        bool              told = r->n_warnings > 0 && r->warnings[r->n_warnings - 1] == warning;
        if (warning && !told && r->n_warnings <= TD_API_GRAMMAR_WARNINGS_MAX) r->warnings[r->n_warnings++] = warning;
    }
}

static bool find(td_api_grammar *g, td_grammar_cache *cache) {
    if (g->is_asked && !g->compiled) g->compiled = td_grammar_cache_find(cache, g->kind, g->source, g->len);
    return !g->is_asked || g->compiled;
}

bool td_api_find_grammar(td_api_request *r, td_grammar_cache *cache) {
    if (!r->each) return find(&r->grammar, cache);
    bool all = true;
    for (size_t i = 0; i < r->n_prompts; i++) all = find(&r->each[i].grammar, cache) && all;
    return all;
}

static td_status compile(td_api_grammar *g, td_grammar_cache *cache, td_api_error *err) {
    td_error cause = {0};
    if (!g->is_asked || g->compiled) return TD_OK;
    td_status st = td_grammar_cache_get(cache, g->kind, g->source, g->len, &g->compiled, &cause);
    if (st == TD_OK) return TD_OK;
    if (st == TD_ENOMEM) return td_api_no_memory(err);
    return td_api_bad(err, g->param, "'%s' cannot be followed: %.350s.", g->param, cause.text);
}

td_status td_api_compile_grammar(td_api_request *r, td_grammar_cache *cache, td_api_error *err) {
    if (!r->each) return compile(&r->grammar, cache, err);
    for (size_t i = 0; i < r->n_prompts; i++) TD_TRY(compile(&r->each[i].grammar, cache, err));
    return TD_OK;
}
