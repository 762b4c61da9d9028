/* Batch norms of many elements. Element of pixel p and channel j lies at p*pitch + j, or, with no
 * pitch, at ((p/hw)*c + j)*hw + p%hw. Sums over pixels go by chunks, which statistics.cu puts together:
 * block (chunk, 256 channels). Where there are fewer channels, the threads that are left take a share of
 * the pixels: all of a block's threads have work, and what they read lies side by side. */
#ifndef NORM_ONCE
#define NORM_ONCE
HELPER long long norm_at(int pixel, int channel, int hw, int c, int pitch)
{
    return pitch > 0 ? (long long)pixel * pitch + channel
                     : ((long long)(pixel / hw) * c + channel) * hw + pixel % hw;
}
/* How many threads share a channel: a power of two. */
HELPER int norm_sharers(int c)
{
    int sharers = 1;
    while (c * sharers * 2 <= THREADS) sharers *= 2;
    return sharers;
}
/* Where a thread's own sums lie: those of the same share side by side. */
HELPER int norm_slot(int share, int lane, int sharers) { return share * (THREADS / sharers) + lane; }
HELPER int norm_share(int t, int sharers, int pitch)
{
    return pitch > 0 ? t / (THREADS / sharers) : t % sharers;
}
HELPER int norm_lane(int t, int sharers, int pitch)
{
    return pitch > 0 ? t % (THREADS / sharers) : t / sharers;
}
HELPER int norm_channel(int i, int hw, int c, int pitch) { return pitch > 0 ? i % pitch : i / hw % c; }

/* Adds the shares of each channel, halves upon halves; they come to lie where share 0 does. */
#define NORM_TOGETHER(first, second, sharers)                                                        \
    for (int half = (sharers) / 2; half > 0; half /= 2) {                                            \
        EACH_THREAD(t, THREADS) {                                                                    \
            int apart = half * (THREADS / (sharers));                                                \
            if (t < apart) {                                                                         \
                (first)[t] = (first)[t] + (first)[t + apart];                                        \
                (second)[t] = (second)[t] + (second)[t + apart];                                     \
            }                                                                                        \
        }                                                                                            \
        TOGETHER();                                                                                  \
    }
#endif

/* Mean and squared deviations of a chunk in one pass; what is summed is apart from its first value,
 * so that a mean far from zero costs no bits. */
KERNEL NAME(norm_partials)(const T *x, float *partials, int chunk, int chunks, int pixels, int hw, int c,
    int pitch)
{
    SHARED float sums[THREADS], squares[THREADS];
    int number = BLOCK, sharers = norm_sharers(c);
    int start = number * chunk, end = lesser(chunk, pixels - start) + start;
    EACH_THREAD(t, THREADS) {
        int share = norm_share(t, sharers, pitch), lane = norm_lane(t, sharers, pitch);
        int j = BLOCK_Y * THREADS + lane, slot = norm_slot(share, lane, sharers);
        float sum = 0.0f, square = 0.0f;
        if (number < chunks && j < c) {
            float first = LOAD(x, norm_at(start, j, hw, c, pitch));
            for (int pixel = start + share; pixel < end; pixel += sharers) {
                float apart = LOAD(x, norm_at(pixel, j, hw, c, pitch)) - first;
                sum = sum + apart;
                square = FMA(apart, apart, square);
            }
        }
        sums[slot] = sum;
        squares[slot] = square;
    }
    TOGETHER();
    NORM_TOGETHER(sums, squares, sharers)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK_Y * THREADS + t;
        if (number < chunks && j < c && t < THREADS / sharers) {
            float mean = sums[t] / (float)(end - start);
            float deviations = FMA(-sums[t], mean, squares[t]);
            float first = LOAD(x, norm_at(start, j, hw, c, pitch));
            partials[((long long)number * 2 + 0) * c + j] = first + mean;
            partials[((long long)number * 2 + 1) * c + j] = deviations < 0.0f ? 0.0f : deviations;
        }
    }
}

/* One thread per element of the buffer, those between c and the pitch too. The mask says where what
 * came before relu is positive. */
KERNEL NAME(norm_forward)(const T *x, const float *mean, const float *variance, const float *scale,
    const float *shift, T *y, unsigned char *mask, int has_mask, int relu, float epsilon, int count,
    int pixels, int hw, int c, int pitch)
{
    /* It is among the parameters because all of these kernels have the same last four. */
    (void)pixels;
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int j = norm_channel(i, hw, c, pitch);
            float value = 0.0f;
            if (j < c) {
                float inverse = 1.0f / sqrtf(variance[j] + epsilon);
                value = FMA((LOAD(x, i) - mean[j]) * inverse, scale[j], shift[j]);
            }
            if (has_mask) mask[i] = value > 0.0f;
            STORE(y, i, relu ? not_negative(value) : value);
        }
    }
}

/* A chunk's sums of the gradient and of the gradient times what was normalized. */
KERNEL NAME(norm_backward_partials)(const T *x, const T *dy, const unsigned char *mask, int has_mask,
    const float *mean, const float *variance, float epsilon, float *partials, int chunk, int chunks,
    int pixels, int hw, int c, int pitch)
{
    SHARED float shifts[THREADS], scales[THREADS];
    int number = BLOCK, sharers = norm_sharers(c);
    int start = number * chunk, end = lesser(chunk, pixels - start) + start;
    EACH_THREAD(t, THREADS) {
        int share = norm_share(t, sharers, pitch), lane = norm_lane(t, sharers, pitch);
        int j = BLOCK_Y * THREADS + lane, slot = norm_slot(share, lane, sharers);
        float shift = 0.0f, scale = 0.0f;
        if (number < chunks && j < c) {
            float inverse = 1.0f / sqrtf(variance[j] + epsilon), center = mean[j];
            for (int pixel = start + share; pixel < end; pixel += sharers) {
                long long at = norm_at(pixel, j, hw, c, pitch);
                float gradient = LOAD(dy, at);
                if (has_mask) gradient = mask[at] ? gradient : 0.0f;
                shift = shift + gradient;
                scale = FMA(gradient, (LOAD(x, at) - center) * inverse, scale);
            }
        }
        shifts[slot] = shift;
        scales[slot] = scale;
    }
    TOGETHER();
    NORM_TOGETHER(shifts, scales, sharers)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK_Y * THREADS + t;
        if (number < chunks && j < c && t < THREADS / sharers) {
            partials[((long long)number * 2 + 0) * c + j] = shifts[t];
            partials[((long long)number * 2 + 1) * c + j] = scales[t];
        }
    }
}

/* One thread per element of the buffer. Where the statistics were the running ones, they do not
 * depend on x. */
KERNEL NAME(norm_backward)(const T *x, const T *dy, const unsigned char *mask, int has_mask,
    const float *mean, const float *variance, const float *scale, const float *shift_gradient,
    const float *scale_gradient, float epsilon, int running, T *dx, int count, int pixels, int hw, int c,
    int pitch)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int j = norm_channel(i, hw, c, pitch);
            float value = 0.0f;
            if (j < c) {
                float inverse = 1.0f / sqrtf(variance[j] + epsilon);
                float gradient = LOAD(dy, i);
                if (has_mask) gradient = mask[i] ? gradient : 0.0f;
                if (!running) {
                    float normalized = (LOAD(x, i) - mean[j]) * inverse;
                    float common = FMA(normalized, scale_gradient[j], shift_gradient[j]);
                    gradient = gradient - common / (float)pixels;
                }
                value = scale[j] * inverse * gradient;
            }
            STORE(dx, i, value);
        }
    }
}
