/*
 * Tensors and their lists, scalars, integer arrays, executors.
 * Source: opbase docs/zh/api/nnopbase/aclnn; docs/zh/context/two_phase_api.md of the op repositories.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "standin_facts.h"

struct aclTensor {
    bool           alive;
    standin_tensor t;
};

typedef struct {
    const td_acl_tensor *handle; /* NULL: absent */
    standin_tensor       t;      /* as it was, with the address that was set since */
    int                  role;
    const char          *name;
} slot;

typedef enum { FRESH, SPENT, DESTROYED } state;

struct aclOpExecutor {
    const char    *op, *document;
    int32_t        device;
    state          state;
    bool           repeatable, is_taken; /* taken: the library has its arguments' types */
    size_t         n;
    slot           slots[STANDIN_TENSORS];
    standin_kernel kernel;
    void          *args;
    size_t         args_bytes;
    uint64_t       workspace;
};

static void keep(void *thing) {
    STANDIN_LOCKED;
    standin_keep(thing);
}

/* ---- tensors ----------------------------------------------------------------------------------- */

size_t standin_dtype_bytes(td_acl_dtype t) {
    switch (t) {
        case TD_ACL_FLOAT:
        case TD_ACL_INT32:
        case TD_ACL_UINT32: return 4;
        case TD_ACL_FLOAT16:
        case TD_ACL_INT16:
        case TD_ACL_BF16: return 2;
        case TD_ACL_INT8:
        case TD_ACL_UINT8:
        case TD_ACL_BOOL: return 1;
        case TD_ACL_INT64:
        case TD_ACL_UINT64: return 8;
        default:
            standin_refuse("runtime 25-02 aclDataType", "a tensor of dtype %d, which is none that this stand-in knows", t);
    }
}

/* Bytes of n elements in a row; two of int4 share one. */
static size_t bytes_of(td_acl_dtype t, int64_t n) {
    return t == TD_ACL_INT4 ? (size_t)(n + 1) / 2 : (size_t)n * standin_dtype_bytes(t);
}

static void check_address(const void *data, const char *what) {
    if ((uintptr_t)data % 32)
        standin_refuse("opbase aclCreateTensor", "%s at %p: its address has to be a multiple of 32 bytes", what, data);
}

td_acl_tensor *aclCreateTensor(const int64_t *view, uint64_t n_view, td_acl_dtype dtype, const int64_t *strides,
                               int64_t offset, td_acl_format format, const int64_t *storage, uint64_t n_storage,
                               void *data) {
    const char *document = "opbase aclCreateTensor";
    if (n_view > STANDIN_DIMS || n_storage > STANDIN_DIMS)
        standin_refuse(document, "a tensor of %llu dimensions: 8 at most",
                       (unsigned long long)(n_view > n_storage ? n_view : n_storage));
    if (format != TD_ACL_FORMAT_ND && format != TD_ACL_FORMAT_FRACTAL_NZ)
        standin_refuse("runtime 25-02 aclFormat", "a tensor of format %d", format);
    check_address(data, "a tensor");
    td_acl_tensor *tensor = calloc(1, sizeof *tensor);
    standin_tensor t = {.dtype = dtype,
                        .format = format,
                        .n_view = (uint32_t)n_view,
                        .n_storage = (uint32_t)n_storage,
                        .offset = offset,
                        .data = data};
    int64_t        step = 1, elements = 1, last = offset;
    bool           empty = false;
    for (uint64_t i = n_view; i-- > 0; step *= view[i]) {
        t.view[i] = view[i];
        t.strides[i] = strides ? strides[i] : step;
        if (view[i] < 0 || t.strides[i] < 0) standin_refuse(document, "a tensor with a negative dimension or stride");
        empty |= view[i] == 0;
        last += (view[i] - 1) * t.strides[i];
    }
    for (uint64_t i = 0; i < n_storage; i++) elements *= t.storage[i] = storage[i];
    (void)bytes_of(dtype, elements);
    if (dtype == TD_ACL_INT4 && (offset % 2 || (n_view && view[n_view - 1] % 2)))
        standin_refuse("runtime 25-02 aclDataType", "a tensor of INT4 whose rows do not begin with a byte");
    if (offset < 0 || (!empty && format == TD_ACL_FORMAT_ND && last >= elements))
        standin_refuse(document, "a tensor whose view reaches element %lld of a storage of %lld", (long long)last,
                       (long long)elements);
    *tensor = (td_acl_tensor){true, t};
    keep(tensor);
    return tensor;
}

