/*
 * Which tokens go into the next step.
 *
 * DESIGN. Requests join and leave at every step. A step holds one token of every request that is generating, and up to
 * `chunk` tokens of prompts (or of what a retracted request has to compute again). A generating request may have several
 * tokens to compute: all but one count against the chunk, and so does a draft. A draft is left out when there is no room or
 * no page for it. Without `mixed`, steps with prompts and steps with generating requests take turns instead. A request is
 * admitted when pages for all its tokens can be had, and one more for each request that is generating: so an admission does
 * not cause a retraction at once. When a generating request needs a page and there is none, the running request that is last
 * in order of service is retracted: its pages are dropped and it waits again. The first in order is never retracted, so
 * there is always progress.
 *
 * A request that is alone has the whole chunk. Otherwise the step has as much of prompts as fits a time (step_speed.h). One
 * half of that goes to prompts in order of service: whoever has waited longest goes on, however many short prompts come.
 * The other half goes to short prompts, the shortest first: they do not wait behind long ones. A prompt is short when no
 * more than half a chunk of it is left. What short ones leave goes on in order. A step in which prompts can end has as much
 * of others as of these, and least_rows in all at the least. So who waits for a first token does not wait for rows of a
 * long prompt. Requests are admitted in order while less than a chunk of prompts is left to compute, and short ones while
 * less than half a chunk of short ones is. No short prompt passes a longer one of higher priority.
 *
 * An admitted request begins behind the pages that the prefix cache has of it, and publishes its own as they are computed. A
 * request waits while another one computes pages that it could share: prompts with a common beginning compute it once, also
 * when they arrive together. It also waits, for a while, for pages that a store may have (engine/kv/page_exchange.h). Later
 * requests may overtake it meanwhile.
 *
 * Where passes can go in pieces (model.h), a prompt that does not fit a step beside others is *set aside*. Many of its rows
 * become a step of their own, which is computed piece by piece. Between two pieces a whole step runs, of the others. So a
 * step's time no longer bounds how many rows share what a step costs however few it has. As many rows are set aside as the
 * longest operation fits the time of a piece. A prompt that is alone is set aside, too, with all the rows that there are, and
 * its pieces end only when another request comes. One step is aside at a time, of the first prompt in order of service; long
 * ones behind it wait. When its request leaves, or is retracted, the step is dropped.
 *
 * A prompt with images goes as far as the first of which the encoder's rows are not there yet. What cannot be computed does not
 * count as left, so other prompts are admitted meanwhile; but no more prompts wait for images than half of those that may run.
 * The image that is encoded next is that of the first prompt in order of service which waits for one.
 *
 * The order of service is total (td_request_before), and both lists are kept in it. Engine thread only; nothing is allocated
 * after open.
 */
#ifndef TD_ENGINE_STEP_SCHEDULER_H
#define TD_ENGINE_STEP_SCHEDULER_H

#include "engine/kv/page_exchange.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_slots.h"
#include "engine/kv/window_pages.h"
#include "engine/requests/inbox.h"
#include "engine/step/step_speed.h"
#include "model/model.h"

/** The rows of one request in a step: tokens first_pos .. first_pos + n_rows - 1. */
typedef struct {
    td_request *request;
    uint32_t    first_row, first_pos, n_rows;
    bool last;    /* nothing is left to compute behind them: the last row's logits give the next token, if one is wanted */
    bool drafted; /* one row more follows: that of the draft */
} td_step_entry;

/** A step: what it computes, and for whom. */
typedef struct {
    td_step_rows   rows;
    td_step_entry *entries;              /* [n_entries] */
    uint32_t       n_entries, n_prefill; /* n_prefill: rows of requests that did not generate yet */
    uint32_t       n_drafts;             /* entries with a draft */
    double         prompt_work;          /* of its prompt rows */
} td_scheduled_step;

typedef struct {
    uint32_t max_running, chunk;
    uint32_t max_seq_tokens; /* longest sequence */
    double   max_step_s;     /* of a step that is not alone; 0: no limit */
    uint32_t least_rows;     /* prompt rows that such a step has however long they take */
    uint32_t aside;          /* rows of a step in pieces, at most, and less than chunk; 0: there are none */
    bool     mixed;          /* prompts and generating requests share steps */
    uint32_t one_form_from;  /* from this position on a generated token's KV has the bits of the same token's in a prompt */
} td_scheduler_config;

/** The step that is computed piece by piece, while others run between its pieces. */
typedef struct {
    td_scheduled_step step;      /* n_entries 0: there is none */
    bool              begun;     /* its pass is; set by who runs it */
    bool              failed;    /* it has, and was begun again; likewise */
    bool              computed;  /* all its pieces have run: its request may leave */
    bool              gave_way;  /* its last piece did, to a request that came; set by who runs it */
    double            begin_s;   /* when it was begun; likewise */
    double            longest_s; /* that one of its operations has taken; likewise */
} td_aside_step;

