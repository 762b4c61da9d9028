/* Convolutions of any window, step, spread and number of groups, channels last: the fallback where
 * cuDNN has none, and its judge. Not fast, but right; sums have a fixed order. Weights lie
 * [k][kh][kw][w_pitch]; lanes from c/groups on are not read. */
#define GEOMETRY                                                                                     \
    int n, int h, int w, int c, int x_pitch, int oh, int ow, int k, int y_pitch, int kh, int kw,     \
        int sh, int sw, int ph, int pw, int dh, int dw, int groups

#ifndef CONVOLUTION_ONCE
#define CONVOLUTION_ONCE
/* Sums of 8 that do not wait for each other. */
#define LANES 8
HELPER float sum_of_lanes(const float *sums)
{
    float even = (sums[0] + sums[4]) + (sums[2] + sums[6]);
    float odd = (sums[1] + sums[5]) + (sums[3] + sums[7]);
    return even + odd;
}

/* The outputs, along one axis, of which this place of the window lies within the source. */
HELPER int first_inside(int padding, int offset, int step)
{
    return offset >= padding ? 0 : up(padding - offset, step);
}
HELPER int end_inside(int padding, int offset, int step, int length, int outputs)
{
    int last = length - 1 + padding - offset;
    return last < 0 ? 0 : lesser(outputs, last / step + 1);
}
#endif

/* Adds to the sums the products of two rows; steps are in elements. */
HELPER void NAME(add_products)(float *sums, const T *a, long long a_step, const T *b, long long b_step,
    int count)
{
    int at = 0;
    for (; at + LANES <= count; at += LANES) {
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] = FMA(LOAD(a, lane * a_step), LOAD(b, lane * b_step), sums[lane]);
        a += LANES * a_step;
        b += LANES * b_step;
    }
    /* The rest goes to the first: sums that are chosen by a variable would not stay in registers. */
    for (; at < count; at++) {
        sums[0] = FMA(LOAD(a, 0), LOAD(b, 0), sums[0]);
        a += a_step;
        b += b_step;
    }
}

/* One thread per element of y, those between k and the pitch too. */
KERNEL NAME(conv_forward)(const T *x, const T *weights, T *y, int w_pitch, GEOMETRY)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * oh * ow * y_pitch) {
            int filter = i % y_pitch, pixel = i / y_pitch;
            float value = 0.0f;
            if (filter < k) {
                int column = pixel % ow * sw - pw, row = pixel / ow % oh * sh - ph;
                int inner = c / groups, group = filter / (k / groups);
                const T *image = x + (long long)(pixel / ow / oh) * h * w * x_pitch + group * inner;
                const T *window = weights + (long long)filter * kh * kw * w_pitch;
                float sums[LANES] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
                for (int r = 0; r < kh; r++) {
                    int at_row = row + r * dh;
                    if (at_row < 0 || at_row >= h) continue;
                    for (int s = 0; s < kw; s++) {
                        int at_column = column + s * dw;
                        if (at_column < 0 || at_column >= w) continue;
                        const T *from = image + ((long long)at_row * w + at_column) * x_pitch;
                        const T *by = window + (long long)(r * kw + s) * w_pitch;
                        NAME(add_products)(sums, from, 1, by, 1, inner);
                    }
                }
                value = sum_of_lanes(sums);
            }
            STORE(y, i, value);
        }
    }
}

/* One thread per element of dx, those between c and the pitch too: it gathers from all windows that
 * cover it. */
KERNEL NAME(conv_backward_data)(const T *weights, const T *dy, T *dx, int w_pitch, GEOMETRY)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * h * w * x_pitch) {
            int channel = i % x_pitch, pixel = i / x_pitch;
            float value = 0.0f;
            if (channel < c) {
                int column = pixel % w + pw, row = pixel / w % h + ph;
                int inner = c / groups, filters = k / groups, group = channel / inner;
                long long filter_step = (long long)kh * kw * w_pitch;
                const T *image = dy + (long long)(pixel / w / h) * oh * ow * y_pitch + group * filters;
                const T *window = weights + group * filters * filter_step + channel % inner;
                float sums[LANES] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
                for (int r = 0; r < kh; r++) {
                    int rows = row - r * dh;
                    if (rows < 0 || rows % sh != 0 || rows / sh >= oh) continue;
                    for (int s = 0; s < kw; s++) {
                        int columns = column - s * dw;
                        if (columns < 0 || columns % sw != 0 || columns / sw >= ow) continue;
                        const T *from = image + ((long long)(rows / sh) * ow + columns / sw) * y_pitch;
                        const T *by = window + (long long)(r * kw + s) * w_pitch;
                        NAME(add_products)(sums, from, 1, by, filter_step, filters);
                    }
                }
                value = sum_of_lanes(sums);
            }
            STORE(dx, i, value);
        }
    }
}

/* One thread per weight. A row of outputs is summed in float, the rows in double: there may be a
 * million pixels. */
KERNEL NAME(conv_backward_weights)(const T *x, const T *dy, float *dw_sums, GEOMETRY)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        int inner = c / groups;
        if (i < k * inner * kh * kw) {
            int s = i % kw, r = i / kw % kh, j = i / kw / kh % inner, filter = i / kw / kh / inner;
            int channel = filter / (k / groups) * inner + j;
            int start = first_inside(pw, s * dw, sw), end = end_inside(pw, s * dw, sw, w, ow);
            int top = first_inside(ph, r * dh, sh), bottom = end_inside(ph, r * dh, sh, h, oh);
            double total = 0.0;
            for (int image = 0; image < n; image++) {
                for (int row = top; row < bottom; row++) {
                    long long from_row = (long long)image * h + row * sh - ph + r * dh;
                    long long from = (from_row * w + start * sw - pw + s * dw) * x_pitch + channel;
                    long long to = (((long long)image * oh + row) * ow + start) * y_pitch + filter;
                    float sums[LANES] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
                    /* An empty row would be read before its start. */
                    if (start < end)
                        NAME(add_products)(sums, x + from, (long long)sw * x_pitch, dy + to, y_pitch,
                            end - start);
                    total = total + (double)sum_of_lanes(sums);
                }
            }
            dw_sums[i] = (float)total;
        }
    }
}

/* Adds the bias of its channel to every element, in place; lanes behind the last channel stay. */
KERNEL NAME(add_bias)(T *y, const float *bias, int relu, int count, int k, int y_pitch)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            int filter = i % y_pitch;
            float value = LOAD(y, i);
            if (filter < k) value = value + bias[filter];
            STORE(y, i, relu ? not_negative(value) : value);
        }
    }
}

/* sums[j] = what column j comes to over all pixels; one thread per column, blocks of rows in float. */
KERNEL NAME(column_sums)(const T *dy, float *sums, int pixels, int k, int y_pitch)
{
    EACH_THREAD(t, THREADS) {
        int j = BLOCK * THREADS + t;
        if (j < k) {
            double total = 0.0;
            const T *at = dy + j;
            for (int start = 0; start < pixels; start += 64) {
                int rows = lesser(64, pixels - start);
                float part[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
                int row = 0;
                for (; row + 4 <= rows; row += 4) {
                    for (int lane = 0; lane < 4; lane++)
                        part[lane] = part[lane] + LOAD(at, (long long)lane * y_pitch);
                    at += 4ll * y_pitch;
                }
                for (; row < rows; row++) {
                    part[0] = part[0] + LOAD(at, 0);
                    at += y_pitch;
                }
                total = total + (double)((part[0] + part[2]) + (part[1] + part[3]));
            }
            sums[j] = (float)total;
        }
    }
}
#undef GEOMETRY
