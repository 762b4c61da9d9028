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
