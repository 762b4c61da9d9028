//! What launch and its agents say to each other: a JSON object a line over TCP, whose closing says
//! at once that a process or a node died; and beats as single datagrams, since after a short cut a
//! TCP connection stays silent up to twice as long as the cut was.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cluster::resident::Key;

/// Carries the word by which launch knows its agents; not an argument, which everybody can read.
pub const KEY_VARIABLE: &str = "KINTSUGI_AGENT_KEY";

/// A longer line is none of ours.
const LINE_BYTES_MAX: u64 = 4096;
/// A peer that takes no bytes for so long is as good as dead; beats decide that.
const WRITE_MAX: Duration = Duration::from_millis(500);

/// Beats in a time-out: several may be lost.
const BEATS: u32 = 10;
const BEAT_MIN: Duration = Duration::from_millis(50);
const BEAT_MAX: Duration = Duration::from_secs(1);

/// How often both sides say that they live.
pub fn beat_every(timeout: Duration) -> Duration {
    (timeout / BEATS).clamp(BEAT_MIN, BEAT_MAX)
}

/// Launch to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Launch lives.
    Beat,
    /// An attempt is about to start here: make its folders.
    Begin {
        /// Its name, `KINTSUGI_JOB` of its processes.
        job: String,
        /// Where launch's daemon has its sockets, and so every other.
        temporary: PathBuf,
        /// Likewise the segments of the ranks.
        shared_memory: PathBuf,
    },
    /// Its ranks are to write a checkpoint and end.
    Stop {
        /// Its name.
        job: String,
    },
    /// It is over: end what it left.
    End {
        /// Its name.
        job: String,
    },
    /// The run is complete: nobody needs its resident state.
    ClearSlots,
    /// Launch ends in order.
    Leave,
}

/// An agent to launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The first line.
    Hello {
        /// Launch's word.
        key: String,
        /// This node, as SLURM calls it.
        node: String,
        /// The newest state of the run here.
        newest: Option<[u64; 3]>,
    },
    /// It lives.
    Beat,
    /// `Begin` or `ClearSlots` is done, or why not.
    Done {
        /// For people.
        error: Option<String>,
    },
    /// `End` is done.
    Ended {
        /// What would not end, or could not be removed.
        error: Option<String>,
        /// The newest state of the run here.
        newest: Option<[u64; 3]>,
    },
}

/// A beat's datagram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Launch's word.
    pub key: String,
    /// The node that sends it, or is meant.
    pub node: String,
}

/// A slot's key on the wire.
pub fn to_words(key: Key) -> [u64; 3] {
    [u64::from(key.attempt), u64::from(key.generation), key.step]
}

/// And back; `None` where the numbers are none of a key.
pub fn from_words(words: [u64; 3]) -> Option<Key> {
    let [attempt, generation, step] = words;
    let (attempt, generation) = (u32::try_from(attempt).ok()?, u32::try_from(generation).ok()?);
    Some(Key { attempt, generation, step })
}

/// Sends one line.
///
/// # Errors
/// The connection's.
pub fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(WRITE_MAX))?;
    stream.write_all(&line)
}

/// What is said of a node whose end of the connection is gone.
const CLOSED: &str = "its connection closed";

/// Reads one line; an end of the connection is an error like any other.
///
/// # Errors
/// The connection's, and a line that is no message.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED)),
        // So it closes where the other end had not read all.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            Err(io::Error::new(error.kind(), CLOSED))
        }
        Err(error) => Err(error),
        Ok(_) => Ok(serde_json::from_slice(&line)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_closes_whether_or_not_all_was_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        for sent in [None, Some(Order::Beat)] {
            let other = TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
            let (own, _) = listener.accept().expect("it asked");
            if let Some(order) = &sent {
                send(&own, order).expect("sent");
                other.peek(&mut [0]).expect("it has come");
            }
            drop(other);
            let ended = receive::<Report>(&mut io::BufReader::new(&own)).expect_err("closed");
            assert_eq!(ended.to_string(), CLOSED, "{sent:?}");
        }
    }

    #[test]
    fn messages_survive_the_wire() {
        let key = Key { attempt: 3, generation: 1, step: 1 << 39 };
        assert_eq!(from_words(to_words(key)), Some(key));
        assert_eq!(from_words([u64::MAX, 0, 0]), None);
        let orders = [
            Order::Beat,
            Order::Begin {
                job: "kintsugi-0-1".into(),
                temporary: "/tmp/kintsugi-0-1.1a".into(),
                shared_memory: "/dev/shm/kintsugi-0-1.1a".into(),
            },
            Order::End { job: "kintsugi-0-1".into() },
            Order::ClearSlots,
            Order::Leave,
        ];
        let mut wire = Vec::new();
        for order in &orders {
            wire.extend(serde_json::to_vec(order).unwrap());
            wire.push(b'\n');
        }
        let mut from = io::Cursor::new(wire);
        for order in orders {
            assert_eq!(receive::<Order>(&mut from).unwrap(), order);
        }
        let end = receive::<Order>(&mut from).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_an_error_and_never_grows() {
        for bytes in [&b"GET / HTTP/1.1\n"[..], b"{}\n", b"\xff\xfe\n", &[b'x'; 10_000]] {
            assert!(receive::<Report>(&mut io::Cursor::new(bytes)).is_err());
        }
    }

    #[test]
    fn several_beats_fit_in_every_time_out() {
        for seconds in [1, 5, 600] {
            let timeout = Duration::from_secs(seconds);
            assert!(beat_every(timeout) * BEATS <= timeout);
        }
    }
}