const standin_tensor *standin_live(const td_acl_tensor *tensor, const char *what) {
    if (!tensor->alive) standin_refuse("opbase aclDestroyTensor", "%s is a tensor that was destroyed", what);
    return &tensor->t;
}

td_aclnn_status aclDestroyTensor(const td_acl_tensor *tensor) {
    if (!tensor) return TD_ACLNN_ERR_NULL;
    (void)standin_live(tensor, "what is destroyed");
    ((td_acl_tensor *)tensor)->alive = false;
    return TD_ACLNN_OK;
}

td_acl_tensor_list *aclCreateTensorList(const td_acl_tensor *const *tensors, uint64_t n) {
    td_acl_tensor_list *list = calloc(1, sizeof *list);
    *list = (td_acl_tensor_list){true, n, calloc(n ? n : 1, sizeof *list->tensors)};
    for (uint64_t i = 0; i < n; i++) {
        (void)standin_live(tensors[i], "an entry of a list");
        list->tensors[i] = tensors[i];
    }
    keep(list);
    return list;
}

/* A list takes its tensors with it. */
td_aclnn_status aclDestroyTensorList(const td_acl_tensor_list *list) {
    if (!list) return TD_ACLNN_ERR_NULL;
    if (!list->alive) standin_refuse("opbase aclDestroyTensorList", "a list of tensors is destroyed twice");
    for (uint64_t i = 0; i < list->n; i++) aclDestroyTensor(list->tensors[i]);
    ((td_acl_tensor_list *)list)->alive = false;
    free(list->tensors);
    ((td_acl_tensor_list *)list)->tensors = NULL;
    return TD_ACLNN_OK;
}

td_acl_scalar *aclCreateScalar(void *value, td_acl_dtype dtype) {
    td_acl_scalar *scalar = calloc(1, sizeof *scalar);
    double         v = dtype == TD_ACL_FLOAT   ? *(float *)value
                       : dtype == TD_ACL_INT32 ? *(int32_t *)value
                       : dtype == TD_ACL_INT64 ? (double)*(int64_t *)value
                                               : 0;
    if (dtype != TD_ACL_FLOAT && dtype != TD_ACL_INT32 && dtype != TD_ACL_INT64)
        standin_refuse("stand-in", "a scalar of dtype %d", dtype);
    *scalar = (td_acl_scalar){true, dtype, v};
    keep(scalar);
    return scalar;
}

td_aclnn_status aclDestroyScalar(const td_acl_scalar *scalar) {
    if (!scalar || !scalar->alive)
        standin_refuse("opbase aclDestroyScalar", "a scalar is destroyed that is none, or was destroyed before");
    ((td_acl_scalar *)scalar)->alive = false;
    return TD_ACLNN_OK;
}

td_acl_int_array *aclCreateIntArray(const int64_t *values, uint64_t n) {
    td_acl_int_array *array = calloc(1, sizeof *array);
    *array = (td_acl_int_array){true, n, calloc(n ? n : 1, sizeof(int64_t))};
    memcpy(array->values, values, n * sizeof(int64_t));
    keep(array);
    return array;
}

td_aclnn_status aclDestroyIntArray(const td_acl_int_array *array) {
    if (!array || !array->alive)
        standin_refuse("opbase aclDestroyIntArray", "an array is destroyed that is none, or was destroyed before");
    ((td_acl_int_array *)array)->alive = false;
    free(array->values);
    ((td_acl_int_array *)array)->values = NULL;
    return TD_ACLNN_OK;
}

/* ---- executors, first half ----------------------------------------------------------------------- */

td_acl_executor *standin_begin(const char *op, const char *document, ...) {
    char *name = calloc(1, strlen(op) + 32);
    snprintf(name, strlen(op) + 32, "%sGetWorkspaceSize", op);
    const standin_context *c = standin_enter(name, STANDIN_NEEDS_CONTEXT | STANDIN_NOT_IN_CALLBACK);
    free(name);
    td_acl_executor *x = calloc(1, sizeof *x);
    *x = (td_acl_executor){.op = op, .document = document, .device = c->device};
    keep(x);
    va_list list;
    va_start(list, document);
    x->is_taken = standin_check_facts(x, op, &list);
    va_end(list);
    return x;
}

void standin_bad(const td_acl_executor *x, const char *format, ...) {
    char    text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    standin_refuse(x->document, "%s: %s", x->op, text);
}

