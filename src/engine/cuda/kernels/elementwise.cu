/* Arithmetic on elements that lie alike: of two tensors, and functions of one. The result may be
 * written over a source. A thread has some groups of eight elements, each beside its neighbours'; the
 * last group of all may be smaller, and threads behind it have none. */
#ifndef ELEMENTWISE_ONCE
#define ELEMENTWISE_ONCE
#define GROUPS_OF_THREAD 2
/* The first element of a thread's group number k. */
HELPER int group_at(int t, int k) { return ((BLOCK * GROUPS_OF_THREAD + k) * THREADS + t) * LANES; }

/* Whether all groups of the block are there and whole. They are, but for the last block; a branch for
 * each group would make one read wait for the other. */
#define IS_WHOLE(count) (group_at(THREADS - 1, GROUPS_OF_THREAD - 1) <= (count) - LANES)

/* A group of which so many elements are left, perhaps none. */
HELPER struct eight load_some_of_f32(const float *from, int at, int left)
{
    struct eight all = eight_of(0.0f);
    UNROLL for (int lane = 0; lane < LANES; lane++)
        if (lane < left) all.of[lane] = from[at + lane];
    return all;
}
#endif

/* 0 adds, 1 multiplies, 2 adds and makes nothing negative. */
HELPER float NAME(combined)(float a, float b, int operation)
{
    float sum = a + b;
    return operation == 1 ? a * b : operation == 2 ? not_negative(sum) : sum;
}
HELPER struct eight NAME(eight_combined)(struct eight a, struct eight b, int operation)
{
    if (operation == 1) {
        UNROLL for (int lane = 0; lane < LANES; lane++) a.of[lane] = a.of[lane] * b.of[lane];
        return a;
    }
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        float sum = a.of[lane] + b.of[lane];
        a.of[lane] = operation == 2 ? not_negative(sum) : sum;
    }
    return a;
}

HELPER struct eight NAME(load_some)(const T *from, int at, int left)
{
    struct eight all = eight_of(0.0f);
    UNROLL for (int lane = 0; lane < LANES; lane++)
        if (lane < left) all.of[lane] = LOAD(from, at + lane);
    return all;
}
HELPER void NAME(store_some)(T *to, int at, int left, struct eight all)
{
    if (left >= LANES) {
        NAME(store8)(to + at, all);
    } else {
        UNROLL for (int lane = 0; lane < LANES; lane++)
            if (lane < left) STORE(to, at + lane, all.of[lane]);
    }
}

KERNEL NAME(binary)(const T *a, const T *b, T *to, int operation, int count)
{
    EACH_THREAD(t, THREADS) {
        struct eight first[GROUPS_OF_THREAD], second[GROUPS_OF_THREAD];
        if (IS_WHOLE(count)) {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                first[k] = NAME(load8)(a + group_at(t, k));
                second[k] = NAME(load8)(b + group_at(t, k));
            }
        } else {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                int at = group_at(t, k);
                first[k] = NAME(load_some)(a, at, count - at);
                second[k] = NAME(load_some)(b, at, count - at);
            }
        }
        UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
            int at = group_at(t, k);
            NAME(store_some)(to, at, count - at, NAME(eight_combined)(first[k], second[k], operation));
        }
    }
}

/* A sum of gradients that goes on through a ReLU, whose result was seen. */
KERNEL NAME(sum_backward)(const T *seen, const T *a, const T *b, T *to, int count)
{
    EACH_THREAD(t, THREADS) {
        struct eight x[GROUPS_OF_THREAD], first[GROUPS_OF_THREAD], second[GROUPS_OF_THREAD];
        if (IS_WHOLE(count)) {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                x[k] = NAME(load8)(seen + group_at(t, k));
                first[k] = NAME(load8)(a + group_at(t, k));
                second[k] = NAME(load8)(b + group_at(t, k));
            }
        } else {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                int at = group_at(t, k);
                x[k] = NAME(load_some)(seen, at, count - at);
                first[k] = NAME(load_some)(a, at, count - at);
                second[k] = NAME(load_some)(b, at, count - at);
            }
        }
        UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
            int at = group_at(t, k);
            UNROLL for (int lane = 0; lane < LANES; lane++) {
                float sum = first[k].of[lane] + second[k].of[lane];
                first[k].of[lane] = x[k].of[lane] > 0.0f ? sum : 0.0f;
            }
            NAME(store_some)(to, at, count - at, first[k]);
        }
    }
}

