//! A pass under unified memory (CUDA's managed memory), played over the tiers: nobody says what
//! leaves. What a step touches is brought when it is not there, and what makes room for it is
//! taken as a policy has it (Negishi et al., sections 3 and 4). A value is a unit, and computing
//! waits for every copy, as it waits for a fault. Pure.
//!
//! Each micro-batch begins with an empty near tier. The room of a value that nothing reads any
//! more is the next one's that is made, as a framework's allocator gives an address out again: what
//! fits in core moves nothing (Fig. 4). Where room is wanted for what comes back instead, such a
//! value is copied like any other, as a driver does that knows no better: only the design that
//! discards tells it.
//!
//! A value that is remote has no room and is never moved: steps use it where it lies, as a card
//! uses memory of the host that is mapped. So a step may touch more than there is room for.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::planner::MOVED_BYTES_MIN;
use super::schedule::Turn;
use super::sequence::Uses;
use crate::config::{MemoryDesign, MemoryPolicy};
use crate::engine::plan::placement::ALIGN_BYTES;
use crate::engine::plan::steps::Way;

/// Who says what about transfers, and who is taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// What the trainer says.
    pub design: MemoryDesign,
    /// Whom the driver takes.
    pub policy: MemoryPolicy,
}

/// The smallest room in which a pass can go on: that of the largest step, and of what is too small
/// to be moved.
pub fn least_room(uses: &Uses<'_>) -> usize {
    let small: usize = (0..uses.draft.bytes.len())
        .filter(|&value| !is_moved(uses, value))
        .map(|value| size(uses, value))
        .sum();
    let of_step = |step: usize| {
        let touched = touched(uses, step);
        touched
            .into_iter()
            .filter(|&value| is_moved(uses, value))
            .map(|value| size(uses, value))
            .sum()
    };
    let largest: usize = (0..uses.draft.steps.len()).map(of_step).max().unwrap_or(0);
    small + largest
}

/// What a pass does with room for so many bytes, at least `least_room`.
pub fn paged(uses: &Uses<'_>, paging: Paging, room_bytes: usize) -> Vec<Turn> {
    let values = uses.draft.bytes.len();
    let mut touches = vec![VecDeque::new(); values];
    for step in 0..uses.draft.steps.len() {
        touched(uses, step).into_iter().for_each(|value| touches[value].push_back(step));
    }
    let pages = vec![Page::default(); values];
    let (used_bytes, rank, turns) = (0, 0, Vec::new());
    let mut pager = Pager { uses, paging, room_bytes, used_bytes, pages, touches, rank, turns };
    for step in 0..uses.draft.steps.len() {
        if step == uses.forward && paging.design == MemoryDesign::Division {
            pager.say_order();
        }
        pager.step(step);
    }
    pager.turns
}

/// The largest value of the step that needs most room, which had better be remote; `None`: nothing
/// is left that could be.
pub fn in_the_way(uses: &Uses<'_>) -> Option<usize> {
    let moved = |step: usize| {
        touched(uses, step).into_iter().filter(|&value| is_moved(uses, value)).collect::<Vec<_>>()
    };
    let room = |values: &Vec<usize>| values.iter().map(|&value| size(uses, value)).sum::<usize>();
    let most = (0..uses.draft.steps.len()).map(moved).max_by_key(room)?;
    most.into_iter().max_by_key(|&value| size(uses, value))
}

/// Room that a value takes.
fn size(uses: &Uses<'_>, value: usize) -> usize {
    match uses.draft.is_remote(value) {
        true => 0,
        false => uses.draft.bytes[value].next_multiple_of(ALIGN_BYTES),
    }
}

fn is_moved(uses: &Uses<'_>, value: usize) -> bool {
    !uses.draft.is_remote(value) && uses.draft.bytes[value] >= MOVED_BYTES_MIN
}

/// The values of a step, each once.
fn touched(uses: &Uses<'_>, step: usize) -> Vec<usize> {
    let step = &uses.draft.steps[step];
    let mut all: Vec<usize> = step.reads.iter().chain(&step.writes).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Where a value is.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// It has room in the near tier ...
    is_near: bool,
    /// ... behind those with a lower rank.
    rank: u64,
    /// The far tier holds its contents.
    is_far: bool,
}

