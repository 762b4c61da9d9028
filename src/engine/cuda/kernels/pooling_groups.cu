/* Pooling of data with the channels last: a thread has eight channels of a pixel. Else as in pooling.cu,
 * with the same sums in the same order. c counts groups. */
#define POOL_GROUPS                                                                                  \
    int n, int groups, int h, int w, int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw

#ifndef POOLING_GROUPS_ONCE
#define POOLING_GROUPS_ONCE
/* How many columns a thread reads at once. */
#define POOL_AHEAD 3
#define POOL_WINDOWS_AHEAD 2

/* Which group element i is, and of which pixel. */
struct group_place { int image, row, column, channel; };
HELPER struct group_place group_place_of(int i, int groups, int h, int w)
{
    struct group_place p;
    int pixel = i / groups, line = pixel / w;
    p.channel = i % groups * LANES;
    p.column = pixel % w;
    p.row = line % h;
    p.image = line / h;
    return p;
}
/* Eight bytes, one for each channel. */
HELPER int byte_of(pair all, int lane)
{
    return (lane < 4 ? all.x >> 8 * lane : all.y >> 8 * (lane - 4)) & 255;
}
#endif

KERNEL NAME(max_pool_groups_forward)(const T *x, T *y, unsigned char *winners, int has_winners,
    POOL_GROUPS)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * groups * oh * ow) {
            struct group_place p = group_place_of(i, groups, oh, ow);
            const T *plane = x + (long long)p.image * h * w * groups * LANES + p.channel;
            int top = p.row * sh - ph, left = p.column * sw - pw;
            int bottom = lesser(top + kh, h), right = lesser(left + kw, w);
            int start_row = greater(top, 0), start = greater(left, 0), winner[LANES];
            struct eight best = eight_of(0.0f);
            /* The first one wins at first: then none of the others is another case. */
            if (start_row < bottom && start < right)
                best = NAME(load8)(plane + ((long long)start_row * w + start) * groups * LANES);
            UNROLL for (int lane = 0; lane < LANES; lane++)
                winner[lane] = (start_row - top) * kw + start - left;
            for (int row = start_row; row < bottom; row++) {
                const T *line = plane + (long long)row * w * groups * LANES;
                for (int column = start; column < right; column += POOL_AHEAD) {
                    struct eight read[POOL_AHEAD];
                    /* The last one again, which wins nothing, instead of those behind the end. */
                    UNROLL for (int k = 0; k < POOL_AHEAD; k++) {
                        int there = lesser(column + k, right - 1);
                        read[k] = NAME(load8)(line + (long long)there * groups * LANES);
                    }
                    UNROLL for (int k = 0; k < POOL_AHEAD; k++) {
                        int at = (row - top) * kw + column + k - left;
                        UNROLL for (int lane = 0; lane < LANES; lane++) {
                            float value = read[k].of[lane], most = best.of[lane];
                            int wins = value > most || (value != value && most == most);
                            best.of[lane] = wins ? value : most;
                            winner[lane] = wins ? at : winner[lane];
                        }
                    }
                }
            }
            NAME(store8)(y + (long long)i * LANES, best);
            if (has_winners) {
                pair all = { 0, 0 };
                UNROLL for (int lane = 0; lane < 4; lane++) {
                    all.x |= (unsigned)winner[lane] << 8 * lane;
                    all.y |= (unsigned)winner[lane + 4] << 8 * lane;
                }
                *(pair *)(winners + (long long)i * LANES) = all;
            }
        }
    }
}

