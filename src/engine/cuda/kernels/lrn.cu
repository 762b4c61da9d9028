/* Local response normalization across channels: y = x * (k + alpha/size * squares around it)^-beta.
 * Pixel p lies at (p/hw)*pixel_stride_outer + (p%hw)*pixel_stride, channel j at j*channel_stride
 * from there. */
#define LRN                                                                                          \
    int pixels, int c, int pixel_stride_outer, int hw, int pixel_stride, int channel_stride,         \
        int size, float alpha, float beta, float k

#ifndef LRN_ONCE
#define LRN_ONCE
/* Which pixel thread i has, and which channel: neighbours are neighbours in memory. */
HELPER int lrn_pixel(int i, int pixels, int c, int channel_stride)
{
    return channel_stride == 1 ? i / c : i % pixels;
}
HELPER int lrn_channel(int i, int pixels, int c, int channel_stride)
{
    return channel_stride == 1 ? i % c : i / pixels;
}
#endif

/* What the squares around channel j come to, and what they divide by before the power. */
HELPER float NAME(lrn_base)(const T *x, int j, int c, int channel_stride, int size, float alpha, float k)
{
    int end = lesser(c, j + size / 2 + 1);
    float squares = 0.0f;
    for (int other = greater(0, j - size / 2); other < end; other++) {
        float value = LOAD(x, (long long)other * channel_stride);
        squares = FMA(value, value, squares);
    }
    return FMA(alpha / (float)size, squares, k);
}

/* The lanes between the channels and the pitch, where there are any, are the last channel's to clear. */
HELPER void NAME(lrn_clear)(T *pixel, int j, int c, int pixel_stride, int channel_stride)
{
    if (channel_stride == 1 && j == c - 1)
        for (int lane = c; lane < pixel_stride; lane++) STORE(pixel, lane, 0.0f);
}

KERNEL NAME(lrn_forward)(const T *x, T *y, LRN)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < pixels * c) {
            int p = lrn_pixel(i, pixels, c, channel_stride), j = lrn_channel(i, pixels, c, channel_stride);
            long long at = (long long)(p / hw) * pixel_stride_outer + (long long)(p % hw) * pixel_stride;
            float base = NAME(lrn_base)(x + at, j, c, channel_stride, size, alpha, k);
            float value = LOAD(x, at + (long long)j * channel_stride);
            STORE(y, at + (long long)j * channel_stride, value * powf(base, -beta));
            NAME(lrn_clear)(y + at, j, c, pixel_stride, channel_stride);
        }
    }
}

/* The divisors are computed anew: they cost less than what they would take to keep. */
KERNEL NAME(lrn_backward)(const T *x, const T *dy, T *dx, LRN)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < pixels * c) {
            int p = lrn_pixel(i, pixels, c, channel_stride), j = lrn_channel(i, pixels, c, channel_stride);
            long long at = (long long)(p / hw) * pixel_stride_outer + (long long)(p % hw) * pixel_stride;
            int end = lesser(c, j + size / 2 + 1);
            float own = 0.0f, others = 0.0f;
            /* Every channel whose squares hold this one's. */
            for (int other = greater(0, j - size / 2); other < end; other++) {
                long long there = at + (long long)other * channel_stride;
                float base = NAME(lrn_base)(x + at, other, c, channel_stride, size, alpha, k);
                float power = powf(base, -beta), gradient = LOAD(dy, there);
                others = others + gradient * LOAD(x, there) * power / base;
                if (other == j) own = gradient * power;
            }
            long long here = at + (long long)j * channel_stride;
            float factor = 2.0f * beta * (alpha / (float)size) * LOAD(x, here);
            STORE(dx, here, own - factor * others);
            NAME(lrn_clear)(dx + at, j, c, pixel_stride, channel_stride);
        }
    }
}
#undef LRN