/** Bytes of the storage that the view takes, from its first element on. */
static size_t span(const standin_tensor *t) {
    int64_t last = 0, all = 1;
    if (t->format == TD_ACL_FORMAT_FRACTAL_NZ) {
        for (uint32_t i = 0; i < t->n_storage; i++) all *= t->storage[i];
        return bytes_of(t->dtype, all);
    }
    for (uint32_t i = 0; i < t->n_view; i++) {
        if (!t->view[i]) return 0;
        last += (t->view[i] - 1) * t->strides[i];
    }
    return bytes_of(t->dtype, last + 1);
}

static char *first_element(const standin_tensor *t) {
    return t->data + bytes_of(t->dtype, t->offset);
}

static void check_memory(const td_acl_executor *x, const standin_tensor *t, const char *name) {
    size_t bytes = span(t);
    standin_lock();
    const standin_memory *m = bytes ? standin_memory_of(first_element(t), bytes) : NULL;
    bool                  ok = !bytes || (m && m->device == x->device);
    standin_unlock();
    if (!ok) standin_bad(x, "%s, %zu bytes at %p, does not lie in live memory of the device", name, bytes, (void *)t->data);
}

const standin_tensor *standin_add(td_acl_executor *x, const td_acl_tensor *tensor, const char *name, int role) {
    if (x->n == STANDIN_TENSORS) standin_bad(x, "too many tensors");
    slot *s = &x->slots[x->n++];
    *s = (slot){.handle = tensor, .role = role, .name = name};
    if (!tensor && !(role & STANDIN_OPTIONAL)) standin_bad(x, "%s is a null pointer", name);
    if (tensor) s->t = *standin_live(tensor, name);
    if (!tensor) return NULL;
    check_memory(x, &s->t, name);
    return &s->t;
}

td_aclnn_status standin_end(td_acl_executor *x, standin_kernel kernel, const void *args, size_t args_bytes,
                            uint64_t workspace, uint64_t *workspace_bytes, td_acl_executor **executor) {
    x->kernel = kernel;
    x->args = args_bytes ? malloc(args_bytes) : NULL;
    x->args_bytes = args_bytes;
    if (args_bytes) memcpy(x->args, args, args_bytes);
    x->workspace = workspace;
    *workspace_bytes = workspace;
    *executor = x;
    if (x->is_taken) return TD_ACLNN_OK;
    x->state = DESTROYED;
    free(x->args);
    x->args = NULL;
    *executor = NULL;
    return TD_ACLNN_ERR_INVALID;
}

/* ---- executors, second half ---------------------------------------------------------------------- */

static td_acl_executor *usable(td_acl_executor *x, const char *call) {
    const char *document = "docs/zh/context/two_phase_api.md";
    if (!x) standin_refuse("opbase aclDestroyAclOpExecutor", "%s of an executor that is a null pointer", call);
    if (x->state == SPENT)
        standin_refuse(document, "%s of an executor of %s that has run and was not made repeatable", call, x->op);
    if (x->state == DESTROYED)
        standin_refuse("opbase aclDestroyAclOpExecutor", "%s of an executor of %s that is destroyed", call, x->op);
    return x;
}

td_aclnn_status aclSetAclOpExecutorRepeatable(td_acl_executor *executor) {
    usable(executor, "aclSetAclOpExecutorRepeatable")->repeatable = true;
    return TD_ACLNN_OK;
}

td_aclnn_status aclDestroyAclOpExecutor(td_acl_executor *executor) {
    td_acl_executor *x = usable(executor, "aclDestroyAclOpExecutor");
    if (!x->repeatable)
        standin_refuse("opbase aclDestroyAclOpExecutor",
                       "an executor of %s is destroyed that is not repeatable: it goes with its run", x->op);
    x->state = DESTROYED;
    free(x->args);
    x->args = NULL;
    return TD_ACLNN_OK;
}

static td_aclnn_status set_address(td_acl_executor *executor, size_t index, td_acl_tensor *tensor, void *data, bool out,
                                   const char *call) {
    td_acl_executor *x = usable(executor, call);
    if (!x->repeatable)
        standin_refuse("opbase aclSetInputTensorAddr", "%s of an executor of %s that is not repeatable", call, x->op);
    check_address(data, call);
    for (size_t i = 0, k = 0; i < x->n; i++) {
        slot *s = &x->slots[i];
        if (!!(s->role & STANDIN_OUT) != out || k++ != index) continue;
        if (!s->handle)
            standin_refuse("opbase aclSetInputTensorAddr", "%s of a tensor of %s that was a null pointer", call, x->op);
        if (s->handle != tensor)
            standin_refuse("opbase aclSetInputTensorAddr", "%s: tensor %zu of %s is another one (%s)", call, index, x->op,
                           s->name);
        (void)standin_live(tensor, s->name);
        s->t.data = data;
        tensor->t.data = data;
        check_memory(x, &s->t, s->name);
        return TD_ACLNN_OK;
    }
    standin_refuse("opbase aclSetInputTensorAddr", "%s: %s has no tensor %zu", call, x->op, index);
}

