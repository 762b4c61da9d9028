/* A libcudnn.so.9 without a card: graphs of one convolution, which it computes in the host's memory in
 * the order of the fake driver's streams (driver.c). It counts what is made, what outlives its handle and
 * what is executed.
 *
 * Heuristics propose one engine without notes, or refuse (CUDNN_STATUS_NOT_SUPPORTED) where
 * c + k + r + pass n is a multiple of 3: channels of x, filters, rows of a filter, samples, and 0 for
 * forward, 1 for backward data, 2 for backward weights. KINTSUGI_FAKE_CUDNN=none refuses all, =all
 * none. What was kept as JSON becomes a plan in any case.
 *
 * Plans want a workspace of 1,024 bytes for filters of 1 x 1, else more, and fill it with 0xff before
 * and after they compute: what lies in it by mistake becomes no number. */
#include <stdatomic.h>
#include <stdio.h>
#include "convolution.h"
#include "twin.h"

enum { SUCCESS = 0, NO_MEMORY = 1003, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, NOT_READY = 4000 };
enum { VERSION = 91900, ATTRIBUTES_MAX = 16, TEXT_MAX = 4096, FIRST_ENGINE = 7 };
enum { CONVOLUTION = 1, ENGINE, CONFIG, HEURISTIC, PLAN, FORWARD = 10, BACKWARD_FILTER, BACKWARD_DATA,
    GRAPH = 15, PACK, TENSOR, DEVICE = 38 };
enum { HANDLE_TYPE, DATA_TYPE, INT64_TYPE = 3, FLOAT_TYPE, POINTER_TYPE = 6, MODE_TYPE, HEURISTIC_TYPE,
    NUMERICAL_TYPE = 11, DESCRIPTOR_TYPE = 15, BEHAVIOR_TYPE = 19, CHAR_TYPE = 24 };
enum { COMPUTE_TYPE = 100, MODE, DILATIONS, STRIDES, AFTER, BEFORE, SPATIAL };
enum { HEURISTIC_MODE = 200, HEURISTIC_GRAPH, RESULTS, HEURISTIC_DEVICE = 204, CONFIG_ENGINE = 300 };
enum { PLAN_HANDLE = 400, PLAN_CONFIG, WORKSPACE_BYTES, PLAN_JSON = 405, PLAN_DEVICE = 407 };
enum { FIRST_OF_OPERATIONS = 700, GRAPH_HANDLE = 800, OPERATIONS };
enum { ALIGNMENT = 900, ELEMENTS, SIZES, STEPS, ID = 906, IDS = 1000, POINTERS, WORKSPACE = 1003 };
enum { NUMERICAL_NOTES = 1303, BEHAVIOR_NOTES = 1305, DEVICE_JSON = 2702 };
enum { STATE_DESCRIPTORS, STATE_HANDLES, STATE_EXECUTED, STATE_LATE };

struct handle { void *stream; };
struct attribute { int name, type; int64_t count; size_t bytes; char *value; };
struct descriptor {
    int kind, is_final, of_handle, count;
    struct attribute attributes[ATTRIBUTES_MAX];
    /* Of a tensor x, of a convolution its window, of all behind them the whole. */
    struct convolution of;
    const struct handle *handle;
};
static atomic_int descriptors, handles, executed, late;
static __thread const char *reason = "";

#define API __attribute__((visibility("default"))) int

static int refuse(int status, const char *why)
{
    reason = why;
    return status;
}

__attribute__((visibility("default"))) size_t cudnnGetVersion(void) { return VERSION; }
__attribute__((visibility("default"))) const char *cudnnGetErrorString(int status)
{
    switch (status) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_FAKE";
    }
}
__attribute__((visibility("default"))) void cudnnGetLastErrorString(char *text, size_t room)
{
    if (room) snprintf(text, room, "%s", reason);
    reason = "";
}
API cudnnCreate(struct handle **handle)
{
    if (!handle) return refuse(BAD_PARAM, "nowhere to put it");
    *handle = calloc(1, sizeof **handle);
    handles++;
    return SUCCESS;
}
API cudnnDestroy(struct handle *handle)
{
    if (!handle) return refuse(BAD_PARAM, "no handle");
    handles--;
    free(handle);
    return SUCCESS;
}
API cudnnSetStream(struct handle *handle, void *stream)
{
    if (!handle) return refuse(BAD_PARAM, "no handle");
    handle->stream = stream;
    return SUCCESS;
}

