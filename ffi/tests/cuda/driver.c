/* A libcuda.so.1 without a card: devices whose memory is the host's and whose kernels are twins
 * (twin.h). What a real driver refuses is refused: addresses that nobody allocated, arguments of the
 * wrong kind of handle.
 *
 * Work is done as late as streams and events allow: what nobody waits for is not there. With a number
 * in KINTSUGI_FAKE_CUDA_ORDER some of it is done earlier, drawn from it, and an odd one runs the blocks
 * and threads of kernels from the last to the first. No order may change a result.
 *
 * Failures are planned by text, from the environment (KINTSUGI_FAKE_CUDA, read by cuInit) or by
 * fake_inject: "cuMemAlloc=2" makes every such call fail with 2, "cuLaunchKernel=700@3" the third.
 * Of several processes only the first fails that gets there, where KINTSUGI_FAKE_CUDA_ONCE names a
 * file that none of them has made yet.
 * KINTSUGI_FAKE_CUDA_UUID is a number in the names of its devices, which processes share out.
 * KINTSUGI_FAKE_CUDA_BYTES is how much memory a device has (1 GiB), KINTSUGI_FAKE_CUDA_CARDS how many
 * there are (1); KINTSUGI_FAKE_CUDA_OTHER names the last one, which is then of another kind.
 *
 * KINTSUGI_FAKE_CUDA_PACE=KERNEL,LINK emulates a card that computes nothing and takes its time: so many
 * nanoseconds a kernel, and bytes a second each way. What is left of a step's time is the host's.
 * An error after which a process must end is the answer to every later call, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "twin.h"

#define MAGIC "\x7f" "ELF"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };
#define FRESH 0xa5 /* what new memory is full of */
#define CARDS_MAX 8
#define MOVED_MICROSECONDS 20000 /* what managed memory takes that is not on the device */

typedef uint64_t address;
/* Managed memory takes room where it is near, and was somewhere else once it has been sent there. */
struct block { struct block *next; size_t bytes; char *start; int managed, near, moved, card; unsigned long rank; };
struct pin { struct pin *next; char *start; size_t bytes; };
/* One time that an event was recorded: of which stream, and who may still ask. */
struct record { struct stream *of; int done, holders; int64_t when; };
struct event { int card; struct record *last; };
struct item;
struct stream { struct queue queue; int card; struct item *first, **end; struct stream *next;
    int64_t busy_until; };
/* Where it was made of a source: that, for its element types. */
struct module { char *source; };
enum what { COPY, CLEAR, LAUNCH, CALL, PREFETCH, HAPPEN, WAIT };
struct work {
    enum what what;
    char *to;
    const char *from;
    const char *device; /* the end of a copy that must be allocated */
    size_t bytes;
    unsigned char value;
    const struct twin *twin;
    unsigned blocks[3], threads[3];
    uint64_t values[PARAMETERS_MAX];
    struct record *record;
    struct block *block;
    int near;
    int (*call)(void *);
    void *owned; /* freed when it is done */
};
struct item { struct item *next; struct work work; };

__thread unsigned twin_block[3], twin_blocks[3], twin_threads[3];
int twin_backwards;
static __thread int *current; /* one of `retained` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static struct pin *pins;
static size_t used_bytes[CARDS_MAX], memory_bytes = (size_t)1 << 30;
static unsigned long ranks, order;
static double pace_kernel, pace_link; /* nanoseconds, bytes a second; 0: it computes */
static int64_t link_busy_until[2];
static struct stream *streams;
static int ready, sticky, unheard, live, cards = 1, retained[CARDS_MAX];
#define CARD ((int)(current - retained))
#define IS_NONE(card) ((card) < 0 || (card) >= cards)
static char plan[256];
static int calls_of_plan[8];

#define API __attribute__((visibility("default"))) int
static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&lock); }
#define BEGIN(name)                                                                                \
    pthread_mutex_lock(&lock);                                                                     \
    __attribute__((cleanup(unlock))) int held = 0;                                                 \
    (void)held;                                                                                    \
    int planned = failure(name);                                                                   \
    if (planned) return planned
