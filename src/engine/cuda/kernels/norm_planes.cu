/* Batch norms of planes: element of pixel p and channel j lies at ((p/hw)*c + j)*hw + p%hw. Few tensors
 * lie so, hence nothing is hurried. Sums over pixels go by chunks, which statistics.cu puts together:
 * block (chunk, 256 channels). Where there are fewer channels, the threads that are left take a share of
 * the pixels: all of a block's threads have work, and what they read lies side by side. */
#ifndef NORM_PLANES_ONCE
#define NORM_PLANES_ONCE
HELPER long long norm_at(int pixel, int channel, int hw, int c)
{
    return ((long long)(pixel / hw) * c + channel) * hw + pixel % hw;
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

/* Adds the shares of each channel, halves upon halves; they come to lie where share 0 does. */
#define NORM_SHARES_TOGETHER(first, second, sharers)                                                 \
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
KERNEL NAME(norm_planes_partials)(const T *x, float *partials, int chunk, int chunks, int pixels, int hw,
    int c)
{
    SHARED float sums[THREADS], squares[THREADS];
    int number = BLOCK, sharers = norm_sharers(c);
    int start = number * chunk, end = lesser(chunk, pixels - start) + start;
    EACH_THREAD(t, THREADS) {
        int share = t % sharers, lane = t / sharers;
        int j = BLOCK_Y * THREADS + lane, slot = norm_slot(share, lane, sharers);
        float sum = 0.0f, square = 0.0f;
        if (number < chunks && j < c) {
            float first = LOAD(x, norm_at(start, j, hw, c));
            for (int pixel = start + share; pixel < end; pixel += sharers) {
                float apart = LOAD(x, norm_at(pixel, j, hw, c)) - first;
                sum = sum + apart;
                square = FMA(apart, apart, square);
            }
        }
        sums[slot] = sum;
        squares[slot] = square;
    }
    TOGETHER();
    NORM_SHARES_TOGETHER(sums, squares, sharers)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK_Y * THREADS + t;
        if (number < chunks && j < c && t < THREADS / sharers) {
            float mean = sums[t] / (float)(end - start);
            float deviations = FMA(-sums[t], mean, squares[t]);
            float first = LOAD(x, norm_at(start, j, hw, c));
            partials[((long long)number * 2 + 0) * c + j] = first + mean;
            partials[((long long)number * 2 + 1) * c + j] = deviations < 0.0f ? 0.0f : deviations;
        }
    }
}

/* One thread per element. What a backward pass needs is kept, if it is asked for. */
KERNEL NAME(norm_planes_forward)(const T *x, const float *mean, const float *variance, const float *scale,
    const float *shift, T *y, float *kept, int keeps, int relu, float epsilon, int count, int hw, int c)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int j = i / hw % c;
            float factor = norm_inverse(variance[j], epsilon) * scale[j];
            float value = norm_value(LOAD(x, i), mean[j], factor, shift[j]);
            if (keeps && i < hw * c && i % hw == 0) kept[j] = shift[j];
            STORE(y, i, relu ? not_negative(value) : value);
        }
    }
}

/* A chunk's sums of the gradient and of the gradient times what was normalized. */
KERNEL NAME(norm_planes_backward_partials)(const T *x, const T *dy, const float *kept, int relu,
    const float *mean, const float *variance, const float *scale, float epsilon, float *partials,
    int chunk, int chunks, int pixels, int hw, int c)
{
    SHARED float shifts[THREADS], scales[THREADS];
    int number = BLOCK, sharers = norm_sharers(c);
    int start = number * chunk, end = lesser(chunk, pixels - start) + start;
    EACH_THREAD(t, THREADS) {
        int share = t % sharers, lane = t / sharers;
        int j = BLOCK_Y * THREADS + lane, slot = norm_slot(share, lane, sharers);
        float shift = 0.0f, slope = 0.0f;
        if (number < chunks && j < c) {
            float inverse = norm_inverse(variance[j], epsilon), center = mean[j];
            float factor = inverse * scale[j], before = relu ? kept[j] : 0.0f;
            for (int pixel = start + share; pixel < end; pixel += sharers) {
                long long at = norm_at(pixel, j, hw, c);
                float value = LOAD(x, at);
                float gradient = norm_passed(LOAD(dy, at), value, center, factor, before, relu);
                shift = shift + gradient;
                slope = FMA(gradient, (value - center) * inverse, slope);
            }
        }
        shifts[slot] = shift;
        scales[slot] = slope;
    }
    TOGETHER();
    NORM_SHARES_TOGETHER(shifts, scales, sharers)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK_Y * THREADS + t;
        if (number < chunks && j < c && t < THREADS / sharers) {
            partials[((long long)number * 2 + 0) * c + j] = shifts[t];
            partials[((long long)number * 2 + 1) * c + j] = scales[t];
        }
    }
}

/* One thread per element. Where the statistics were the running ones, they do not depend on x. */
KERNEL NAME(norm_planes_backward)(const T *x, const T *dy, const float *kept, int relu, const float *mean,
    const float *variance, const float *scale, const float *shift_gradient, const float *scale_gradient,
    float epsilon, int running, T *dx, int count, int pixels, int hw, int c)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int j = i / hw % c;
            float inverse = norm_inverse(variance[j], epsilon), factor = inverse * scale[j];
            float value = LOAD(x, i), before = relu ? kept[j] : 0.0f;
            float gradient = norm_passed(LOAD(dy, i), value, mean[j], factor, before, relu);
            if (!running) {
                float normalized = (value - mean[j]) * inverse;
                float common = FMA(normalized, scale_gradient[j], shift_gradient[j]);
                gradient = gradient - common / (float)pixels;
            }
            STORE(dx, i, factor * gradient);
        }
    }
}
