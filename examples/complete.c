/*
 * Complete a text with a model, through libtandem alone: load, encode, submit, print the tokens as they come.
 *
 *   cc complete.c -o complete $(pkg-config --cflags --libs tandem) && ./complete MODEL_FOLDER "Once upon a time"
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem.h>

/* Called on the engine's thread, for every step of the request: what it is given is valid during the call only. */
static void on_event(void *user, const td_event *e) {
    fwrite(e->text, 1, e->text_len, stdout);
    fflush(stdout);
    if (e->error) fprintf(stderr, "\ncomplete: %s\n", e->error->text);
    if (e->finish != TD_FINISH_NONE) sem_post(user);
}

static td_status complete(td_engine *engine, const char *text, td_error *err) {
    td_request_params p;
    td_request       *request;
    uint32_t         *ids;
    size_t            n;
    sem_t             done;
    td_status         st = td_tokenizer_encode(td_engine_tokenizer(engine), text, strlen(text), false, true, &ids, &n);
    if (st != TD_OK) return st;
    td_request_params_init(&p);
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = 40;
    p.on_event = on_event;
    p.user = &done;
    sem_init(&done, 0, 0);
    st = td_engine_submit(engine, &p, &request, err);
    if (st == TD_OK) {
        sem_wait(&done);
        td_request_release(request);
        printf("\n");
    }
    sem_destroy(&done);
    free(ids);
    return st;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: complete MODEL_FOLDER TEXT\n");
        return 2;
    }
    td_engine_options o = {0};
    td_engine        *engine;
    td_error          err = {0};
    td_engine_options_init(&o);
    o.model_path = argv[1];
    o.max_total_tokens = 4096;
    td_status st = td_engine_open(&o, &engine, &err);
    if (st == TD_OK) {
        st = complete(engine, argv[2], &err);
        td_engine_close(engine, 0);
    }
    if (st != TD_OK) fprintf(stderr, "complete: %s\n", err.text[0] ? err.text : td_status_text(st));
    return st == TD_OK ? 0 : 1;
}
