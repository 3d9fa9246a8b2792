/* Loading a tokenizer: the files of a folder, and the structure's life. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_impl.h"

#define FILE_BYTES_MAX ((off_t)256 << 20) /* the largest tokenizer.json in use has 33 MB */

static td_status read_all(td_tokenizer *tok, const td_tokenizer_files *f, td_error *err) {
    json_t   *config = NULL;
    td_status st = TD_OK;
    if (f->tokenizer_config)
        TD_TRY(td_tokenizer_parse(f->tokenizer_config, f->tokenizer_config_len, "tokenizer_config.json", &config, err));
    if (f->tokenizer_json)
        st = td_tokenizer_read_json(tok, f->tokenizer_json, f->tokenizer_json_len, err);
    else if (f->tiktoken_model && config)
        st = td_tokenizer_read_tiktoken(tok, f->tiktoken_model, f->tiktoken_model_len, config, err);
    else
        st = td_fail(err, TD_ENOTFOUND, "there is no tokenizer.json, nor tiktoken.model with tokenizer_config.json");
    if (st == TD_OK && config) st = td_tokenizer_read_config(tok, config, err);
    json_decref(config);
    if (st == TD_OK && f->chat_template) {
        free(tok->chat_template);
        tok->chat_template = strndup(f->chat_template, f->chat_template_len);
        if (!tok->chat_template) st = td_fail(err, TD_ENOMEM, "chat_template.jinja: out of memory");
    }
    return st;
}

td_status td_tokenizer_load(const td_tokenizer_files *files, td_tokenizer **out, td_error *err) {
    static _Atomic uint64_t serials;
    td_error                own = {0};
    td_tokenizer           *tok = calloc(1, sizeof *tok);
    if (!err) err = &own;
    if (!tok) return td_fail(err, TD_ENOMEM, "tokenizer: out of memory");
    tok->serial = 1 + atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed); /* unique is all it has to be */
    td_status st = read_all(tok, files, err);
    if (st != TD_OK) {
        td_tokenizer_close(tok);
        return st;
    }
    *out = tok;
    return TD_OK;
}

void td_tokenizer_close(td_tokenizer *tok) {
    if (!tok) return;
    td_vocab_free(&tok->vocab);
    td_bpe_free(&tok->bpe);
    td_pretok_free(&tok->pretok);
    td_added_free(&tok->added);
    free(tok->prefix.v);
    free(tok->suffix.v);
    free(tok->chat_template);
    free(tok->bos);
    free(tok->eos);
    free(tok);
}

/* The whole of dir/name in *text (malloc'd, terminated); NULL when there is no such file. */
static td_status read_file(const char *dir, const char *name, char **text, size_t *len, td_error *err) {
    char path[4096];
    *text = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return td_fail(err, TD_EINVAL, "the path of %s is too long", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO's opening would wait */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return TD_OK;
    if (fd < 0) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    td_status   status = TD_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = td_fail(err, TD_EIO, "%s is not a regular file", path);
    } else if (st.st_size > FILE_BYTES_MAX) {
        status = td_fail(err, TD_EFORMAT, "%s is larger than %lld MiB", path, (long long)(FILE_BYTES_MAX >> 20));
    } else if (!(*text = malloc((size_t)st.st_size + 1))) {
        status = td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    } else {
        size_t  n = 0;
        ssize_t got = 0;
        while (n < (size_t)st.st_size &&
               ((got = read(fd, *text + n, (size_t)st.st_size - n)) > 0 || (got < 0 && errno == EINTR)))
            n += got > 0 ? (size_t)got : 0;
        if (got < 0) status = td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(errno));
        (*text)[n] = 0;
        *len = n;
    }
    close(fd);
    return status;
}

td_status td_tokenizer_open(const char *dir, td_tokenizer **out, td_error *err) {
    char                    *text[4] = {NULL};
    size_t                   len[4] = {0};
    static const char *const NAMES[4] = {"tokenizer.json", "tiktoken.model", "tokenizer_config.json", "chat_template.jinja"};
    td_error                 own = {0};
    td_status                st = TD_OK;
    if (!err) err = &own;
    for (int i = 0; i < 4 && st == TD_OK; i++)
        if (i != 1 || !text[0]) st = read_file(dir, NAMES[i], &text[i], &len[i], err);
    if (st == TD_OK) {
        td_tokenizer_files files = {text[0], len[0], text[1], len[1], text[2], len[2], text[3], len[3]};
        st = td_tokenizer_load(&files, out, err);
        if (st != TD_OK) td_fail_within(err, "%s", dir);
    }
    for (int i = 0; i < 4; i++) free(text[i]);
    return st;
}
