/* Depthwise convolutions: every channel has its own window, and memory is what they wait for. A
 * thread has a group of channels and a strip of elements side by side in a row: what it reads for
 * one of them it has for its neighbours. Block i has `span` strips and `width` groups of channels,
 * of which there are `across` such parts. Threads of one row have one strip, so that what a block
 * reads at once lies side by side, and rows have strips that follow each other, so that the rows
 * above are near yet.
 *
 * Weights lie [c][kh][kw]. There are kernels for windows of some widths, whose loops are unrolled:
 * with steps of 1 or 2 along the row, and no spread. Those called `any` take all others, up to 7
 * wide. */
#define DEPTHWISE                                                                                  \
    int h, int w, int oh, int ow, int c, int pitch, int kh, int kw, int sh, int sw, int ph, int pw,\
        int dh, int dw, int strips, int all, int width, int across, int span
#define DEPTHWISE_GIVEN                                                                            \
    { h, w, oh, ow, c, pitch, kh, kw, sh, sw, ph, pw, dh, dw, strips, all, width, across, span }

#ifndef DEPTHWISE_ONCE
#define DEPTHWISE_ONCE
/* Groups of channels of a block, elements of a window and its width, at most. */
#define DEPTHWISE_GROUPS_MAX 8
#define DEPTHWISE_WINDOW_MAX 49
#define DEPTHWISE_WIDTH_MAX 7
/* Elements of a strip: half of them where these are a window's results, unless its step is known to
 * be 1. */
#define DEPTHWISE_STRIP 4
/* What a strip reads of a row, at most, and the width that stands for any. */
#define DEPTHWISE_READ_MAX (DEPTHWISE_STRIP + DEPTHWISE_WIDTH_MAX - 1)
#define DEPTHWISE_ANY 0
/* Elements of a window whose sums a thread has, at most, and of which sums are put together at once:
 * as many as shared memory holds. */
#define DEPTHWISE_HELD_MAX 10
#define DEPTHWISE_AT_ONCE 3

/* As the kernels' parameters; strips of a row, and in all. */
struct depthwise {
    int h, w, oh, ow, c, pitch, kh, kw, sh, sw, ph, pw, dh, dw, strips, all, width, across, span;
};
/* Whether there is anything for the thread, its first channel, its strips. */
struct depthwise_share { int works, channel, start, end, step; };
HELPER struct depthwise_share depthwise_share_of(int t, int block, struct depthwise d)
{
    struct depthwise_share p;
    int start = block / d.across * d.span, row = t / d.width;
    p.step = THREADS / d.width;
    p.start = start + row;
    p.end = lesser(d.span, d.all - start) + start;
    p.channel = (block % d.across * d.width + t % d.width) * LANES;
    p.works = row < p.step && p.channel < d.pitch;
    return p;
}

/* Where strip i lies, if planes have so many rows. */
struct strip { int image, row, number; };
HELPER struct strip strip_of(int i, int strips, int rows)
{
    struct strip p;
    int line = i / strips;
    p.number = i % strips;
    p.row = line % rows;
    p.image = line / rows;
    return p;
}
HELPER int is_inside(int at, int length) { return at >= 0 && at < length; }

HELPER void depthwise_add(struct eight *sum, struct eight a, struct eight b)
{
    UNROLL for (int lane = 0; lane < LANES; lane++)
        sum->of[lane] = FMA(a.of[lane], b.of[lane], sum->of[lane]);
}

/* What a thread keeps beyond TOGETHER: the device's threads have registers, those of a twin each
 * their place. And a group of channels of padding: who reads that instead of nothing needs no
 * branch, behind which all reads that follow would wait. */
#ifdef __CUDACC_RTC__
static __device__ const __align__(16) float depthwise_padding[LANES] = { 0.0f };
#define DEPTHWISE_OWN(type, name) type name
#define DEPTHWISE_MINE(name, t) (&name)
#else
static const __attribute__((aligned(16))) float depthwise_padding[LANES] = { 0.0f };
#define DEPTHWISE_OWN(type, name) static __thread type name[THREADS]
#define DEPTHWISE_MINE(name, t) (&name[t])
#endif
struct depthwise_held { struct eight of[DEPTHWISE_HELD_MAX]; };

