//! What a schedule is expected to take: one thread computes, one copies in each direction. Pure.

use super::schedule::{Costs, Turn};
use super::sequence::Uses;
use crate::engine::plan::placement::ALIGN_BYTES;
use crate::engine::plan::steps::{Action, Taken, Way};

/// What a turn does.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Doing {
    /// A step for the first time.
    Computes { step: usize },
    /// One that has run before, or loads what does not stay.
    Again { step: usize },
    /// A copy begins, which goes on beside what follows.
    Copies { way: Way, value: usize, from_seconds: f64, to_seconds: f64 },
    /// It is waited for, perhaps no time.
    Waits { value: usize },
    /// What this step loads is kept.
    Keeps { step: usize },
}

/// A turn, on the clock of who computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// What it does.
    pub doing: Doing,
    /// When it begins.
    pub from_seconds: f64,
    /// When the next one does.
    pub to_seconds: f64,
}

/// Plays a schedule, turn by turn.
pub fn play<'a>(
    uses: &'a Uses<'a>,
    turns: &'a [Turn],
    costs: &'a Costs,
) -> impl Iterator<Item = Moment> + 'a {
    let mut ran = vec![false; uses.draft.steps.len()];
    let mut done = vec![[0.0_f64; 2]; uses.draft.bytes.len()];
    let (mut clock, mut free) = (0.0_f64, [0.0_f64; 2]);
    turns.iter().map(move |turn| {
        let from_seconds = clock;
        let doing = match *turn {
            Turn::Step(step) => {
                clock += costs.step_seconds[step];
                let crossing = uses.draft.crossing_bytes(step);
                clock += (0..2).map(|way| crossing[way] as f64 / costs.rates[way]).sum::<f64>();
                // What was loaded before has gone since, or will.
                let is_load = matches!(uses.draft.steps[step].action, Action::Load { .. });
                match std::mem::replace(&mut ran[step], true) || is_load {
                    true => Doing::Again { step },
                    false => Doing::Computes { step },
                }
            }
            Turn::Begin(way, value) => {
                let lane = way as usize;
                let from_seconds = free[lane].max(clock);
                let to_seconds = from_seconds + uses.draft.bytes[value] as f64 / costs.rates[lane];
                free[lane] = to_seconds;
                done[value][lane] = to_seconds;
                Doing::Copies { way, value, from_seconds, to_seconds }
            }
            Turn::End(way, value) => {
                clock = clock.max(done[value][way as usize]);
                Doing::Waits { value }
            }
            // Once a state, in one micro-batch of many: not counted.
            Turn::Keep(step) | Turn::Hold(step) => Doing::Keeps { step },
        };
        Moment { doing, from_seconds, to_seconds: clock }
    })
}

/// What a schedule is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Forecast {
    /// All of it.
    pub seconds: f64,
    /// Of it, waiting for copies.
    pub waits: f64,
    /// Of it, computing again and loading copies of weights that do not stay.
    pub again: f64,
    /// Copied each way.
    pub moved_bytes: [u64; 2],
    /// Most bytes of values that live at once, before places are found for them.
    pub live_bytes: usize,
}

/// All that a schedule is expected to take.
pub fn seconds(uses: &Uses<'_>, turns: &[Turn], costs: &Costs) -> f64 {
    play(uses, turns, costs).last().map_or(0.0, |last| last.to_seconds)
}

/// Of one.
pub fn forecast(uses: &Uses<'_>, turns: &[Turn], costs: &Costs) -> Forecast {
    let mut forecast = Forecast::default();
    for moment in play(uses, turns, costs) {
        let seconds = moment.to_seconds - moment.from_seconds;
        match moment.doing {
            Doing::Computes { step } => {
                let crossing = uses.draft.crossing_bytes(step);
                (0..2).for_each(|way| forecast.moved_bytes[way] += crossing[way]);
            }
            Doing::Again { .. } => forecast.again += seconds,
            Doing::Waits { .. } => forecast.waits += seconds,
            Doing::Keeps { .. } => {}
            Doing::Copies { way, value, .. } => {
                forecast.moved_bytes[way as usize] += uses.draft.bytes[value] as u64;
            }
        }
        forecast.seconds = moment.to_seconds;
    }
    let profile = profile(uses, turns, &lives(uses, turns));
    forecast.live_bytes = profile.into_iter().max().unwrap_or(0);
    forecast
}

