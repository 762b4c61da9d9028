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
