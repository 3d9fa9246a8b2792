/* Replays. Kept messages come with their numbers and an end mark to the peer that asked. What is not a request is dropped
 * whole. A peer that takes nothing leaves nothing behind. Also --kv-events-config and its refusals. */

#include "scale/kv_events.h"
#include "scale/kv_replay.h"
#include "tests/standins/fake_zmq.h"
#include "tests/td_test.h"

static const uint8_t FIRST_102[8] = {0, 0, 0, 0, 0, 0, 0, 102};

/* Messages 100 .. 100 + n - 1, each of `bytes` bytes that say its number. */
static void fill_log(td_kv_event_log *l, const td_zmq *zmq, uint32_t n, uint32_t bytes) {
    for (uint32_t i = 0; i < n; i++) {
        td_zmq_message m;
        zmq->msg_init_size(&m, bytes);
        memset(zmq->msg_data(&m), (int)i, bytes);
        td_kv_event_log_add(l, &m, bytes, i == 0);
        zmq->msg_close(&m);
    }
}

static uint64_t number_of(const fake_frame *f) {
    uint64_t v = 0;
    assert_int_equal(f->size, 8);
    for (int i = 0; i < 8; i++) v = v << 8 | f->bytes[i];
    return v;
}

TEST(gives_what_is_kept) {
    static fake_socket   s;
    td_kv_event_log      log;
    td_kv_replay_request r;
    s = (fake_socket){.room = FAKE_FRAMES_MAX};
    td_zmq zmq = fake_zmq(&s);
    OK(td_kv_event_log_open(&log, &zmq, 4, 1000, 100, NULL));
    fill_log(&log, &zmq, 6, 10);
    assert_int_equal(log.begin, 102);
    assert_int_equal(log.end, 106);
    assert_false(td_kv_event_log_has_base(&log));
    assert_int_equal(s.contents, 4);
    fake_put(&s, "peer\0x", 6, true);
    fake_put(&s, "", 0, true);
    fake_put(&s, FIRST_102, 8, false);
    assert_int_equal(td_kv_replay_receive(&zmq, &s, &r), TD_KV_REPLAY_REQUEST);
    assert_int_equal(r.first, 102);
    assert_true(td_kv_replay_answer(&zmq, &s, &r, &log, 104));
    assert_int_equal(s.n_out, 3 * 4); /* 104, 105, the end */
    for (uint32_t i = 0; i < 12; i += 4) {
        assert_int_equal(s.out[i].size, 6);
        assert_memory_equal(s.out[i].bytes, "peer\0x", 6);
        assert_int_equal(s.out[i + 1].size, 0);
        assert_true(number_of(&s.out[i + 2]) == (i < 8 ? 104 + i / 4 : UINT64_MAX));
        assert_int_equal(s.out[i + 3].size, i < 8 ? 10 : 0);
        assert_true(s.out[i].more && s.out[i + 1].more && s.out[i + 2].more && !s.out[i + 3].more);
    }
    assert_int_equal(s.out[3].bytes[0], 4);
    td_kv_event_log_close(&log);
    assert_int_equal(s.contents, 0);
}

TEST(keeps_bytes_within_bounds) {
    static fake_socket s;
    td_kv_event_log    log;
    s = (fake_socket){0};
    td_zmq zmq = fake_zmq(&s);
    OK(td_kv_event_log_open(&log, &zmq, 50, 100, 100, NULL));
    fill_log(&log, &zmq, 1, 40);
    assert_true(td_kv_event_log_has_base(&log));
    fill_log(&log, &zmq, 20, 40);
    assert_int_equal(log.end - log.begin, 2);
    assert_int_equal(log.n_bytes, 80);
    td_kv_event_log_close(&log);
    assert_int_equal(s.contents, 0);
}

TEST(drops_what_is_no_request) {
    static const struct {
        size_t size[5];
        size_t n;
    } BAD[] = {
        {{4}, 1},          {{4, 0}, 2},    {{4, 8}, 2},      {{4, 1, 8}, 3},         {{4, 0, 7}, 3},          {{4, 0, 9}, 3},
        {{4, 0, 8, 0}, 4}, {{0, 0, 8}, 3}, {{256, 0, 8}, 3}, {{4, 0, 8, 60, 60}, 5}, {{4, 60, 60, 60, 60}, 5}};
    static fake_socket   s;
    static const uint8_t bytes[FAKE_FRAME_BYTES_MAX];
    td_kv_replay_request r;
    s = (fake_socket){0};
    td_zmq zmq = fake_zmq(&s);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        for (size_t k = 0; k < BAD[i].n; k++) fake_put(&s, bytes, BAD[i].size[k], k + 1 < BAD[i].n);
        fake_put(&s, "peer", 4, true);
        fake_put(&s, "", 0, true);
        fake_put(&s, FIRST_102, 8, false);
        assert_int_equal(td_kv_replay_receive(&zmq, &s, &r), TD_KV_REPLAY_BAD);
        assert_int_equal(td_kv_replay_receive(&zmq, &s, &r), TD_KV_REPLAY_REQUEST);
        assert_int_equal(r.first, 102);
        assert_int_equal(td_kv_replay_receive(&zmq, &s, &r), TD_KV_REPLAY_NONE);
    }
}

