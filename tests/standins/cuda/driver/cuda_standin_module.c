/*
 * Modules and launches. An image names a library of kernels that run on the CPU (cuda_launch.h): dlsym finds what the driver
 * would find in a cubin.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

#define SHARED_WITHOUT_ASKING (48 * 1024)

/* POSIX has a function's address come as void *; a copy of the bytes is what ISO C leaves. */
static void find(void *library, const char *symbol, void *function) {
    void *at = dlsym(library, symbol);
    memcpy(function, &at, sizeof at);
}

/* ---- modules ----------------------------------------------------------------------------------- */

static _Thread_local td_cu_stream running; /* whose kernel this thread runs */

static void exchanged(const void *at, size_t bytes, td_cuda_exchange what) {
    standin_exchanged(running, at, bytes, what);
}

/** Where an address of a kernel's arguments really is. */
static void *reach(const void *device) {
    standin_lock();
    standin_memory *m = standin_memory_of(device, 1);
    if (m && m->device >= 0 && !standin_reaches(running->context, m->device))
        standin_refuse("cuLaunchKernel",
                       "a kernel of device %d is given memory of device %d: access between devices was not enabled",
                       running->context->device, m->device);
    standin_unlock();
    return standin_real(device, 1, "a kernel");
}

/** The next line of an image. @return NULL: there is none. */
static const char *line_of(const char *at, char *out, size_t bytes) {
    const char *end = at ? strchr(at, '\n') : NULL;
    if (!end || (size_t)(end - at) >= bytes) return NULL;
    memcpy(out, at, (size_t)(end - at));
    out[end - at] = 0;
    return end + 1;
}

/** Whether the card runs what was compiled like this ("sm_90 12080"): guide, Binary Compatibility and PTX Compatibility;
 * "CUDA Compatibility", Minor Version Compatibility. */
static td_cu_status fits_the_card(const char *how) {
    unsigned arch = 0, card = (unsigned)standin_setting("TD_STANDIN_ARCH", 90);
    int      driver = (int)standin_setting("TD_STANDIN_CUDA", 12080), version = driver;
    if (sscanf(how, "compute_%u %d", &arch, &version) >= 1) {
        if (version > driver) return TD_CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        return arch > card ? TD_CUDA_ERROR_NO_BINARY_FOR_GPU : TD_CUDA_SUCCESS;
    }
    if (sscanf(how, "sm_%u %d", &arch, &version) < 1) return TD_CUDA_ERROR_INVALID_IMAGE;
    return arch != card || version / 1000 > driver / 1000 ? TD_CUDA_ERROR_NO_BINARY_FOR_GPU : TD_CUDA_SUCCESS;
}

td_cu_status cuModuleLoadData(td_cu_module *module, const void *image) {
    char title[64], path[512];
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE);
    STANDIN_CAN_FAIL;
    const char *rest = line_of(image, title, sizeof title);
    if (!rest || strcmp(title, STANDIN_IMAGE) != 0) return TD_CUDA_ERROR_INVALID_IMAGE;
    rest = line_of(rest, title, sizeof title);
    if (!rest || !line_of(rest, path, sizeof path)) return TD_CUDA_ERROR_INVALID_IMAGE;
    td_cu_status fits = fits_the_card(title);
    if (fits != TD_CUDA_SUCCESS) return fits;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return TD_CUDA_ERROR_INVALID_IMAGE;
    void (*set_reach)(void *(*)(const void *));
    void (*set_exchanges)(void (*)(const void *, size_t, td_cuda_exchange));
    td_cu_module m = calloc(1, sizeof *m);
    *m = (struct CUmod_st){.context = standin_current(), .alive = true, .library = library};
    find(library, "td_cuda_emulated_mistake", &m->mistake);
    find(library, "td_cuda_emulated_reach", &set_reach);
    find(library, "td_cuda_emulated_exchanges", &set_exchanges);
    if (!m->mistake || !set_reach || !set_exchanges)
        standin_refuse("stand-in", "%s is no library of kernels: it lacks td_cuda_emulated_reach, _exchanges or _mistake",
                       path);
    set_reach(reach);
    set_exchanges(exchanged);
    STANDIN_LOCKED;
    standin_keep(m);
    m->context->n_things++;
    *module = m;
    return TD_CUDA_SUCCESS;
}

static td_cu_module module_of(td_cu_module m, const char *call) {
    if (!m || !m->alive) standin_refuse("cuModuleUnload", "%s of a module that is none, or is unloaded", call);
    if (m->context != standin_current()) standin_refuse(call, "%s of a module of another context than the thread's", call);
    return m;
}

td_cu_status cuModuleUnload(td_cu_module module) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE | STANDIN_RELEASES);
    td_cu_module m = module_of(module, "cuModuleUnload");
    standin_lock();
    if (m->in_use)
        standin_refuse("cuModuleUnload", "a module is unloaded while %u launches of its kernels are enqueued or captured",
                       m->in_use);
    m->alive = false;
    m->context->n_things--;
    standin_unlock();
    dlclose(m->library);
    return standin_left();
}

