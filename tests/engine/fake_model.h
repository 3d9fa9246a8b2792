/*
 * A model of arithmetic for tests of the engine: it stands in for model/ and npu/ at link time.
 *
 * Its KV slot holds a hash of (token, position, form); the logits of a row are a function of the hashes of its whole
 * history, read back through the block table. A wrong slot, page, position, form or order therefore changes the answer, and
 * stale KV does too. What a step must satisfy is checked on the way: a violation makes every later answer wrong and is
 * reported by fake_complaint.
 */
#ifndef TD_TESTS_FAKE_MODEL_H
#define TD_TESTS_FAKE_MODEL_H

#include "tandem.h"

#define FAKE_VOCAB 4096 /* that of models/tale-v3-14m, whose tokenizer the tests use */
#define FAKE_CONTEXT 700
#define FAKE_EOS 1
#define FAKE_KV_PAGE_BYTES (1u << 20)
#define FAKE_STATE_BYTES (1u << 20)
#define FAKE_WINDOW 200
/* What the fake says of its expert tier's work: a step, and each of its tokens. */
#define FAKE_STEP_BYTES 1000000
#define FAKE_STEP_NS 1000000
#define FAKE_TOKEN_OPS 5000000

#define FAKE_SAYS_MAX 512

/* Of models that take images. A patch is 2 x 2 pixels, and all bytes of a test's image are the same, which is its number. */
#define FAKE_IMAGE_TOKEN 4000
#define FAKE_IMAGE_PATCH 2
#define FAKE_IMAGE_TOKEN_BYTES (2 * sizeof(float)) /* of features: hidden size 1, and one tap */

/** logits[FAKE_VOCAB] after tokens[0..n), of which the first n_prompt are the prompt. */
void fake_logits(const uint32_t *tokens, uint32_t n, uint32_t n_prompt, float *logits);

/** What the MTP layer says behind tokens[0..n), of which the last is generated. */
void fake_layer_logits(const uint32_t *tokens, uint32_t n, uint32_t n_prompt, float *logits);

void     fake_fail_forwards(int n); /* the next n forwards fail */
void     fake_fail_heads(int n);
void     fake_fail_copies(int n);       /* the next n copies of pages, out or in */
void     fake_fail_layers(int n);       /* the next n passes of the MTP layer or its head */
void     fake_layer_noise(float most);  /* the MTP layer says what the model will, with up to so much added to each logit; 0:
                                      the same, but something else one time in four */
void     fake_lose(bool lost);          /* its card: forwards fail, and it says so */
void     fake_has_no_layer(bool none);  /* models opened from now on have no MTP layer */
void     fake_hold(bool hold);          /* forwards wait while held */
void     fake_delay(uint32_t us);       /* every forward takes so long at least */
void     fake_wait(void (*wait)(void)); /* called by each forward with a row of an answer before it begins; NULL: nothing */
void     fake_give_nan(bool nan);       /* logits are NaN */
void     fake_says(const uint32_t *tokens,
                   size_t          n);      /* each answer's tokens by preference, as far as they go; while no step runs */
void     fake_one_form(bool one);  /* models opened from now on are GQA's: prompt and generated tokens have the same KV */
void     fake_recurrent(bool yes); /* models opened from now on have recurrent states beside their KV */
void     fake_windows(bool yes);   /* models opened from now on have layers with a window beside the others */
void     fake_images(bool yes);    /* models opened from now on take images */
void     fake_fail_encodes(int n); /* the next n images cannot be encoded */
uint32_t fake_encoded(void);       /* images that were, since the program began */
void     fake_hold_encodes(bool hold); /* they wait while held */
/** What stands for token `at` of an image in the arguments of fake_logits: above all tokens. */
uint32_t    fake_image_row(uint32_t number, uint32_t at);
void        fake_fail_pieces(int n);     /* the next n pieces fail */
void        fake_pieces(uint32_t n);     /* models opened from now on have passes in so many pieces; 0: they have none */
void        fake_pieces_wait(bool wait); /* a piece that ends for requests lasts until one comes */
uint32_t    fake_pieces_run(void);       /* since the program began */
uint32_t    fake_passes_between(void);   /* passes that ran between pieces of another, likewise */
const char *fake_complaint(void);        /* the first broken rule of a step, or NULL */
uint32_t    fake_max_tok(void);          /* of the model that was opened last */

#endif