#define IN_CONTEXT(name)                                                                           \
    BEGIN(name);                                                                                   \
    if (!current) return INVALID_CONTEXT;                                                          \
    wander()

static int ends_the_process(int code)
{
    static const int others[] = {46, 201, 214, 220, 226, 700, 702, 709, 710, 721, 810, 911, 999};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (code == others[i]) return 1;
    return code >= 714 && code <= 719;
}

static int is_first(void)
{
    const char *file = getenv("KINTSUGI_FAKE_CUDA_ONCE");
    int made = file ? open(file, O_CREAT | O_EXCL | O_WRONLY, 0600) : -1;
    if (made >= 0) close(made);
    return !file || made >= 0;
}

/* Planned, it is no answer: the call never returns, and no other one does. */
enum { NEVER = -1 };

static void wander(void);
static void end_all(int card);
static int heard(void);

static int failure(const char *name)
{
    if (sticky) return sticky;
    size_t length = strlen(name);
    int entry = 0;
    for (const char *at = plan; *at && entry < 8; entry++) {
        int code = 0, turn = 0;
        int here = !strncmp(at, name, length) && at[length] == '=';
        if (here && sscanf(at + length + 1, "%d@%d", &code, &turn) >= 1 &&
            (++calls_of_plan[entry] == turn || turn == 0) && is_first()) {
            if (code == NEVER) for (;;) pause();
            if (ends_the_process(code)) sticky = code;
            return code;
        }
        const char *comma = strchr(at, ',');
        at = comma ? comma + 1 : at + strlen(at);
    }
    return ready || !strcmp(name, "cuInit") ? SUCCESS : NOT_INITIALIZED;
}

