/* What all kernels begin with. One source has two compilers: NVRTC makes machine code of it, the
 * host's C compiler the twins that the tests' fake driver runs. A kernel is a row of phases, each
 * EACH_THREAD; between two that hand something over stands TOGETHER. No phase is left early.
 *
 * The whole program is this text, element_f32, the files of elements, element_bf16, the same files
 * again, and once, anywhere after this, those without an element: copy, dropout, adaptive, statistics. */
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define HELPER static __device__ __forceinline__
#define SHARED __shared__ __align__(16)
#define EACH_THREAD(t, count) for (int t = threadIdx.x, once = 1; once; once = 0)
#define TOGETHER() __syncthreads()
#define BLOCK ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#define BITS_OF_FLOAT(f) __float_as_uint(f)
#define FLOAT_OF_BITS(u) __uint_as_float(u)
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_4 _Pragma("unroll 4")
typedef uint4 quad;
typedef uint2 pair;
#else
#include <math.h>
#include "twin.h"
#define KERNEL static void
#define HELPER static inline __attribute__((always_inline))
#define SHARED static __thread __attribute__((aligned(16)))
#define EACH_THREAD(t, count)                                                                      \
    for (int t = twin_backwards ? (count) - 1 : 0, onward = twin_backwards ? -1 : 1;               \
        t >= 0 && t < (count); t += onward)
#define TOGETHER()
#define BLOCK ((int)twin_block[0])
#define BLOCK_Y ((int)twin_block[1])
#define FMA(a, b, c) fmaf(a, b, c)
#define BITS_OF_FLOAT(f) ((union { float as; unsigned bits; }){ .as = (f) }.bits)
#define FLOAT_OF_BITS(u) ((union { unsigned bits; float as; }){ .bits = (u) }.as)
#define UNROLL
#define UNROLL_BY_4
typedef struct { unsigned x, y, z, w; } __attribute__((may_alias, aligned(16))) quad;
typedef struct { unsigned x, y; } __attribute__((may_alias, aligned(8))) pair;
#endif

#define THREADS 256
/* Channels of a group: those that one thread reads at once. */
#define LANES 8

typedef unsigned short bf16;
typedef unsigned long long word;

HELPER float load_f32(float from) { return from; }
HELPER float load_bf16(bf16 from) { return FLOAT_OF_BITS((unsigned)from << 16); }
HELPER float store_f32(float from) { return from; }

/* To the nearest, halves to even. A NaN stays one, but not the same one for both compilers: the
 * device has an instruction for two numbers, of which the lower half of a word is the first. */
#ifdef __CUDACC_RTC__
HELPER unsigned two_bf16(float lower, float upper)
{
    unsigned two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(upper), "f"(lower));
    return two;
}
HELPER bf16 store_bf16(float from) { return (bf16)two_bf16(from, 0.0f); }
#else
HELPER bf16 store_bf16(float from)
{
    unsigned bits = BITS_OF_FLOAT(from);
    unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    /* Of a NaN the highest bit is set: rounding might carry it away. */
    return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}
HELPER unsigned two_bf16(float lower, float upper)
{
    return store_bf16(lower) | (unsigned)store_bf16(upper) << 16;
}
#endif

/* Not negative; a NaN stays one, so that whoever looks for it finds it. */
HELPER float not_negative(float x) { return x <= 0.0f ? 0.0f : x; }

/* Division of whole numbers, up; nothing negative may come in. */
HELPER int up(int a, int b) { return (a + b - 1) / b; }
HELPER int lesser(int a, int b) { return a < b ? a : b; }
HELPER int greater(int a, int b) { return a > b ? a : b; }

/* Elements side by side, of which the first lies at a multiple of 16 bytes. */
struct eight { float of[LANES]; };

HELPER struct eight eight_of(float value)
{
    struct eight all;
    UNROLL for (int lane = 0; lane < LANES; lane++) all.of[lane] = value;
    return all;
}
HELPER struct eight load8_f32(const float *from)
{
    quad a = ((const quad *)from)[0], b = ((const quad *)from)[1];
    struct eight all = { { FLOAT_OF_BITS(a.x), FLOAT_OF_BITS(a.y), FLOAT_OF_BITS(a.z), FLOAT_OF_BITS(a.w),
        FLOAT_OF_BITS(b.x), FLOAT_OF_BITS(b.y), FLOAT_OF_BITS(b.z), FLOAT_OF_BITS(b.w) } };
    return all;
}
HELPER void store8_f32(float *to, struct eight all)
{
    quad a = { BITS_OF_FLOAT(all.of[0]), BITS_OF_FLOAT(all.of[1]), BITS_OF_FLOAT(all.of[2]),
        BITS_OF_FLOAT(all.of[3]) };
    quad b = { BITS_OF_FLOAT(all.of[4]), BITS_OF_FLOAT(all.of[5]), BITS_OF_FLOAT(all.of[6]),
        BITS_OF_FLOAT(all.of[7]) };
    ((quad *)to)[0] = a;
    ((quad *)to)[1] = b;
}

HELPER float lower_bf16(unsigned two) { return FLOAT_OF_BITS(two << 16); }
HELPER float upper_bf16(unsigned two) { return FLOAT_OF_BITS(two & 0xffff0000u); }
HELPER struct eight load8_bf16(const bf16 *from)
{
    quad q = *(const quad *)from;
    struct eight all = { { lower_bf16(q.x), upper_bf16(q.x), lower_bf16(q.y), upper_bf16(q.y),
        lower_bf16(q.z), upper_bf16(q.z), lower_bf16(q.w), upper_bf16(q.w) } };
    return all;
}
HELPER void store8_bf16(bf16 *to, struct eight all)
{
    quad q = { two_bf16(all.of[0], all.of[1]), two_bf16(all.of[2], all.of[3]),
        two_bf16(all.of[4], all.of[5]), two_bf16(all.of[6], all.of[7]) };
    *(quad *)to = q;
}

/* Zeros instead of the lanes from number `most` on. */
HELPER void clear_from(struct eight *all, int most)
{
    if (most < LANES) UNROLL for (int lane = 0; lane < LANES; lane++)
        all->of[lane] = lane < most ? all->of[lane] : 0.0f;
}
