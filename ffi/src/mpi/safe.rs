//! An owned communicator whose every call returns what happened.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::time::Duration;

use mpi::collective::SystemOperation;
use mpi::datatype::Equivalence;
use mpi::raw::AsRaw;

use super::result::{MpiError, Workarounds, check, text, text_of};
use super::sys;

/// Elements of one MPI call; longer slices go in pieces (MPI counts are C ints).
const COUNT_MAX: usize = 1 << 28;
/// Of the messages that open connections.
const TOUCH_TAG: i32 = 32_001;
/// Of `MPI_Intercomm_create`.
pub(super) const BRIDGE_TAG: i32 = 32_002;

mod sealed {
    pub trait Sealed {}
}

/// What may be reduced and gathered.
pub trait Element: sealed::Sealed + Copy + Equivalence {
    /// As what it is summed: signed words as unsigned ones, since overflow of a C integer with a
    /// sign is undefined and ours wrap (the bits of the sum are the same).
    type Summand: Equivalence;
}

macro_rules! elements {
    ($($name:ty as $summand:ty),*) => {$(
        impl sealed::Sealed for $name {}
        impl Element for $name {
            type Summand = $summand;
        }
    )*};
}
elements!(f32 as f32, u64 as u64, i32 as u32, i64 as u64, u8 as u8);

fn datatype<T: Equivalence>() -> sys::ShimType {
    // SAFETY: the handle is a predefined datatype of a started MPI.
    unsafe { mpi::ffi::MPI_Type_c2f(T::equivalent_datatype().as_raw()) }
}

/// `MPI_SUM`; wraps for integers.
fn sum() -> sys::ShimOp {
    // SAFETY: the handle is a predefined operation.
    unsafe { mpi::ffi::MPI_Op_c2f(SystemOperation::sum().as_raw()) }
}

/// A communicator. Dropping it retires it: local, never fails; memory goes back in [`finalize`].
/// Not `Sync`: one thread at a time calls MPI.
#[derive(Debug)]
pub struct Comm {
    pub(super) handle: sys::ShimComm,
    retired: Cell<bool>,
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Starts MPI (thread level "serialized": any thread, one at a time) and gives the world.
///
/// # Errors
/// When MPI was started before, or its thread support is too weak.
pub fn initialise() -> Result<Comm, MpiError> {
    const CALL: &str = "MPI_Init_thread";
    let refuse = |text: String| MpiError::Other { call: CALL, class: 0, text };
    let Some((universe, provided)) = mpi::initialize_with_threading(mpi::Threading::Serialized)
    else {
        return Err(refuse("MPI was started before in this process".into()));
    };
    // `finalize` ends MPI under a guard; rsmpi's drop would do it anywhere.
    std::mem::forget(universe);
    if provided < mpi::Threading::Serialized {
        return Err(refuse(format!(
            "this MPI gives thread level {provided:?}; build it with thread support"
        )));
    }
    // SAFETY: MPI runs; sets error handlers of predefined communicators.
    check("MPI_Comm_set_errhandler", unsafe { sys::shim_start() })?;
    // SAFETY: MPI runs; the handle is predefined.
    Ok(Comm::own(unsafe { sys::shim_world() }))
}

/// Frees retired communicators and ends MPI. Not fault tolerant: bound it with `os::alarm`.
///
/// # Errors
/// What `MPI_Finalize` returned.
pub fn finalize() -> Result<(), MpiError> {
    // SAFETY: MPI was started by `initialise`; nothing calls it afterwards.
    check("MPI_Finalize", unsafe { sys::shim_finalize() })
}

/// `MPI_Get_library_version`, first words; works without starting MPI.
pub fn library_version() -> String {
    // SAFETY: the shim writes at most `size` bytes.
    let whole = text(|buffer, size| unsafe { sys::shim_library_version(buffer, size) });
    whole.split(',').next().unwrap_or_default().trim().to_owned()
}

/// Whether libmpi's defects are worked around here; definite after [`initialise`].
pub fn workarounds() -> Workarounds {
    // SAFETY: reads a flag.
    Workarounds::from_state(unsafe { sys::shim_workarounds() })
}

/// Whether MPI's start waits for what it asked the launcher's server; any thread may ask.
pub fn waits_for_launcher() -> bool {
    // SAFETY: reads an atomic flag.
    unsafe { sys::shim_launcher() == sys::SHIM_LAUNCHER_ASKED }
}

/// The compiler wrapper this was built with; `mpirun` is its sibling.
pub fn mpicc() -> &'static str {
    env!("KINTSUGI_MPICC")
}

