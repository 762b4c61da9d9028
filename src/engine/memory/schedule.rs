//! When copies between the tiers begin and end, beside the steps of a pass: pure.

use std::collections::VecDeque;

use super::far::FAR_ALIGN_BYTES;
use super::sequence::{Entry, Uses};
use crate::engine::plan::steps::{Action, Draft, Step, Way, When};

/// What takes how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Of each step of a draft.
    pub step_seconds: Vec<f64>,
    /// Bytes per second out and in, while both go on.
    pub rates: [f64; 2],
}

/// How copies go beside computing.
#[derive(Debug, Clone, Copy)]
pub enum Copying<'a> {
    /// Not at all: computing waits for each.
    AtOnce,
    /// As many segments ahead; `segments`: of each step of the draft (Imai et al., section 3).
    #[allow(missing_docs)]
    Ahead { segments: &'a [usize], window: usize },
    /// As late as the costs allow, with at most so many bytes on the way in each direction.
    #[allow(missing_docs)]
    Timed { costs: &'a Costs, flight_bytes_max: usize },
}

/// Copies out that `Copying::Ahead` has under way at most (the event queue of Imai et al.'s code).
const OUTSTANDING_MAX: usize = 4;

/// What a rewritten pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A step of the draft, by its number.
    Step(usize),
    /// A copy of a value begins.
    Begin(Way, usize),
    /// And is waited for.
    End(Way, usize),
    /// What a step of the draft loads is loaded, where that is stale.
    Keep(usize),
    /// And is there up to here.
    Hold(usize),
}

/// The entries with their copies taken apart.
pub fn schedule(uses: &Uses<'_>, entries: &[Entry], copying: Copying<'_>) -> Vec<Turn> {
    // Each with the entry before which it stands.
    let (mut ends, mut begins): (Standing, Standing);
    let copies = Copies::of(uses, entries);
    match copying {
        Copying::AtOnce => {
            ends = copies.out.iter().map(|of| (of.at + 1, of.value)).collect();
            begins = copies.back.iter().map(|of| (of.at, of.value)).collect();
        }
        Copying::Ahead { segments, window } => {
            let out_ends = copies.ahead_out();
            let back_begins = copies.ahead_in(entries, segments, window, &out_ends);
            [ends, begins] = copies.standing(entries.len(), &out_ends, &back_begins);
        }
        Copying::Timed { costs, flight_bytes_max } => {
            let (starts, out_ends) = copies.timed_out(entries, costs, flight_bytes_max);
            let back_begins = copies.timed_in(&starts, costs, flight_bytes_max, &out_ends);
            [ends, begins] = copies.standing(entries.len(), &out_ends, &back_begins);
        }
    }
    ends.sort_by_key(|&(at, _)| at);
    begins.sort_by_key(|&(at, _)| at);
    let (mut ends, mut begins) = (ends.into_iter().peekable(), begins.into_iter().peekable());
    let mut turns = Vec::with_capacity(entries.len() * 2);
    for at in 0..=entries.len() {
        while let Some((_, value)) = ends.next_if(|&(before, _)| before == at) {
            turns.push(Turn::End(Way::Out, value));
        }
        while let Some((_, value)) = begins.next_if(|&(before, _)| before == at) {
            turns.push(Turn::Begin(Way::In, value));
        }
        match entries.get(at) {
            Some(&Entry::Step(step)) => turns.push(Turn::Step(step)),
            Some(&Entry::Away(value)) => turns.push(Turn::Begin(Way::Out, value)),
            Some(&Entry::Back(value)) => turns.push(Turn::End(Way::In, value)),
            Some(&Entry::Keep(step)) => turns.push(Turn::Keep(step)),
            Some(&Entry::Hold(step)) => turns.push(Turn::Hold(step)),
            None => {}
        }
    }
    turns
}

/// One copy.
#[derive(Debug, Clone, Copy)]
struct Copy {
    value: usize,
    bytes: usize,
    /// The entry that it belongs to.
    at: usize,
    /// Of one back: the first entry before which it may begin, as far as earlier contents go.
    from: usize,
}

/// Values, each with the entry before which something of it stands.
type Standing = Vec<(usize, usize)>;

/// All of a pass, in order.
struct Copies {
    out: Vec<Copy>,
    back: Vec<Copy>,
    /// Where each value stands in `out`, and first in `back`.
    places: Vec<[Option<usize>; 2]>,
}

