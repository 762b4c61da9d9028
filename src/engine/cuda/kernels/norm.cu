/* Batch norms of data with the channels last, `pitch` lanes for each pixel. A thread has a group of
 * channels and walks over pixels: what it knows of its channels it keeps. Block i has chunk i / across
 * of `span` pixels, and `width` groups of channels, the last block of a chunk perhaps fewer. Threads
 * of one row have one pixel, so that what a block reads at once lies side by side.
 *
 * Sums of a chunk are put together by statistics.cu. Its pass begins with the last chunk and the next
 * pass with the first: what was touched last may be near yet.
 *
 * What ReLU let pass is not kept: the backward pass computes the value's sign again, by the same steps
 * from the same numbers. It is not given the shifts, so the forward pass keeps a copy of these. */
#define NORM int pixels, int c, int pitch, int width, int across, int span

#ifndef NORM_ONCE
#define NORM_ONCE
/* How many pixels' values a thread asks for at once. */
#define NORM_AHEAD 4
#define NORM_PAIRS_AHEAD 2

struct norm_place {
    int rows, row; /* of the block; the thread's own */
    int start, end; /* pixels of the block */
    int channel; /* the thread's first */
    int works; /* whether there is anything for the thread */
};
HELPER struct norm_place norm_place_of(int t, int chunk, int pixels, int pitch, int width, int across,
    int span)
{
    struct norm_place p;
    p.rows = THREADS / width;
    p.row = t / width;
    p.start = chunk * span;
    p.end = lesser(span, pixels - p.start) + p.start;
    p.channel = (BLOCK % across * width + t % width) * LANES;
    p.works = p.row < p.rows && p.channel < pitch;
    return p;
}

/* What came of element x before ReLU; both passes ask here. */
HELPER float norm_value(float x, float center, float factor, float shift)
{
    return FMA(x - center, factor, shift);
}
HELPER float norm_inverse(float variance, float epsilon) { return 1.0f / sqrtf(variance + epsilon); }

/* One value of each of a thread's channels. */
HELPER void norm_add(struct eight x, struct eight first, struct eight *sum, struct eight *square)
{
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        float apart = x.of[lane] - first.of[lane];
        sum->of[lane] = sum->of[lane] + apart;
        square->of[lane] = FMA(apart, apart, square->of[lane]);
    }
}

/* Results, of so many channels. */
HELPER struct eight norm_values(struct eight x, struct eight center, struct eight factor,
    struct eight shift, int relu, int channels)
{
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        float value = norm_value(x.of[lane], center.of[lane], factor.of[lane], shift.of[lane]);
        x.of[lane] = relu ? not_negative(value) : value;
    }
    clear_from(&x, channels);
    return x;
}

/* What of a gradient came through ReLU. */
HELPER float norm_passed(float gradient, float x, float center, float factor, float shift, int relu)
{
    return !relu || norm_value(x, center, factor, shift) > 0.0f ? gradient : 0.0f;
}

/* Adds `first` and `second` of all rows, halves upon halves: the sums come to lie in row 0. */
#define NORM_TOGETHER(first, second, width)                                                          \
    for (int rows = THREADS / (width), left = up(rows, 2); rows > 1; rows = left, left = up(rows, 2)) {  \
        EACH_THREAD(t, THREADS) {                                                                    \
            if (t < (rows - left) * (width)) UNROLL for (int lane = 0; lane < LANES; lane++) {       \
                (first)[lane][t] = (first)[lane][t] + (first)[lane][t + left * (width)];             \
                (second)[lane][t] = (second)[lane][t] + (second)[lane][t + left * (width)];          \
            }                                                                                        \
        }                                                                                            \
        TOGETHER();                                                                                  \
    }
#endif

/* Mean and squared deviations of a chunk in one pass; what is summed is apart from its first value,
 * so that a mean far from zero costs no bits. */
