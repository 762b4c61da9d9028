/* What the chunks of a batch norm come to. Chunk i holds two rows of c numbers: partials[(i*2 + 0)*c + j]
 * and partials[(i*2 + 1)*c + j]. A block has as many channels as lie in one piece that memory is read by;
 * its threads share their chunks, always in the same way. */
#define STATISTICS_CHANNELS 8
#define STATISTICS_SHARES (THREADS / STATISTICS_CHANNELS)

/* Adds the shares of each channel, halves upon halves. */
#define STATISTICS_TOGETHER(first, second)                                                           \
    for (int half = THREADS / 2; half >= STATISTICS_CHANNELS; half /= 2) {                           \
        EACH_THREAD(t, THREADS) {                                                                    \
            if (t < half) {                                                                          \
                (first)[t] = (first)[t] + (first)[t + half];                                         \
                (second)[t] = (second)[t] + (second)[t + half];                                      \
            }                                                                                        \
        }                                                                                            \
        TOGETHER();                                                                                  \
    }

/* Means and squared deviations of parts to those of the whole. All are apart from the first part's
 * mean, so that a mean far from zero costs no bits. The variance is the biased one. */
KERNEL norm_statistics(const float *partials, float *mean, float *variance, int chunk, int chunks,
    int pixels, int c)
{
    SHARED double sums[THREADS], squares[THREADS];
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * STATISTICS_CHANNELS + t % STATISTICS_CHANNELS;
        double sum = 0.0, square = 0.0;
        if (j < c) {
            double origin = (double)partials[j];
            UNROLL_BY_4 for (int i = t / STATISTICS_CHANNELS; i < chunks; i += STATISTICS_SHARES) {
                double here = (double)lesser(chunk, pixels - i * chunk);
                double apart = (double)partials[((long long)i * 2 + 0) * c + j] - origin;
                double deviations = (double)partials[((long long)i * 2 + 1) * c + j];
                sum = sum + here * apart;
                square = square + (here * apart * apart + deviations);
            }
        }
        sums[t] = sum;
        squares[t] = square;
    }
    TOGETHER();
    STATISTICS_TOGETHER(sums, squares)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * STATISTICS_CHANNELS + t;
        if (t < STATISTICS_CHANNELS && j < c) {
            double apart = sums[t] / pixels, deviations = squares[t] / pixels - apart * apart;
            mean[j] = (float)((double)partials[j] + apart);
            variance[j] = deviations < 0.0 ? 0.0f : (float)deviations;
        }
    }
}

/* The two sums of a backward pass. */
KERNEL norm_sums(const float *partials, float *shift_gradient, float *scale_gradient, int chunks, int c)
{
    SHARED double shifts[THREADS], scales[THREADS];
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * STATISTICS_CHANNELS + t % STATISTICS_CHANNELS;
        double shift = 0.0, scale = 0.0;
        if (j < c) {
            UNROLL_BY_4 for (int i = t / STATISTICS_CHANNELS; i < chunks; i += STATISTICS_SHARES) {
                shift = shift + (double)partials[((long long)i * 2 + 0) * c + j];
                scale = scale + (double)partials[((long long)i * 2 + 1) * c + j];
            }
        }
        shifts[t] = shift;
        scales[t] = scale;
    }
    TOGETHER();
    STATISTICS_TOGETHER(shifts, scales)
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * STATISTICS_CHANNELS + t;
        if (t < STATISTICS_CHANNELS && j < c) {
            shift_gradient[j] = (float)shifts[t];
            scale_gradient[j] = (float)scales[t];
        }
    }
}

/* What rows of partial sums come to, one thread per column, in the rows' order. */
KERNEL row_sums(const float *partials, float *sums, int rows, int k, int pitch)
{
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * THREADS + t;
        if (j < k) {
            double total[2] = { 0.0, 0.0 };
            int row = 0;
            for (; row + 2 <= rows; row += 2) {
                total[0] = total[0] + (double)partials[(long long)row * pitch + j];
                total[1] = total[1] + (double)partials[(long long)(row + 1) * pitch + j];
            }
            if (row < rows) total[0] = total[0] + (double)partials[(long long)row * pitch + j];
            sums[j] = (float)(total[0] + total[1]);
        }
    }
}