/// `MPI_Error_string` of an error class.
pub fn error_text(class: i32) -> String {
    text_of(class)
}

/// The intercommunicator to the process that spawned this one.
///
/// # Errors
/// When nobody did.
pub fn parent() -> Result<Comm, MpiError> {
    Comm::make("MPI_Comm_get_parent", |made| {
        // SAFETY: writes one handle.
        unsafe { sys::shim_parent(made) }
    })
}

/// Starts `count` processes over `MPI_COMM_SELF`; gives the intercommunicator to them. `host` says
/// where ("name:slots"); without it the runtime chooses. May block for ever when a child dies
/// early: bound it with `os::alarm`.
///
/// # Errors
/// What `MPI_Comm_spawn` returned (class 14: no slot, no such host or program).
pub fn spawn(
    program: &str,
    arguments: &[String],
    count: usize,
    host: Option<&str>,
) -> Result<Comm, MpiError> {
    const CALL: &str = "MPI_Comm_spawn";
    let refuse = |what: &str| MpiError::Other {
        call: CALL,
        class: 0,
        text: format!("{what} contains a zero byte"),
    };
    let program = CString::new(program).map_err(|_| refuse("the program's path"))?;
    let arguments: Vec<CString> = arguments
        .iter()
        .map(|argument| CString::new(argument.as_str()).map_err(|_| refuse("an argument")))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const std::ffi::c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let host = host.map(CString::new).transpose().map_err(|_| refuse("the host"))?;
    let host = host.as_ref().map_or(std::ptr::null(), |host| host.as_ptr());
    Comm::make(CALL, |made| {
        // SAFETY: the strings outlive the call; the argument list ends with null.
        unsafe { sys::shim_spawn(program.as_ptr(), pointers.as_ptr(), int(count), host, made) }
    })
}

/// A count or rank as MPI takes it.
pub(super) fn int(value: usize) -> i32 {
    i32::try_from(value).expect("ranks, roots and pieces are far below 2^31")
}

/// Pieces of a long slice: (start, end).
fn pieces(length: usize, piece_max: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(piece_max).map(move |start| (start, length.min(start + piece_max)))
}

impl Comm {
    fn own(handle: sys::ShimComm) -> Self {
        Self { handle, retired: Cell::new(false) }
    }

    pub(super) fn make(
        call: &'static str,
        make: impl FnOnce(*mut sys::ShimComm) -> i32,
    ) -> Result<Self, MpiError> {
        let mut handle = 0;
        check(call, make(&mut handle))?;
        Ok(Self::own(handle))
    }

    /// What dropping does, for the owner of the last communicator before [`finalize`].
    pub fn retire(&self) {
        if !self.retired.replace(true) {
            // SAFETY: remembers a number in a table; any handle is allowed, at any time.
            unsafe { sys::shim_park(self.handle) };
        }
    }

    /// This process's rank.
    pub fn rank(&self) -> Result<usize, MpiError> {
        let mut rank = 0;
        // SAFETY: writes one int.
        check("MPI_Comm_rank", unsafe { sys::shim_rank(self.handle, &mut rank) })?;
        Ok(usize::try_from(rank).expect("MPI ranks are not negative"))
    }

    /// Ranks in it.
    pub fn size(&self) -> Result<usize, MpiError> {
        let mut size = 0;
        // SAFETY: writes one int.
        check("MPI_Comm_size", unsafe { sys::shim_size(self.handle, &mut size) })?;
        Ok(usize::try_from(size).expect("MPI sizes are not negative"))
    }

    /// `MPI_Comm_dup`.
    pub fn duplicate(&self) -> Result<Self, MpiError> {
        Self::make("MPI_Comm_dup", |made| {
            // SAFETY: writes one handle.
            unsafe { sys::shim_duplicate(self.handle, made) }
        })
    }

