/* Copies from any layout to any other, of up to five dimensions, from one kind of element to another. */
#define COPY(FROM, from_type, TO, to_type)                                                           \
    KERNEL copy_##FROM##_##TO(const from_type *from, to_type *to, int count, int d1, int d2, int d3, \
        int d4, int f0, int f1, int f2, int f3, int f4, int t0, int t1, int t2, int t3, int t4,      \
        int from_offset, int to_offset)                                                              \
    {                                                                                                \
        EACH_THREAD(t, THREADS) {                                                                    \
            int i = BLOCK * THREADS + t;                                                             \
            if (i < count) {                                                                         \
                int i4 = i % d4, over4 = i / d4;                                                     \
                int i3 = over4 % d3, over3 = over4 / d3;                                             \
                int i2 = over3 % d2, over2 = over3 / d2;                                             \
                int i1 = over2 % d1, i0 = over2 / d1;                                                \
                long long read = from_offset + (long long)i0 * f0 + (long long)i1 * f1 +             \
                    (long long)i2 * f2 + (long long)i3 * f3 + (long long)i4 * f4;                    \
                long long write = to_offset + (long long)i0 * t0 + (long long)i1 * t1 +              \
                    (long long)i2 * t2 + (long long)i3 * t3 + (long long)i4 * t4;                    \
                to[write] = store_##TO(load_##FROM(from[read]));                                     \
            }                                                                                        \
        }                                                                                            \
    }

COPY(f32, float, f32, float)
COPY(f32, float, bf16, bf16)
COPY(bf16, bf16, f32, float)
COPY(bf16, bf16, bf16, bf16)

/* The same by groups of eight channels, of tensors of four dimensions; on one side or on both the
 * channels are the innermost. A thread has one group of one pixel, and neighbours have what lies side
 * by side where it is read. Behind channel c stand zeros, if that is asked for, and behind number n of
 * the first dimension. */
#define COPY_GROUPS(FROM, from_type, TO, to_type)                                                    \
    KERNEL copy_groups_##FROM##_##TO(const from_type *from, to_type *to, int count, int n, int c,    \
        int groups, int d2, int d3, int f0, int f1, int f2, int f3, int t0, int t1, int t2, int t3,  \
        int from_offset, int to_offset, int fills)                                                   \
    {                                                                                                \
        EACH_THREAD(t, THREADS) {                                                                    \
            int i = BLOCK * THREADS + t;                                                             \
            if (i < count) {                                                                         \
                struct copy_place p = copy_place_of(i, groups, d2, d3, f1 == 1);                     \
                int left = p.outer < n ? lesser(c - p.channel, LANES) : 0;                           \
                const from_type *read = from + from_offset + (long long)p.outer * f0 +               \
                    (long long)p.channel * f1 + (long long)p.row * f2 + (long long)p.column * f3;    \
                to_type *write = to + to_offset + (long long)p.outer * t0 +                          \
                    (long long)p.channel * t1 + (long long)p.row * t2 + (long long)p.column * t3;    \
                struct eight all;                                                                    \
                if (left == LANES && f1 == 1 && (word)read % 16 == 0) {                              \
                    all = load8_##FROM(read);                                                        \
                } else {                                                                             \
                    UNROLL for (int lane = 0; lane < LANES; lane++)                                  \
                        all.of[lane] = lane < left ? load_##FROM(read[(long long)lane * f1]) : 0.0f; \
                }                                                                                    \
                if ((left == LANES || fills) && t1 == 1 && (word)write % 16 == 0) {                  \
                    store8_##TO(write, all);                                                         \
                } else {                                                                             \
                    UNROLL for (int lane = 0; lane < LANES; lane++)                                  \
                        if (lane < left || fills)                                                    \
                            write[(long long)lane * t1] = store_##TO(all.of[lane]);                  \
                }                                                                                    \
            }                                                                                        \
        }                                                                                            \
    }

struct copy_place { int outer, channel, row, column; };
HELPER struct copy_place copy_place_of(int i, int groups, int d2, int d3, int is_last)
{
    struct copy_place p;
    int rest = is_last ? i / groups : i;
    int group = is_last ? i % groups : i / d3 / d2 % groups;
    p.column = rest % d3;
    p.row = rest / d3 % d2;
    p.outer = is_last ? rest / d3 / d2 : rest / d3 / d2 / groups;
    p.channel = group * LANES;
    return p;
}

COPY_GROUPS(f32, float, f32, float)
COPY_GROUPS(f32, float, bf16, bf16)
COPY_GROUPS(bf16, bf16, f32, float)
COPY_GROUPS(bf16, bf16, bf16, bf16)