/* Attributes are numbered by what they are of, in hundreds. */
static int hundred_of(int kind)
{
    switch (kind) {
    case CONVOLUTION: return 1;
    case HEURISTIC: return 2;
    case CONFIG: return 3;
    case PLAN: return 4;
    case FORWARD: case BACKWARD_FILTER: case BACKWARD_DATA: return 7;
    case GRAPH: return 8;
    case TENSOR: return 9;
    case PACK: return 10;
    case ENGINE: return 13;
    case DEVICE: return 27;
    default: return -1;
    }
}
API cudnnBackendCreateDescriptor(int kind, struct descriptor **made)
{
    if (!made) return refuse(BAD_PARAM, "nowhere to put it");
    if (hundred_of(kind) < 0) return refuse(NOT_SUPPORTED, "a kind of descriptor that is not faked");
    *made = calloc(1, sizeof **made);
    (*made)->kind = kind;
    descriptors++;
    return SUCCESS;
}
API cudnnBackendDestroyDescriptor(struct descriptor *descriptor)
{
    if (!descriptor) return refuse(BAD_PARAM, "no descriptor");
    for (int i = 0; i < descriptor->count; i++) free(descriptor->attributes[i].value);
    if (descriptor->of_handle && !handles) late++;
    free(descriptor);
    descriptors--;
    return SUCCESS;
}

/* Of the types by number: small ones, data types and modes, all else words of 64 bits. */
static size_t bytes_of(int type)
{
    int is_word = (type >= 7 && type <= 14) || (type >= 16 && type <= 23) || type == 25 ||
        (type >= 27 && type <= 29);
    if (type == CHAR_TYPE || type == 2) return 1;
    return type == DATA_TYPE || type == FLOAT_TYPE || is_word ? 4 : 8;
}
static struct attribute *find(const struct descriptor *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name) return (struct attribute *)&d->attributes[i];
    return NULL;
}
API cudnnBackendSetAttribute(struct descriptor *d, int name, int type, int64_t count,
    const void *value)
{
    if (!d || count < 0 || (count && !value)) return refuse(BAD_PARAM, "nothing to set");
    if (d->is_final) return refuse(BAD_PARAM, "it is finalized");
    if (name / 100 != hundred_of(d->kind)) return refuse(BAD_PARAM, "no attribute of this descriptor");
    for (int64_t i = 0; type == DESCRIPTOR_TYPE && i < count; i++) {
        const struct descriptor *part = ((struct descriptor *const *)value)[i];
        if (!part || !part->is_final) return refuse(BAD_PARAM, "a part that is not finalized");
    }
    struct attribute *own = find(d, name);
    if (!own && d->count == ATTRIBUTES_MAX) return refuse(BAD_PARAM, "too many attributes");
    if (own) free(own->value);
    else own = &d->attributes[d->count++];
    d->of_handle |= name == PLAN_HANDLE || name == GRAPH_HANDLE;
    size_t bytes = bytes_of(type) * (size_t)count;
    *own = (struct attribute){ name, type, count, bytes, calloc(1, bytes + 1) };
    if (bytes) memcpy(own->value, value, bytes);
    return SUCCESS;
}

/* Whether there are just so many such values. */
static int values(const struct descriptor *d, int name, int type, int64_t count, void *to)
{
    const struct attribute *own = find(d, name);
    if (!own || own->type != type || own->count != count) return 0;
    memcpy(to, own->value, own->bytes);
    return 1;
}
static const struct descriptor *part(const struct descriptor *d, int name, int kind)
{
    const struct descriptor *found = NULL;
    return values(d, name, DESCRIPTOR_TYPE, 1, &found) && found->kind == kind ? found : NULL;
}