KERNEL NAME(max_pool_groups_backward)(const T *dy, const unsigned char *winners, T *dx, POOL_GROUPS)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * groups * h * w) {
            struct group_place p = group_place_of(i, groups, h, w);
            long long plane = (long long)p.image * oh * ow * groups * LANES + p.channel;
            int row = p.row + ph, column = p.column + pw;
            int bottom = end_covering(row, sh, oh), right = end_covering(column, sw, ow);
            struct eight sum = eight_of(0.0f);
            for (int r = first_covering(row, kh, sh); r < bottom; r++) {
                for (int s = first_covering(column, kw, sw); s < right; s += POOL_WINDOWS_AHEAD) {
                    struct eight came[POOL_WINDOWS_AHEAD];
                    pair won[POOL_WINDOWS_AHEAD];
                    UNROLL for (int k = 0; k < POOL_WINDOWS_AHEAD; k++) {
                        long long at =
                            plane + ((long long)r * ow + lesser(s + k, right - 1)) * groups * LANES;
                        won[k] = *(const pair *)(winners + at);
                        came[k] = NAME(load8)(dy + at);
                    }
                    UNROLL for (int k = 0; k < POOL_WINDOWS_AHEAD; k++) {
                        /* No window behind the last has an element. */
                        int here = s + k < right ? (row - r * sh) * kw + column - (s + k) * sw : -1;
                        UNROLL for (int lane = 0; lane < LANES; lane++)
                            sum.of[lane] = byte_of(won[k], lane) == here
                                ? sum.of[lane] + came[k].of[lane] : sum.of[lane];
                    }
                }
            }
            NAME(store8)(dx + (long long)i * LANES, sum);
        }
    }
}

KERNEL NAME(average_pool_groups_forward)(const T *x, T *y, int inside, POOL_GROUPS)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * groups * oh * ow) {
            struct group_place p = group_place_of(i, groups, oh, ow);
            const T *plane = x + (long long)p.image * h * w * groups * LANES + p.channel;
            int top = p.row * sh - ph, left = p.column * sw - pw;
            int bottom = lesser(top + kh, h), right = lesser(left + kw, w);
            int rows = inside_of(p.row, kh, sh, ph, h), columns = inside_of(p.column, kw, sw, pw, w);
            struct eight sum = eight_of(0.0f);
            for (int row = greater(top, 0); row < bottom; row++) {
                const T *line = plane + (long long)row * w * groups * LANES;
                UNROLL_BY_4 for (int column = greater(left, 0); column < right; column++) {
                    struct eight here = NAME(load8)(line + (long long)column * groups * LANES);
                    UNROLL for (int lane = 0; lane < LANES; lane++)
                        sum.of[lane] = sum.of[lane] + here.of[lane];
                }
            }
            int area = inside ? greater(rows, 0) * greater(columns, 0) : kh * kw;
            UNROLL for (int lane = 0; lane < LANES; lane++)
                sum.of[lane] = sum.of[lane] / (float)greater(area, 1);
            NAME(store8)(y + (long long)i * LANES, sum);
        }
    }
}

KERNEL NAME(average_pool_groups_backward)(const T *dy, T *dx, int inside, POOL_GROUPS)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < n * groups * h * w) {
            struct group_place p = group_place_of(i, groups, h, w);
            const T *plane = dy + (long long)p.image * oh * ow * groups * LANES + p.channel;
            int row = p.row + ph, column = p.column + pw;
            int bottom = end_covering(row, sh, oh), right = end_covering(column, sw, ow);
            struct eight sum = eight_of(0.0f);
            for (int r = first_covering(row, kh, sh); r < bottom; r++) {
                int rows = inside_of(r, kh, sh, ph, h);
                for (int s = first_covering(column, kw, sw); s < right; s++) {
                    int area = inside ? rows * inside_of(s, kw, sw, pw, w) : kh * kw;
                    struct eight came = NAME(load8)(plane + ((long long)r * ow + s) * groups * LANES);
                    UNROLL for (int lane = 0; lane < LANES; lane++)
                        sum.of[lane] = sum.of[lane] + came.of[lane] / (float)area;
                }
            }
            NAME(store8)(dx + (long long)i * LANES, sum);
        }
    }
}
#undef POOL_GROUPS
