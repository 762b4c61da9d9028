//! Copies between the tiers, beside whatever is computed: begun by the thread that computes, made
//! by a thread for each direction, one after the other.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kintsugi_ffi::arena::{Arena, Span};
use kintsugi_ffi::operation::Access;

use super::far::{Carrier, FAR_ALIGN_BYTES, Far};
use super::lanes::{Job, Lanes};
use super::link::{Link, SLICE_BYTES};
use crate::config::Rate;
use crate::observe::panics::vital;
use crate::observe::threads;

pub use super::lanes::{Flow, QUEUE_MAX, WAYS, Way};

/// Copies of a direction that nobody has waited for; a plan has fewer.
const UNFINISHED_MAX: usize = 1 << 16;
/// No sleep is shorter, but the one that ends a copy: it would take longer than it says.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// To see how fast they are, copies are made each way for about so long, of so many bytes each at
/// most, over so many places: together more than a processor's cache has, where there is so much.
const MEASURED_TIME: Duration = Duration::from_millis(50);
const MEASURED_BYTES: usize = 4 << 20;
const MEASURED_PLACES: usize = 16;
/// So many at most; at least two, of a direction that is much slower than the other.
const MEASURED_MAX: usize = 60;
const MEASURED_MIN: usize = 2;
/// Bytes per second of what cannot be measured.
const ASSUMED_RATE: f64 = 1e9;

/// A copy that was begun: give it to `finish`.
#[derive(Debug)]
#[must_use = "nobody knows when it has ended"]
pub struct Ticket {
    way: Way,
    number: u64,
}

/// What went between the tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the far tier.
    pub out: Flow,
    /// Back from it.
    pub back: Flow,
    /// Time in which who computes waited for copies.
    pub waited: Duration,
}

/// Copies between an arena and the far tier, and the two threads that make them.
pub struct Copies {
    far: Far,
    link: [Option<Rate>; 2],
    lanes: Arc<Lanes>,
    begun: [u64; 2],
    /// Those of lower numbers were given up.
    given_up: [u64; 2],
    /// The far ends of those that nobody has waited for.
    unfinished: [VecDeque<(u64, Range<usize>)>; 2],
    waited: Duration,
}

impl Copies {
    /// Starts the threads. A `link` holds up each direction apart, out first: it is so fast at
    /// most.
    ///
    /// # Errors
    /// There are no threads to be had, or no memory for what is on its way to a disk.
    pub fn new(far: Far, link: [Option<Rate>; 2]) -> io::Result<Self> {
        let copies = Self {
            far,
            link,
            lanes: Arc::default(),
            begun: [0; 2],
            given_up: [0; 2],
            unfinished: Default::default(),
            waited: Duration::ZERO,
        };
        for (way, name) in WAYS.into_iter().zip(["far-out", "far-in"]) {
            let (lanes, carrier) = (Arc::clone(&copies.lanes), copies.far.carrier()?);
            let link = link[way as usize].map(|rate| Link::new(rate, Instant::now()));
            let copier = Copier { way, carrier, link, lanes };
            copies.lanes.enter(way);
            let thread = std::thread::Builder::new().name(name.into());
            if let Err(error) = thread.spawn(move || vital(|| copier.work())) {
                copies.lanes.leave(way);
                return Err(threads::explained(error));
            }
        }
        Ok(copies)
    }

    /// Begins to copy `span` of the near tier to, or from, `far_offset`. The span is lent until the
    /// copy has ended.
    ///
    /// # Panics
    /// Where the plan is wrong: the span is lent to somebody else, or outside; the far end is
    /// outside, no multiple of `FAR_ALIGN_BYTES`, or that of a copy the other way, which nobody
    /// has waited for.
    pub fn begin(&mut self, way: Way, near: &Arc<Arena>, span: Span, far_offset: usize) -> Ticket {
        let end = far_offset.checked_add(span.bytes).filter(|end| *end <= self.far.bytes());
        let Some(end) = end.filter(|_| far_offset.is_multiple_of(FAR_ALIGN_BYTES)) else {
            panic!("{span:?} has no place at {far_offset} of {} far bytes", self.far.bytes());
        };
        let range = far_offset..end;
        let meets =
            |(_, other): &&(u64, Range<usize>)| other.start < range.end && range.start < other.end;
        if let Some((_, other)) = self.unfinished[1 - way as usize].iter().find(meets) {
            panic!("{range:?} of the far tier meets a copy of {other:?} that may not have ended");
        }
        let access = match way {
            Way::Out => Access::Read,
            Way::In => Access::Write,
        };
        let (near, asked) = (near.hold(span, access), Instant::now());
        self.lanes.put(way, Job { near, far_offset, asked });
        self.waited += asked.elapsed();
        let number = self.begun[way as usize];
        self.begun[way as usize] += 1;
        let unfinished = &mut self.unfinished[way as usize];
        unfinished.push_back((number, range));
        assert!(unfinished.len() <= UNFINISHED_MAX, "copies that nobody waits for");
        Ticket { way, number }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The first of its direction, if it was not copied for that; it was given up.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used up")]
    pub fn finish(&mut self, ticket: Ticket) -> io::Result<()> {
        let Ticket { way, number } = ticket;
        let lane = way as usize;
        if number < self.given_up[lane] {
            return Err(io::Error::other("this copy was given up"));
        }
        let begun = Instant::now();
        let result = self.lanes.wait_for(way, number);
        self.waited += begun.elapsed();
        let unfinished = &mut self.unfinished[lane];
        while unfinished.front().is_some_and(|(other, _)| *other <= number) {
            unfinished.pop_front();
        }
        result
    }

    /// Whatever has begun has ended afterwards, copied or not: for who gives up in mid-pass. Errors
    /// are forgotten.
    pub fn drain(&mut self) {
        self.lanes.drain();
        self.given_up = self.begun;
        self.unfinished.iter_mut().for_each(VecDeque::clear);
    }

    /// What went each way, and how long `begin` and `finish` waited, since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        let [out, back] = self.lanes.take_flows();
        Traffic { out, back, waited: std::mem::take(&mut self.waited) }
    }

