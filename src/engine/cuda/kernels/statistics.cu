/* What the chunks of a batch norm come to, one thread per channel, in the chunks' order. Chunk i holds
 * two rows of c numbers: partials[(i*2 + 0)*c + j] and partials[(i*2 + 1)*c + j]. */

/* Means and squared deviations of parts to those of the whole (Chan, Golub, LeVeque). The variance is
 * the biased one. */
KERNEL norm_statistics(const float *partials, float *mean, float *variance, int chunk, int chunks,
    int pixels, int c)
{
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * THREADS + t;
        if (j < c) {
            double center = 0.0, squares = 0.0;
            for (int i = 0; i < chunks; i++) {
                /* Chunks before this one are full. */
                double before = (double)i * chunk;
                double here = (double)lesser(chunk, (int)(pixels - (long long)i * chunk));
                double share = here / (before + here);
                double apart = (double)partials[((long long)i * 2 + 0) * c + j] - center;
                center = center + apart * share;
                squares = squares + (double)partials[((long long)i * 2 + 1) * c + j];
                squares = squares + apart * apart * before * share;
            }
            mean[j] = (float)center;
            variance[j] = (float)(squares / pixels);
        }
    }
}

/* The two sums of a backward pass. */
KERNEL norm_sums(const float *partials, float *shift_gradient, float *scale_gradient, int chunks, int c)
{
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * THREADS + t;
        if (j < c) {
            double shift = 0.0, scale = 0.0;
            for (int i = 0; i < chunks; i++) {
                shift = shift + (double)partials[((long long)i * 2 + 0) * c + j];
                scale = scale + (double)partials[((long long)i * 2 + 1) * c + j];
            }
            shift_gradient[j] = (float)shift;
            scale_gradient[j] = (float)scale;
        }
    }
}
