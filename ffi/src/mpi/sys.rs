//! `ulfm_shim.h`, one to one; the header says what each function promises.

use std::ffi::{c_char, c_void};

/// `shim_comm`: a Fortran handle.
pub type ShimComm = i32;
/// `shim_type`.
pub type ShimType = i32;
/// `shim_op`.
pub type ShimOp = i32;

pub const SHIM_PROC_FAILED: i32 = 0;
pub const SHIM_PROC_FAILED_PENDING: i32 = 1;
pub const SHIM_REVOKED: i32 = 2;

pub const SHIM_TIMED_OUT: i32 = -1;
pub const SHIM_NO_ROOM: i32 = -2;

pub const SHIM_WORKAROUNDS_NOT_NEEDED: i32 = 0;
pub const SHIM_WORKAROUNDS_ACTIVE: i32 = 1;
pub const SHIM_WORKAROUNDS_UNREACHED: i32 = 2;
pub const SHIM_LAUNCHER_ASKED: i32 = 1;

unsafe extern "C" {
    pub fn shim_class_number(which: i32) -> i32;
    pub fn shim_start() -> i32;
    pub fn shim_world() -> ShimComm;
    pub fn shim_library_version(text: *mut c_char, size: i32) -> i32;
    pub fn shim_error_text(error_class: i32, text: *mut c_char, size: i32) -> i32;
    pub fn shim_finalize() -> i32;
    pub fn shim_workarounds() -> i32;
    pub fn shim_launcher() -> i32;

    pub fn shim_rank(comm: ShimComm, rank: *mut i32) -> i32;
    pub fn shim_size(comm: ShimComm, size: *mut i32) -> i32;
    pub fn shim_duplicate(comm: ShimComm, made: *mut ShimComm) -> i32;
    pub fn shim_split(comm: ShimComm, color: i32, key: i32, made: *mut ShimComm) -> i32;
    pub fn shim_park(comm: ShimComm) -> i32;

    pub fn shim_all_reduce(
        send: *const c_void,
        recv: *mut c_void,
        count: i32,
        datatype: ShimType,
        op: ShimOp,
        comm: ShimComm,
    ) -> i32;
    pub fn shim_all_gather(
        send: *const c_void,
        recv: *mut c_void,
        count: i32,
        datatype: ShimType,
        comm: ShimComm,
    ) -> i32;
    pub fn shim_broadcast(
        data: *mut c_void,
        count: i32,
        datatype: ShimType,
        root: i32,
        comm: ShimComm,
    ) -> i32;
    pub fn shim_barrier(comm: ShimComm) -> i32;
    pub fn shim_send(data: *const c_void, bytes: i32, to: i32, tag: i32, comm: ShimComm) -> i32;
    pub fn shim_recv(data: *mut c_void, bytes: i32, from: i32, tag: i32, comm: ShimComm) -> i32;
    pub fn shim_watch(comm: ShimComm, pids: *const i32, count: i32) -> i32;
    pub fn shim_recv_gently(
        data: *mut c_void,
        bytes: i32,
        from: i32,
        tag: i32,
        comm: ShimComm,
    ) -> i32;
    pub fn shim_recv_within(
        data: *mut c_void,
        bytes: i32,
        from: i32,
        tag: i32,
        comm: ShimComm,
        seconds: f64,
    ) -> i32;
    pub fn shim_touch(to: i32, from: i32, tag: i32, comm: ShimComm) -> i32;

    pub fn shim_share_core();
    pub fn shim_keep_core();
    pub fn shim_progress() -> i32;
    pub fn shim_notify(to: i32, tag: i32, comm: ShimComm) -> i32;
    pub fn shim_noticed(from: i32, tag: i32, comm: ShimComm, noticed: *mut i32) -> i32;

    pub fn shim_agree(comm: ShimComm, flags: *mut i32) -> i32;
    pub fn shim_revoke(comm: ShimComm) -> i32;
    pub fn shim_is_revoked(comm: ShimComm, revoked: *mut i32) -> i32;
    pub fn shim_shrink(comm: ShimComm, made: *mut ShimComm) -> i32;
    pub fn shim_failed_ranks(
        comm: ShimComm,
        ranks: *mut i32,
        capacity: i32,
        known: *mut i32,
    ) -> i32;

    pub fn shim_spawn(
        program: *const c_char,
        arguments: *const *const c_char,
        count: i32,
        host: *const c_char,
        inter: *mut ShimComm,
    ) -> i32;
    pub fn shim_parent(parent: *mut ShimComm) -> i32;
    pub fn shim_merge(inter: ShimComm, high: i32, made: *mut ShimComm) -> i32;
    pub fn shim_bridge(
        local: ShimComm,
        local_leader: i32,
        bridge: ShimComm,
        remote_leader: i32,
        tag: i32,
        made: *mut ShimComm,
    ) -> i32;
}
