//! What a process that waits for hours needs of MPI: a look that costs microseconds and blocks
//! nowhere, messages that nobody waits for, a communicator of which only some are members, and a
//! bridge to processes that any of a group has started.

use super::result::{MpiError, check};
use super::safe::{BRIDGE_TAG, Comm, int};
use super::sys;

/// From now on whoever waits inside MPI sleeps between its looks as soon as it was interrupted for
/// another process: for chains of short messages where processes outnumber cores.
pub fn share_core() {
    // SAFETY: sets words of the shim's own.
    unsafe { sys::shim_share_core() }
}

/// Whoever waits inside MPI looks without pause again.
pub fn keep_core() {
    // SAFETY: sets a word of the shim's own.
    unsafe { sys::shim_keep_core() }
}

/// Lets MPI look at its connections once: news of failures, revocations and messages come in.
pub fn progress() -> Result<(), MpiError> {
    // SAFETY: looks for a message on MPI_COMM_SELF; writes nothing of ours.
    check("MPI_Iprobe", unsafe { sys::shim_progress() })
}

impl Comm {
    /// From now on the deaths of these processes are news as soon as they begin to end, before the
    /// runtime reports them: pids of this machine by rank, 0 for ranks elsewhere. Those given
    /// before are forgotten. How many are watched: none with an MPI that the shim does not know.
    pub fn watch(&self, pids: &[u32]) -> usize {
        let pids: Vec<i32> = pids.iter().map(|&pid| i32::try_from(pid).unwrap_or(0)).collect();
        // SAFETY: the array holds as many numbers as it says.
        let watched = unsafe { sys::shim_watch(self.handle, pids.as_ptr(), int(pids.len())) };
        usize::try_from(watched).unwrap_or(0)
    }

    /// Receives one word and leaves the core to others meanwhile.
    pub fn recv_word_gently(&self, from: usize, tag: u16) -> Result<u64, MpiError> {
        let mut word = [0_u8; size_of::<u64>()];
        let bytes = int(word.len());
        // SAFETY: the buffer holds `bytes` bytes and outlives the request: the shim returns when
        // it is complete, with success or an error.
        check("MPI_Irecv", unsafe {
            let into = word.as_mut_ptr().cast();
            sys::shim_recv_gently(into, bytes, int(from), i32::from(tag), self.handle)
        })?;
        Ok(u64::from_ne_bytes(word))
    }

    /// `MPI_Comm_split` into members, ordered by their key, and outsiders (`None`), who get
    /// nothing.
    pub fn divide(&self, key: Option<usize>) -> Result<Option<Self>, MpiError> {
        const OUTSIDE: i32 = -1;
        const CALL: &str = "MPI_Comm_split";
        let Some(key) = key else {
            let mut nothing = 0;
            // SAFETY: writes one handle, the null one.
            let class = unsafe { sys::shim_split(self.handle, OUTSIDE, 0, &mut nothing) };
            return check(CALL, class).map(|()| None);
        };
        let member = Self::make(CALL, |made| {
            // SAFETY: writes one handle.
            unsafe { sys::shim_split(self.handle, 0, int(key), made) }
        });
        member.map(Some)
    }

    /// `MPI_Intercomm_create` between this group, led by its rank 0, and the one of
    /// `remote_leader` in `bridge`. Only the leader has a bridge.
    pub fn bridge(&self, bridge: Option<&Self>, remote_leader: usize) -> Result<Self, MpiError> {
        const LEADER: i32 = 0;
        let bridge = bridge.map_or(self.handle, |bridge| bridge.handle);
        Self::make("MPI_Intercomm_create", |made| {
            // SAFETY: writes one handle.
            unsafe {
                sys::shim_bridge(self.handle, LEADER, bridge, int(remote_leader), BRIDGE_TAG, made)
            }
        })
    }

    /// Sends an empty message that nobody waits for.
    pub fn notify(&self, to: usize, tag: u16) -> Result<(), MpiError> {
        // SAFETY: no buffers.
        check("MPI_Isend", unsafe { sys::shim_notify(int(to), i32::from(tag), self.handle) })
    }

    /// Whether such a message has come; takes it. Never blocks.
    pub fn noticed(&self, from: usize, tag: u16) -> Result<bool, MpiError> {
        let mut noticed = 0;
        // SAFETY: writes one int.
        check("MPI_Iprobe", unsafe {
            sys::shim_noticed(int(from), i32::from(tag), self.handle, &mut noticed)
        })?;
        Ok(noticed != 0)
    }
}
