/*
 * `tandem launch_server` with the real engine over the fake model, whose answers begin with the text in TD_SAYS as far as
 * their form allows it, and go on with noise. The tokenizer is the demo model's. A step waits at the gate (gate.h) when a
 * request in it has a token already: prompts are computed while it is shut.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "fake_model.h"
#include "tests/server/gate.h"

int main(int argc, char **argv) {
    const char   *says = getenv("TD_SAYS");
    td_tokenizer *tok;
    td_error      err = {0};
    uint32_t     *ids;
    size_t        n;
    if (td_tokenizer_open(TD_SOURCE_DIR "/models/tale-v3-14m", &tok, &err) != TD_OK ||
        td_tokenizer_encode(tok, says ? says : "", says ? strlen(says) : 0, false, false, &ids, &n) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    fake_says(ids, n);
    fake_wait(wait_at_gate);
    free(ids);
    td_tokenizer_close(tok);
    return td_cmd_launch_server(argc - 1, argv + 1);
}
