//! A bell that one process rings and others on its machine hear at once, without a file and without
//! looking: a socket with a name in the kernel's own name space (unix(7), "abstract"), which goes
//! with its process. Who listens connects; to ring is to take in every connection and end it. The
//! name says the process, so a stranger can take it first: then nobody hears anything, and looks
//! from time to time, as without a bell.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Listeners that one ring can reach.
const LISTENERS_MAX: u32 = 1024;

/// A process's bell. It can be rung once.
#[derive(Debug)]
pub struct Bell(UnixListener);

impl Bell {
    /// This process's own, from now on.
    ///
    /// # Errors
    /// The kernel's: the name is taken, above all.
    pub fn hang() -> io::Result<Self> {
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name_of(std::process::id()))?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Everybody who listens hears it.
    pub fn ring(self) {
        for _ in 0..LISTENERS_MAX {
            // What is accepted is dropped, which its other end sees.
            if self.0.accept().is_err() {
                return;
            }
        }
    }
}

/// Listens for the bell of a process of this machine. Readable or broken once it was rung.
///
/// # Errors
/// The kernel's: it has no bell, or too many listen already. It never waits for either.
pub fn listen(pid: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let descriptor = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let stream = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: plain numbers, for which zeros are a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = name_of(pid);
    // An abstract name begins with a zero.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    let address = (&raw const address).cast::<libc::sockaddr>();
    // SAFETY: the address lives, and has at least `length` bytes.
    match unsafe { libc::connect(stream.as_raw_fd(), address, length as libc::socklen_t) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

fn name_of(pid: u32) -> String {
    format!("kintsugi-call-{pid}")
}