API fake_inject(const char *text)
{
    pthread_mutex_lock(&lock);
    snprintf(plan, sizeof plan, "%s", text);
    memset(calls_of_plan, 0, sizeof calls_of_plan);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Handles and contexts that were made and not given back. */
API fake_live(void)
{
    int all = live;
    for (int card = 0; card < CARDS_MAX; card++) all += retained[card];
    return all;
}

API cuInit(unsigned flags)
{
    const char *text = getenv("KINTSUGI_FAKE_CUDA");
    if (text && !*plan) fake_inject(text);
    const char *bytes = getenv("KINTSUGI_FAKE_CUDA_BYTES");
    if (bytes) memory_bytes = strtoull(bytes, NULL, 10);
    const char *count = getenv("KINTSUGI_FAKE_CUDA_CARDS");
    if (count) cards = atoi(count) > CARDS_MAX ? CARDS_MAX : atoi(count);
    const char *number = getenv("KINTSUGI_FAKE_CUDA_ORDER");
    if (number) order = strtoul(number, NULL, 10);
    twin_backwards = order % 2;
    const char *pace = getenv("KINTSUGI_FAKE_CUDA_PACE");
    if (pace) sscanf(pace, "%lf,%lf", &pace_kernel, &pace_link);
    BEGIN("cuInit");
    ready = flags == 0;
    return ready ? SUCCESS : INVALID_VALUE;
}
API cuDriverGetVersion(int *version) { BEGIN("cuDriverGetVersion"); *version = 13000; return SUCCESS; }

/* NVRTC asks for what only NVIDIA's libraries know of each other, and ends the process where a driver
 * has no such function. There are no tables here. */
API cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

static const struct { int code; const char *name, *text; } KNOWN[] = {
    { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
};
#define KNOWN_COUNT (sizeof KNOWN / sizeof *KNOWN)

API cuGetErrorName(int code, const char **name)
{
    for (size_t i = 0; i < KNOWN_COUNT; i++)
        if (KNOWN[i].code == code) { *name = KNOWN[i].name; return SUCCESS; }
    *name = NULL;
    return INVALID_VALUE;
}
API cuGetErrorString(int code, const char **text)
{
    for (size_t i = 0; i < KNOWN_COUNT; i++)
        if (KNOWN[i].code == code) { *text = KNOWN[i].text; return SUCCESS; }
    *text = NULL;
    return INVALID_VALUE;
}

API cuDeviceGetCount(int *count) { BEGIN("cuDeviceGetCount"); *count = cards; return SUCCESS; }
API cuDeviceGet(int *device, int ordinal)
{
    BEGIN("cuDeviceGet");
    *device = ordinal;
    return IS_NONE(ordinal) ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetName(char *name, int room, int device)
{
    BEGIN("cuDeviceGetName");
    const char *other = getenv("KINTSUGI_FAKE_CUDA_OTHER");
    snprintf(name, room, "%s", other && device == cards - 1 ? other : "a fake device");
    return IS_NONE(device) ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    BEGIN("cuDeviceGetUuid");
    const char *own = getenv("KINTSUGI_FAKE_CUDA_UUID");
    unsigned long number = own ? strtoul(own, NULL, 10) : 7;
    memset(uuid, 7 + device, 16);
    memcpy(uuid, &number, sizeof number);
    return IS_NONE(device) ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetAttribute(int *value, int which, int device)
{
    BEGIN("cuDeviceGetAttribute");
    *value = which == 75 ? 9 : which == 76 ? 0 : 1;
    return IS_NONE(device) ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    BEGIN("cuDeviceTotalMem");
    *bytes = memory_bytes;
    return IS_NONE(device) ? INVALID_DEVICE : SUCCESS;
}
API cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN("cuDevicePrimaryCtxRetain");
    if (IS_NONE(device)) return INVALID_DEVICE;
    *context = &retained[device];
    retained[device]++;
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN("cuDevicePrimaryCtxRelease");
    if (IS_NONE(device) || !retained[device]) return INVALID_CONTEXT;
    retained[device]--;
    return SUCCESS;
}
API cuCtxSetCurrent(void *context)
{
    /* Says nothing of earlier work. */
    current = context;
    return context == NULL || !IS_NONE(CARD) ? SUCCESS : INVALID_CONTEXT;
}
API cuCtxSynchronize(void)
{
    IN_CONTEXT("cuCtxSynchronize");
    end_all(CARD);
    return heard();
}

static struct block *block_of(const char *start, size_t bytes)
{
    for (struct block *b = blocks; b; b = b->next)
        if (start >= b->start && bytes <= b->bytes && start - b->start <= (long)(b->bytes - bytes))
            return b;
    return NULL;
}
/* Nobody here lets devices read each other's memory. */
static int is_here(const char *start, size_t bytes)
{
    struct block *b = block_of(start, bytes);
    return b && b->card == CARD;
}
API cuMemAlloc_v2(address *start, size_t bytes)
{
    IN_CONTEXT("cuMemAlloc");
    if (!bytes) return INVALID_VALUE;
    if (bytes > memory_bytes - used_bytes[CARD]) return OUT_OF_MEMORY;
    struct block *b = malloc(sizeof *b);
    *b = (struct block){ .next = blocks, .bytes = bytes, .card = CARD,
        .start = aligned_alloc(256, (bytes + 255) / 256 * 256) };
    if (!pace_link) memset(b->start, FRESH, bytes);
    blocks = b;
    used_bytes[CARD] += bytes;
    live++;
    *start = (address)b->start;
    return SUCCESS;
}
/* Makes managed memory be on the device: who came first goes for it, whoever was touched since. */
static int bring(struct block *b)
{
    while (!b->near && used_bytes[b->card] + b->bytes > memory_bytes) {
        struct block *victim = NULL;
        for (struct block *o = blocks; o; o = o->next)
            if (o->managed && o->near && o->card == b->card && (!victim || o->rank < victim->rank)) victim = o;
        if (!victim) return OUT_OF_MEMORY;
        victim->near = 0;
        victim->moved = 1;
        used_bytes[b->card] -= victim->bytes;
    }
    if (!b->near) {
        if (b->moved) usleep(MOVED_MICROSECONDS);
        used_bytes[b->card] += b->bytes;
        b->near = 1;
        b->rank = ++ranks;
    }
    return SUCCESS;
}
API cuMemAllocManaged(address *start, size_t bytes, unsigned flags)
{
    IN_CONTEXT("cuMemAllocManaged");
    if (!bytes || flags != 1) return INVALID_VALUE;
    struct block *b = malloc(sizeof *b);
    *b = (struct block){ .next = blocks, .bytes = bytes, .managed = 1, .card = CARD,
        .start = aligned_alloc(256, (bytes + 255) / 256 * 256) };
    memset(b->start, FRESH, bytes);
    blocks = b;
    live++;
    *start = (address)b->start;
    return SUCCESS;
}
struct location { int kind, id; };
static int put(struct stream *stream, struct work work);
API cuMemAdvise_v2(address start, size_t bytes, int advice, struct location location)
{
    IN_CONTEXT("cuMemAdvise");
    struct block *b = block_of((char *)start, bytes);
    int known = advice == 1 || advice == 3 || advice == 5;
    return b && b->managed && known && !location.id ? SUCCESS : INVALID_VALUE;
}
API cuMemPrefetchAsync_v2(address start, size_t bytes, struct location to, unsigned flags,
    struct stream *stream)
{
    IN_CONTEXT("cuMemPrefetchAsync");
    struct block *b = block_of((char *)start, bytes);
    if (!b || !b->managed || flags || !stream || to.id || to.kind < 1 || to.kind > 2)
        return INVALID_VALUE;
    return put(stream, (struct work){ .what = PREFETCH, .block = b, .near = to.kind == 1 });
}
/* Waits for the card's work, as the real one does. */
API cuMemFree_v2(address start)
{
    IN_CONTEXT("cuMemFree");
    end_all(CARD);
    for (struct block **at = &blocks; *at; at = &(*at)->next) {
        struct block *b = *at;
        if ((address)b->start != start) continue;
        *at = b->next;
        if (!b->managed || b->near) used_bytes[b->card] -= b->bytes;
        live--;
        free(b->start);
        free(b);
        return SUCCESS;
    }
    return INVALID_VALUE;
}
API cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes)
{
    IN_CONTEXT("cuMemGetInfo");
    *free_bytes = memory_bytes - used_bytes[CARD];
    *bytes = memory_bytes;
    return SUCCESS;
}
API cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags)
{
    IN_CONTEXT("cuMemHostRegister");
    for (struct pin *p = pins; p; p = p->next)
        if ((char *)start < p->start + p->bytes && p->start < (char *)start + bytes)
            return ALREADY_REGISTERED;
    if (!bytes || flags > 0xf) return INVALID_VALUE;
    struct pin *p = malloc(sizeof *p);
    *p = (struct pin){ pins, start, bytes };
    pins = p;
    live++;
    return SUCCESS;
}
API cuMemHostUnregister(void *start)
{
    IN_CONTEXT("cuMemHostUnregister");
    end_all(CARD);
    for (struct pin **at = &pins; *at; at = &(*at)->next) {
        struct pin *p = *at;
        if (p->start != start) continue;
        *at = p->next;
        live--;
        free(p);
        return SUCCESS;
    }
    return NOT_REGISTERED;
}

static int64_t now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
static int run(const struct work *w)
{
    void *arguments[PARAMETERS_MAX];
    if (w->device && !block_of(w->device, w->bytes)) return sticky = 700;
    switch (w->what) {
    case COPY: memcpy(w->to, w->from, w->bytes); return SUCCESS;
    case CLEAR: {
        struct block *b = block_of(w->to, w->bytes);
        int status = b && b->managed ? bring(b) : SUCCESS;
        if (!status) memset(w->to, w->value, w->bytes);
        return status;
    }
    case CALL: return w->call(w->owned) ? SUCCESS : OUT_OF_MEMORY;
    case PREFETCH: {
        struct block *b = w->block;
        if (w->near) {
            int status = bring(b);
            b->rank = ++ranks;
            return status;
        }
        if (b->near) used_bytes[b->card] -= b->bytes;
        b->near = 0;
        b->moved = 1;
        return SUCCESS;
    }
    case HAPPEN:
        w->record->done = 1;
        w->record->when = now();
        return SUCCESS;
    case WAIT: return SUCCESS;
    case LAUNCH: break;
    }
    for (int i = 0; i < w->twin->parameters; i++) arguments[i] = (void *)&w->values[i];
    memcpy(twin_blocks, w->blocks, sizeof twin_blocks);
    memcpy(twin_threads, w->threads, sizeof twin_threads);
    uint64_t all = (uint64_t)w->blocks[0] * w->blocks[1] * w->blocks[2];
    for (uint64_t i = 0; i < all; i++) {
        uint64_t at = twin_backwards ? all - 1 - i : i;
        twin_block[0] = (unsigned)(at % w->blocks[0]);
        twin_block[1] = (unsigned)(at / w->blocks[0] % w->blocks[1]);
        twin_block[2] = (unsigned)(at / w->blocks[0] / w->blocks[1]);
        w->twin->run(arguments);
    }
    return SUCCESS;
}
static void let_go(struct record *record)
{
    if (record && --record->holders == 0) free(record);
}
/* Does the first thing that a stream has to do, and before it what it waits for, which was asked for
 * earlier. What fails is told to whoever waits next. */
static void advance(struct stream *stream)
{
    struct item *item = stream->first;
    struct record *record = item->work.record;
    while (item->work.what == WAIT && !record->done) advance(record->of);
    stream->first = item->next;
    if (!stream->first) stream->end = &stream->first;
    int status = sticky ? sticky : run(&item->work);
    if (status) unheard = status;
    if (status && item->work.what == HAPPEN) record->done = 1;
    let_go(record);
    free(item->work.owned);
    free(item);
}
static int heard(void)
{
    int status = sticky ? sticky : unheard;
    unheard = SUCCESS;
    return status;
}
static void sleep_until(int64_t when);
static int wait_for(struct stream *stream)
{
    if (pace_link) sleep_until(stream->busy_until);
    while (stream->first) advance(stream);
    return heard();
}
static void end_all(int card)
{
    for (struct stream *s = streams; s; s = s->next)
        while (s->card == card && s->first) advance(s);
}
/* Some work earlier than anybody asks for it. */
static unsigned long drawn(unsigned long below)
{
    order ^= order << 13;
    order ^= order >> 7;
    order ^= order << 17;
    return order % below;
}
static void wander(void)
{
    unsigned long count = 0;
    for (struct stream *s = streams; s; s = s->next) count += s->card == CARD && s->first;
    if (!order || !count || drawn(2)) return;
    unsigned long which = drawn(count), steps = drawn(8);
    struct stream *s = streams;
    while (s->card != CARD || !s->first || which--) s = s->next;
    while (s->first && steps--) advance(s);
}
/* What the host's side of a call takes, and how long a copy is on its way, by what H200s showed. */
enum { CALL_NS = 2000, PLAN_NS = 8000, EVENT_NS = 600, COPY_NS = 8000 };
/* When work would be done. The caller takes its time, as with a real driver. */
static void pace(struct stream *stream, struct work *work)
{
    int64_t begun = now(), *at = &stream->busy_until;
    int is_event = work->what == HAPPEN || work->what == WAIT;
    int64_t cost = is_event ? EVENT_NS : work->what == CALL ? PLAN_NS : CALL_NS;
    while (now() < begun + cost) continue;
    if (!is_event && *at < begun) *at = begun;
    if (work->what == LAUNCH || work->what == CALL) *at += (int64_t)pace_kernel;
    if (work->what == COPY) {
        int64_t *link = &link_busy_until[work->device == work->to];
        if (*at < *link) *at = *link;
        *link = *at += (int64_t)((double)work->bytes / pace_link * 1e9);
        *at += COPY_NS;
    }
    if (work->what == HAPPEN) *work->record = (struct record){ .of = stream, .done = 1,
        .holders = work->record->holders, .when = *at };
    if (work->what == WAIT && *at < work->record->when) *at = work->record->when;
    let_go(work->record);
    free(work->owned);
}
static void sleep_until(int64_t when)
{
    struct timespec at = { when / 1000000000, when % 1000000000 };
    pthread_mutex_unlock(&lock);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) continue;
    pthread_mutex_lock(&lock);
}
static int put(struct stream *stream, struct work work)
{
    if (!stream || stream->card != CARD) {
        free(work.owned);
        return INVALID_HANDLE;
    }
    if (pace_link) {
        pace(stream, &work);
        return SUCCESS;
    }
    struct item *item = malloc(sizeof *item);
    *item = (struct item){ .work = work };
    *stream->end = item;
    stream->end = &item->next;
    return SUCCESS;
}
static int later(void *stream, int (*call)(void *), void *owned)
{
    pthread_mutex_lock(&lock);
    int status = put(stream, (struct work){ .what = CALL, .call = call, .owned = owned });
    pthread_mutex_unlock(&lock);
    return status;
}
static int is_pinned(const char *start, size_t bytes)
{
    for (struct pin *p = pins; p; p = p->next)
        if (start >= p->start && start + bytes <= p->start + p->bytes) return 1;
    return 0;
}
/* Other memory of the host than pinned is read and written before the call returns. */
API cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, struct stream *stream)
{
    IN_CONTEXT("cuMemcpyHtoDAsync");
    if (!is_here((char *)to, bytes)) return INVALID_VALUE;
    void *owned = is_pinned(from, bytes) ? NULL : malloc(bytes);
    if (owned) from = memcpy(owned, from, bytes);
    return put(stream, (struct work){ .what = COPY, .to = (char *)to, .from = from,
        .device = (char *)to, .bytes = bytes, .owned = owned });
}
API cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, struct stream *stream)
{
    IN_CONTEXT("cuMemcpyDtoHAsync");
    if (!is_here((char *)from, bytes)) return INVALID_VALUE;
    int status = put(stream, (struct work){ .what = COPY, .to = to, .from = (char *)from,
        .device = (char *)from, .bytes = bytes });
    return status || is_pinned(to, bytes) ? status : wait_for(stream);
}
API cuMemsetD8Async(address to, unsigned char value, size_t bytes, struct stream *stream)
{
    IN_CONTEXT("cuMemsetD8Async");
    if (!is_here((char *)to, bytes)) return INVALID_VALUE;
    return put(stream, (struct work){ .what = CLEAR, .to = (char *)to, .device = (char *)to,
        .value = value, .bytes = bytes });
}

