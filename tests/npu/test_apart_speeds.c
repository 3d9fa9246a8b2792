/* The device "apart" with given speeds (TD_APART_SPEEDS): copies take their time on its link, one after another. */
#include <stdlib.h>
#include <string.h>

#include "core/log/trace.h"
#include "npu/host/host_npu.h"
#include "npu/npu.h"
#include "tests/td_test.h"

#define BYTES 20000
#define LINK_PER_S "1e6" /* so 20 ms */

static td_status open_apart(const char *speeds, td_npu **npu, td_pool **pool, td_error *err) {
    const td_worker_place place = {.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    td_host_npu_config    host = {.own_threads = true};
    td_npu_config         config = {.act_dtype = TD_DT_F32, .host = &host};
    assert_int_equal(setenv("TD_APART_SPEEDS", speeds, 1), 0);
    OK(td_pool_create(&place, 1, pool, NULL));
    host.pool = *pool;
    td_status st = td_npu_open("apart", &config, npu, err);
    unsetenv("TD_APART_SPEEDS");
    return st;
}

TEST(copies_of_two_streams_share_the_link) {
    td_npu        *d;
    td_pool       *pool;
    td_npu_stream *stream[2];
    void          *device, *pinned;
    OK(open_apart(LINK_PER_S ",1e9,1e9", &d, &pool, NULL));
    OK(d->ops->alloc(d, BYTES, &device, NULL));
    OK(d->ops->host_alloc(d, BYTES, &pinned, NULL));
    for (int i = 0; i < 2; i++) OK(d->ops->stream_create(d, &stream[i], NULL));
    const uint64_t begin = td_trace_now();
    for (int i = 0; i < 2; i++) OK(d->ops->copy(d, stream[i], device, pinned, BYTES, TD_COPY_H2D));
    for (int i = 0; i < 2; i++) OK(d->ops->stream_sync(d, stream[i]));
    assert_true(td_trace_now() - begin >= 40000000);
    for (int i = 0; i < 2; i++) d->ops->stream_destroy(d, stream[i]);
    d->ops->free(d, device, BYTES);
    d->ops->host_free(d, pinned, BYTES);
    d->ops->close(d);
    td_pool_destroy(pool);
}

TEST(speeds_that_are_none_are_refused) {
    for (const char *const *wrong = (const char *const[]){"fast", "1e9", "1e9,1e9", "1e9,0,1e9", "nan,1e9,1e9", NULL};
         *wrong; wrong++) {
        td_npu  *d;
        td_pool *pool;
        td_error err = {0};
        assert_int_equal(open_apart(*wrong, &d, &pool, &err), TD_EINVAL);
        assert_non_null(strstr(err.text, "three rates above 0 are wanted"));
        td_pool_destroy(pool);
    }
}