td_cu_status cuModuleGetFunction(td_cu_kernel *kernel, td_cu_module module, const char *name) {
    char symbol[256];
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_module m = module_of(module, "cuModuleGetFunction");
    STANDIN_CAN_FAIL;
    snprintf(symbol, sizeof symbol, "td_cuda_kernel_%s", name);
    const td_cuda_kernel *record = dlsym(m->library, symbol);
    if (!record) return TD_CUDA_ERROR_NOT_FOUND;
    td_cu_kernel k = calloc(1, sizeof *k);
    STANDIN_LOCKED;
    *k = (struct CUfunc_st){m->kernels, m, record, SHARED_WITHOUT_ASKING};
    m->kernels = k;
    *kernel = k;
    return TD_CUDA_SUCCESS;
}

/* ---- kernels ----------------------------------------------------------------------------------- */

static td_cu_kernel kernel_of(td_cu_kernel k, const char *call) {
    if (!k) standin_refuse(call, "%s of no kernel", call);
    (void)module_of(k->module, call);
    return k;
}

td_cu_status cuFuncGetAttribute(int *value, td_cu_kernel_fact fact, td_cu_kernel kernel) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    const struct CUfunc_st *k = kernel_of(kernel, "cuFuncGetAttribute");
    if (fact != TD_CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK && fact != TD_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        standin_refuse("stand-in", "cuFuncGetAttribute of %u, which is not here", fact);
    STANDIN_CAN_FAIL;
    *value = (int)(fact == TD_CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? k->record->max_threads : k->shared_max);
    return TD_CUDA_SUCCESS;
}

td_cu_status cuFuncSetAttribute(td_cu_kernel kernel, td_cu_kernel_fact fact, int value) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_kernel k = kernel_of(kernel, "cuFuncSetAttribute");
    unsigned     most = (unsigned)standin_card_fact(TD_CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (fact != TD_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        standin_refuse("stand-in", "cuFuncSetAttribute of %u, which is not here", fact);
    if (value < 0 || (unsigned)value > most)
        standin_refuse("cuFuncSetAttribute",
                       "%s is to have %d bytes of dynamic shared memory, and the card has %u for a block", k->record->name,
                       value, most);
    STANDIN_CAN_FAIL;
    k->shared_max = (unsigned)value;
    return TD_CUDA_SUCCESS;
}

/* guide, Technical Specifications per Compute Capability: the same for all of them */
static const unsigned GRID_MAX[3] = {0x7fffffff, 65535, 65535}, BLOCK_MAX[3] = {1024, 1024, 64};

static void check_shape(const struct CUfunc_st *k, const td_cuda_launch *l) {
    const char *document = "guide, Technical Specifications per Compute Capability", *name = k->record->name;
    uint64_t    threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!l->grid[i] || l->grid[i] > GRID_MAX[i])
            standin_refuse(document, "%s is launched with a grid of %u x %u x %u blocks", name, l->grid[0], l->grid[1],
                           l->grid[2]);
        if (!l->block[i] || l->block[i] > BLOCK_MAX[i])
            standin_refuse(document, "%s is launched with blocks of %u x %u x %u threads", name, l->block[0], l->block[1],
                           l->block[2]);
        threads *= l->block[i];
    }
    if (threads > (unsigned)standin_card_fact(TD_CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
        threads > k->record->max_threads)
        standin_refuse("guide, Launch Bounds", "%s is launched with blocks of %llu threads and was compiled for %u at most",
                       name, (unsigned long long)threads, k->record->max_threads);
    if (l->shared_bytes > k->shared_max)
        standin_refuse("cuFuncSetAttribute (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)",
                       "%s is launched with %zu bytes of dynamic shared memory, and %u are allowed it", name,
                       l->shared_bytes, k->shared_max);
}

typedef struct {
    td_cu_kernel   kernel;
    td_cuda_launch launch;
    void          *args[TD_CUDA_ARGS_MAX];
    uint64_t       values[TD_CUDA_ARGS_MAX];
} call;

static void run_kernel(standin_op *op, td_cu_stream s) {
    call *c = op->payload;
    if (standin_setting("TD_STANDIN_DRY", 0) && !c->kernel->record->exchanges) return;
    running = s;
    c->kernel->record->launch(&c->launch, c->args);
    const char *mistake = c->kernel->module->mistake();
    if (mistake) standin_refuse("cuda_emulation.h", "%s: %s", c->kernel->record->name, mistake);
}