KERNEL NAME(norm_partials)(const T *x, float *partials, NORM)
{
    SHARED float sums[LANES][THREADS], squares[LANES][THREADS];
    int chunk = up(pixels, span) - 1 - BLOCK / across;
    EACH_THREAD(t, THREADS) {
        struct norm_place p = norm_place_of(t, chunk, pixels, pitch, width, across, span);
        struct eight sum = eight_of(0.0f), square = eight_of(0.0f);
        if (p.works) {
            const T *from = x + p.channel;
            struct eight first = NAME(load8)(from + (long long)p.start * pitch);
            int pixel = p.start + p.row;
            for (; pixel + (NORM_AHEAD - 1) * p.rows < p.end; pixel += NORM_AHEAD * p.rows) {
                struct eight read[NORM_AHEAD];
                UNROLL for (int k = 0; k < NORM_AHEAD; k++)
                    read[k] = NAME(load8)(from + (long long)(pixel + k * p.rows) * pitch);
                UNROLL for (int k = 0; k < NORM_AHEAD; k++) norm_add(read[k], first, &sum, &square);
            }
            for (; pixel < p.end; pixel += p.rows)
                norm_add(NAME(load8)(from + (long long)pixel * pitch), first, &sum, &square);
        }
        UNROLL for (int lane = 0; lane < LANES; lane++) {
            sums[lane][t] = sum.of[lane];
            squares[lane][t] = square.of[lane];
        }
    }
    TOGETHER();
    NORM_TOGETHER(sums, squares, width)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK % across * width * LANES + t, start = chunk * span;
        if (t < width * LANES && j < c) {
            float sum = sums[t % LANES][t / LANES], square = squares[t % LANES][t / LANES];
            float mean = sum / (float)lesser(span, pixels - start);
            float deviations = FMA(-sum, mean, square);
            float first = LOAD(x, (long long)start * pitch + j);
            partials[((long long)chunk * 2 + 0) * c + j] = first + mean;
            partials[((long long)chunk * 2 + 1) * c + j] = deviations < 0.0f ? 0.0f : deviations;
        }
    }
}

/* The lanes between c and the pitch too. What a backward pass needs is kept, if it is asked for. */
KERNEL NAME(norm_forward)(const T *x, const float *mean, const float *variance, const float *scale,
    const float *shift, T *y, float *kept, int keeps, int relu, float epsilon, NORM)
{
    SHARED float centers[THREADS], factors[THREADS], shifts[THREADS];
    EACH_THREAD(t, THREADS) {
        int j = BLOCK % across * width * LANES + t, some = t < width * LANES && j < c;
        centers[t] = some ? mean[j] : 0.0f;
        factors[t] = some ? norm_inverse(variance[j], epsilon) * scale[j] : 0.0f;
        shifts[t] = some ? shift[j] : 0.0f;
        if (keeps && some && BLOCK < across) kept[j] = shifts[t];
    }
    TOGETHER();
    EACH_THREAD(t, THREADS) {
        struct norm_place p = norm_place_of(t, BLOCK / across, pixels, pitch, width, across, span);
        if (p.works) {
            int own = t % width * LANES, channels = c - p.channel, pixel = p.start + p.row;
            struct eight center = load8_f32(centers + own), factor = load8_f32(factors + own);
            struct eight shift = load8_f32(shifts + own);
            const T *from = x + p.channel;
            T *to = y + p.channel;
            for (; pixel + (NORM_AHEAD - 1) * p.rows < p.end; pixel += NORM_AHEAD * p.rows) {
                struct eight read[NORM_AHEAD];
                UNROLL for (int k = 0; k < NORM_AHEAD; k++)
                    read[k] = NAME(load8)(from + (long long)(pixel + k * p.rows) * pitch);
                UNROLL for (int k = 0; k < NORM_AHEAD; k++)
                    NAME(store8)(to + (long long)(pixel + k * p.rows) * pitch,
                        norm_values(read[k], center, factor, shift, relu, channels));
            }
            for (; pixel < p.end; pixel += p.rows) {
                struct eight read = NAME(load8)(from + (long long)pixel * pitch);
                NAME(store8)(to + (long long)pixel * pitch,
                    norm_values(read, center, factor, shift, relu, channels));
            }
        }
    }
}