/* What the chunks' sums come to, [kh * kw][pitch] of each, as the state has it: [c][kh * kw]. A
 * block has a group of channels of one element of the window; its threads share the chunks, always
 * in the same way. */
KERNEL depthwise_sums(const float *partials, float *dw_sums, int chunks, int window, int c,
    int pitch)
{
    SHARED double sums[THREADS];
    EACH_THREAD(t, THREADS) {
        double sum = 0.0;
        const float *from = partials + BLOCK * LANES + t % LANES;
        UNROLL_BY_4 for (int i = t / LANES; i < chunks; i += THREADS / LANES)
            sum = sum + (double)from[(long long)i * window * pitch];
        sums[t] = sum;
    }
    TOGETHER();
    for (int half = THREADS / 2; half >= LANES; half /= 2) {
        EACH_THREAD(t, THREADS) {
            if (t < half) sums[t] = sums[t] + sums[t + half];
        }
        TOGETHER();
    }
    EACH_THREAD(t, THREADS) {
        int at = BLOCK * LANES / pitch, channel = BLOCK * LANES % pitch + t;
        if (t < LANES && channel < c) dw_sums[(long long)channel * window + at] = (float)sums[t];
    }
}
#endif

/* An element of a row, eight channels of it; zeros where there is none. */
HELPER struct eight NAME(depthwise_read)(const T *row, int column, int pitch, int is_there)
{
    const T *from = row + column * pitch;
    return NAME(load8)(is_there ? from : (const T *)depthwise_padding);
}

/* Weights of a block's channels, window[kh * kw][width * LANES]: zeros behind the last channel. */
HELPER void NAME(depthwise_window)(float *window, const T *weights, int t, struct depthwise d)
{
    int channels = d.width * LANES, first = BLOCK % d.across * channels, elements = d.kh * d.kw;
    UNROLL_BY_4 for (int i = t; i < elements * channels; i += THREADS) {
        int channel = first + i % channels, at = i / channels;
        float weight = LOAD(weights, (long long)lesser(channel, d.c - 1) * elements + at);
        window[i] = channel < d.c ? weight : 0.0f;
    }
}

/* Results of so many places, of which the first is number `left` of its row. */
HELPER void NAME(depthwise_write)(T *row, struct eight *sums, int outputs, int left, int length,
    int pitch, int channels)
{
    UNROLL for (int o = 0; o < outputs; o++) {
        clear_from(&sums[o], channels);
        if (is_inside(left + o, length))
            NAME(store8)(row + (long long)(left + o) * pitch, sums[o]);
    }
}

/* One strip of y; `wide` and `step` are the window's width and step, where these are known. */
HELPER void NAME(depthwise_forward_strip)(const T *x, const float *window, T *y, struct depthwise d,
    struct strip p, int channel, const int wide, const int step)
{
    const int outputs = DEPTHWISE_STRIP / step, reads = (outputs - 1) * step + wide;
    int left = p.number * outputs, column = left * d.sw - d.pw, channels = d.width * LANES;
    struct eight sums[DEPTHWISE_STRIP];
    UNROLL for (int o = 0; o < outputs; o++) sums[o] = eight_of(0.0f);
    for (int r = 0; r < d.kh; r++) {
        int row = p.row * d.sh - d.ph + r * d.dh;
        if (is_inside(row, d.h)) {
            const T *from = x + ((long long)p.image * d.h + row) * d.w * d.pitch + channel;
            const float *by = window + r * d.kw * channels;
            if (wide == DEPTHWISE_ANY) {
                for (int s = 0; s < d.kw; s++) {
                    struct eight weight = load8_f32(by + s * channels), read[DEPTHWISE_STRIP];
                    int first = column + s * d.dw;
                    UNROLL for (int o = 0; o < outputs; o++) {
                        int at = first + o * d.sw;
                        read[o] = NAME(depthwise_read)(from, at, d.pitch, is_inside(at, d.w));
                    }
                    UNROLL for (int o = 0; o < outputs; o++)
                        depthwise_add(&sums[o], weight, read[o]);
                }
            } else {
                struct eight read[DEPTHWISE_READ_MAX];
                UNROLL for (int k = 0; k < reads; k++) {
                    int at = column + k;
                    read[k] = NAME(depthwise_read)(from, at, d.pitch, is_inside(at, d.w));
                }
                UNROLL for (int s = 0; s < wide; s++) {
                    struct eight weight = load8_f32(by + s * channels);
                    UNROLL for (int o = 0; o < outputs; o++)
                        depthwise_add(&sums[o], weight, read[o * step + s]);
                }
            }
        }
    }
    T *to = y + ((long long)p.image * d.oh + p.row) * d.ow * d.pitch + channel;
    NAME(depthwise_write)(to, sums, outputs, left, d.ow, d.pitch, d.c - channel);
}