    /// Bytes per second of each direction, out first, while both copy at once. An emulated link is
    /// as fast as it says.
    pub fn rates(&self, near: &Arc<Arena>) -> [f64; 2] {
        // Nobody has to know: prices decide no bit.
        let measured = self.measure(near).ok().flatten().unwrap_or([ASSUMED_RATE; 2]);
        let most = self.link.map(|link| link.map_or(f64::INFINITY, |rate| rate.0 as f64));
        [0, 1].map(|way| measured[way].min(most[way]))
    }

    /// The same without a link, measured now between what is there, with threads of its own;
    /// nothing is under way, and nothing there is needed. `None`: it is too little to tell.
    fn measure(&self, near: &Arc<Arena>) -> io::Result<Option<[f64; 2]>> {
        let each = near.bytes().min(self.far.bytes()) / (WAYS.len() * MEASURED_PLACES);
        let each = each.min(MEASURED_BYTES) / FAR_ALIGN_BYTES * FAR_ALIGN_BYTES;
        if each == 0 {
            return Ok(None);
        }
        let half = MEASURED_PLACES * each;
        let mut copies = Self::new(self.far.clone(), [None; 2])?;
        // A disk reads what was never written faster than it can.
        let whole = copies.begin(Way::Out, near, Span { offset: 0, bytes: 2 * half }, 0);
        copies.finish(whole)?;
        let [first, _] = copies.lanes.take_flows();
        let seconds = first.busy.as_secs_f64() / (2 * MEASURED_PLACES) as f64;
        let number = (MEASURED_TIME.as_secs_f64() / seconds.max(1e-9)) as usize;
        let number = number.clamp(MEASURED_PLACES, MEASURED_MAX);
        let mut tickets = VecDeque::new();
        for at in 0..number {
            if at >= MEASURED_PLACES {
                // Both of the place that is used again.
                for ticket in tickets.drain(..WAYS.len()) {
                    copies.finish(ticket)?;
                }
            }
            for way in WAYS {
                let offset = at % MEASURED_PLACES * each + way as usize * half;
                let span = Span { offset, bytes: each };
                tickets.push_back(copies.begin(way, near, span, offset));
            }
        }
        // The direction of the large copy has ended one more.
        let flows = copies.lanes.wait_for_either(number as u64, 1 + MEASURED_MIN as u64);
        tickets.into_iter().try_for_each(|ticket| copies.finish(ticket))?;
        // Whoever divides by it divides by no zero, however coarse the clock is.
        let speed = |flow: Flow| flow.bytes.max(1) as f64 / flow.busy.as_secs_f64().max(1e-9);
        Ok(Some(flows.map(speed)))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.lanes.close();
    }
}

/// The thread of one direction.
struct Copier {
    way: Way,
    carrier: Carrier,
    link: Option<Link>,
    lanes: Arc<Lanes>,
}

impl Copier {
    fn work(mut self) {
        while let Some(mut job) = self.lanes.next(self.way) {
            let begun = Instant::now();
            let mut bytes = 0;
            let result = self.copy(&mut job, &mut bytes);
            // Whoever hears that it has ended may want what it had.
            drop(job);
            self.lanes.end(self.way, Flow { bytes, busy: begun.elapsed() }, result);
        }
        let (lanes, way) = (Arc::clone(&self.lanes), self.way);
        // Nothing of the far tier is open when somebody hears that this has ended.
        drop(self);
        lanes.leave(way);
    }

    /// Counts what it has copied.
    fn copy(&mut self, job: &mut Job, copied: &mut u64) -> io::Result<()> {
        let total = job.near.bytes().len();
        if let Some(link) = &mut self.link {
            link.begin(job.asked);
        }
        let most = self.link.as_ref().map_or(self.carrier.piece_bytes(), |_| SLICE_BYTES);
        for start in (0..total).step_by(most) {
            if !self.lanes.goes_on(self.way) {
                self.link.iter_mut().for_each(|link| link.cut(Instant::now()));
                break;
            }
            let piece = start..total.min(start + most);
            let far_offset = job.far_offset + start;
            match self.way {
                Way::Out => self.carrier.put(far_offset, &job.near.bytes()[piece.clone()])?,
                Way::In => {
                    self.carrier.get(far_offset, &mut job.near.bytes_mut()[piece.clone()])?
                }
            }
            *copied += piece.len() as u64;
            if let Some(link) = &mut self.link {
                let now = Instant::now();
                let arrived = link.send(piece.len(), now);
                let is_last = piece.end == total;
                if is_last || arrived.saturating_duration_since(now) >= SLEEP_MIN {
                    self.lanes.sleep_until(arrived);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