static const char *name_of(int64_t pass)
{
    static const char *const names[] = { "FORWARD", "BACKWARD_DATA", "BACKWARD_FILTER" };
    return names[pass];
}
static int64_t workspace_of(const struct convolution *of)
{
    int64_t places = of->w.size[2] * of->w.size[3];
    return places == 1 ? 1024 : 1024 + 512 * (places + of->w.size[1] + of->pass);
}
static int tensor_write(char *to, size_t room, const struct tensor *t, int64_t type)
{
    return snprintf(to, room,
        "{\"name\":\"%ld\",\"dataType\":\"%s\",\"dim\":[%ld,%ld,%ld,%ld],"
        "\"stride\":[%ld,%ld,%ld,%ld]}",
        t->id, type == TYPE_F32 ? "CUDNN_DATA_FLOAT" : "CUDNN_DATA_BFLOAT16", t->size[0], t->size[1],
        t->size[2], t->size[3], t->step[0], t->step[1], t->step[2], t->step[3]);
}
/* As cuDNN writes a plan, and all numbers once more for ourselves. */
static void json_write(const struct convolution *of, char to[TEXT_MAX])
{
    char x[512], w[512], y[512];
    tensor_write(x, sizeof x, &of->x, of->type);
    tensor_write(w, sizeof w, &of->w, of->type);
    tensor_write(y, sizeof y, &of->y, of->type);
    int at = snprintf(to, TEXT_MAX,
        "{\"engine\":{\"engineId\":%ld},\"operationGraph\":{\"tensors\":[%s,%s,%s],\"nodes\":[{"
        "\"operation\":\"CUDNN_BACKEND_OPERATION_CONVOLUTION_%s_DESCRIPTOR\",\"stride\":[%ld,%ld],"
        "\"dilation\":[%ld,%ld],\"pad_lower\":[%ld,%ld],\"pad_upper\":[%ld,%ld]}]},\"fake\":\"%d",
        FIRST_ENGINE + of->pass, x, w, y, name_of(of->pass), of->stride[0], of->stride[1],
        of->dilation[0], of->dilation[1], of->before[0], of->before[1], of->after[0], of->after[1],
        VERSION);
    for (size_t i = 0; i < CONVOLUTION_NUMBERS; i++)
        at += snprintf(to + at, (size_t)(TEXT_MAX - at), " %ld", ((const int64_t *)of)[i]);
    snprintf(to + at, (size_t)(TEXT_MAX - at), "\"}");
}
static int json_read(const char *text, struct convolution *of)
{
    static const char key[] = "\"fake\":\"";
    const char *at = strstr(text, key);
    if (!at) return refuse(BAD_PARAM, "not written here");
    char *end;
    if (strtoll(at + sizeof key - 1, &end, 10) != VERSION)
        return refuse(NOT_SUPPORTED, "another version");
    for (size_t i = 0; i < CONVOLUTION_NUMBERS; i++) {
        at = end;
        ((int64_t *)of)[i] = strtoll(at, &end, 10);
        if (end == at) return refuse(BAD_PARAM, "numbers are missing");
    }
    if (*end != '"' || !strchr(end, '}')) return refuse(BAD_PARAM, "its end is missing");
    const char *why = convolution_unfit(of);
    return why ? refuse(BAD_PARAM, why) : SUCCESS;
}

API cudnnBackendGetAttribute(struct descriptor *d, int name, int type, int64_t room, int64_t *count,
    void *value)
{
    if (!d || !count) return refuse(BAD_PARAM, "nothing to read");
    if (!d->is_final) return refuse(BAD_PARAM, "it is not finalized");
    char text[TEXT_MAX];
    int64_t workspace = workspace_of(&d->of);
    struct attribute own = { .name = name, .type = -1 };
    if (name / 100 == hundred_of(d->kind)) {
        if ((d->kind == CONFIG && name == CONFIG_ENGINE) || (d->kind == HEURISTIC && name == RESULTS)) {
            struct descriptor *made = value && room > 0 ? *(struct descriptor **)value : NULL;
            int wanted = name == RESULTS ? CONFIG : ENGINE;
            if (type != DESCRIPTOR_TYPE) return refuse(BAD_PARAM, "values of another type");
            *count = 1;
            if (!value || room < 1) return SUCCESS;
            if (!made || made->kind != wanted) return refuse(BAD_PARAM, "it fills in another kind");
            made->of = d->of;
            made->is_final = 1;
            return SUCCESS;
        }
        const struct attribute *set = find(d, name);
        if (d->kind == PLAN && name == WORKSPACE_BYTES)
            own = (struct attribute){ name, INT64_TYPE, 1, sizeof workspace, (char *)&workspace };
        else if (d->kind == PLAN && name == PLAN_JSON) {
            json_write(&d->of, text);
            int64_t bytes = (int64_t)strlen(text) + 1;
            own = (struct attribute){ name, CHAR_TYPE, bytes, (size_t)bytes, text };
        } else if (name == NUMERICAL_NOTES || name == BEHAVIOR_NOTES)
            own.type = name == NUMERICAL_NOTES ? NUMERICAL_TYPE : BEHAVIOR_TYPE;
        else if (set) own = *set;
    }
    if (own.type != type) return refuse(BAD_PARAM, "no such attribute, or of another type");
    size_t most = bytes_of(type) * (size_t)(room > 0 ? room : 0);
    *count = own.count;
    if (value && own.bytes) memcpy(value, own.value, own.bytes < most ? own.bytes : most);
    return SUCCESS;
}

