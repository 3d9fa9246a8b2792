/* Reads lines from standard input and writes a JSON object a line to standard output. */
#include "cli/json_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/standard_output.h"
#include "core/files/json_text.h"

char *td_json_answer_of(json_t *answer) {
    char *text = td_json_dump(answer, 0);
    json_decref(answer);
    return text;
}

/* Writes the answer, or the reason why there is none. @return whether there is an answer. */
static bool answer_line(td_json_answer answer, void *ctx, const char *line, size_t len) {
    td_error err = {0};
    char    *out = answer(ctx, line, len, &err);
    bool     done = out != NULL;
    if (!done) out = td_json_answer_of(json_pack("{s:s}", "error", err.text[0] ? err.text : "out of memory"));
    puts(out ? out : "{\"error\": \"the answer cannot be written as JSON\"}");
    free(out);
    return done;
}

int td_json_lines(const char *command, td_json_answer answer, void *ctx) {
    struct stat st;
    bool   to_file = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode); /* otherwise a program may wait for each line */
    char  *line = NULL;
    size_t room = 0;
    bool   all_done = true;
    for (ssize_t n; (n = getline(&line, &room, stdin)) >= 0;) {
        if (n > 0 && line[n - 1] == '\n') n--;
        if (!answer_line(answer, ctx, line, (size_t)n)) all_done = false;
        if (!to_file) fflush(stdout);
        if (ferror(stdout)) break;
    }
    free(line);
    if (ferror(stdin)) {
        fprintf(stderr, "%s: standard input: %s\n", command, strerror(errno));
        return 1;
    }
    return td_standard_output_end(command) == 0 && all_done ? 0 : 1;
}