impl Copies {
    fn of(uses: &Uses<'_>, entries: &[Entry]) -> Self {
        let bytes = &uses.draft.bytes;
        let (mut out, mut back) = (Vec::new(), Vec::new());
        let (mut touched, mut places) = (vec![0; bytes.len()], vec![[None; 2]; bytes.len()]);
        for (at, entry) in entries.iter().enumerate() {
            match *entry {
                Entry::Step(step) => {
                    let step = &uses.draft.steps[step];
                    let all = step.reads.iter().chain(&step.writes);
                    all.for_each(|&value| touched[value] = at + 1);
                }
                Entry::Away(value) => {
                    places[value][0] = Some(out.len());
                    out.push(Copy { value, bytes: bytes[value], at, from: 0 });
                    touched[value] = at + 1;
                }
                Entry::Back(value) => {
                    places[value][1].get_or_insert(back.len());
                    back.push(Copy { value, bytes: bytes[value], at, from: touched[value] });
                    touched[value] = at + 1;
                }
                // Nothing of it is copied.
                Entry::Keep(_) | Entry::Hold(_) => {}
            }
        }
        Self { out, back, places }
    }

    /// Before which entry each copy out has ended, where a few may be under way.
    fn ahead_out(&self) -> Vec<usize> {
        let end = |number: usize| {
            let later = self.out.get(number + OUTSTANDING_MAX);
            later.map_or(usize::MAX, |later| later.at)
        };
        (0..self.out.len()).map(end).collect()
    }

    /// Before which entry each copy back begins: when a segment earlier one is begun.
    fn ahead_in(
        &self,
        entries: &[Entry],
        segments: &[usize],
        window: usize,
        out_ends: &[usize],
    ) -> Vec<usize> {
        let Some(first) = self.back.first().map(|back| back.at) else { return Vec::new() };
        // Where the backward pass goes over from one segment to the next.
        let mut borders: Vec<(usize, usize)> = Vec::new();
        let is_back = |at: usize| self.back.binary_search_by_key(&at, |back| back.at).is_ok();
        let mut opened = first;
        for (at, entry) in entries.iter().enumerate().skip(first) {
            let Entry::Step(step) = *entry else { continue };
            let segment = segments[step];
            if borders.last().is_none_or(|&(_, last)| last != segment) {
                // What comes back for it belongs to it.
                let waits = (opened..at).find(|&earlier| is_back(earlier));
                borders.push((waits.unwrap_or(at), segment));
            }
            opened = at + 1;
        }
        let begin = |back: &Copy| {
            let own = borders.partition_point(|&(at, _)| at <= back.at);
            let border = borders[own.saturating_sub(1 + window)].0;
            let wanted = if own > window { border } else { first };
            wanted.min(back.at).max(self.earliest(back, out_ends).min(back.at))
        };
        self.back.iter().map(begin).collect()
    }

    /// The first entry before which a copy back may begin: what it brings must be away by then.
    fn earliest(&self, back: &Copy, out_ends: &[usize]) -> usize {
        let away = self.places[back.value][0].map_or(0, |out| match out_ends[out] {
            usize::MAX => self.out[out].at + 1,
            end => end,
        });
        back.from.max(away)
    }

    /// When each entry begins, if nothing waits for what comes back, and before which one each copy
    /// out has ended.
    fn timed_out(
        &self,
        entries: &[Entry],
        costs: &Costs,
        flight_bytes_max: usize,
    ) -> (Vec<f64>, Vec<usize>) {
        let mut starts = Vec::with_capacity(entries.len() + 1);
        let mut ends = vec![usize::MAX; self.out.len()];
        let mut flight: VecDeque<(usize, f64)> = VecDeque::new();
        let (mut clock, mut free, mut bytes, mut next) = (0.0_f64, 0.0_f64, 0, 0);
        for (at, entry) in entries.iter().enumerate() {
            while let Some(&(number, _)) = flight.front().filter(|(_, end)| *end <= clock) {
                (ends[number], bytes) = (at, bytes - self.out[number].bytes);
                flight.pop_front();
            }
            if matches!(entry, Entry::Away(_)) {
                let out = self.out[next];
                while bytes + out.bytes > flight_bytes_max {
                    let Some((number, end)) = flight.pop_front() else { break };
                    clock = clock.max(end);
                    (ends[number], bytes) = (at, bytes - self.out[number].bytes);
                }
                free = free.max(clock) + out.bytes as f64 / costs.rates[0];
                flight.push_back((next, free));
                (bytes, next) = (bytes + out.bytes, next + 1);
            }
            starts.push(clock);
            if let Entry::Step(step) = *entry {
                clock += costs.step_seconds[step];
            }
        }
        starts.push(clock);
        (starts, ends)
    }