td_aclnn_status aclSetInputTensorAddr(td_acl_executor *executor, const size_t index, td_acl_tensor *tensor, void *data) {
    return set_address(executor, index, tensor, data, false, "aclSetInputTensorAddr");
}

td_aclnn_status aclSetOutputTensorAddr(td_acl_executor *executor, const size_t index, td_acl_tensor *tensor, void *data) {
    return set_address(executor, index, tensor, data, true, "aclSetOutputTensorAddr");
}

/** What an enqueued run has of its executor: copies. */
typedef struct {
    standin_kernel kernel;
    size_t         n;
    bool           there[STANDIN_TENSORS];
    standin_tensor t[STANDIN_TENSORS];
    void          *workspace;
    uint64_t       workspace_bytes;
    char           args[];
} kernel_run;

static void run_kernel(standin_op *op, standin_stream *s) {
    kernel_run *r = op->payload;
    if (standin_setting("TD_STANDIN_DRY", 0)) return;
    standin_call c = {.op = op->name, .args = r->args};
    (void)s;
    for (size_t i = 0; i < r->n; i++) {
        size_t bytes = r->there[i] ? span(&r->t[i]) : 0;
        c.t[i] = r->there[i] ? &r->t[i] : NULL;
        c.at[i] = bytes ? standin_real(first_element(&r->t[i]), bytes, op->name) : NULL;
    }
    /* Whoever shares a workspace between operations that run at once is found by what this leaves there. */
    if (r->workspace_bytes) memset(standin_real(r->workspace, r->workspace_bytes, op->name), 0x5a, r->workspace_bytes);
    r->kernel(&c);
}

static void drop_run(standin_op *op) {
    free(op->payload);
}

td_aclnn_status standin_execute(const char *op, void *workspace, uint64_t workspace_bytes, td_acl_executor *executor,
                                td_acl_stream stream) {
    standin_context *context = standin_enter(op, STANDIN_LAUNCHES);
    standin_stream  *s = standin_stream_of(stream, op);
    td_acl_executor *x = usable(executor, op);
    if (strcmp(x->op, op)) standin_refuse("docs/zh/context/two_phase_api.md", "%s is given an executor of %s", op, x->op);
    if (workspace_bytes < x->workspace)
        standin_refuse(x->document, "%s is given a workspace of %llu bytes and has asked for %llu", op,
                       (unsigned long long)workspace_bytes, (unsigned long long)x->workspace);
    standin_lock();
    const standin_memory *m = x->workspace ? standin_memory_of(workspace, workspace_bytes) : NULL;
    bool                  ok = !x->workspace || (m && m->device == context->device);
    standin_unlock();
    if (!ok)
        standin_refuse(x->document, "%s is given a workspace at %p, which is not %llu bytes of the device's memory", op,
                       workspace, (unsigned long long)workspace_bytes);
    kernel_run *r = calloc(1, sizeof *r + x->args_bytes);
    *r = (kernel_run){.kernel = x->kernel, .n = x->n, .workspace = workspace, .workspace_bytes = x->workspace};
    if (x->args_bytes) memcpy(r->args, x->args, x->args_bytes);
    standin_op *o = standin_op_new(x->op, STANDIN_OP_KERNEL, run_kernel);
    o->payload = r;
    o->drop = drop_run;
    for (size_t i = 0; i < x->n; i++) {
        slot *t = &x->slots[i];
        if (!t->handle) continue;
        (void)standin_live(t->handle, t->name);
        check_memory(x, &t->t, t->name);
        r->there[i] = true;
        r->t[i] = t->t;
        standin_op_use(o, first_element(&t->t), span(&t->t), t->role & STANDIN_OUT, t->role & STANDIN_INDEXED);
    }
    o->has_workspace = x->workspace != 0;
    standin_op_use(o, workspace, x->workspace, true, false);
    if (!x->repeatable) {
        x->state = SPENT;
        free(x->args);
        x->args = NULL;
    }
    standin_submit(s, o);
    return TD_ACLNN_OK;
}
