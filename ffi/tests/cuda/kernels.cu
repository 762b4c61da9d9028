/* Kernels for tests, of one source: NVRTC makes machine code of it, the host's compiler a twin. A
 * kernel is a row of phases; all threads end one before any begins the next. */
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__ void
#define SHARED __shared__
#define EACH_THREAD(t, count) for (int t = threadIdx.x, once = 1; once; once = 0)
#define TOGETHER() __syncthreads()
#define BLOCK ((int)blockIdx.x)
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#else
#include <math.h>
#include "twin.h"
#define KERNEL static void
#define SHARED static __thread
#define EACH_THREAD(t, count) for (int t = 0; t < (count); t++)
#define TOGETHER()
#define BLOCK ((int)twin_block[0])
#define FMA(a, b, c) fmaf(a, b, c)
#endif

#define THREADS 64

/* to += factor * from */
KERNEL scale_add(float *to, const float *from, float factor, int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) to[i] = FMA(factor, from[i], to[i]);
    }
}

/* sums[block] = the block's part of from, in a fixed order */
KERNEL block_sums(float *sums, const float *from, int count)
{
    SHARED float part[THREADS];
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        part[t] = i < count ? from[i] : 0.0f;
    }
    TOGETHER();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        EACH_THREAD(t, THREADS) {
            if (t < half) part[t] = part[t] + part[t + half];
        }
        TOGETHER();
    }
    EACH_THREAD(t, THREADS) {
        if (t == 0) sums[BLOCK] = part[0];
    }
}

#ifndef __CUDACC_RTC__
static void run_scale_add(void **a)
{
    scale_add(*(float **)a[0], *(const float **)a[1], *(float *)a[2], *(int *)a[3]);
}
TWIN(scale_add, run_scale_add, 4, { 8, 8, 4, 4 });

static void run_block_sums(void **a)
{
    block_sums(*(float **)a[0], *(const float **)a[1], *(int *)a[2]);
}
TWIN(block_sums, run_block_sums, 3, { 8, 8, 4 });
#endif
