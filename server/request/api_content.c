/* The content of a chat's message: text, or a list of parts, brought into the form that templates expect. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_read.h"
#include "server/request/api_readers.h"

#define FIELD " field" /* the member that td_api_image_part adds */

/* What the reader of one message's list works on. */
typedef struct {
    td_api_request *r;
    size_t          message;
    bool            of_assistant;
    td_api_error   *err;
} reading;

static const char *type_of(const json_t *part) {
    return json_string_value(json_object_get(part, "type"));
}

static bool is_image(const json_t *part) {
    const char *type = type_of(part);
    return type && !strcmp(type, "image_url");
}

/* The text of a part that is none of an image; NULL with the error filled. What the assistant refused with, it said, too. */
static json_t *text_of(const reading *reads, const json_t *part, const char *at) {
    const char *type = type_of(part);
    bool        refusal = reads->of_assistant && type && !strcmp(type, "refusal");
    json_t     *text = json_object_get(part, refusal ? "refusal" : "text");
    if (type && (refusal || !strcmp(type, "text")) && json_is_string(text)) return text;
    if (type && strcmp(type, "text") != 0 && !refusal)
        td_api_bad(reads->err, at, "Content of type '%.40s' is not supported; text is, and images as 'image_url'.", type);
    else
        td_api_bad(reads->err, at, "A content part must be {\"type\": \"text\", \"text\": \"…\"}.");
    return NULL;
}

/* A list of texts becomes one string, the parts on lines of their own. NULL with the error filled on failure. */
static json_t *join_texts(const reading *reads, const json_t *parts) {
    td_jbuf text = {0};
    char    at[TD_API_PARAM_MAX];
    for (size_t i = 0; i < json_array_size(parts); i++) {
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", reads->message, i);
        const json_t *s = text_of(reads, json_array_get(parts, i), at);
        if (!s) {
            td_jbuf_free(&text);
            return NULL;
        }
        if (i > 0) td_jbuf_puts(&text, "\n");
        td_jbuf_put(&text, json_string_value(s), json_string_length(s));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    td_jbuf_free(&text);
    if (!joined) td_api_no_memory(reads->err);
    return joined;
}

static td_status read_detail(const reading *reads, const char *at, const json_t *detail) {
    static const char *const known[] = {"auto", "low", "high", "original"};
    const char              *name = json_string_value(detail);
    td_api_request          *r = reads->r;
    size_t                   k = 0;
    if (!td_api_is_set(detail)) return TD_OK;
    while (k < sizeof known / sizeof *known && !(name && !strcmp(name, known[k]))) k++;
    if (k == sizeof known / sizeof *known)
        return td_api_bad(reads->err, at, "The 'detail' of an image must be 'auto', 'low', 'high' or 'original'.");
    if (k == 0 || r->images.has_detail) return TD_OK;
    r->images.has_detail = true;
    r->warnings[r->n_warnings++] = "The 'detail' of an image has no effect: its size decides how many tokens it gets.";
    return TD_OK;
}

/* Collect the image of a part. */
static td_status read_image(const reading *reads, const json_t *part, const char *at, const td_engine_info *info) {
    const json_t *image = json_object_get(part, "image_url");
    json_t       *source = json_is_object(image) ? json_object_get(image, "url") : (json_t *)image;
    const char   *field = json_string_value(json_object_get(part, FIELD));
    char          param[TD_API_PARAM_MAX];
    if (field)
        snprintf(param, sizeof param, "%s", field);
    else
        snprintf(param, sizeof param, "%.70s.image_url%s", at, json_is_object(image) ? ".url" : "");
    TD_TRY(td_api_images_add(&reads->r->images, info, param, source, reads->err));
    return read_detail(reads, param, json_object_get(image, "detail"));
}

/* Parts of which some are images: a list of {"type": "text", "text"} and {"type": "image"}. */
static td_status list_parts(const reading *reads, const json_t *parts, const td_engine_info *info, json_t *list) {
    char at[TD_API_PARAM_MAX];
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        json_t       *text = NULL;
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", reads->message, i);
        if (is_image(part))
            TD_TRY(read_image(reads, part, at, info));
        else if (!(text = text_of(reads, part, at)))
            return TD_EINVAL;
        json_t *item = text ? json_pack("{s:s, s:O}", "type", "text", "text", text) : json_pack("{s:s}", "type", "image");
        if (json_array_append_new(list, item) != 0) return td_api_no_memory(reads->err);
    }
    return TD_OK;
}

json_t *td_api_image_part(json_t *source, json_t *detail, const char *field) {
    return json_pack("{s:s, s:{s:O, s:O*}, s:s}", "type", "image_url", "image_url", "url", source, "detail", detail, FIELD,
                     field);
}

td_status td_api_read_parts(td_api_request *r, const json_t *parts, size_t message, bool of_assistant,
                            const td_engine_info *info, json_t **content, td_api_error *err) {
    const reading reads = {r, message, of_assistant, err};
    bool          images = false;
    for (size_t i = 0; i < json_array_size(parts); i++) images = images || is_image(json_array_get(parts, i));
    if (!images) {
        *content = join_texts(&reads, parts);
        return *content ? TD_OK : TD_EINVAL;
    }
    json_t   *list = json_array();
    td_status st = list ? list_parts(&reads, parts, info, list) : td_api_no_memory(err);
    if (st == TD_OK)
        *content = list;
    else
        json_decref(list);
    return st;
}