static int tensor_finalize(struct descriptor *d)
{
    int elements;
    int64_t alignment;
    struct tensor *t = &d->of.x;
    if (!values(d, ELEMENTS, DATA_TYPE, 1, &elements) || !values(d, SIZES, INT64_TYPE, 4, t->size) ||
        !values(d, STEPS, INT64_TYPE, 4, t->step) || !values(d, ID, INT64_TYPE, 1, &t->id) ||
        !values(d, ALIGNMENT, INT64_TYPE, 1, &alignment))
        return refuse(BAD_PARAM, "a tensor's attribute is missing");
    d->of.type = elements;
    if (elements != TYPE_F32 && elements != TYPE_BF16) return refuse(NOT_SUPPORTED, "other elements");
    if (alignment < 1 || alignment > 16) return refuse(NOT_SUPPORTED, "another alignment");
    const char *why = tensor_unfit(t);
    return why ? refuse(BAD_PARAM, why) : SUCCESS;
}
static int window_finalize(struct descriptor *d)
{
    int compute, mode;
    int64_t spatial;
    if (!values(d, COMPUTE_TYPE, DATA_TYPE, 1, &compute) || !values(d, MODE, MODE_TYPE, 1, &mode) ||
        !values(d, SPATIAL, INT64_TYPE, 1, &spatial) ||
        !values(d, BEFORE, INT64_TYPE, 2, d->of.before) ||
        !values(d, AFTER, INT64_TYPE, 2, d->of.after) ||
        !values(d, DILATIONS, INT64_TYPE, 2, d->of.dilation) ||
        !values(d, STRIDES, INT64_TYPE, 2, d->of.stride))
        return refuse(BAD_PARAM, "a convolution's attribute is missing");
    int is_ours = compute == TYPE_F32 && mode == 1 && spatial == 2;
    return is_ours ? SUCCESS : refuse(NOT_SUPPORTED, "not a cross-correlation of two dimensions in f32");
}
static int operation_finalize(struct descriptor *d)
{
    int pass = d->kind == FORWARD ? PASS_FORWARD : d->kind == BACKWARD_DATA ? PASS_DATA : PASS_WEIGHTS;
    /* Each has alpha, beta, the window, w, x and y, in this order. */
    int name = FIRST_OF_OPERATIONS + 6 * pass;
    const struct descriptor *window = part(d, name + 2, CONVOLUTION);
    const struct descriptor *w = part(d, name + 3, TENSOR), *x = part(d, name + 4, TENSOR);
    const struct descriptor *y = part(d, name + 5, TENSOR);
    float alpha, beta;
    if (!window || !w || !x || !y || !values(d, name, FLOAT_TYPE, 1, &alpha) ||
        !values(d, name + 1, FLOAT_TYPE, 1, &beta))
        return refuse(BAD_PARAM, "an operation's attribute is missing");
    d->of = window->of;
    d->of.pass = pass;
    d->of.type = x->of.type;
    d->of.x = x->of.x;
    d->of.w = w->of.x;
    d->of.y = y->of.x;
    const char *why = convolution_unfit(&d->of);
    if (why) return refuse(BAD_PARAM, why);
    if (w->of.type != x->of.type || y->of.type != x->of.type)
        return refuse(NOT_SUPPORTED, "mixed types");
    return alpha == 1 && beta == 0 ? SUCCESS : refuse(NOT_SUPPORTED, "other factors than 1 and 0");
}
static int graph_finalize(struct descriptor *d)
{
    const struct attribute *all = find(d, OPERATIONS);
    if (!all || all->type != DESCRIPTOR_TYPE || !all->count) return refuse(BAD_PARAM, "no operations");
    const struct descriptor *operation = *(struct descriptor *const *)all->value;
    if (hundred_of(operation->kind) != 7) return refuse(BAD_PARAM, "this is no operation");
    if (all->count > 1) return refuse(NOT_SUPPORTED, "more than one operation");
    d->of = operation->of;
    if (find(d, GRAPH_HANDLE) && (!values(d, GRAPH_HANDLE, HANDLE_TYPE, 1, &d->handle) || !d->handle))
        return refuse(BAD_PARAM, "no handle");
    return SUCCESS;
}
static int is_refused(const struct convolution *of)
{
    const char *how = getenv("KINTSUGI_FAKE_CUDNN");
    if (how && !strcmp(how, "none")) return 1;
    if (how && !strcmp(how, "all")) return 0;
    int64_t sum = of->x.size[1] + of->w.size[0] + of->w.size[2] + of->pass * of->x.size[0];
    return sum % 3 == 0;
}
static int heuristic_finalize(struct descriptor *d)
{
    const struct descriptor *graph = part(d, HEURISTIC_GRAPH, GRAPH);
    int mode;
    if (!graph || !values(d, HEURISTIC_MODE, HEURISTIC_TYPE, 1, &mode))
        return refuse(BAD_PARAM, "a heuristic's attribute is missing");
    if (!graph->handle && !part(d, HEURISTIC_DEVICE, DEVICE)) return refuse(BAD_PARAM, "for no card");
    d->of = graph->of;
    return is_refused(&d->of) ? refuse(NOT_SUPPORTED, "refused by the fake's rule") : SUCCESS;
}
static int plan_finalize(struct descriptor *d)
{
    const struct descriptor *config = part(d, PLAN_CONFIG, CONFIG);
    const struct attribute *json = find(d, PLAN_JSON);
    int has_handle = values(d, PLAN_HANDLE, HANDLE_TYPE, 1, &d->handle) && d->handle;
    if (!has_handle && !part(d, PLAN_DEVICE, DEVICE)) return refuse(BAD_PARAM, "for no card");
    if (!config == !json || (json && json->type != CHAR_TYPE))
        return refuse(BAD_PARAM, "a plan is made of a configuration or of JSON");
    if (json) return json_read(json->value, &d->of);
    d->of = config->of;
    return SUCCESS;
}
API cudnnBackendFinalize(struct descriptor *d)
{
    if (!d) return refuse(BAD_PARAM, "no descriptor");
    if (d->is_final) return refuse(BAD_PARAM, "it is finalized already");
    int status;
    switch (hundred_of(d->kind)) {
    case 1: status = window_finalize(d); break;
    case 2: status = heuristic_finalize(d); break;
    case 4: status = plan_finalize(d); break;
    case 7: status = operation_finalize(d); break;
    case 8: status = graph_finalize(d); break;
    case 9: status = tensor_finalize(d); break;
    case 10: status = find(d, IDS) && find(d, POINTERS) ? SUCCESS : refuse(BAD_PARAM, "empty"); break;
    case 27: status = find(d, DEVICE_JSON) ? SUCCESS : refuse(BAD_PARAM, "no properties"); break;
    default: status = refuse(NOT_SUPPORTED, "engines come from heuristics"); break;
    }
    d->is_final = status == SUCCESS;
    return status;
}

