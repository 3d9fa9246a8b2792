/*
 * The console: a page for a browser, whose files are part of the program.
 *
 * The files need no API key, since they hold nothing of the server's. The page asks the person for the key and sends it with
 * its calls of the API. The headers allow the page its own scripts, styles and server, and nothing else: what a model writes
 * into an answer cannot become a script even if the page makes a mistake.
 */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "server/answer/answer.h"
#include "server/server_state.h"

#define HTML "text/html; charset=utf-8"
#define CSS "text/css; charset=utf-8"
#define SCRIPT "text/javascript; charset=utf-8"

#define FILES(X)                         \
    X(page, "index.html", HTML)          \
    X(style, "console.css", CSS)         \
    X(icon, "icon.svg", "image/svg+xml") \
    X(settings, "settings.js", SCRIPT)   \
    X(console, "console.js", SCRIPT)     \
    X(elements, "elements.js", SCRIPT)   \
    X(language, "language.js", SCRIPT)   \
    X(words, "words.js", SCRIPT)         \
    X(api, "api.js", SCRIPT)             \
    X(chat, "chat.js", SCRIPT)           \
    X(options, "options.js", SCRIPT)     \
    X(turn, "turn.js", SCRIPT)           \
    X(pictures, "pictures.js", SCRIPT)   \
    X(markdown, "markdown.js", SCRIPT)   \
    X(inline, "inline.js", SCRIPT)       \
    X(copying, "copying.js", SCRIPT)     \
    X(machine, "machine.js", SCRIPT)     \
    X(samples, "samples.js", SCRIPT)     \
    X(plot, "plot.js", SCRIPT)

#define EMBED(symbol, name, type)                                                                                   \
    extern const char console_##symbol[] __attribute__((visibility("hidden"))),                                     \
        console_##symbol##_end[] __attribute__((visibility("hidden")));                                             \
    __asm__(".pushsection .rodata\nconsole_" #symbol ":\n.incbin \"" TD_CONSOLE_DIR "/" name "\"\nconsole_" #symbol \
            "_end:\n.popsection");
FILES(EMBED)

typedef struct {
    const char *name, *type, *begin, *end;
} console_file;

#define ENTRY(symbol, name, type) {name, type, console_##symbol, console_##symbol##_end},
static const console_file CONSOLE_FILES[] = {FILES(ENTRY)};
#define N_FILES (sizeof CONSOLE_FILES / sizeof *CONSOLE_FILES)

static const char POLICY[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

enum MHD_Result td_route_console(td_call *c) {
    const char         *name = *c->rest ? c->rest : CONSOLE_FILES[0].name;
    const console_file *f = CONSOLE_FILES;
    while (f < CONSOLE_FILES + N_FILES && strcmp(f->name, name) != 0) f++;
    if (f == CONSOLE_FILES + N_FILES) {
        td_api_error err;
        td_api_fail(&err, 404, "not_found", "The console has no file '%.200s'.", name);
        return td_answer_error(c, &err);
    }
    size_t      len = (size_t)(f->end - f->begin);
    char        tag[24];
    const char *known = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "If-None-Match");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)XXH3_64bits(f->begin, len));
    bool            same = known && strstr(known, tag);
    const td_header headers[] = {
        {"Content-Type", f->type},
        {"ETag", tag},
        {"Cache-Control", "no-cache"}, /* browsers keep the file, and ask by its tag whether it changed */
        {"Vary", "Accept"},
        {"Content-Security-Policy", POLICY},
        {"Referrer-Policy", "no-referrer"},
        {"X-Frame-Options", "DENY"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"}};
    struct MHD_Response *r = MHD_create_response_from_buffer(same ? 0 : len, (void *)f->begin, MHD_RESPMEM_PERSISTENT);
    return td_answer_response(c, same ? 304 : 200, r, headers, sizeof headers / sizeof *headers);
}