/* As `binary` with a second source of f32, as masks are. */
KERNEL NAME(binary_mask)(const T *a, const float *b, T *to, int operation, int count)
{
    EACH_THREAD(t, THREADS) {
        struct eight first[GROUPS_OF_THREAD], second[GROUPS_OF_THREAD];
        if (IS_WHOLE(count)) {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                first[k] = NAME(load8)(a + group_at(t, k));
                second[k] = load8_f32(b + group_at(t, k));
            }
        } else {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                int at = group_at(t, k);
                first[k] = NAME(load_some)(a, at, count - at);
                second[k] = load_some_of_f32(b, at, count - at);
            }
        }
        UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
            int at = group_at(t, k);
            NAME(store_some)(to, at, count - at, NAME(eight_combined)(first[k], second[k], operation));
        }
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
#define EACH_LANE(...)                                                                               \
    UNROLL for (int lane = 0; lane < LANES; lane++) {                                                \
        float x = all.of[lane];                                                                      \
        all.of[lane] = __VA_ARGS__;                                                                  \
    }
HELPER struct eight NAME(functions_of)(struct eight all, int function, float factor)
{
    if (function == 0) EACH_LANE(not_negative(x))
    if (function == 1) EACH_LANE(NAME(within)(x, 6.0f))
    if (function == 2) EACH_LANE(NAME(sigmoid)(x))
    if (function == 3) EACH_LANE(x * NAME(sigmoid)(x))
    if (function == 4) EACH_LANE(NAME(within)(NAME(hard)(x), 1.0f))
    if (function == 5) EACH_LANE(x * NAME(within)(NAME(hard)(x), 1.0f))
    if (function == 6) EACH_LANE(x * factor)
    return all;
}
#undef EACH_LANE

KERNEL NAME(pointwise_forward)(const T *from, T *to, int function, float factor, int count)
{
    EACH_THREAD(t, THREADS) {
        struct eight all[GROUPS_OF_THREAD];
        if (IS_WHOLE(count)) {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) all[k] = NAME(load8)(from + group_at(t, k));
        } else {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++)
                all[k] = NAME(load_some)(from, group_at(t, k), count - group_at(t, k));
        }
        UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
            int at = group_at(t, k);
            NAME(store_some)(to, at, count - at, NAME(functions_of)(all[k], function, factor));
        }
    }
}

/* What was seen is the result of functions 0 to 2 and the source of 3 to 5. */
HELPER float NAME(gradient_of)(float x, float y, int function, float factor)
{
    float slope = factor;
    int passes = 1;
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
    return passes ? y * slope : 0.0f;
}

/* A scaling has no need to have seen anything: there is nothing but the gradient. */
KERNEL NAME(pointwise_backward)(const T *seen, const T *gradient, T *to, int function, float factor,
    int count)
{
    EACH_THREAD(t, THREADS) {
        struct eight x[GROUPS_OF_THREAD], y[GROUPS_OF_THREAD];
        const T *from = function == 6 ? gradient : seen;
        if (IS_WHOLE(count)) {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                x[k] = NAME(load8)(from + group_at(t, k));
                y[k] = NAME(load8)(gradient + group_at(t, k));
            }
        } else {
            UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
                int at = group_at(t, k);
                x[k] = NAME(load_some)(from, at, count - at);
                y[k] = NAME(load_some)(gradient, at, count - at);
            }
        }
        UNROLL for (int k = 0; k < GROUPS_OF_THREAD; k++) {
            int at = group_at(t, k);
            /* Most of them are this one. */
            if (function == 0) {
                UNROLL for (int lane = 0; lane < LANES; lane++)
                    y[k].of[lane] = x[k].of[lane] > 0.0f ? y[k].of[lane] : 0.0f;
            } else {
                UNROLL for (int lane = 0; lane < LANES; lane++)
                    y[k].of[lane] =
                        NAME(gradient_of)(x[k].of[lane], y[k].of[lane], function, factor);
            }
            NAME(store_some)(to, at, count - at, y[k]);
        }
    }
}