TEST(a_peer_that_takes_nothing) {
    static fake_socket   s;
    td_kv_event_log      log;
    td_kv_replay_request r = {.peer_bytes = 1};
    for (size_t room = 0; room < 16; room++) {
        s = (fake_socket){.room = room};
        td_zmq zmq = fake_zmq(&s);
        OK(td_kv_event_log_open(&log, &zmq, 4, 1000, 100, NULL));
        fill_log(&log, &zmq, 3, 10);
        assert_false(td_kv_replay_answer(&zmq, &s, &r, &log, 0));
        assert_int_equal(s.n_out, room);
        td_kv_event_log_close(&log);
        assert_int_equal(s.contents, 0);
    }
}

TEST(config_that_is_taken) {
    td_kv_events_config c;
    OK(td_kv_events_config_parse("{\"publisher\": \"zmq\"}", &c, NULL));
    assert_true(c.on && c.buffer_steps == 10000 && c.hwm == 10000);
    assert_string_equal(c.endpoint, "tcp://127.0.0.1:5557"); /* this machine, unless told otherwise */
    assert_string_equal(c.replay_endpoint, "");
    assert_string_equal(c.topic, "");
    OK(
        td_kv_events_config_parse("{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"ipc:///"
                                  "x\",\"topic\":\"kv@a@b\",\"buffer_steps\":1,\"hwm\":1000000}",
                                  &c, NULL));
    assert_string_equal(c.endpoint, "tcp://*:5557");
    assert_string_equal(c.replay_endpoint, "ipc:///x");
    assert_string_equal(c.topic, "kv@a@b");
    assert_true(c.buffer_steps == 1 && c.hwm == 1000000);
    OK(td_kv_events_config_parse("{\"publisher\":\"null\",\"replay_endpoint\":null}", &c, NULL));
    assert_false(c.on);
}

TEST(config_that_is_refused) {
    static const struct {
        const char *json, *says;
    } BAD[] = {
        {"", "not JSON"},
        {"{", "not JSON"},
        {"[]", "object"},
        {"{}", "publisher is missing"},
        {"{\"publisher\":\"zmq\",\"publisher\":\"zmq\"}", "not JSON"},
        {"{\"publisher\":\"nats\"}", "publisher must be"},
        {"{\"publisher\":1}", "publisher must be"},
        {"{\"publisher\":\"zmq\",\"endpoint\":5557}", "endpoint must be a text"},
        {"{\"publisher\":\"zmq\",\"endpoint\":\"a\\u0000b\"}", "not JSON"},
        {"{\"publisher\":\"zmq\",\"endpoint\":\"\"}", "no address"},
        {"{\"publisher\":\"zmq\",\"endpoint\":\"inproc://x\"}", "no address"},
        {"{\"publisher\":\"zmq\",\"endpoint\":\"5557\"}", "no address"},
        {"{\"publisher\":\"zmq\",\"replay_endpoint\":\"udp://x\"}", "replay_endpoint 'udp://x' is no address"},
        {"{\"publisher\":\"zmq\",\"topic\":[]}", "topic must be a text"},
        {"{\"publisher\":\"zmq\",\"buffer_steps\":0}", "buffer_steps must be"},
        {"{\"publisher\":\"zmq\",\"buffer_steps\":1000001}", "buffer_steps must be"},
        {"{\"publisher\":\"zmq\",\"buffer_steps\":1.5}", "buffer_steps must be"},
        {"{\"publisher\":\"zmq\",\"hwm\":-1}", "hwm must be"},
        {"{\"publisher\":\"zmq\",\"max_queue_size\":5}", "max_queue_size is not there"},
        {"{\"publisher\":\"zmq\",\"port\":5}", "there is no 'port'"},
    };
    td_kv_events_config c;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        td_error  err = {0};
        td_status st = td_kv_events_config_parse(BAD[i].json, &c, &err);
        if (st == TD_OK || !strstr(err.text, BAD[i].says)) fail_msg("%s: %d '%s'", BAD[i].json, st, err.text);
    }
    char long_topic[400];
    snprintf(long_topic, sizeof long_topic, "{\"publisher\":\"zmq\",\"topic\":\"%0256d\"}", 0);
    td_error err = {0};
    assert_int_equal(td_kv_events_config_parse(long_topic, &c, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "more than 255 bytes"));
}
