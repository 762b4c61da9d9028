/* A libcudnn.so.9 that computes nothing: it keeps what descriptors are told, and counts what is made,
 * what outlives its handle and what is executed. Every plan wants a workspace of 1,024 bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_READY = 4000, ATTRIBUTES_MAX = 16 };
enum { PLAN_HANDLE = 400, PLAN_WORKSPACE_BYTES = 402, GRAPH_HANDLE = 800 };
enum { STATE_DESCRIPTORS, STATE_HANDLES, STATE_EXECUTED, STATE_LATE };
struct attribute { int name; int64_t count; size_t bytes; char *value; };
struct descriptor { int count, of_handle; struct attribute attributes[ATTRIBUTES_MAX]; };
static int descriptors, handles, executed, late;
static const void *stream_of_handle;

#define API __attribute__((visibility("default"))) int

__attribute__((visibility("default"))) size_t cudnnGetVersion(void) { return 91900; }
__attribute__((visibility("default"))) const char *cudnnGetErrorString(int status)
{
    return status ? "FAKE" : "CUDNN_STATUS_SUCCESS";
}
__attribute__((visibility("default"))) void cudnnGetLastErrorString(char *text, size_t room)
{
    if (room) *text = 0;
}
API cudnnCreate(void **handle)
{
    *handle = malloc(1);
    handles++;
    return SUCCESS;
}
API cudnnDestroy(void *handle)
{
    handles--;
    free(handle);
    return SUCCESS;
}
API cudnnSetStream(void *handle, const void *stream)
{
    stream_of_handle = stream;
    return handle ? SUCCESS : BAD_PARAM;
}
API cudnnBackendCreateDescriptor(int kind, struct descriptor **made)
{
    *made = calloc(1, sizeof **made);
    descriptors++;
    return kind < 0 ? BAD_PARAM : SUCCESS;
}
API cudnnBackendDestroyDescriptor(struct descriptor *descriptor)
{
    for (int i = 0; i < descriptor->count; i++) free(descriptor->attributes[i].value);
    late += descriptor->of_handle && !handles;
    free(descriptor);
    descriptors--;
    return SUCCESS;
}
/* Of the types by number: small ones, data types and modes, all else words of 64 bits. */
static size_t bytes_of(int type)
{
    return type == 24 || type == 2 ? 1 : type == 1 || type == 4 || (type >= 7 && type <= 14) ? 4 : 8;
}
API cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
    const void *value)
{
    if (descriptor->count == ATTRIBUTES_MAX) return BAD_PARAM;
    descriptor->of_handle |= name == PLAN_HANDLE || name == GRAPH_HANDLE;
    size_t bytes = bytes_of(type) * (size_t)count;
    struct attribute *own = &descriptor->attributes[descriptor->count++];
    *own = (struct attribute){ name, count, bytes, malloc(bytes + 1) };
    memcpy(own->value, value, bytes);
    return SUCCESS;
}
API cudnnBackendGetAttribute(struct descriptor *descriptor, int name, int type, int64_t room,
    int64_t *count, void *value)
{
    if (name == PLAN_WORKSPACE_BYTES) {
        *count = 1;
        if (value) *(int64_t *)value = 1024;
        return SUCCESS;
    }
    for (int i = 0; i < descriptor->count; i++) {
        const struct attribute *own = &descriptor->attributes[i];
        if (own->name != name) continue;
        size_t most = bytes_of(type) * (size_t)room;
        *count = own->count;
        if (value) memcpy(value, own->value, own->bytes < most ? own->bytes : most);
        return SUCCESS;
    }
    return BAD_PARAM;
}
API cudnnBackendFinalize(struct descriptor *descriptor) { return descriptor ? SUCCESS : BAD_PARAM; }
API cudnnBackendExecute(void *handle, struct descriptor *plan, struct descriptor *pack)
{
    if (!handle || !plan || !pack) return BAD_PARAM;
    executed++;
    return stream_of_handle ? SUCCESS : NOT_READY;
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