struct Pager<'a> {
    uses: &'a Uses<'a>,
    paging: Paging,
    room_bytes: usize,
    used_bytes: usize,
    pages: Vec<Page>,
    /// The steps to come that touch each value.
    touches: Vec<VecDeque<usize>>,
    rank: u64,
    turns: Vec<Turn>,
}

impl Pager<'_> {
    fn step(&mut self, step: usize) {
        let touched = touched(self.uses, step);
        touched.iter().for_each(|&value| self.bring(value, &touched));
        self.turns.push(Turn::Step(step));
        for &value in &self.uses.draft.steps[step].writes {
            self.pages[value].is_far = false;
        }
        for value in touched {
            self.touches[value].pop_front();
            let by_access = self.paging.policy == MemoryPolicy::Lru;
            match self.paging.design {
                MemoryDesign::DivisionWithDiscard if self.touches[value].is_empty() => {
                    self.leave(value);
                }
                // It is prefetched where it is: nothing moves but its rank.
                MemoryDesign::DivisionInPlace | MemoryDesign::DivisionWithDiscard => {
                    self.place_last(value);
                }
                MemoryDesign::Full | MemoryDesign::Division if by_access => self.place_last(value),
                MemoryDesign::Full | MemoryDesign::Division => {}
            }
        }
    }

    /// Prefetches what the backward pass will read, the first of it last. Nothing takes back what
    /// was asked for.
    fn say_order(&mut self) {
        let mut order: Vec<usize> = self.uses.saved.clone();
        order.sort_by_key(|&value| Reverse(self.touches[value].front().copied()));
        for value in order {
            if self.pages[value].is_near {
                self.place_last(value);
            } else {
                self.bring(value, &[value]);
            }
        }
    }

    /// Makes a value be there, where none of `stays` is taken for it.
    fn bring(&mut self, value: usize, stays: &[usize]) {
        if self.pages[value].is_near {
            return;
        }
        let is_new = !self.pages[value].is_far;
        while self.used_bytes + size(self.uses, value) > self.room_bytes {
            if let Some(dead) = self.dead().filter(|_| is_new) {
                self.leave(dead);
                continue;
            }
            let Some(victim) = self.victim(stays) else { break };
            if !self.pages[victim].is_far {
                self.turns.push(Turn::Begin(Way::Out, victim));
                self.turns.push(Turn::End(Way::Out, victim));
                self.pages[victim].is_far = true;
            }
            self.leave(victim);
        }
        if self.pages[value].is_far {
            self.turns.push(Turn::Begin(Way::In, value));
            self.turns.push(Turn::End(Way::In, value));
        }
        self.pages[value].is_near = true;
        self.used_bytes += size(self.uses, value);
        self.place_last(value);
    }

    fn victim(&self, stays: &[usize]) -> Option<usize> {
        let next_use = |value: usize| match self.paging.policy {
            MemoryPolicy::Belady => self.touches[value].front().copied().unwrap_or(usize::MAX),
            MemoryPolicy::Driver | MemoryPolicy::Lru => 0,
        };
        let near = (0..self.pages.len()).filter(|&value| self.pages[value].is_near);
        near.filter(|value| is_moved(self.uses, *value) && !stays.contains(value))
            .min_by_key(|&value| (Reverse(next_use(value)), self.pages[value].rank))
    }

    /// The oldest that nothing touches any more.
    fn dead(&self) -> Option<usize> {
        let is_dead = |value: &usize| self.pages[*value].is_near && self.touches[*value].is_empty();
        (0..self.pages.len()).filter(is_dead).min_by_key(|&value| self.pages[value].rank)
    }

    fn leave(&mut self, value: usize) {
        self.pages[value].is_near = false;
        self.used_bytes -= size(self.uses, value);
    }

    fn place_last(&mut self, value: usize) {
        self.rank += 1;
        self.pages[value].rank = self.rank;
    }
}
