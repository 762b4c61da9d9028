/* The device's kernels for the host, from the same source, under the names that the driver is asked
 * for. Beside each stand its parameters: p a pointer, i an int, f a float, u a word of 64 bits. */
#include "prelude.cu"

#include "adaptive.cu"
#include "copy.cu"
#include "dropout.cu"
#include "statistics.cu"

#include "element_f32.cu"

#include "convolution.cu"
#include "depthwise.cu"
#include "elementwise.cu"
#include "lrn.cu"
#include "norm.cu"
#include "norm_planes.cu"
#include "pooling.cu"
#include "pooling_groups.cu"
#include "softmax.cu"

#include "element_bf16.cu"

#include "convolution.cu"
#include "depthwise.cu"
#include "elementwise.cu"
#include "lrn.cu"
#include "norm.cu"
#include "norm_planes.cu"
#include "pooling.cu"
#include "pooling_groups.cu"
#include "softmax.cu"

/* A macro for each of a list, which is read again as often as there are members, up to 64. */
#define READ(...) READ_1(READ_1(READ_1(READ_1(__VA_ARGS__))))
#define READ_1(...) READ_2(READ_2(READ_2(READ_2(__VA_ARGS__))))
#define READ_2(...) READ_3(READ_3(READ_3(READ_3(__VA_ARGS__))))
#define READ_3(...) __VA_ARGS__
#define NOTHING
#define LATER(name) name NOTHING
#define EACH_NAME() EACH
#define EACH(of, at, first, ...) of(at, first) __VA_OPT__(, LATER(EACH_NAME)()(of, at + 1, __VA_ARGS__))

#define BYTES(at, kind) BYTES_##kind
#define BYTES_p 8
#define BYTES_i 4
#define BYTES_f 4
#define BYTES_u 8

/* Pointers of no type become those of the kernel's parameters. */
#define ARGUMENT(at, kind) ARGUMENT_##kind(at)
#define ARGUMENT_p(at) *(void **)arguments[at]
#define ARGUMENT_i(at) *(int *)arguments[at]
#define ARGUMENT_f(at) *(float *)arguments[at]
#define ARGUMENT_u(at) *(word *)arguments[at]

#define TWIN_OF(name, ...)                                                                           \
    static void run_##name(void **arguments) { name(READ(EACH(ARGUMENT, 0, __VA_ARGS__))); }         \
    TWIN(name, run_##name, sizeof (char[]){ READ(EACH(BYTES, 0, __VA_ARGS__)) },                     \
        { READ(EACH(BYTES, 0, __VA_ARGS__)) });
#define TWINS_OF(name, ...)                                                                          \
    TWIN_OF(name##_f32, __VA_ARGS__)                                                                 \
    TWIN_OF(name##_bf16, __VA_ARGS__)

#define I4 i, i, i, i
#define COPY_LIST p, p, I4, I4, I4, I4, i
#define COPY_GROUPS_LIST p, p, I4, I4, I4, I4, i
#define GEOMETRY_LIST I4, I4, I4, I4, i, i
#define POOL_LIST I4, I4, I4, I4, I4
#define DEPTHWISE_LIST p, p, p, I4, I4, I4, I4, i, i, i
#define LRN_LIST I4, i, i, i, f, f, f
#define NORM_LIST I4, i, i

TWIN_OF(copy_f32_f32, COPY_LIST)
TWIN_OF(copy_f32_bf16, COPY_LIST)
TWIN_OF(copy_bf16_f32, COPY_LIST)
TWIN_OF(copy_bf16_bf16, COPY_LIST)
TWIN_OF(copy_groups_f32_f32, COPY_GROUPS_LIST)
TWIN_OF(copy_groups_f32_bf16, COPY_GROUPS_LIST)
TWIN_OF(copy_groups_bf16_f32, COPY_GROUPS_LIST)
TWIN_OF(copy_groups_bf16_bf16, COPY_GROUPS_LIST)
TWIN_OF(dropout_mask, p, p, i, u, f, i)
TWIN_OF(adaptive_forward, p, p, I4, i)
TWIN_OF(adaptive_backward, p, p, I4, i)
TWIN_OF(norm_statistics, p, p, p, I4)
TWIN_OF(norm_sums, p, p, p, i, i)
TWIN_OF(row_sums, p, p, i, i, i)
TWIN_OF(depthwise_sums, p, p, I4)

TWINS_OF(binary, p, p, p, i, i)
TWINS_OF(sum_backward, p, p, p, p, i)
TWINS_OF(binary_mask, p, p, p, i, i)
TWINS_OF(binary_strided, p, p, p, I4, I4, I4, i)
TWINS_OF(pointwise_forward, p, p, i, f, i)
TWINS_OF(pointwise_backward, p, p, p, i, f, i)
TWINS_OF(conv_forward, p, p, p, i, GEOMETRY_LIST)
TWINS_OF(conv_backward_data, p, p, p, i, GEOMETRY_LIST)
TWINS_OF(conv_backward_weights, p, p, p, GEOMETRY_LIST)
TWINS_OF(depthwise_forward_3, DEPTHWISE_LIST)
TWINS_OF(depthwise_forward_5, DEPTHWISE_LIST)
TWINS_OF(depthwise_forward_7, DEPTHWISE_LIST)
TWINS_OF(depthwise_forward_any, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_data_3, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_data_5, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_data_7, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_data_any, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_weights_3, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_weights_5, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_weights_7, DEPTHWISE_LIST)
TWINS_OF(depthwise_backward_weights_any, DEPTHWISE_LIST)
TWINS_OF(column_sums, p, p, i, i, i)
TWINS_OF(add_bias, p, p, I4)
TWINS_OF(max_pool_forward, p, p, p, i, POOL_LIST)
TWINS_OF(max_pool_backward, p, p, p, POOL_LIST)
TWINS_OF(average_pool_forward, p, p, i, POOL_LIST)
TWINS_OF(average_pool_backward, p, p, i, POOL_LIST)
TWINS_OF(max_pool_groups_forward, p, p, p, i, I4, I4, I4)
TWINS_OF(max_pool_groups_backward, p, p, p, I4, I4, I4)
TWINS_OF(average_pool_groups_forward, p, p, i, I4, I4, I4)
TWINS_OF(average_pool_groups_backward, p, p, i, I4, I4, I4)
TWINS_OF(lrn_forward, p, p, LRN_LIST)
TWINS_OF(lrn_backward, p, p, p, LRN_LIST)
TWINS_OF(softmax_forward, p, p, I4)
TWINS_OF(softmax_backward, p, p, p, I4)
TWINS_OF(softmax_rows_forward, p, p, i, i)
TWINS_OF(softmax_rows_backward, p, p, p, i, i)
TWINS_OF(norm_partials, p, p, NORM_LIST)
TWINS_OF(norm_forward, p, p, p, p, p, p, p, i, i, f, NORM_LIST)
TWINS_OF(norm_backward_partials, p, p, p, i, p, p, p, f, p, NORM_LIST)
TWINS_OF(norm_backward, p, p, p, i, p, p, p, p, p, f, i, p, NORM_LIST)
TWINS_OF(norm_planes_partials, p, p, I4, i)
TWINS_OF(norm_planes_forward, p, p, p, p, p, p, p, i, i, f, i, i, i)
TWINS_OF(norm_planes_backward_partials, p, p, p, i, p, p, p, f, p, I4, i)
TWINS_OF(norm_planes_backward, p, p, p, i, p, p, p, p, p, f, i, p, I4)
