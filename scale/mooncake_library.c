#include "scale/mooncake_library.h"

#include <dlfcn.h>

#include "core/error.h"

td_status td_mooncake_load(td_mooncake *m, const char *path, td_error *err) {
    void *lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL); /* lazily: a build for cards names functions that a host may lack */
    if (!lib) return td_fail(err, TD_ENOTFOUND, "Mooncake's library cannot be loaded: %s", dlerror());
    const struct {
        const char *name;
        void       *slot; /* a function pointer, which on POSIX is as wide as dlsym's void * */
    } wanted[] = {{"mooncake_store_create", &m->create},
                  {"mooncake_store_destroy", &m->destroy},
                  {"mooncake_store_setup", &m->setup},
                  {"mooncake_store_register_buffer", &m->register_buffer},
                  {"mooncake_store_unregister_buffer", &m->unregister_buffer},
                  {"mooncake_store_batch_put_from", &m->batch_put_from},
                  {"mooncake_store_batch_get_into", &m->batch_get_into},
                  {"mooncake_store_batch_is_exist", &m->batch_is_exist},
                  {"mooncake_store_is_exist", &m->is_exist},
                  {"mooncake_store_remove", &m->remove}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *f = dlsym(lib, wanted[i].name);
        if (!f)
            return td_fail(err, TD_ENOTFOUND, "%s has no %s: it is not Mooncake Store with its C interface (0.3.13)", path,
                           wanted[i].name);
        *(void **)wanted[i].slot = f;
    }
    return TD_OK;
}
