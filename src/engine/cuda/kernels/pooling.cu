/* Pooling over windows. Strides are given, so that channels may be last or first; threads walk along
 * what is contiguous. A padded place never wins and adds nothing. */
#define POOL                                                                                         \
    int n, int c, int h, int w, int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw,      \
        int xn, int xc, int xh, int xw, int yn, int yc, int yh, int yw

#ifndef POOLING_ONCE
#define POOLING_ONCE
/* What element i is, and where. */
struct place { int image, channel, row, column; };
HELPER struct place place_of(int i, int c, int h, int w, int channel_stride)
{
    struct place p;
    int last = channel_stride == 1;
    int pixel = last ? i / c : i;
    p.column = pixel % w;
    p.row = pixel / w % h;
    int plane = pixel / w / h;
    p.channel = last ? i % c : plane % c;
    p.image = last ? plane : plane / c;
    return p;
}

/* How many windows start too early, along one axis, to cover an element, and how many do not start
 * too late. `at` counts from the padding's start. */
HELPER int first_covering(int at, int window, int step)
{
    return at < window ? 0 : (at - window) / step + 1;
}
HELPER int end_covering(int at, int step, int windows) { return lesser(windows, at / step + 1); }

/* How much of window number `at`, along one axis, is no padding. */
HELPER int inside_of(int at, int window, int step, int padding, int length)
{
    int start = at * step - padding;
    return lesser(length, start + window) - greater(start, 0);
}
#endif

/* One thread per element of y. The first of equals wins, and a NaN over any number. */
KERNEL NAME(max_pool_forward)(const T *x, T *y, unsigned char *winners, int has_winners, POOL)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * c * oh * ow) {
            struct place p = place_of(i, c, oh, ow, yc);
            const T *plane = x + (long long)p.image * xn + (long long)p.channel * xc;
            int top = p.row * sh - ph, left = p.column * sw - pw, winner = 0, any = 0;
            float best = 0.0f;
            for (int r = 0; r < kh; r++) {
                int row = top + r;
                if (row < 0 || row >= h) continue;
                for (int s = 0; s < kw; s++) {
                    int column = left + s;
                    if (column < 0 || column >= w) continue;
                    float value = LOAD(plane, (long long)row * xh + (long long)column * xw);
                    if (!any || value > best || (value != value && best == best)) {
                        best = value;
                        winner = r * kw + s;
                        any = 1;
                    }
                }
            }
            long long to = (long long)p.image * yn + (long long)p.channel * yc +
                (long long)p.row * yh + (long long)p.column * yw;
            STORE(y, to, best);
            if (has_winners) winners[to] = (unsigned char)winner;
        }
    }
}

/* One thread per element of dx, which gathers from those windows that it won. */
KERNEL NAME(max_pool_backward)(const T *dy, const unsigned char *winners, T *dx, POOL)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * c * h * w) {
            struct place p = place_of(i, c, h, w, xc);
            long long plane = (long long)p.image * yn + (long long)p.channel * yc;
            int row = p.row + ph, column = p.column + pw;
            int bottom = end_covering(row, sh, oh), right = end_covering(column, sw, ow);
            float sum = 0.0f;
            for (int r = first_covering(row, kh, sh); r < bottom; r++) {
                for (int s = first_covering(column, kw, sw); s < right; s++) {
                    long long at = plane + (long long)r * yh + (long long)s * yw;
                    int here = (row - r * sh) * kw + column - s * sw;
                    if (winners[at] == here) sum = sum + LOAD(dy, at);
                }
            }
            STORE(dx, (long long)p.image * xn + (long long)p.channel * xc + (long long)p.row * xh +
                (long long)p.column * xw, sum);
        }
    }
}

/* One thread per element of y. `inside` counts only what is no padding. */
KERNEL NAME(average_pool_forward)(const T *x, T *y, int inside, POOL)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * c * oh * ow) {
            struct place p = place_of(i, c, oh, ow, yc);
            const T *plane = x + (long long)p.image * xn + (long long)p.channel * xc;
            int top = p.row * sh - ph, left = p.column * sw - pw;
            int bottom = lesser(top + kh, h), right = lesser(left + kw, w);
            int rows = inside_of(p.row, kh, sh, ph, h), columns = inside_of(p.column, kw, sw, pw, w);
            float sum = 0.0f;
            for (int row = greater(top, 0); row < bottom; row++)
                for (int column = greater(left, 0); column < right; column++)
                    sum = sum + LOAD(plane, (long long)row * xh + (long long)column * xw);
            /* A window of nothing but padding has the mean of nothing. */
            int area = inside ? greater(rows, 0) * greater(columns, 0) : kh * kw;
            STORE(y, (long long)p.image * yn + (long long)p.channel * yc + (long long)p.row * yh +
                (long long)p.column * yw, sum / (float)greater(area, 1));
        }
    }
}

/* One thread per element of dx, which gathers its share of every window that covers it. */
KERNEL NAME(average_pool_backward)(const T *dy, T *dx, int inside, POOL)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * c * h * w) {
            struct place p = place_of(i, c, h, w, xc);
            const T *plane = dy + (long long)p.image * yn + (long long)p.channel * yc;
            int row = p.row + ph, column = p.column + pw;
            int bottom = end_covering(row, sh, oh), right = end_covering(column, sw, ow);
            float sum = 0.0f;
            for (int r = first_covering(row, kh, sh); r < bottom; r++) {
                int rows = inside_of(r, kh, sh, ph, h);
                for (int s = first_covering(column, kw, sw); s < right; s++) {
                    int area = inside ? rows * inside_of(s, kw, sw, pw, w) : kh * kw;
                    sum = sum + LOAD(plane, (long long)r * yh + (long long)s * yw) / (float)area;
                }
            }
            STORE(dx, (long long)p.image * xn + (long long)p.channel * xc + (long long)p.row * xh +
                (long long)p.column * xw, sum);
        }
    }
}
#undef POOL
