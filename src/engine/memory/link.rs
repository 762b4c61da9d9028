//! A link that is slower than this machine's memory, emulated: when bytes that were sent over it
//! would have arrived. Pure; whoever copies waits until then.

use std::time::{Duration, Instant};

use crate::config::Rate;

/// Bytes that go over it at once.
pub const SLICE_BYTES: usize = 256 << 10;
/// Who comes late to the next slice, since it slept too long, makes up for so much of it.
const CREDIT_MAX: Duration = Duration::from_millis(10);

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    bytes_per_second: f64,
    /// When it has carried all that was sent.
    free: Instant,
}

impl Link {
    /// One that carries nothing yet.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { bytes_per_second: rate.0.max(1) as f64, free: now }
    }

    /// Something is sent that was there to be sent at `asked`: a link that was idle does not make
    /// up for it.
    pub fn begin(&mut self, asked: Instant) {
        self.free = self.free.max(asked);
    }

    /// What was sent and has not arrived by now is lost.
    pub fn cut(&mut self, now: Instant) {
        self.free = self.free.min(now);
    }

    /// When these bytes have arrived, which are sent now, after all before them.
    pub fn send(&mut self, bytes: usize, now: Instant) -> Instant {
        let latest = now.checked_sub(CREDIT_MAX).unwrap_or(now);
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        self.free = self.free.max(latest) + takes;
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn link() -> (Link, Instant) {
        let now = Instant::now();
        (Link::new(Rate(MIB as u64), now), now)
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn what_was_sent_together_arrives_one_after_the_other() {
        let (mut link, now) = link();
        for slice in 1..=8 {
            link.begin(now);
            assert_eq!(link.send(SLICE_BYTES, now), now + ms(250) * slice);
        }
    }

    #[test]
    fn who_sleeps_a_little_too_long_loses_nothing() {
        let (mut link, mut now) = link();
        let begun = now;
        link.begin(begun);
        for _ in 0..100 {
            now = link.send(MIB / 64, now) + ms(3);
        }
        assert_eq!(now, begun + Duration::from_micros(15_625) * 100 + ms(3));
    }

    #[test]
    fn neither_idleness_nor_a_slow_disk_is_made_up_for() {
        let (mut link, now) = link();
        let later = now + ms(5000);
        link.begin(later);
        assert_eq!(link.send(MIB, later), later + ms(1000));
        let latest = later + ms(60_000);
        assert_eq!(link.send(MIB, latest), latest + ms(1000) - CREDIT_MAX);
    }

    #[test]
    fn nobody_waits_for_what_was_lost() {
        let (mut link, now) = link();
        link.send(100 * MIB, now);
        link.cut(now + ms(1));
        assert_eq!(link.send(MIB, now + ms(1)), now + ms(1001));
    }

    #[test]
    fn no_rate_is_too_small_and_none_too_large() {
        let now = Instant::now();
        assert_eq!(Link::new(Rate(u64::MAX), now).send(MIB, now), now);
        assert_eq!(Link::new(Rate(0), now).send(1, now), now + ms(1000));
    }
}