API cuStreamCreate(struct stream **stream, unsigned flags)
{
    IN_CONTEXT("cuStreamCreate");
    if (flags > 1) return INVALID_VALUE;
    *stream = malloc(sizeof **stream);
    **stream = (struct stream){ .queue = { later }, .card = CARD, .next = streams };
    (*stream)->end = &(*stream)->first;
    streams = *stream;
    live++;
    return SUCCESS;
}
API cuStreamDestroy_v2(struct stream *stream)
{
    IN_CONTEXT("cuStreamDestroy");
    while (stream->first) advance(stream);
    struct stream **at = &streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    live--;
    free(stream);
    return SUCCESS;
}
API cuStreamSynchronize(struct stream *stream)
{
    IN_CONTEXT("cuStreamSynchronize");
    return wait_for(stream);
}
API cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    IN_CONTEXT("cuStreamWaitEvent");
    if (stream->card != CARD || event->card != CARD) return INVALID_HANDLE;
    if (flags) return INVALID_VALUE;
    if (!event->last) return SUCCESS;
    event->last->holders++;
    return put(stream, (struct work){ .what = WAIT, .record = event->last });
}
API cuEventCreate(struct event **event, unsigned flags)
{
    IN_CONTEXT("cuEventCreate");
    (void)flags;
    *event = calloc(1, sizeof **event);
    (*event)->card = CARD;
    live++;
    return SUCCESS;
}
API cuEventDestroy_v2(struct event *event)
{
    IN_CONTEXT("cuEventDestroy");
    let_go(event->last);
    live--;
    free(event);
    return SUCCESS;
}
API cuEventRecord(struct event *event, struct stream *stream)
{
    IN_CONTEXT("cuEventRecord");
    if (event->card != CARD || stream->card != CARD) return INVALID_HANDLE;
    struct record *record = malloc(sizeof *record);
    *record = (struct record){ .of = stream, .holders = 2 };
    let_go(event->last);
    event->last = record;
    return put(stream, (struct work){ .what = HAPPEN, .record = record });
}
API cuEventSynchronize(struct event *event)
{
    IN_CONTEXT("cuEventSynchronize");
    if (pace_link && event->last) sleep_until(event->last->when);
    while (event->last && !event->last->done) advance(event->last->of);
    return heard();
}
API cuEventElapsedTime(float *milliseconds, struct event *start, struct event *end)
{
    IN_CONTEXT("cuEventElapsedTime");
    const struct record *from = start->last, *to = end->last;
    if (!from || !to) return INVALID_HANDLE;
    if (!from->done || !to->done) return NOT_READY;
    *milliseconds = (float)((double)(to->when - from->when) / 1e6);
    return SUCCESS;
}

