//! A world of one: what `kintsugi train` without mpirun runs on.

use std::collections::VecDeque;

use crate::config::Point;

use super::{
    Agreement, Call, CommError, Communicator, Elements, Membership, SpawnError, SpawnRequest,
    Waiting,
};

/// The communicator of a process that is alone.
#[derive(Debug, Default)]
pub struct SoloComm {
    revoked: bool,
    /// Messages to itself that were not received yet.
    mail: VecDeque<(u32, Vec<u8>)>,
}

impl SoloComm {
    fn usable(&self) -> Result<(), CommError> {
        if self.revoked { Err(CommError::Revoked) } else { Ok(()) }
    }
}

fn fatal(call: &'static str, text: String) -> CommError {
    CommError::Fatal { call, class: 0, text }
}

fn only_rank(call: &'static str, rank: usize) -> Result<(), CommError> {
    if rank == 0 { Ok(()) } else { Err(fatal(call, format!("rank {rank} of a world of one"))) }
}

impl Communicator for SoloComm {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, elements: Elements<'_>) -> Result<(), CommError> {
        self.usable()?;
        match elements {
            Elements::F32(send, recv) => recv.copy_from_slice(send),
            Elements::U64(send, recv) => recv.copy_from_slice(send),
            Elements::I32(send, recv) => recv.copy_from_slice(send),
            Elements::I64(send, recv) => recv.copy_from_slice(send),
        }
        Ok(())
    }

    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        self.usable()?;
        Ok(send.to_vec())
    }

    fn broadcast(&mut self, _data: &mut [u8], root: usize) -> Result<(), CommError> {
        self.usable()?;
        only_rank("broadcast", root)
    }

    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        self.usable()?;
        only_rank("send", to)?;
        self.mail.push_back((tag, data.to_vec()));
        Ok(())
    }

    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        self.usable()?;
        only_rank("recv", from)?;
        let place = self.mail.iter().position(|(sent, _)| *sent == tag);
        let Some((_, body)) = place.and_then(|place| self.mail.remove(place)) else {
            return Err(fatal("recv", format!("nobody will ever send tag {tag} here")));
        };
        if body.len() != data.len() {
            let text = format!("{} bytes were sent, {} expected", body.len(), data.len());
            return Err(fatal("recv", text));
        }
        data.copy_from_slice(&body);
        Ok(())
    }

    fn agree(&mut self, flags: u32) -> Agreement {
        Agreement { flags, outcome: Ok(()) }
    }

    fn revoke(&mut self) {
        self.revoked = true;
    }

    fn shrink(&mut self) -> Result<(), CommError> {
        self.revoked = false;
        self.mail.clear();
        Ok(())
    }

    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        self.usable()?;
        Ok(word)
    }

    fn warm(&mut self) -> Result<(), CommError> {
        self.usable()
    }

    fn is_broken(&mut self) -> bool {
        self.revoked
    }

    /// It waits for nobody.
    fn wait_by(&mut self, _waiting: Waiting) {}
}

/// Nobody stands beside it, and nobody can be brought in: there is no launcher.
impl Membership for SoloComm {
    fn ranks(&self) -> usize {
        1
    }

    fn waits(&self) -> bool {
        false
    }

    fn born(&self) -> u32 {
        0
    }

    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        self.all_gather_u64(words)
    }

    fn spawn_and_merge(
        &mut self,
        _request: &SpawnRequest,
        _reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        Err(no_launcher())
    }

    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError> {
        if seats == [Some(0)] {
            return Ok(());
        }
        Err(fatal("seat", format!("a world of one cannot be seated as {seats:?}")))
    }

    fn watch(&mut self, _pids: &[u32]) {}

    fn lived_through_repair(&mut self) {}

    /// No world goes on that could call it.
    fn await_call(&mut self, _pids: &[u32], _idle: &mut dyn FnMut()) -> Call {
        Call::Abandoned
    }

    fn failed_spares(&mut self) -> Vec<usize> {
        Vec::new()
    }

    fn finalize(&mut self) {}
}

fn no_launcher() -> SpawnError {
    SpawnError::Refused("there is no launcher; start with `kintsugi launch`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_over_one_is_a_copy() {
        let mut comm = SoloComm::default();
        let mut sum = [0.0; 2];
        comm.all_reduce(Elements::F32(&[1.5, -2.0], &mut sum)).unwrap();
        assert_eq!(sum, [1.5, -2.0]);
        assert_eq!(comm.all_gather_u64(&[3, 4]).unwrap(), [3, 4]);
        assert!(comm.agree(0b101).committed());
        assert!(!comm.agree(0b100).committed());
    }

    #[test]
    fn a_revoked_world_refuses_everything_but_agree_until_it_is_shrunk() {
        let mut comm = SoloComm::default();
        comm.revoke();
        assert_eq!(comm.all_gather_u64(&[1]), Err(CommError::Revoked));
        assert_eq!(comm.warm(), Err(CommError::Revoked));
        assert!(comm.agree(1).committed());
        comm.shrink().unwrap();
        assert_eq!(comm.all_gather_u64(&[1]), Ok(vec![1]));
    }

    #[test]
    fn mail_to_oneself_arrives_by_tag_and_a_missing_one_is_an_error_not_a_hang() {
        let mut comm = SoloComm::default();
        comm.send(&[1], 0, 7).unwrap();
        comm.send(&[2], 0, 8).unwrap();
        let mut byte = [0];
        comm.recv(&mut byte, 0, 8).unwrap();
        assert_eq!(byte, [2]);
        assert!(!comm.recv(&mut byte, 0, 8).unwrap_err().starts_recovery());
        assert!(comm.send(&[1], 1, 7).is_err());
    }
}