/* Numbers as they are, addresses as "memory". */
static void write_kernel(const standin_op *op, FILE *to) {
    const call           *c = op->payload;
    const td_cuda_launch *l = &c->launch;
    const td_cuda_kernel *record = c->kernel->record;
    fprintf(to, "%s\t%u %u %u\t%u\t%zu\t", record->name, l->grid[0], l->grid[1], l->grid[2],
            l->block[0] * l->block[1] * l->block[2], l->shared_bytes);
    for (unsigned i = 0; i < record->n_args; i++) {
        const bool is_memory = record->arg_bytes[i] == sizeof(void *) && c->values[i];
        if (is_memory)
            fprintf(to, "%smemory", i ? " " : "");
        else
            fprintf(to, "%s%llu", i ? " " : "", (unsigned long long)c->values[i]);
    }
    fputc('\n', to);
}

static void drop_call(standin_op *op) {
    free(op->payload);
}

/* An argument of a pointer's size that is an address of live memory is one; the kernel may use all that lies from there to
 * the memory's end. A kernel that may write writes somewhere in there, as with slots of a cache. So two kernels that write
 * the same memory are taken to keep apart, and a kernel that reads it has to be ordered against both. Of an exchange the
 * kernel tells what it uses. */
static void note_argument(standin_op *op, uint64_t value, bool written, bool is_exchange) {
    const char *at = (const char *)(uintptr_t)value;
    STANDIN_LOCKED;
    standin_memory *m = standin_memory_of(at, 1);
    if (m) {
        standin_op_use(op, at, m->bytes - (size_t)(at - m->given), written, written);
        op->uses[op->n_uses - 1].is_exchange = is_exchange;
        m->is_told |= is_exchange;
    }
}

static void submit(const char *name, td_cu_kernel k, const td_cuda_launch *l, td_cu_stream s, void **args) {
    const td_cuda_kernel *record = k->record;
    standin_op           *op = standin_op_new(name, STANDIN_KERNEL, run_kernel);
    call                 *c = calloc(1, sizeof *c);
    *c = (call){.kernel = k, .launch = *l};
    for (unsigned i = 0; i < record->n_args; i++) {
        if (record->arg_bytes[i] > sizeof c->values[i])
            standin_refuse("stand-in", "%s takes an argument of %u bytes", record->name, record->arg_bytes[i]);
        memcpy(&c->values[i], args[i], record->arg_bytes[i]);
        c->args[i] = &c->values[i];
        if (record->arg_bytes[i] == sizeof(void *))
            note_argument(op, c->values[i], record->written >> i & 1, record->exchanges >> i & 1);
    }
    op->payload = c;
    op->drop = drop_call;
    op->write = write_kernel;
    op->module = k->module;
    standin_submit(s, op);
}

static void check_launch(const char *name, td_cu_kernel k, const td_cuda_launch *l, void **args, void **extra) {
    if (extra) standin_refuse("stand-in", "%s with extra, which is not here", name);
    if (k->record->n_args && !args)
        standin_refuse(name, "%s is launched without its %u arguments", k->record->name, k->record->n_args);
    check_shape(k, l);
}

td_cu_status cuLaunchKernel(td_cu_kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, td_cu_stream stream, void **args,
                            void **extra) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream   s = standin_stream_of(stream, "cuLaunchKernel");
    td_cu_kernel   k = kernel_of(kernel, "cuLaunchKernel");
    td_cuda_launch l = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, 0};
    check_launch("cuLaunchKernel", k, &l, args, extra);
    STANDIN_CAN_FAIL;
    submit("cuLaunchKernel", k, &l, s, args);
    return TD_CUDA_SUCCESS;
}

/* One attribute, with which a kernel may begin early. Here it begins when those before it have ended, as it may on a card; the
 * emulation sees to it that every thread waits for that by itself. */
td_cu_status cuLaunchKernelEx(const td_cu_launch_config *config, td_cu_kernel kernel, void **args, void **extra) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    const td_cu_launch_config *c = config;
    td_cu_stream               s = standin_stream_of(c->stream, "cuLaunchKernelEx");
    td_cu_kernel               k = kernel_of(kernel, "cuLaunchKernelEx");
    td_cuda_launch             l = {
                    {c->grid_x, c->grid_y, c->grid_z}, {c->block_x, c->block_y, c->block_z}, c->shared_bytes, c->n_attributes > 0};
    if (c->n_attributes > 1 ||
        (c->n_attributes && (c->attributes->id != TD_CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
                             c->attributes->value.programmaticStreamSerializationAllowed != 1)))
        standin_refuse("stand-in", "cuLaunchKernelEx with attributes that are not here");
    if (l.is_early && standin_setting("TD_STANDIN_ARCH", 90) < 90)
        standin_refuse("guide, Programmatic Dependent Launch and Synchronization",
                       "%s is to begin early on a card of compute capability below 9.0", k->record->name);
    check_launch("cuLaunchKernelEx", k, &l, args, extra);
    STANDIN_CAN_FAIL;
    submit("cuLaunchKernelEx", k, &l, s, args);
    return TD_CUDA_SUCCESS;
}