    /// Before which entry each copy back begins: as late as it may.
    fn timed_in(
        &self,
        starts: &[f64],
        costs: &Costs,
        flight_bytes_max: usize,
        out_ends: &[usize],
    ) -> Vec<usize> {
        let mut begins = vec![0; self.back.len()];
        let mut next = f64::INFINITY;
        for (number, back) in self.back.iter().enumerate().rev() {
            let latest = starts[back.at].min(next) - back.bytes as f64 / costs.rates[1];
            next = latest;
            let at = starts.partition_point(|&start| start <= latest).saturating_sub(1);
            begins[number] = at.min(back.at).max(self.earliest(back, out_ends).min(back.at));
        }
        // What is on the way is bounded: a copy may begin when earlier ones have ended.
        let (mut first, mut bytes) = (0, 0);
        for (number, (back, begin)) in self.back.iter().zip(&mut begins).enumerate() {
            bytes += back.bytes;
            while bytes > flight_bytes_max && first < number {
                bytes -= self.back[first].bytes;
                *begin = (*begin).max(self.back[first].at + 1);
                first += 1;
            }
            *begin = (*begin).min(back.at);
        }
        begins
    }

    /// Before which entry each copy out ends, and each back begins. One out ends before its
    /// value's copy back begins, and before the pass does, whose entries are so many.
    fn standing(&self, last: usize, out_ends: &[usize], back_begins: &[usize]) -> [Standing; 2] {
        let end = |(out, &end): (&Copy, &usize)| {
            let before = self.places[out.value][1].map_or(last, |back| back_begins[back]);
            (end.min(before).max(out.at + 1), out.value)
        };
        let begin = |(back, &begin): (&Copy, &usize)| (begin, back.value);
        let ends = self.out.iter().zip(out_ends).map(end).collect();
        [ends, self.back.iter().zip(back_begins).map(begin).collect()]
    }
}

/// The draft that does these turns, and the bytes of far tier that it wants.
pub fn rewritten(draft: &Draft, turns: &[Turn]) -> (Draft, usize) {
    let mut far: Vec<Option<usize>> = vec![None; draft.bytes.len()];
    let mut far_bytes = 0;
    let mut steps = Vec::with_capacity(turns.len());
    let mut node = 0;
    for turn in turns {
        let (way, value) = match *turn {
            Turn::Step(step) => {
                node = draft.steps[step].node;
                steps.push(draft.steps[step].clone());
                continue;
            }
            Turn::Keep(step) | Turn::Hold(step) => {
                steps.push(lasting(&draft.steps[step], *turn));
                continue;
            }
            Turn::Begin(way, value) | Turn::End(way, value) => (way, value),
        };
        let far_offset = *far[value].get_or_insert_with(|| {
            let offset = far_bytes;
            far_bytes += draft.bytes[value].next_multiple_of(FAR_ALIGN_BYTES);
            offset
        });
        let begins = matches!(turn, Turn::Begin(..));
        let (reads, writes) = match (begins, way) {
            (true, Way::In) => (Vec::new(), vec![value]),
            _ => (vec![value], Vec::new()),
        };
        let action = match begins {
            true => Action::BeginCopy { way, value, far_offset },
            false => Action::EndCopy { way, value, far_offset },
        };
        steps.push(Step { node, action, reads, writes, overwrites: Vec::new() });
    }
    let (bytes, weights) = (draft.bytes.clone(), draft.weights.clone());
    let remote = draft.remote.clone();
    (Draft { steps, bytes, weights, remote, taken: draft.taken }, far_bytes)
}

/// What is loaded once a state, and held until a pass ends.
fn lasting(load: &Step, turn: Turn) -> Step {
    let Action::Load { weight, value, .. } = load.action else {
        unreachable!("only what is loaded is kept from pass to pass")
    };
    let node = load.node;
    match turn {
        Turn::Hold(_) => {
            let action = Action::Hold { value };
            Step { node, action, reads: vec![value], writes: Vec::new(), overwrites: Vec::new() }
        }
        _ => Step { action: Action::Load { weight, value, when: When::Stale }, ..load.clone() },
    }
}
