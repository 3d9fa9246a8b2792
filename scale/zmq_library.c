#include "scale/zmq_library.h"

#include <dlfcn.h>

#include "core/error.h"

#define LIBRARY "libzmq.so.5"

td_status td_zmq_load(td_zmq *z, td_error *err) {
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return td_fail(err, TD_ENOTFOUND, "KV events need ZeroMQ, which cannot be loaded (Debian: libzmq5): %s", dlerror());
    const struct {
        const char *name;
        void       *slot; /* a function pointer, which on POSIX is as wide as dlsym's void * */
    } wanted[] = {{"zmq_ctx_new", &z->ctx_new},
                  {"zmq_ctx_term", &z->ctx_term},
                  {"zmq_socket", &z->socket},
                  {"zmq_close", &z->close},
                  {"zmq_bind", &z->bind},
                  {"zmq_setsockopt", &z->setsockopt},
                  {"zmq_getsockopt", &z->getsockopt},
                  {"zmq_poll", &z->poll},
                  {"zmq_recv", &z->recv},
                  {"zmq_send", &z->send},
                  {"zmq_msg_init", &z->msg_init},
                  {"zmq_msg_init_size", &z->msg_init_size},
                  {"zmq_msg_data", &z->msg_data},
                  {"zmq_msg_copy", &z->msg_copy},
                  {"zmq_msg_send", &z->msg_send},
                  {"zmq_msg_close", &z->msg_close},
                  {"zmq_errno", &z->error},
                  {"zmq_strerror", &z->error_text}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *f = dlsym(lib, wanted[i].name);
        if (!f)
            return td_fail(err, TD_ENOTFOUND, "KV events need ZeroMQ, but the installed " LIBRARY " has no %s",
                           wanted[i].name);
        *(void **)wanted[i].slot = f;
    }
    return TD_OK;
}