HELPER void NAME(depthwise_forward)(const T *x, const T *weights, T *y, struct depthwise d,
    const int wide)
{
    SHARED float window[DEPTHWISE_WINDOW_MAX * DEPTHWISE_GROUPS_MAX * LANES];
    EACH_THREAD(t, THREADS) NAME(depthwise_window)(window, weights, t, d);
    TOGETHER();
    EACH_THREAD(t, THREADS) {
        struct depthwise_share own = depthwise_share_of(t, BLOCK, d);
        const float *by = window + t % d.width * LANES;
        if (own.works) for (int i = own.start; i < own.end; i += own.step) {
            struct strip p = strip_of(i, d.strips, d.oh);
            if (wide != DEPTHWISE_ANY && d.sw == 1)
                NAME(depthwise_forward_strip)(x, by, y, d, p, own.channel, wide, 1);
            else
                NAME(depthwise_forward_strip)(x, by, y, d, p, own.channel, wide, 2);
        }
    }
}

/* What one row of windows adds to a strip of dx, by one row of weights. The strip begins `reach`
 * elements behind the first window, a multiple of the step: so which of its elements a weight
 * reaches is known when this is compiled. */
HELPER void NAME(depthwise_gather)(struct eight *sums, const T *from, const float *by,
    struct depthwise d, int reach, const int wide, const int step)
{
    const int before = (wide - 1) / step, reads = before + (DEPTHWISE_STRIP - 1) / step + 1;
    int channels = d.width * LANES, first = reach / step - before;
    struct eight read[DEPTHWISE_READ_MAX];
    UNROLL for (int k = 0; k < reads; k++)
        read[k] = NAME(depthwise_read)(from, first + k, d.pitch, is_inside(first + k, d.ow));
    UNROLL for (int s = 0; s < wide; s++) {
        struct eight weight = load8_f32(by + s * channels);
        UNROLL for (int o = 0; o < DEPTHWISE_STRIP; o++)
            if ((o - s) % step == 0) depthwise_add(&sums[o], weight, read[before + (o - s) / step]);
    }
}

/* The same for any window, whose elements have to be asked one by one. */
HELPER void NAME(depthwise_gather_any)(struct eight *sums, const T *from, const float *by,
    struct depthwise d, int reach)
{
    for (int s = 0; s < d.kw; s++) {
        struct eight weight = load8_f32(by + s * d.width * LANES), read[DEPTHWISE_STRIP];
        UNROLL for (int o = 0; o < DEPTHWISE_STRIP; o++) {
            int apart = reach + o - s * d.dw, at = apart / d.sw;
            int is_there = apart >= 0 && apart % d.sw == 0 && at < d.ow;
            read[o] = NAME(depthwise_read)(from, at, d.pitch, is_there);
        }
        UNROLL for (int o = 0; o < DEPTHWISE_STRIP; o++) depthwise_add(&sums[o], weight, read[o]);
    }
}

