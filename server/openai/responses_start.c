/* POST /v1/responses: an answer as of all routes that generate, or a response that goes on in the background. */
#include "server/answer/answer.h"
#include "server/openai/responses.h"
#include "server/openai/responses_events.h"
#include "server/server_state.h"

static enum MHD_Result begin_in_background(td_call *c) {
    td_server         *s = c->server;
    td_api_error       err;
    td_jbuf            now = {.hold.budget = c->answers};
    td_background_job *job = td_background_begin(&s->background, &c->req, &now, &err);
    td_text_work_left(&s->text, &c->text); /* the generation is watched from here on */
    if (!job) {
        td_jbuf_free(&now);
        return td_answer_error(c, &err);
    }
    enum MHD_Result result = job->streams ? td_answer_events(c, job, NULL) : td_answer_json(c, 200, &now);
    td_background_release(job);
    return result;
}

enum MHD_Result td_route_respond(td_call *c) {
    const td_response *own = c->req.own;
    return c->failed || !own->background ? td_route_generate(c) : begin_in_background(c);
}