/** An image whose features are to be made, before rows of its request can be computed. */
typedef struct {
    td_known_image *known; /* NULL: there is none */
    td_image       *image;
} td_scheduled_image;

typedef struct {
    td_scheduler_config config;
    td_prefix_cache    *cache;
    td_state_slots     *states;  /* NULL: the model has no recurrent layers */
    td_window_pages    *windows; /* NULL: no layer has a window, or those that do keep all tokens */
    td_image_cache     *images;
    td_page_exchange   *exchange;
    td_inbox           *inbox;
    td_request         *waiting; /* a list */
    td_request        **running; /* [n_running] */
    uint32_t            n_waiting, n_running;
    uint32_t            n_retracted; /* waiting requests that ran before */
    uint64_t            retractions; /* since open */
    td_step_speed       speed;
    double              streams_s; /* what the last step took that had rows of generating requests alone; 0: none has been */
    uint32_t           *given;     /* [max_running] prompt rows of the step, by running request */
    td_scheduled_step   step;      /* the newest that goes whole */
    td_aside_step       aside;
    td_step_entry       aside_entry;  /* its only one */
    td_step_speed       aside_speed;  /* of operations, not of steps */
    td_scheduled_image  image;        /* that is to be encoded next */
    td_request         *starved;      /* it cannot go on, as memory for its next image was refused; NULL: nobody */
    bool                prompts_last; /* the last step held prompts; read where prompts and generating requests take turns */
} td_scheduler;

/** The most sequences of a step: a request whose prompt ends in the step may have a prompt part and a generated part. A
 * part that ends at a snapshot takes what room there is. */
static inline uint32_t td_scheduler_max_seq(uint32_t max_running) {
    return 2 * max_running;
}

/** What sequences have of the caches; borrowed. */
typedef struct {
    td_prefix_cache  *cache;
    td_state_slots   *states;  /* NULL: the model has no recurrent layers */
    td_window_pages  *windows; /* NULL: no layer has a window, or those that do keep all tokens */
    td_image_cache   *images;
    td_page_exchange *exchange;
} td_scheduler_caches;

/** A step has at most chunk + max_running tokens. @param c, caches copied. @param inbox borrowed. */
TD_NODISCARD td_status td_scheduler_open(td_scheduler *s, const td_scheduler_config *c, const td_scheduler_caches *caches,
                                         td_inbox *inbox, td_error *err);
void                   td_scheduler_close(td_scheduler *s);

/** To the waiting list. @return TD_ENOMEM, TD_ELIMIT: its images are not known; it is in the list all the same. */
TD_NODISCARD td_status td_scheduler_add(td_scheduler *s, td_request *r);
void                   td_scheduler_remove(td_scheduler *s, td_request *r); /* from either list; its pages are dropped */
void                   td_scheduler_flush_cache(td_scheduler *s);           /* empty the prefix cache */

/** Build the next step, s->step, which may have no rows while s->aside has some, or s->image is there. If nothing is aside, a
 * step may be set aside. @return false when there is nothing to run: no request is there, or all wait for the page store. */
bool td_scheduler_build(td_scheduler *s);

/** The step has run in so many seconds: count its tokens as computed, and publish their full pages. */
void td_scheduler_commit(td_scheduler *s, double seconds);

/** The same of the step aside, once its last piece has run. Its rows stay until td_scheduler_end_aside. */
void td_scheduler_commit_aside(td_scheduler *s);
void td_scheduler_end_aside(td_scheduler *s); /* nothing is aside any more */

/** The next piece of the step aside. @param gave_way the last one did, to a request that came. @param waited_for set when
 * requests come, or are cancelled. */
td_piece td_scheduler_piece(const td_scheduler *s, bool gave_way, const atomic_bool *waited_for);

/** The same of an image: beside streams it takes no longer than their step, so that they keep half their speed. */
td_piece td_scheduler_image_piece(const td_scheduler *s, bool gave_way, const atomic_bool *waited_for);

/** The step has failed, and its requests have states that it may have written: they wait again, without their pages. */
void td_scheduler_retract_step(td_scheduler *s);

/** After td_scheduler_commit: r's draft was accepted, so count the draft's row as computed. */
void td_scheduler_commit_draft(td_scheduler *s, td_request *r);

/** After all of these: every other draft of the step was rejected, and leaves no trace in a recurrent state. */
void td_scheduler_drop_drafts(td_scheduler *s);

#endif
