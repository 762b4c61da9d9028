/* A convolution of four-dimensional tensors on the host: what its numbers must be, and its three
 * products. Products are of f32 and so are sums; bf16 is read exactly and written rounded to the
 * nearest, ties to even. The order of sums follows from the sizes alone. */
#ifndef KINTSUGI_CONVOLUTION_H
#define KINTSUGI_CONVOLUTION_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_FORWARD, PASS_DATA, PASS_WEIGHTS, PASSES };
#define MOST ((int64_t)1 << 20) /* no size is larger: products of sizes stay numbers */
enum { TYPE_F32 = 0, TYPE_BF16 = 9 }; /* as cuDNN numbers them */

/* In elements; the second size is of channels, of filters that of a group's. */
struct tensor { int64_t id, size[4], step[4]; };
/* All of it is 64-bit numbers, so that it can be written out and read as an array. */
struct convolution {
    int64_t pass, type;
    struct tensor x, w, y;
    int64_t stride[2], dilation[2], before[2], after[2];
};
#define CONVOLUTION_NUMBERS (sizeof(struct convolution) / sizeof(int64_t))

static const char *tensor_unfit(const struct tensor *t)
{
    for (int i = 0; i < 4; i++)
        if (t->size[i] < 1 || t->size[i] > MOST || t->step[i] < 1 || t->step[i] > MOST * MOST)
            return "sizes and strides are positive";
    return NULL;
}

/* What is wrong with it, or NULL. */
static const char *convolution_unfit(const struct convolution *of)
{
    const struct tensor *tensors[] = { &of->x, &of->w, &of->y };
    if (of->pass < 0 || of->pass >= PASSES) return "no such product";
    if (of->type != TYPE_F32 && of->type != TYPE_BF16) return "neither f32 nor bf16";
    for (int i = 0; i < 3; i++) {
        const char *why = tensor_unfit(tensors[i]);
        if (why) return why;
        if (tensors[i]->id == tensors[(i + 1) % 3]->id) return "two tensors have one number";
    }
    if (of->x.size[0] != of->y.size[0]) return "two numbers of samples";
    if (of->w.size[0] != of->y.size[1]) return "filters are not the channels of the result";
    if (of->x.size[1] % of->w.size[1]) return "a group's channels do not divide all";
    if (of->w.size[0] % (of->x.size[1] / of->w.size[1])) return "groups do not divide the filters";
    for (int i = 0; i < 2; i++) {
        if (of->stride[i] < 1 || of->dilation[i] < 1 || of->before[i] < 0 || of->after[i] < 0 ||
            of->stride[i] > MOST || of->dilation[i] > MOST || of->before[i] > MOST ||
            of->after[i] > MOST)
            return "no such window";
        int64_t all = of->x.size[2 + i] + of->before[i] + of->after[i];
        int64_t window = of->dilation[i] * (of->w.size[2 + i] - 1) + 1;
        if (all < window || (all - window) / of->stride[i] + 1 != of->y.size[2 + i])
            return "the size of the result does not follow from the others";
    }
    return NULL;
}

/* So many elements, a step apart, from the one at `first` on. */
static void elements_read(const void *from, int64_t type, int64_t first, int64_t step, int64_t count,
    float *to)
{
    if (type == TYPE_F32) {
        const float *f32 = (const float *)from + first;
        if (step == 1) memcpy(to, f32, (size_t)count * sizeof *to);
        else for (int64_t i = 0; i < count; i++) to[i] = f32[i * step];
        return;
    }
    const uint16_t *bf16 = (const uint16_t *)from + first;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)bf16[i * step] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

static void elements_write(const float *from, int64_t count, void *to, int64_t type, int64_t first,
    int64_t step)
{
    if (type == TYPE_F32) {
        float *f32 = (float *)to + first;
        for (int64_t i = 0; i < count; i++) f32[i * step] = from[i];
        return;
    }
    uint16_t *bf16 = (uint16_t *)to + first;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        /* Rounding must not make an infinity of what is no number. */
        int is_number = (bits & 0x7fffffff) <= 0x7f800000;
        uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        bf16[i * step] = (uint16_t)(is_number ? rounded >> 16 : bits >> 16 | 0x40);
    }
}

#define LANES 8
#define ROWS 8
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* Rows of c, eight columns of it: c += a b. Inlined for each number of rows, which keeps the sums in
 * registers. */
static inline __attribute__((always_inline)) void block(const int rows, int64_t depth, const float *a,
    int64_t a_row, int64_t a_depth, const float *b, int64_t b_depth, float *c, int64_t c_row)
{
    lanes sums[ROWS] = { 0 };
    for (int64_t k = 0; k < depth; k++) {
        lanes values = *(const lanes *)(b + k * b_depth);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sums[i] += a[i * a_row + k * a_depth] * values;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) *(lanes *)(c + i * c_row) += sums[i];
}