/// While contents of a value lie in the near tier, by turns, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Whose.
    pub value: usize,
    /// Turn that gives them.
    pub first: usize,
    /// Last one that touches them.
    pub last: usize,
}

/// All of them.
pub fn lives(uses: &Uses<'_>, turns: &[Turn]) -> Vec<Life> {
    let mut lives = Vec::new();
    let mut current: Vec<Option<Life>> = vec![None; uses.draft.bytes.len()];
    for (at, turn) in turns.iter().enumerate() {
        let of;
        let (reads, writes): (&[usize], &[usize]) = match *turn {
            Turn::Step(step) => (&uses.draft.steps[step].reads, &uses.draft.steps[step].writes),
            Turn::Keep(step) => (&[], &uses.draft.steps[step].writes),
            Turn::Hold(step) => (&uses.draft.steps[step].writes, &[]),
            Turn::Begin(Way::In, value) => {
                of = [value];
                (&[], &of)
            }
            Turn::Begin(Way::Out, value) | Turn::End(_, value) => {
                of = [value];
                (&of, &[])
            }
        };
        for &read in reads {
            let life = current[read].as_mut().expect("what is read is there");
            life.last = life.last.max(at);
        }
        for &value in writes.iter().filter(|&written| !reads.contains(written)) {
            lives.extend(current[value].replace(Life { value, first: at, last: at }));
        }
        for value in given(uses, *turn) {
            current[value].as_mut().expect("what is given is there").last = turns.len() - 1;
        }
    }
    lives.extend(current.into_iter().flatten());
    lives
}

/// What a turn gives that others take beside the turns that follow.
fn given(uses: &Uses<'_>, turn: Turn) -> Vec<usize> {
    match turn {
        Turn::Step(step) if uses.draft.taken == Taken::Later => {
            uses.draft.steps[step].action.given()
        }
        _ => Vec::new(),
    }
}

/// Bytes that live during each turn. What a step may write in the place of what it reads counts
/// once then: no placement needs less.
pub fn profile(uses: &Uses<'_>, turns: &[Turn], lives: &[Life]) -> Vec<usize> {
    let mut change = vec![0_isize; turns.len() + 2];
    // The last life of each value, and the one before each.
    let (mut latest, mut before) = (vec![None; uses.draft.bytes.len()], vec![None; lives.len()]);
    for (number, life) in lives.iter().enumerate() {
        before[number] = latest[life.value].replace(number);
    }
    let ends_at = |value: usize, at: usize| {
        let mut all = std::iter::successors(latest[value], |&number: &usize| before[number]);
        all.any(|number| lives[number].last == at)
    };
    for life in lives {
        if uses.draft.is_remote(life.value) {
            continue;
        }
        let size = uses.draft.bytes[life.value].next_multiple_of(ALIGN_BYTES) as isize;
        let taken = match turns[life.first] {
            Turn::Step(step) => {
                let mut pairs = uses.draft.steps[step].overwrites.iter();
                pairs.any(|pair| {
                    let is_near = !uses.draft.is_remote(pair.from);
                    is_near && pair.to == life.value && ends_at(pair.from, life.first)
                })
            }
            _ => false,
        };
        change[life.first + usize::from(taken)] += size;
        change[life.last + 1 + usize::from(taken && life.last == life.first)] -= size;
    }
    let mut live = 0;
    change[..turns.len()]
        .iter()
        .map(|&by| {
            live += by;
            live as usize
        })
        .collect()
}
