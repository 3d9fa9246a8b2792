/*
 * Fuzz target: what a peer sends to the replay socket. The input is messages of frames, each with a byte that says its size
 * (7 bits) and whether more frames follow. The socket itself puts the peer's name before. Whatever comes, each message is
 * taken whole. An answer goes to the peer that asked and ends with the end mark. No message of the log is lost or kept for
 * ever.
 */
#include <stdlib.h>
#include <string.h>

#include "scale/kv_replay.h"
#include "tests/standins/fake_zmq.h"

static void require(int condition) {
    if (!condition) abort();
}

static void fill(td_kv_event_log *l, const td_zmq *zmq) {
    for (uint32_t i = 0; i < 6; i++) {
        td_zmq_message m;
        zmq->msg_init_size(&m, i);
        td_kv_event_log_add(l, &m, i, i == 3);
        zmq->msg_close(&m);
    }
}

/* @return messages. */
static size_t put_messages(fake_socket *s, const uint8_t *data, size_t size) {
    size_t n = 0;
    for (bool in_message = false; size && s->n_in < FAKE_FRAMES_MAX - 4;) {
        size_t bytes = data[0] & 0x7f;
        bool   more = data[0] >> 7 && s->n_in < FAKE_FRAMES_MAX - 6; /* the message can be ended */
        if (bytes > --size) bytes = size;
        if (bytes == size) more = false;
        if (!in_message) fake_put(s, "name", 4, true);
        fake_put(s, ++data, bytes, more);
        data += bytes;
        size -= bytes;
        in_message = more;
        n += !more;
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static fake_socket   s;
    td_kv_event_log      log;
    td_kv_replay_request r;
    td_kv_replay_got     got;
    memset(&s, 0, sizeof s);
    td_zmq zmq = fake_zmq(&s);
    if (size == 0) return 0;
    s.room = FAKE_FRAMES_MAX;
    require(td_kv_event_log_open(&log, &zmq, 4, 1000, data[0] % 8, NULL) == TD_OK);
    fill(&log, &zmq);
    size_t sent = put_messages(&s, data + 1, size - 1), taken = 0;
    while ((got = td_kv_replay_receive(&zmq, &s, &r)) != TD_KV_REPLAY_NONE) {
        taken++;
        if (got != TD_KV_REPLAY_REQUEST) continue;
        require(r.peer_bytes == 4 && !memcmp(r.peer, "name", 4));
        s.n_out = 0;
        bool answered = td_kv_replay_answer(&zmq, &s, &r, &log, r.first);
        require(answered && s.n_out >= 4 && s.n_out % 4 == 0 && s.n_out <= 4 * (4 + 1));
        require(!memcmp(s.out[s.n_out - 2].bytes, "\377\377\377\377\377\377\377\377", 8) && !s.out[s.n_out - 1].size);
    }
    require(taken == sent && s.next_in == s.n_in && s.contents == 4);
    td_kv_event_log_close(&log);
    require(s.contents == 0);
    return 0;
}
