//! What we use of oneDNN 3.x's C API, one to one (`oneapi/dnnl/dnnl.h`, `dnnl_types.h`).
#![allow(missing_docs, non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::opaque::opaque;

opaque!(engine, stream, memory_desc, memory, primitive, primitive_desc, attr, post_ops);

pub type status = c_int;
pub type dims = [i64; 12];

#[repr(C)]
pub struct version_t {
    pub major: c_int,
    pub minor: c_int,
    pub patch: c_int,
    pub hash: *const c_char,
    pub cpu_runtime: c_uint,
    pub gpu_runtime: c_uint,
}

#[repr(C)]
pub struct exec_arg {
    pub arg: c_int,
    pub memory: *mut memory,
}

pub const SUCCESS: status = 0;
pub const CPU: c_int = 1;
pub const IN_ORDER: c_uint = 1;
pub const BF16: c_int = 2;
pub const F32: c_int = 3;
pub const SCRATCHPAD_USER: c_int = 1;
/// Products take their factors as they are.
pub const FPMATH_STRICT: c_int = 0;

pub const FORWARD_TRAINING: c_int = 64;
pub const FORWARD_INFERENCE: c_int = 96;
pub const BACKWARD: c_int = 128;

pub const CONVOLUTION_DIRECT: c_int = 0x1;
pub const ELTWISE_RELU: c_int = 0x20;
pub const ELTWISE_LINEAR: c_int = 0x26;
pub const ELTWISE_HARDSIGMOID: c_int = 0x28;
pub const ELTWISE_SWISH: c_int = 0x2c;
pub const ELTWISE_HARDSWISH: c_int = 0x34;
pub const ELTWISE_RELU_USE_DST: c_int = 0x100;
pub const ELTWISE_LOGISTIC_USE_DST: c_int = 0x104;
pub const ELTWISE_CLIP_V2_USE_DST: c_int = 0x106;
pub const POOLING_MAX: c_int = 0x1ff;
pub const POOLING_AVG_INCLUDE_PADDING: c_int = 0x2ff;
pub const POOLING_AVG_EXCLUDE_PADDING: c_int = 0x3ff;
pub const LRN_ACROSS_CHANNELS: c_int = 0xaff;
pub const SOFTMAX_ACCURATE: c_int = 0x30000;
pub const SOFTMAX_LOG: c_int = 0x30001;
pub const BINARY_ADD: c_int = 0x1fff0;
pub const BINARY_MUL: c_int = 0x1fff1;

pub const NORM_USE_GLOBAL_STATS: c_uint = 1;
pub const NORM_USE_SCALE: c_uint = 2;
pub const NORM_USE_SHIFT: c_uint = 4;
pub const NORM_FUSE_RELU: c_uint = 8;

pub const TAG_ANY: c_int = 1;
pub const TAG_A: c_int = 2;
pub const TAG_AB: c_int = 3;
pub const TAG_ABCD: c_int = 5;
pub const TAG_ABCDE: c_int = 6;

pub const QUERY_IMPL_INFO_STR: c_int = 8;
pub const QUERY_STRIDES: c_int = 14;
pub const QUERY_EXEC_ARG_MD: c_int = 255;
pub const QUERY_NDIMS: c_int = 256;
pub const QUERY_DIMS: c_int = 257;
pub const QUERY_DATA_TYPE: c_int = 258;
pub const QUERY_SUBMEMORY_OFFSET: c_int = 259;
pub const QUERY_PADDED_DIMS: c_int = 260;
pub const QUERY_INNER_NBLKS: c_int = 263;
pub const QUERY_INNER_BLKS: c_int = 264;
pub const QUERY_INNER_IDXS: c_int = 265;