HELPER void NAME(depthwise_backward_data)(const T *weights, const T *dy, T *dx, struct depthwise d,
    const int wide)
{
    SHARED float window[DEPTHWISE_WINDOW_MAX * DEPTHWISE_GROUPS_MAX * LANES];
    EACH_THREAD(t, THREADS) NAME(depthwise_window)(window, weights, t, d);
    TOGETHER();
    EACH_THREAD(t, THREADS) {
        struct depthwise_share own = depthwise_share_of(t, BLOCK, d);
        const float *by = window + t % d.width * LANES;
        if (own.works) for (int i = own.start; i < own.end; i += own.step) {
            struct strip p = strip_of(i, d.strips, d.h);
            int left = p.number * DEPTHWISE_STRIP - d.pw % d.sw, down = p.row + d.ph;
            const T *plane = dy + (long long)p.image * d.oh * d.ow * d.pitch + own.channel;
            struct eight sums[DEPTHWISE_STRIP];
            UNROLL for (int o = 0; o < DEPTHWISE_STRIP; o++) sums[o] = eight_of(0.0f);
            /* Without spread rows of the window that reach a row of windows are sh apart. */
            int rows = wide == DEPTHWISE_ANY ? 1 : d.sh;
            for (int r = wide == DEPTHWISE_ANY ? 0 : down % d.sh; r < d.kh; r += rows) {
                int apart = down - r * d.dh, row = apart / d.sh;
                if (apart >= 0 && row < d.oh && (wide != DEPTHWISE_ANY || apart % d.sh == 0)) {
                    const T *from = plane + (long long)row * d.ow * d.pitch;
                    const float *line = by + r * d.kw * d.width * LANES;
                    if (wide == DEPTHWISE_ANY)
                        NAME(depthwise_gather_any)(sums, from, line, d, left + d.pw);
                    else if (d.sw == 1)
                        NAME(depthwise_gather)(sums, from, line, d, left + d.pw, wide, 1);
                    else
                        NAME(depthwise_gather)(sums, from, line, d, left + d.pw, wide, 2);
                }
            }
            T *to = dx + ((long long)p.image * d.h + p.row) * d.w * d.pitch + own.channel;
            NAME(depthwise_write)(to, sums, DEPTHWISE_STRIP, left, d.w, d.pitch, d.c - own.channel);
        }
    }
}

/* What part of a strip of dy adds to the sums of one row of the window. */
HELPER void NAME(depthwise_row_sums)(struct eight *sums, const T *from, const struct eight *came,
    struct depthwise d, int column, const int wide, const int step)
{
    const int outputs = DEPTHWISE_STRIP / step, reads = (outputs - 1) * step + wide;
    if (wide == DEPTHWISE_ANY) {
        UNROLL for (int s = 0; s < DEPTHWISE_WIDTH_MAX; s++) {
            struct eight read[DEPTHWISE_STRIP];
            UNROLL for (int o = 0; o < outputs; o++) {
                int at = column + o * d.sw + s * d.dw;
                read[o] = NAME(depthwise_read)(from, at, d.pitch, s < d.kw && is_inside(at, d.w));
            }
            UNROLL for (int o = 0; o < outputs; o++) depthwise_add(&sums[s], came[o], read[o]);
        }
    } else {
        struct eight read[DEPTHWISE_READ_MAX];
        UNROLL for (int k = 0; k < reads; k++)
            read[k] = NAME(depthwise_read)(from, column + k, d.pitch, is_inside(column + k, d.w));
        UNROLL for (int s = 0; s < wide; s++) UNROLL for (int o = 0; o < outputs; o++)
            depthwise_add(&sums[s], came[o], read[o * step + s]);
    }
}

/* What one strip of dy adds to the sums of so many rows of the window, `top` the first of them. */
HELPER void NAME(depthwise_strip_sums)(struct eight *sums, const T *x, const T *dy,
    struct depthwise d, struct strip p, int top, const int wide, const int rows, const int step)
{
    const int outputs = DEPTHWISE_STRIP / step;
    int left = p.number * outputs, column = left * d.sw - d.pw;
    const T *line = dy + ((long long)p.image * d.oh + p.row) * d.ow * d.pitch;
    struct eight came[DEPTHWISE_STRIP];
    UNROLL for (int o = 0; o < outputs; o++)
        came[o] = NAME(depthwise_read)(line, left + o, d.pitch, left + o < d.ow);
    UNROLL for (int r = 0; r < rows; r++) {
        int row = p.row * d.sh - d.ph + (top + r) * d.dh;
        if (is_inside(row, d.h) && top + r < d.kh) {
            const T *from = x + ((long long)p.image * d.h + row) * d.w * d.pitch;
            NAME(depthwise_row_sums)(&sums[r * wide], from, came, d, column, wide, step);
        }
    }
}

/* Sums of a chunk of strips. A thread has so many rows of the window, as many as registers hold;
 * blocks with the others read the same, so they are neighbours. */