/* A chunk's sums of the gradient and of the gradient times what was normalized. */
KERNEL NAME(norm_backward_partials)(const T *x, const T *dy, const float *kept, int relu,
    const float *mean, const float *variance, const float *scale, float epsilon, float *partials, NORM)
{
    SHARED float centers[THREADS], factors[THREADS], kepts[THREADS];
    SHARED float shifts[LANES][THREADS], scales[LANES][THREADS];
    int chunk = up(pixels, span) - 1 - BLOCK / across;
    EACH_THREAD(t, THREADS) {
        int j = BLOCK % across * width * LANES + t, some = t < width * LANES && j < c;
        centers[t] = some ? mean[j] : 0.0f;
        factors[t] = some ? norm_inverse(variance[j], epsilon) * scale[j] : 0.0f;
        kepts[t] = some && relu ? kept[j] : 0.0f;
    }
    TOGETHER();
    EACH_THREAD(t, THREADS) {
        struct norm_place p = norm_place_of(t, chunk, pixels, pitch, width, across, span);
        struct eight shift = eight_of(0.0f), scale = eight_of(0.0f);
        if (p.works) {
            int own = t % width * LANES;
            struct eight center = load8_f32(centers + own), factor = load8_f32(factors + own);
            struct eight before = load8_f32(kepts + own);
            for (int pixel = p.start + p.row; pixel < p.end; pixel += NORM_PAIRS_AHEAD * p.rows) {
                struct eight read[NORM_PAIRS_AHEAD], came[NORM_PAIRS_AHEAD];
                UNROLL for (int k = 0; k < NORM_PAIRS_AHEAD; k++) {
                    /* Behind the end the last pixel is read again, and adds nothing. */
                    int there = lesser(pixel + k * p.rows, p.end - 1);
                    long long at = (long long)there * pitch + p.channel;
                    read[k] = NAME(load8)(x + at);
                    came[k] = NAME(load8)(dy + at);
                }
                UNROLL for (int k = 0; k < NORM_PAIRS_AHEAD; k++) {
                    int counts = pixel + k * p.rows < p.end;
                    UNROLL for (int lane = 0; lane < LANES; lane++) {
                        float value = read[k].of[lane], middle = center.of[lane];
                        float gradient = norm_passed(came[k].of[lane], value, middle,
                            factor.of[lane], before.of[lane], relu);
                        gradient = counts ? gradient : 0.0f;
                        shift.of[lane] = shift.of[lane] + gradient;
                        scale.of[lane] = FMA(gradient, value - middle, scale.of[lane]);
                    }
                }
            }
        }
        UNROLL for (int lane = 0; lane < LANES; lane++) {
            shifts[lane][t] = shift.of[lane];
            scales[lane][t] = scale.of[lane];
        }
    }
    TOGETHER();
    NORM_TOGETHER(shifts, scales, width)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK % across * width * LANES + t;
        if (t < width * LANES && j < c) {
            float inverse = norm_inverse(variance[j], epsilon);
            partials[((long long)chunk * 2 + 0) * c + j] = shifts[t % LANES][t / LANES];
            partials[((long long)chunk * 2 + 1) * c + j] = scales[t % LANES][t / LANES] * inverse;
        }
    }
}

/* The lanes between c and the pitch too. Where the statistics were the running ones, they do not
 * depend on x. */
KERNEL NAME(norm_backward)(const T *x, const T *dy, const float *kept, int relu, const float *mean,
    const float *variance, const float *scale, const float *shift_gradient, const float *scale_gradient,
    float epsilon, int running, T *dx, NORM)
{
    SHARED float centers[THREADS], factors[THREADS], kepts[THREADS], slopes[THREADS], shares[THREADS];
    EACH_THREAD(t, THREADS) {
        int j = BLOCK % across * width * LANES + t, some = t < width * LANES && j < c;
        float inverse = some ? norm_inverse(variance[j], epsilon) : 0.0f;
        centers[t] = some ? mean[j] : 0.0f;
        factors[t] = some ? inverse * scale[j] : 0.0f;
        kepts[t] = some && relu ? kept[j] : 0.0f;
        slopes[t] = some && !running ? inverse * scale_gradient[j] / (float)pixels : 0.0f;
        shares[t] = some && !running ? shift_gradient[j] / (float)pixels : 0.0f;
    }
    TOGETHER();
    EACH_THREAD(t, THREADS) {
        struct norm_place p = norm_place_of(t, BLOCK / across, pixels, pitch, width, across, span);
        if (p.works) {
            int own = t % width * LANES;
            struct eight center = load8_f32(centers + own), factor = load8_f32(factors + own);
            struct eight before = load8_f32(kepts + own), slope = load8_f32(slopes + own);
            struct eight share = load8_f32(shares + own);
            for (int pixel = p.start + p.row; pixel < p.end; pixel += NORM_PAIRS_AHEAD * p.rows) {
                struct eight read[NORM_PAIRS_AHEAD], came[NORM_PAIRS_AHEAD];
                UNROLL for (int k = 0; k < NORM_PAIRS_AHEAD; k++) {
                    /* Behind the end its own: another thread may write over any other. */
                    int there = pixel + k * p.rows < p.end ? pixel + k * p.rows : pixel;
                    long long at = (long long)there * pitch + p.channel;
                    read[k] = NAME(load8)(x + at);
                    came[k] = NAME(load8)(dy + at);
                }
                UNROLL for (int k = 0; k < NORM_PAIRS_AHEAD; k++) {
                    UNROLL for (int lane = 0; lane < LANES; lane++) {
                        float value = read[k].of[lane], middle = center.of[lane];
                        float gradient = norm_passed(came[k].of[lane], value, middle,
                            factor.of[lane], before.of[lane], relu);
                        float common = FMA(value - middle, slope.of[lane], share.of[lane]);
                        came[k].of[lane] = factor.of[lane] * (gradient - (running ? 0.0f : common));
                    }
                    clear_from(&came[k], c - p.channel);
                    if (pixel + k * p.rows < p.end)
                        NAME(store8)(dx + (long long)(pixel + k * p.rows) * pitch + p.channel, came[k]);
                }
            }
        }
    }
}
#undef NORM