/* c += a b, for so many rows of c and columns, which are a multiple of eight. */
static void product(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row,
    int64_t a_depth, const float *b, int64_t b_depth, float *c, int64_t c_row)
{
    for (int64_t j = 0; j < columns; j += LANES) {
        int64_t i = 0;
        for (; i + ROWS <= rows; i += ROWS)
            block(ROWS, depth, a + i * a_row, a_row, a_depth, b + j, b_depth, c + i * c_row + j, c_row);
        for (; i < rows; i++)
            block(1, depth, a + i * a_row, a_row, a_depth, b + j, b_depth, c + i * c_row + j, c_row);
    }
}

/* Pixels of the result that are computed together. */
#define PIXELS 64

/* One group's part of the work. A patch is what a pixel of the result sees of the source: for each
 * place of the window the group's channels, then zeros up to a multiple of eight. */
struct group {
    const struct convolution *of;
    int64_t channels, filters, patch, patch_lanes, filter_lanes, channel, filter;
    float *patches, *results;
};

/* A pixel of the result. */
struct pixel { int64_t sample, at[2]; };
static struct pixel pixel_of(const struct group *g, int64_t number)
{
    int64_t width = g->of->y.size[3], height = g->of->y.size[2], row = number / width;
    return (struct pixel){ row / height, { row % height, number % width } };
}

/* Where the source's pixel lies that a place of the window sees, or -1 where that is padding. */
static inline int64_t seen(const struct convolution *of, struct pixel pixel, const int64_t place[2],
    const int64_t step[4])
{
    int64_t found = pixel.sample * step[0];
    for (int i = 0; i < 2; i++) {
        int64_t in = pixel.at[i] * of->stride[i] + place[i] * of->dilation[i] - of->before[i];
        if (in < 0 || in >= of->x.size[2 + i]) return -1;
        found += in * step[2 + i];
    }
    return found;
}

static void patches_read(const struct group *g, const void *x, int64_t pixel, int64_t pixels)
{
    const struct convolution *of = g->of;
    int64_t step = of->x.step[1], place[2];
    for (int64_t i = 0; i < pixels; i++) {
        struct pixel own = pixel_of(g, pixel + i);
        float *patch = g->patches + i * g->patch_lanes;
        for (place[0] = 0; place[0] < of->w.size[2]; place[0]++)
            for (place[1] = 0; place[1] < of->w.size[3]; place[1]++, patch += g->channels) {
                int64_t at = seen(of, own, place, of->x.step);
                if (at < 0) memset(patch, 0, (size_t)g->channels * sizeof *patch);
                else elements_read(x, of->type, at + g->channel * step, step, g->channels, patch);
            }
        memset(patch, 0, (size_t)(g->patch_lanes - g->patch) * sizeof *patch);
    }
}

/* Where the group's part of a pixel of the result lies. */
static int64_t result_at(const struct group *g, int64_t pixel)
{
    const int64_t *step = g->of->y.step;
    struct pixel own = pixel_of(g, pixel);
    return own.sample * step[0] + g->filter * step[1] + own.at[0] * step[2] + own.at[1] * step[3];
}

static void results_read(const struct group *g, const void *y, int64_t pixel, int64_t pixels)
{
    for (int64_t i = 0; i < pixels; i++)
        elements_read(y, g->of->type, result_at(g, pixel + i), g->of->y.step[1], g->filters,
            g->results + i * g->filter_lanes);
}

/* Where a place of a filter lies. */
static int64_t filter_at(const struct group *g, int64_t filter, int64_t place)
{
    const struct tensor *w = &g->of->w;
    return (g->filter + filter) * w->step[0] + place / w->size[3] * w->step[2] +
        place % w->size[3] * w->step[3];
}

/* Filters as patches: each a row. */
static float *filters_read(const struct group *g, const void *w)
{
    const struct convolution *of = g->of;
    float *all = calloc((size_t)(g->filters * g->patch_lanes), sizeof *all);
    for (int64_t k = 0; all && k < g->filters; k++)
        for (int64_t place = 0; place < of->w.size[2] * of->w.size[3]; place++)
            elements_read(w, of->type, filter_at(g, k, place), of->w.step[1], g->channels,
                all + k * g->patch_lanes + place * g->channels);
    return all;
}

static int group_forward(const struct group *g, const void *x, const void *w, void *y)
{
    int64_t all = g->of->y.size[0] * g->of->y.size[2] * g->of->y.size[3];
    float *rows = filters_read(g, w);
    float *filters = calloc((size_t)(g->patch * g->filter_lanes), sizeof *filters);
    for (int64_t k = 0; rows && filters && k < g->filters; k++)
        for (int64_t q = 0; q < g->patch; q++)
            filters[q * g->filter_lanes + k] = rows[k * g->patch_lanes + q];
    for (int64_t pixel = 0; rows && filters && pixel < all; pixel += PIXELS) {
        int64_t pixels = all - pixel < PIXELS ? all - pixel : PIXELS;
        patches_read(g, x, pixel, pixels);
        memset(g->results, 0, (size_t)(pixels * g->filter_lanes) * sizeof *g->results);
        product(pixels, g->filter_lanes, g->patch, g->patches, g->patch_lanes, 1, filters,
            g->filter_lanes, g->results, g->filter_lanes);
        for (int64_t i = 0; i < pixels; i++)
            elements_write(g->results + i * g->filter_lanes, g->filters, y, g->of->type,
                result_at(g, pixel + i), g->of->y.step[1]);
    }
    int done = rows && filters;
    free(rows);
    free(filters);
    return done;
}