unsafe extern "C" {
    pub fn omp_set_num_threads(threads: c_int);
    pub fn omp_set_dynamic(on: c_int);
    pub fn omp_get_thread_limit() -> c_int;
    pub fn omp_get_max_active_levels() -> c_int;
    pub fn omp_set_max_active_levels(levels: c_int);
    pub fn omp_get_num_threads() -> c_int;
    /// A region by a team of as many threads as one has now, where `threads` is 0 (libgomp's ABI).
    pub fn GOMP_parallel(
        body: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        threads: c_uint,
        flags: c_uint,
    );

    pub fn dnnl_version() -> *const version_t;
    pub fn dnnl_get_effective_cpu_isa() -> c_int;
    pub fn dnnl_get_cpu_isa_hints() -> c_int;
    pub fn dnnl_cpu_isa2str(isa: c_int) -> *const c_char;

    pub fn dnnl_engine_create(out: *mut *mut engine, kind: c_int, index: usize) -> status;
    pub fn dnnl_engine_destroy(engine: *mut engine) -> status;
    pub fn dnnl_stream_create(out: *mut *mut stream, engine: *mut engine, flags: c_uint) -> status;
    pub fn dnnl_stream_wait(stream: *mut stream) -> status;
    pub fn dnnl_stream_destroy(stream: *mut stream) -> status;

    pub fn dnnl_memory_desc_create_with_tag(
        out: *mut *mut memory_desc,
        ndims: c_int,
        dims: *const i64,
        data_type: c_int,
        tag: c_int,
    ) -> status;
    pub fn dnnl_memory_desc_clone(
        out: *mut *mut memory_desc,
        existing: *const memory_desc,
    ) -> status;
    pub fn dnnl_memory_desc_create_submemory(
        out: *mut *mut memory_desc,
        parent: *const memory_desc,
        dims: *const i64,
        offsets: *const i64,
    ) -> status;
    pub fn dnnl_memory_desc_destroy(desc: *mut memory_desc) -> status;
    pub fn dnnl_memory_desc_equal(a: *const memory_desc, b: *const memory_desc) -> c_int;
    pub fn dnnl_memory_desc_get_size(desc: *const memory_desc) -> usize;
    pub fn dnnl_memory_desc_query(
        desc: *const memory_desc,
        what: c_int,
        result: *mut c_void,
    ) -> status;

    pub fn dnnl_memory_create(
        out: *mut *mut memory,
        desc: *const memory_desc,
        engine: *mut engine,
        handle: *mut c_void,
    ) -> status;
    pub fn dnnl_memory_set_data_handle(memory: *mut memory, handle: *mut c_void) -> status;
    pub fn dnnl_memory_destroy(memory: *mut memory) -> status;

    pub fn dnnl_primitive_attr_create(out: *mut *mut attr) -> status;
    pub fn dnnl_primitive_attr_destroy(attr: *mut attr) -> status;
    pub fn dnnl_primitive_attr_set_scratchpad_mode(attr: *mut attr, mode: c_int) -> status;
    pub fn dnnl_primitive_attr_set_fpmath_mode(attr: *mut attr, mode: c_int) -> status;
    #[cfg(test)]
    pub fn dnnl_primitive_attr_get_fpmath_mode(attr: *const attr, mode: *mut c_int) -> status;
    #[cfg(test)]
    pub fn dnnl_set_default_fpmath_mode(mode: c_int) -> status;
    pub fn dnnl_primitive_attr_set_post_ops(attr: *mut attr, ops: *const post_ops) -> status;
    pub fn dnnl_post_ops_create(out: *mut *mut post_ops) -> status;
    pub fn dnnl_post_ops_destroy(ops: *mut post_ops) -> status;
    pub fn dnnl_post_ops_append_eltwise(
        ops: *mut post_ops,
        algorithm: c_int,
        alpha: f32,
        beta: f32,
    ) -> status;

    pub fn dnnl_primitive_desc_destroy(desc: *mut primitive_desc) -> status;
    pub fn dnnl_primitive_desc_query(
        desc: *const primitive_desc,
        what: c_int,
        index: c_int,
        result: *mut c_void,
    ) -> status;
    pub fn dnnl_primitive_desc_query_md(
        desc: *const primitive_desc,
        what: c_int,
        index: c_int,
    ) -> *const memory_desc;
    pub fn dnnl_primitive_create(out: *mut *mut primitive, desc: *const primitive_desc) -> status;
    pub fn dnnl_primitive_execute(
        primitive: *const primitive,
        stream: *mut stream,
        count: c_int,
        args: *const exec_arg,
    ) -> status;
    pub fn dnnl_primitive_destroy(primitive: *mut primitive) -> status;

    pub fn dnnl_reorder_primitive_desc_create(
        out: *mut *mut primitive_desc,
        from: *const memory_desc,
        from_engine: *mut engine,
        to: *const memory_desc,
        to_engine: *mut engine,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_concat_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        dst: *const memory_desc,
        count: c_int,
        dimension: c_int,
        sources: *const *const memory_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_binary_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        src0: *const memory_desc,
        src1: *const memory_desc,
        dst: *const memory_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_convolution_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        algorithm: c_int,
        src: *const memory_desc,
        weights: *const memory_desc,
        bias: *const memory_desc,
        dst: *const memory_desc,
        strides: *const i64,
        dilates: *const i64,
        padding_left: *const i64,
        padding_right: *const i64,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_convolution_backward_data_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        diff_src: *const memory_desc,
        weights: *const memory_desc,
        diff_dst: *const memory_desc,
        strides: *const i64,
        dilates: *const i64,
        padding_left: *const i64,
        padding_right: *const i64,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_convolution_backward_weights_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        src: *const memory_desc,
        diff_weights: *const memory_desc,
        diff_bias: *const memory_desc,
        diff_dst: *const memory_desc,
        strides: *const i64,
        dilates: *const i64,
        padding_left: *const i64,
        padding_right: *const i64,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_inner_product_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        src: *const memory_desc,
        weights: *const memory_desc,
        bias: *const memory_desc,
        dst: *const memory_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_inner_product_backward_data_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        diff_src: *const memory_desc,
        weights: *const memory_desc,
        diff_dst: *const memory_desc,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_inner_product_backward_weights_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        src: *const memory_desc,
        diff_weights: *const memory_desc,
        diff_bias: *const memory_desc,
        diff_dst: *const memory_desc,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_eltwise_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        algorithm: c_int,
        src: *const memory_desc,
        dst: *const memory_desc,
        alpha: f32,
        beta: f32,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_eltwise_backward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        diff_src: *const memory_desc,
        diff_dst: *const memory_desc,
        data: *const memory_desc,
        alpha: f32,
        beta: f32,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_softmax_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        algorithm: c_int,
        src: *const memory_desc,
        dst: *const memory_desc,
        axis: c_int,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_softmax_backward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        diff_src: *const memory_desc,
        diff_dst: *const memory_desc,
        dst: *const memory_desc,
        axis: c_int,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_pooling_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        algorithm: c_int,
        src: *const memory_desc,
        dst: *const memory_desc,
        strides: *const i64,
        kernel: *const i64,
        dilation: *const i64,
        padding_left: *const i64,
        padding_right: *const i64,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_pooling_backward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        diff_src: *const memory_desc,
        diff_dst: *const memory_desc,
        strides: *const i64,
        kernel: *const i64,
        dilation: *const i64,
        padding_left: *const i64,
        padding_right: *const i64,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_lrn_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        algorithm: c_int,
        src: *const memory_desc,
        dst: *const memory_desc,
        size: i64,
        alpha: f32,
        beta: f32,
        k: f32,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_lrn_backward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        algorithm: c_int,
        diff_src: *const memory_desc,
        diff_dst: *const memory_desc,
        src: *const memory_desc,
        size: i64,
        alpha: f32,
        beta: f32,
        k: f32,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_batch_normalization_forward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        src: *const memory_desc,
        dst: *const memory_desc,
        epsilon: f32,
        flags: c_uint,
        attr: *const attr,
    ) -> status;
    pub fn dnnl_batch_normalization_backward_primitive_desc_create(
        out: *mut *mut primitive_desc,
        engine: *mut engine,
        prop: c_int,
        diff_src: *const memory_desc,
        diff_dst: *const memory_desc,
        src: *const memory_desc,
        epsilon: f32,
        flags: c_uint,
        hint: *const primitive_desc,
        attr: *const attr,
    ) -> status;
}