    /// `MPI_Comm_split` in which everybody has one color: the same processes, ordered by `key`.
    pub fn reorder(&self, key: usize) -> Result<Self, MpiError> {
        Self::make("MPI_Comm_split", |made| {
            // SAFETY: writes one handle.
            unsafe { sys::shim_split(self.handle, 0, int(key), made) }
        })
    }

    /// `MPI_Allreduce` with `MPI_SUM`, over distinct buffers of equal length.
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), MpiError> {
        assert_eq!(send.len(), recv.len(), "all_reduce: buffers differ in length");
        for (start, end) in pieces(send.len(), COUNT_MAX) {
            let (from, to) = (&send[start..end], &mut recv[start..end]);
            // SAFETY: both buffers hold `end - start` elements of the datatype.
            check("MPI_Allreduce", unsafe {
                sys::shim_all_reduce(
                    from.as_ptr().cast::<c_void>(),
                    to.as_mut_ptr().cast::<c_void>(),
                    int(end - start),
                    datatype::<T::Summand>(),
                    sum(),
                    self.handle,
                )
            })?;
        }
        Ok(())
    }

    /// `MPI_Allgather`: everybody's elements in rank order; `send` is of equal length everywhere.
    pub fn all_gather<T: Element + Default>(&self, send: &[T]) -> Result<Vec<T>, MpiError> {
        assert!(send.len() <= COUNT_MAX, "all_gather: too long for one call");
        let mut all = vec![T::default(); send.len() * self.size()?];
        // SAFETY: `all` has room for `send.len()` elements from each rank.
        check("MPI_Allgather", unsafe {
            sys::shim_all_gather(
                send.as_ptr().cast::<c_void>(),
                all.as_mut_ptr().cast::<c_void>(),
                int(send.len()),
                datatype::<T>(),
                self.handle,
            )
        })?;
        Ok(all)
    }

    /// `MPI_Bcast` from `root`.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), MpiError> {
        for (start, end) in pieces(data.len(), COUNT_MAX) {
            let piece = &mut data[start..end];
            // SAFETY: the buffer holds `end - start` elements of the datatype.
            check("MPI_Bcast", unsafe {
                sys::shim_broadcast(
                    piece.as_mut_ptr().cast::<c_void>(),
                    int(end - start),
                    datatype::<T>(),
                    int(root),
                    self.handle,
                )
            })?;
        }
        Ok(())
    }

    /// `MPI_Barrier`.
    pub fn barrier(&self) -> Result<(), MpiError> {
        // SAFETY: no buffers.
        check("MPI_Barrier", unsafe { sys::shim_barrier(self.handle) })
    }

    /// `MPI_Send` of bytes.
    pub fn send(&self, data: &[u8], to: usize, tag: u16) -> Result<(), MpiError> {
        for (start, end) in pieces(data.len(), COUNT_MAX) {
            let piece = &data[start..end];
            // SAFETY: the buffer holds `end - start` bytes.
            check("MPI_Send", unsafe {
                sys::shim_send(
                    piece.as_ptr().cast::<c_void>(),
                    int(end - start),
                    int(to),
                    i32::from(tag),
                    self.handle,
                )
            })?;
        }
        Ok(())
    }

    /// `MPI_Recv` of exactly `data.len()` bytes; sleeps between looks when nothing comes for long.
    pub fn recv(&self, data: &mut [u8], from: usize, tag: u16) -> Result<(), MpiError> {
        for (start, end) in pieces(data.len(), COUNT_MAX) {
            let piece = &mut data[start..end];
            // SAFETY: the buffer holds `end - start` bytes, and outlives the request: the shim
            // returns when it is complete, with success or an error.
            check("MPI_Recv", unsafe {
                sys::shim_recv(
                    piece.as_mut_ptr().cast::<c_void>(),
                    int(end - start),
                    int(from),
                    i32::from(tag),
                    self.handle,
                )
            })?;
        }
        Ok(())
    }

    /// A short message, or [`MpiError::TimedOut`].
    pub fn recv_within(
        &self,
        data: &mut [u8],
        from: usize,
        tag: u16,
        limit: Duration,
    ) -> Result<(), MpiError> {
        // SAFETY: the shim receives into memory of its own and copies at the end.
        check("MPI_Irecv", unsafe {
            sys::shim_recv_within(
                data.as_mut_ptr().cast::<c_void>(),
                int(data.len()),
                int(from),
                i32::from(tag),
                self.handle,
                limit.as_secs_f64(),
            )
        })
    }

    /// Exchanges one byte with every rank, so that every pair's connection is open while all live.
    pub fn warm(&self) -> Result<(), MpiError> {
        let (rank, size) = (self.rank()?, self.size()?);
        for distance in 1..size {
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            // SAFETY: no buffers of ours.
            check("MPI_Sendrecv", unsafe {
                sys::shim_touch(int(to), int(from), TOUCH_TAG, self.handle)
            })?;
        }
        Ok(())
    }

    /// `MPIX_Comm_agree`: the AND of the flags, and the call's own outcome; both uniform.
    pub fn agree(&self, flags: u32) -> (u32, Result<(), MpiError>) {
        let mut value = flags.cast_signed();
        // SAFETY: reads and writes one int.
        let class = unsafe { sys::shim_agree(self.handle, &mut value) };
        (value.cast_unsigned(), check("MPIX_Comm_agree", class))
    }

    /// `MPIX_Comm_revoke`. Never on the intercommunicator that [`spawn`] gave (it hangs).
    pub fn revoke(&self) -> Result<(), MpiError> {
        // SAFETY: no buffers.
        check("MPIX_Comm_revoke", unsafe { sys::shim_revoke(self.handle) })
    }

    /// `MPIX_Comm_is_revoked`.
    pub fn is_revoked(&self) -> Result<bool, MpiError> {
        let mut revoked = 0;
        // SAFETY: writes one int.
        check("MPIX_Comm_is_revoked", unsafe { sys::shim_is_revoked(self.handle, &mut revoked) })?;
        Ok(revoked != 0)
    }

    /// `MPIX_Comm_shrink`: the survivors in old order.
    pub fn shrink(&self) -> Result<Self, MpiError> {
        Self::make("MPIX_Comm_shrink", |made| {
            // SAFETY: writes one handle.
            unsafe { sys::shim_shrink(self.handle, made) }
        })
    }

    /// `MPIX_Comm_get_failed`: ranks this process knows to be dead, ascending. Local knowledge.
    pub fn failed_ranks(&self) -> Result<Vec<usize>, MpiError> {
        let mut ranks = vec![0_i32; self.size()?];
        let mut known = 0;
        // SAFETY: writes at most `ranks.len()` ints and the count.
        check("MPIX_Comm_get_failed", unsafe {
            sys::shim_failed_ranks(self.handle, ranks.as_mut_ptr(), int(ranks.len()), &mut known)
        })?;
        ranks.truncate(usize::try_from(known).unwrap_or_default());
        // They come in the order of their deaths.
        let mut ranks: Vec<usize> =
            ranks.into_iter().filter_map(|rank| usize::try_from(rank).ok()).collect();
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// `MPI_Intercomm_merge` for the group that takes the lower ranks.
    pub fn merge_low(&self) -> Result<Self, MpiError> {
        self.merge(0)
    }

    /// `MPI_Intercomm_merge` for the group that takes the higher ranks.
    pub fn merge_high(&self) -> Result<Self, MpiError> {
        self.merge(1)
    }

    fn merge(&self, high: i32) -> Result<Self, MpiError> {
        Self::make("MPI_Intercomm_merge", |made| {
            // SAFETY: writes one handle.
            unsafe { sys::shim_merge(self.handle, high, made) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_tile_a_long_slice() {
        assert_eq!(pieces(0, 4).count(), 0);
        assert_eq!(pieces(4, 4).collect::<Vec<_>>(), [(0, 4)]);
        assert_eq!(pieces(9, 4).collect::<Vec<_>>(), [(0, 4), (4, 8), (8, 9)]);
    }

    #[test]
    fn the_version_is_known_without_starting_mpi() {
        assert!(library_version().starts_with("Open MPI v"), "{}", library_version());
    }
}