static int group_data(const struct group *g, void *x, const void *w, const void *y)
{
    const struct convolution *of = g->of;
    const int64_t *size = of->x.size, c = g->channels;
    int64_t place[2];
    /* The source's gradient is gathered in f32, with channels last. */
    const int64_t step[4] = { size[2] * size[3] * c, 1, size[3] * c, c };
    int64_t all = of->y.size[0] * of->y.size[2] * of->y.size[3];
    float *gathered = calloc((size_t)(size[0] * step[0]), sizeof *gathered);
    float *filters = filters_read(g, w);
    for (int64_t pixel = 0; gathered && filters && pixel < all; pixel += PIXELS) {
        int64_t pixels = all - pixel < PIXELS ? all - pixel : PIXELS;
        results_read(g, y, pixel, pixels);
        memset(g->patches, 0, (size_t)(pixels * g->patch_lanes) * sizeof *g->patches);
        product(pixels, g->patch_lanes, g->filters, g->results, g->filter_lanes, 1, filters,
            g->patch_lanes, g->patches, g->patch_lanes);
        for (int64_t i = 0; i < pixels; i++) {
            struct pixel own = pixel_of(g, pixel + i);
            const float *patch = g->patches + i * g->patch_lanes;
            for (place[0] = 0; place[0] < of->w.size[2]; place[0]++)
                for (place[1] = 0; place[1] < of->w.size[3]; place[1]++, patch += c) {
                    int64_t at = seen(of, own, place, step);
                    for (int64_t j = 0; at >= 0 && j < c; j++) gathered[at + j] += patch[j];
                }
        }
    }
    int done = gathered && filters;
    for (int64_t i = 0; done && i < size[0] * size[2] * size[3]; i++) {
        int64_t row = i / size[3];
        int64_t at = row / size[2] * of->x.step[0] + g->channel * of->x.step[1] +
            row % size[2] * of->x.step[2] + i % size[3] * of->x.step[3];
        elements_write(gathered + i * c, c, x, of->type, at, of->x.step[1]);
    }
    free(gathered);
    free(filters);
    return done;
}

static int group_weights(const struct group *g, const void *x, void *w, const void *y)
{
    const struct convolution *of = g->of;
    int64_t all = of->y.size[0] * of->y.size[2] * of->y.size[3];
    float *sums = calloc((size_t)(g->filters * g->patch_lanes), sizeof *sums);
    for (int64_t pixel = 0; sums && pixel < all; pixel += PIXELS) {
        int64_t pixels = all - pixel < PIXELS ? all - pixel : PIXELS;
        results_read(g, y, pixel, pixels);
        patches_read(g, x, pixel, pixels);
        product(g->filters, g->patch_lanes, pixels, g->results, 1, g->filter_lanes, g->patches,
            g->patch_lanes, sums, g->patch_lanes);
    }
    for (int64_t k = 0; sums && k < g->filters; k++)
        for (int64_t place = 0; place < of->w.size[2] * of->w.size[3]; place++)
            elements_write(sums + k * g->patch_lanes + place * g->channels, g->channels, w, of->type,
                filter_at(g, k, place), of->w.step[1]);
    free(sums);
    return sums != NULL;
}

static int64_t whole_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* Whether it was computed: else memory is short. Its numbers fit, and tensors do not overlap. */
static int convolve(const struct convolution *of, void *x, void *w, void *y)
{
    int64_t groups = of->x.size[1] / of->w.size[1];
    struct group g = { .of = of, .channels = of->w.size[1], .filters = of->w.size[0] / groups };
    g.patch = g.channels * of->w.size[2] * of->w.size[3];
    g.patch_lanes = whole_lanes(g.patch);
    g.filter_lanes = whole_lanes(g.filters);
    g.patches = malloc((size_t)(PIXELS * g.patch_lanes) * sizeof *g.patches);
    g.results = malloc((size_t)(PIXELS * g.filter_lanes) * sizeof *g.results);
    int done = g.patches && g.results;
    for (int64_t i = 0; done && i < groups; i++) {
        g.channel = i * g.channels;
        g.filter = i * g.filters;
        done = of->pass == PASS_FORWARD ? group_forward(&g, x, w, y)
            : of->pass == PASS_DATA     ? group_data(&g, x, w, y)
                                        : group_weights(&g, x, w, y);
    }
    free(g.patches);
    free(g.results);
    return done;
}

#endif