API cuModuleLoadData(struct module **module, const char *image)
{
    IN_CONTEXT("cuModuleLoadData");
    if (memcmp(image, MAGIC, strlen(MAGIC))) return INVALID_IMAGE;
    struct module *made = malloc(sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    /* Real machine code, by a real compiler, goes on with a byte that no source has. */
    const char *rest = image + strlen(MAGIC);
    made->source = (unsigned char)*rest >= ' ' || *rest == '\n' ? strdup(rest) : NULL;
    *module = made;
    return SUCCESS;
}
/* Whether a kernel's file is in a module's source: those of an element type follow its name there, up
 * to the other's. A file's kernels begin with one of a few words. */
static int is_compiled(const struct module *module, const char *name)
{
    const char *type = strrchr(name, '_');
    char named[64], defined[64];
    if (!module->source || !type || !strncmp(name, "copy_", 5)) return 1;
    if (strcmp(type, "_f32") && strcmp(type, "_bf16")) return 1;
    snprintf(named, sizeof named, "#define NAME(x) x##%s\n", type);
    snprintf(defined, sizeof defined, "KERNEL NAME(%.*s", (int)strcspn(name, "_"), name);
    const char *start = strstr(module->source, named);
    const char *end = start ? strstr(start + 1, "#define NAME(x)") : NULL;
    const char *found = start ? strstr(start, defined) : NULL;
    return found && (!end || found < end);
}
API cuModuleGetFunction(const struct twin **function, struct module *module, const char *name)
{
    IN_CONTEXT("cuModuleGetFunction");
    char symbol[128];
    snprintf(symbol, sizeof symbol, "twin_%s", name);
    Dl_info here;
    /* This library's own twins, of how many copies of it a process may have. */
    void *own = dladdr(&plan, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    *function = own && module && is_compiled(module, name) ? dlsym(own, symbol) : NULL;
    return *function ? SUCCESS : NOT_FOUND;
}
API cuFuncGetParamInfo(const struct twin *twin, size_t index, size_t *offset, size_t *bytes)
{
    IN_CONTEXT("cuFuncGetParamInfo");
    if (index >= (size_t)twin->parameters) return INVALID_VALUE;
    *offset = 8 * index;
    *bytes = twin->bytes[index];
    return SUCCESS;
}
API cuLaunchKernel(const struct twin *twin, unsigned bx, unsigned by, unsigned bz, unsigned tx,
    unsigned ty, unsigned tz, unsigned shared_bytes, struct stream *stream, void **arguments,
    void **extra)
{
    IN_CONTEXT("cuLaunchKernel");
    if (!bx || !by || !bz || !tx || !ty || !tz || tx * ty * tz > 1024 || extra) return INVALID_VALUE;
    if (shared_bytes > 48 * 1024) return INVALID_VALUE;
    struct work work = { .what = LAUNCH, .twin = twin, .blocks = { bx, by, bz },
        .threads = { tx, ty, tz } };
    for (int i = 0; i < twin->parameters; i++) memcpy(&work.values[i], arguments[i], twin->bytes[i]);
    return put(stream, work);
}
