/* What all kernels begin with. One source has two compilers: NVRTC makes machine code of it, the
 * host's C compiler the twins that the tests' fake driver runs. A kernel is a row of phases, each
 * EACH_THREAD; between two that hand something over stands TOGETHER. No phase is left early.
 *
 * The whole program is this text, element_f32, the files of elements, element_bf16, the same files
 * again, and once, anywhere after this, those without an element: copy, dropout, adaptive, statistics. */
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define HELPER static __device__ __forceinline__
#define SHARED __shared__
#define EACH_THREAD(t, count) for (int t = threadIdx.x, once = 1; once; once = 0)
#define TOGETHER() __syncthreads()
#define BLOCK ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#define BITS_OF_FLOAT(f) __float_as_uint(f)
#define FLOAT_OF_BITS(u) __uint_as_float(u)
#else
#include <math.h>
#include "twin.h"
#define KERNEL static void
#define HELPER static inline __attribute__((always_inline))
#define SHARED static __thread
#define EACH_THREAD(t, count) for (int t = 0; t < (count); t++)
#define TOGETHER()
#define BLOCK ((int)twin_block[0])
#define BLOCK_Y ((int)twin_block[1])
#define FMA(a, b, c) fmaf(a, b, c)
#define BITS_OF_FLOAT(f) ((union { float as; unsigned bits; }){ .as = (f) }.bits)
#define FLOAT_OF_BITS(u) ((union { unsigned bits; float as; }){ .bits = (u) }.as)
#endif

#define THREADS 256

typedef unsigned short bf16;
typedef unsigned long long word;

HELPER float load_f32(float from) { return from; }
HELPER float load_bf16(bf16 from) { return FLOAT_OF_BITS((unsigned)from << 16); }
HELPER float store_f32(float from) { return from; }

/* To the nearest, halves to even. A NaN is made one by its highest bit: rounding might carry it away. */
HELPER bf16 store_bf16(float from)
{
    unsigned bits = BITS_OF_FLOAT(from);
    unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

/* Not negative; a NaN stays one, so that whoever looks for it finds it. */
HELPER float not_negative(float x) { return x <= 0.0f ? 0.0f : x; }

/* Division of whole numbers, up; nothing negative may come in. */
HELPER int up(int a, int b) { return (a + b - 1) / b; }
HELPER int lesser(int a, int b) { return a < b ? a : b; }
HELPER int greater(int a, int b) { return a > b ? a : b; }
