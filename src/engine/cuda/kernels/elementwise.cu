/* Arithmetic on elements that lie alike: of two tensors, and functions of one. The result may be
 * written over a source. */
HELPER float NAME(combined)(float a, float b, int operation)
{
    float sum = a + b;
    return operation == 1 ? a * b : operation == 2 ? not_negative(sum) : sum;
}

/* 0 adds, 1 multiplies, 2 adds and makes nothing negative. */
KERNEL NAME(binary)(const T *a, const T *b, T *to, int operation, int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) STORE(to, i, NAME(combined)(LOAD(a, i), LOAD(b, i), operation));
    }
}

/* The same with a second source of f32, as masks are. */
KERNEL NAME(binary_mask)(const T *a, const float *b, T *to, int operation, int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) STORE(to, i, NAME(combined)(LOAD(a, i), b[i], operation));
    }
}

/* The same with a second source that lies in another way. */
KERNEL NAME(binary_strided)(const T *a, const T *b, T *to, int operation, int count, int d1, int d2,
    int d3, int a0, int a1, int a2, int a3, int b0, int b1, int b2, int b3)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int i3 = i % d3, over3 = i / d3;
            int i2 = over3 % d2, over2 = over3 / d2;
            int i1 = over2 % d1, i0 = over2 / d1;
            long long at = (long long)i0 * a0 + (long long)i1 * a1 + (long long)i2 * a2 +
                (long long)i3 * a3;
            long long other = (long long)i0 * b0 + (long long)i1 * b1 + (long long)i2 * b2 +
                (long long)i3 * b3;
            STORE(to, at, NAME(combined)(LOAD(a, at), LOAD(b, other), operation));
        }
    }
}

/* The exponential of what is never positive: it cannot overflow. */
HELPER float NAME(sigmoid)(float x)
{
    float small = expf(x < 0.0f ? x : -x);
    return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}
HELPER float NAME(hard)(float x) { return x / 6.0f + 0.5f; }
HELPER float NAME(within)(float x, float most) { return x <= 0.0f ? 0.0f : x >= most ? most : x; }

/* 0 relu, 1 relu6, 2 sigmoid, 3 silu, 4 hard sigmoid, 5 hard swish, 6 scaled. */
KERNEL NAME(pointwise_forward)(const T *from, T *to, int function, float factor, int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            float x = LOAD(from, i), y = x * factor;
            if (function == 0) y = not_negative(x);
            if (function == 1) y = NAME(within)(x, 6.0f);
            if (function == 2) y = NAME(sigmoid)(x);
            if (function == 3) y = x * NAME(sigmoid)(x);
            if (function == 4) y = NAME(within)(NAME(hard)(x), 1.0f);
            if (function == 5) y = x * NAME(within)(NAME(hard)(x), 1.0f);
            STORE(to, i, y);
        }
    }
}

/* What was seen is the result of functions 0 to 2 and the source of 3 to 5. */
KERNEL NAME(pointwise_backward)(const T *seen, const T *gradient, T *to, int function, float factor,
    int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            float y = LOAD(gradient, i), slope = factor;
            /* A scaling has no need to have seen anything. */
            float x = function == 6 ? 0.0f : LOAD(seen, i);
            int passes = 1;
            if (function == 0) { slope = 1.0f; passes = x > 0.0f; }
            if (function == 1) { slope = 1.0f; passes = x > 0.0f && x < 6.0f; }
            if (function == 2) slope = x * (1.0f - x);
            if (function == 3) {
                float s = NAME(sigmoid)(x);
                slope = s * FMA(x, 1.0f - s, 1.0f);
            }
            if (function == 4) {
                float inner = NAME(hard)(x);
                slope = 1.0f / 6.0f;
                passes = inner > 0.0f && inner < 1.0f;
            }
            if (function == 5) {
                slope = x >= 3.0f ? 1.0f : FMA(2.0f, x, 3.0f) / 6.0f;
                passes = !(x <= -3.0f);
            }
            STORE(to, i, passes ? y * slope : 0.0f);
        }
    }
}