HELPER void NAME(depthwise_backward_weights)(const T *x, const T *dy, float *partials,
    struct depthwise d, const int wide, const int rows)
{
    SHARED float shared[DEPTHWISE_AT_ONCE][THREADS * LANES];
    DEPTHWISE_OWN(struct depthwise_held, all_sums);
    const int held = wide == DEPTHWISE_ANY ? DEPTHWISE_WIDTH_MAX : wide;
    int sets = up(d.kh, rows), top = BLOCK % sets * rows, block = BLOCK / sets;
    EACH_THREAD(t, THREADS) {
        struct depthwise_share own = depthwise_share_of(t, block, d);
        struct eight *sums = DEPTHWISE_MINE(all_sums, t)->of;
        UNROLL for (int at = 0; at < rows * held; at++) sums[at] = eight_of(0.0f);
        if (own.works) for (int i = own.start; i < own.end; i += own.step) {
            struct strip p = strip_of(i, d.strips, d.oh);
            const T *read = x + own.channel, *came = dy + own.channel;
            if (wide != DEPTHWISE_ANY && d.sw == 1)
                NAME(depthwise_strip_sums)(sums, read, came, d, p, top, wide, rows, 1);
            else
                NAME(depthwise_strip_sums)(sums, read, came, d, p, top, wide, rows, 2);
        }
    }
    UNROLL for (int first = 0; first < rows * held; first += DEPTHWISE_AT_ONCE) {
        EACH_THREAD(t, THREADS) {
            struct eight *sums = DEPTHWISE_MINE(all_sums, t)->of;
            UNROLL for (int k = 0; k < DEPTHWISE_AT_ONCE; k++)
                if (first + k < rows * held) store8_f32(shared[k] + t * LANES, sums[first + k]);
        }
        TOGETHER();
        EACH_THREAD(t, THREADS) {
            int channels = d.width * LANES, k = t / channels, lane = t % channels;
            int at = first + k, r = top + at / held, s = at % held;
            int channel = block % d.across * channels + lane;
            int is_summed = k < DEPTHWISE_AT_ONCE && at < rows * held && r < d.kh && s < d.kw;
            if (is_summed && channel < d.pitch) {
                float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
                const float *from = shared[k] + lane;
                int row = 0, all = THREADS / d.width;
                UNROLL_BY_4 for (; row + 4 <= all; row += 4)
                    UNROLL for (int part = 0; part < 4; part++)
                        total[part] = total[part] + from[(row + part) * channels];
                for (; row < all; row++) total[0] = total[0] + from[row * channels];
                long long to = ((long long)block / d.across * d.kh + r) * d.kw + s;
                partials[to * d.pitch + channel] = (total[0] + total[2]) + (total[1] + total[3]);
            }
        }
        TOGETHER();
    }
}

/* The kernels of a window so wide; a thread sums so many of its rows. */
#define DEPTHWISE_KERNELS(name, wide, rows)                                                        \
    KERNEL NAME(depthwise_forward_##name)(const T *x, const T *weights, T *y, DEPTHWISE)           \
    {                                                                                              \
        struct depthwise d = DEPTHWISE_GIVEN;                                                      \
        NAME(depthwise_forward)(x, weights, y, d, wide);                                           \
    }                                                                                              \
    KERNEL NAME(depthwise_backward_data_##name)(const T *weights, const T *dy, T *dx, DEPTHWISE)   \
    {                                                                                              \
        struct depthwise d = DEPTHWISE_GIVEN;                                                      \
        NAME(depthwise_backward_data)(weights, dy, dx, d, wide);                                   \
    }                                                                                              \
    KERNEL NAME(depthwise_backward_weights_##name)(const T *x, const T *dy, float *partials,       \
        DEPTHWISE)                                                                                 \
    {                                                                                              \
        struct depthwise d = DEPTHWISE_GIVEN;                                                      \
        NAME(depthwise_backward_weights)(x, dy, partials, d, wide, rows);                          \
    }

DEPTHWISE_KERNELS(3, 3, 3)
DEPTHWISE_KERNELS(5, 5, 2)
DEPTHWISE_KERNELS(7, 7, 1)
DEPTHWISE_KERNELS(any, DEPTHWISE_ANY, 1)
#undef DEPTHWISE_KERNELS
#undef DEPTHWISE_GIVEN
#undef DEPTHWISE
