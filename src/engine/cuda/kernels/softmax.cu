/* Softmax over the middle one of [outer][channels][inner], or its logarithm; one thread per row, of
 * which there are outer*inner. */
KERNEL NAME(softmax_forward)(const T *x, T *y, int logarithms, int rows, int channels, int inner)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < rows) {
            long long at = (long long)(i / inner) * channels * inner + i % inner;
            float most = LOAD(x, at), sum = 0.0f;
            for (int j = 1; j < channels; j++) {
                float value = LOAD(x, at + (long long)j * inner);
                /* A NaN stays. */
                if (value > most || value != value) most = value;
            }
            for (int j = 0; j < channels; j++) sum = sum + expf(LOAD(x, at + (long long)j * inner) - most);
            float logarithm = logf(sum);
            for (int j = 0; j < channels; j++) {
                float value = LOAD(x, at + (long long)j * inner) - most;
                STORE(y, at + (long long)j * inner, logarithms ? value - logarithm : expf(value) / sum);
            }
        }
    }
}

KERNEL NAME(softmax_backward)(const T *y, const T *dy, T *dx, int logarithms, int rows, int channels,
    int inner)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < rows) {
            long long at = (long long)(i / inner) * channels * inner + i % inner;
            float sum = 0.0f;
            for (int j = 0; j < channels; j++) {
                float gradient = LOAD(dy, at + (long long)j * inner);
                sum = logarithms ? sum + gradient
                                 : FMA(LOAD(y, at + (long long)j * inner), gradient, sum);
            }
            for (int j = 0; j < channels; j++) {
                long long here = at + (long long)j * inner;
                float result = LOAD(y, here), gradient = LOAD(dy, here);
                STORE(dx, here, logarithms ? FMA(-expf(result), sum, gradient)
                                           : result * (gradient - sum));
            }
        }
    }
}

/* The same where a row's channels lie side by side and are many: block i has row i, and its threads
 * share the channels, always in the same way. */
#ifndef SOFTMAX_ONCE
#define SOFTMAX_ONCE
/* A NaN stays. */
HELPER float greatest(float a, float b) { return b > a || b != b ? b : a; }
HELPER float sum_of(float a, float b) { return a + b; }

/* Puts all threads' numbers together, halves upon halves; the result comes to lie first. */
#define SOFTMAX_TOGETHER(all, combine)                                                               \
    for (int half = THREADS / 2; half > 0; half /= 2) {                                              \
        EACH_THREAD(t, THREADS) {                                                                    \
            if (t < half) (all)[t] = combine((all)[t], (all)[t + half]);                             \
        }                                                                                            \
        TOGETHER();                                                                                  \
    }
#endif

KERNEL NAME(softmax_rows_forward)(const T *x, T *y, int logarithms, int channels)
{
    SHARED float mosts[THREADS], sums[THREADS];
    long long row = (long long)BLOCK * channels;
    EACH_THREAD(t, THREADS) {
        float most = LOAD(x, row);
        for (int j = t; j < channels; j += THREADS) most = greatest(most, LOAD(x, row + j));
        mosts[t] = most;
    }
    TOGETHER();
    SOFTMAX_TOGETHER(mosts, greatest)
    EACH_THREAD(t, THREADS) {
        float sum = 0.0f;
        for (int j = t; j < channels; j += THREADS) sum = sum + expf(LOAD(x, row + j) - mosts[0]);
        sums[t] = sum;
    }
    TOGETHER();
    SOFTMAX_TOGETHER(sums, sum_of)
    EACH_THREAD(t, THREADS) {
        float logarithm = logf(sums[0]);
        for (int j = t; j < channels; j += THREADS) {
            float value = LOAD(x, row + j) - mosts[0];
            STORE(y, row + j, logarithms ? value - logarithm : expf(value) / sums[0]);
        }
    }
}

KERNEL NAME(softmax_rows_backward)(const T *y, const T *dy, T *dx, int logarithms, int channels)
{
    SHARED float sums[THREADS];
    long long row = (long long)BLOCK * channels;
    EACH_THREAD(t, THREADS) {
        float sum = 0.0f;
        for (int j = t; j < channels; j += THREADS) {
            float gradient = LOAD(dy, row + j);
            sum = logarithms ? sum + gradient : FMA(LOAD(y, row + j), gradient, sum);
        }
        sums[t] = sum;
    }
    TOGETHER();
    SOFTMAX_TOGETHER(sums, sum_of)
    EACH_THREAD(t, THREADS) {
        for (int j = t; j < channels; j += THREADS) {
            float result = LOAD(y, row + j), gradient = LOAD(dy, row + j);
            STORE(dx, row + j, logarithms ? FMA(-expf(result), sums[0], gradient)
                                          : result * (gradient - sums[0]));
        }
    }
}