static void *place(const struct descriptor *pack, int64_t id)
{
    const struct attribute *ids = find(pack, IDS), *all = find(pack, POINTERS);
    if (ids->type != INT64_TYPE || all->type != POINTER_TYPE || ids->count != all->count) return NULL;
    for (int64_t i = 0; i < ids->count; i++)
        if (((const int64_t *)ids->value)[i] == id) return ((void *const *)all->value)[i];
    return NULL;
}
struct told { struct convolution of; void *x, *w, *y, *workspace; };
static int execute(void *owned)
{
    const struct told *told = owned;
    memset(told->workspace, 0xff, (size_t)workspace_of(&told->of));
    int done = convolve(&told->of, told->x, told->w, told->y);
    memset(told->workspace, 0xff, (size_t)workspace_of(&told->of));
    return done;
}
API cudnnBackendExecute(struct handle *handle, const struct descriptor *plan,
    const struct descriptor *pack)
{
    if (!handle || !plan || !pack) return refuse(BAD_PARAM, "nothing to execute");
    if (plan->kind != PLAN || pack->kind != PACK || !plan->is_final || !pack->is_final)
        return refuse(BAD_PARAM, "no plan with a pack");
    if (plan->handle != handle) return refuse(BAD_PARAM, "a plan of another handle");
    if (!handle->stream) return refuse(NOT_READY, "no stream");
    const struct convolution *of = &plan->of;
    void *x = place(pack, of->x.id), *w = place(pack, of->w.id), *y = place(pack, of->y.id);
    void *workspace = NULL;
    if (!x || !w || !y || ((uintptr_t)x | (uintptr_t)w | (uintptr_t)y) % 16)
        return refuse(BAD_PARAM, "a tensor is missing or not aligned");
    if (!values(pack, WORKSPACE, POINTER_TYPE, 1, &workspace) || !workspace ||
        (uintptr_t)workspace % 256)
        return refuse(BAD_PARAM, "the workspace is missing or not aligned");
    struct told *told = malloc(sizeof *told);
    if (!told) return refuse(NO_MEMORY, "the host has no memory left");
    *told = (struct told){ *of, x, w, y, workspace };
    const struct queue *queue = handle->stream;
    if (queue->later(handle->stream, execute, told)) return refuse(BAD_PARAM, "not its stream");
    executed++;
    return SUCCESS;
}
API fake_state(int which)
{
    switch (which) {
    case STATE_DESCRIPTORS: return descriptors;
    case STATE_HANDLES: return handles;
    case STATE_EXECUTED: return executed;
    default: return late;
    }
}
