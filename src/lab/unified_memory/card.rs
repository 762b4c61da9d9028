//! The ten actions on a card: what is gone takes longer to touch. More is asked of the card than it
//! has, which only its owner may do.

use std::sync::Arc;
use std::time::Instant;

use kintsugi_ffi::cuda::{self, Buffer, Context, Side, Stream};
use serde::Serialize;

use super::actions::{ACTIONS, Action, Call, Seconds, Setting, TOUCHED};
use super::pager::{Advice, Place};
use crate::config::MemoryPolicy;
use crate::observe::spans::amount;

/// A touch that takes so many times the quickest one was of something that was not there.
const SLOW: f64 = 4.0;
/// Others' memory on a card that is one's own, at most; a desktop has some.
const OTHERS_SHARE_MAX: f64 = 0.1;

/// What was seen of one action.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Its number in the paper.
    pub action: u8,
    /// What is done.
    pub calls: String,
    /// Units whose touch was slow.
    pub slow: Vec<usize>,
    /// Those that are away under the policy that the driver's publisher has told.
    pub published: Vec<usize>,
    /// On this clock.
    pub seconds: Seconds,
}

/// Does all of them, each unit's touch in a run of its own. `said`: is told before each action.
///
/// # Errors
/// The driver's; units that do not fill the card, or that are not one too many; others on it.
pub fn probe(
    setting: &Setting,
    context: &Arc<Context>,
    said: &mut dyn FnMut(&Action),
) -> Result<Vec<Seen>, String> {
    check_room(setting, context)?;
    let mut seen = Vec::new();
    for action in &ACTIONS {
        said(action);
        let mut phases = [0.0; 3];
        let mut touch = [0.0; 3];
        for (unit, took) in TOUCHED.into_iter().zip(&mut touch) {
            let run = OnCard::new(setting, context).and_then(|mut card| card.play(action, unit));
            let [prepare, act, overcommit, touched] = run.map_err(|error| error.to_string())?;
            phases = [prepare, act, overcommit];
            *took = touched;
        }
        let [prepare, act, overcommit] = phases;
        let seconds = Seconds { prepare, act, overcommit, touch };
        seen.push((action, seconds));
    }
    let published = setting.play(MemoryPolicy::Driver);
    let away = published.iter().zip(&ACTIONS).map(|(row, action)| away(&row.evicted, action));
    let measured = slow(seen.iter().map(|(_, seconds)| seconds));
    let all = seen.into_iter().zip(measured).zip(away);
    let row = |(((action, seconds), slow), published): (((&Action, Seconds), _), _)| Seen {
        action: action.number,
        calls: action.to_string(),
        slow,
        published,
        seconds,
    };
    Ok(all.map(row).collect())
}

/// Units that are not on the card when they are touched: evicted, or sent home.
fn away(evicted: &[usize], action: &Action) -> Vec<usize> {
    let sent = action.calls.iter().filter_map(|call| match call {
        Call::Prefetch(unit, Place::Cpu) => Some(*unit),
        _ => None,
    });
    let mut away: Vec<usize> = evicted.iter().copied().chain(sent).collect();
    away.sort_unstable();
    away.dedup();
    away
}

/// Of each action, which units were not there, by how long all touches took.
fn slow<'a>(rows: impl Iterator<Item = &'a Seconds> + Clone) -> Vec<Vec<usize>> {
    let touches = rows.clone().flat_map(|seconds| seconds.touch);
    let quickest = touches.fold(f64::INFINITY, f64::min);
    let of = |seconds: &Seconds| {
        let touched = TOUCHED.into_iter().zip(seconds.touch);
        touched.filter(|(_, took)| *took > SLOW * quickest).map(|(unit, _)| unit).collect()
    };
    rows.map(of).collect()
}

/// The units fill what is free, one more does not fit, and nobody else is there.
fn check_room(setting: &Setting, context: &Context) -> Result<(), String> {
    let (free, all) = context.memory_bytes().map_err(|error| error.to_string())?;
    let (free, all, unit) = (free as u64, all as u64, setting.unit_size.0);
    if ((all - free) as f64) > OTHERS_SHARE_MAX * all as f64 {
        let (taken, all) = (amount(all - free), amount(all));
        return Err(format!("others have {taken} of the card's {all}: it must be yours alone"));
    }
    let fit = free / unit;
    if fit != u64::from(setting.units) {
        let (free, size) = (amount(free), setting.unit_size);
        return Err(format!(
            "{} units of {size} do not fill the {free} that are free: give --units {fit}, or \
             another --unit-size",
            setting.units
        ));
    }
    Ok(())
}

/// Units on a card.
struct OnCard<'a> {
    setting: &'a Setting,
    context: &'a Arc<Context>,
    stream: Stream,
    units: Vec<Option<Buffer>>,
}

impl<'a> OnCard<'a> {
    fn new(setting: &'a Setting, context: &'a Arc<Context>) -> Result<Self, cuda::Error> {
        Ok(Self { setting, context, stream: Stream::new(context)?, units: Vec::new() })
    }

    /// Seconds of each phase, the touch of `touched` the last.
    fn play(&mut self, action: &Action, touched: usize) -> Result<[f64; 4], cuda::Error> {
        let mut phases = [0.0; 4];
        for (phase, took) in phases.iter_mut().enumerate() {
            let begun = Instant::now();
            match phase {
                0 => (0..self.setting.units).try_for_each(|_| self.fill_one())?,
                1 => action.calls.iter().try_for_each(|&call| self.call(call))?,
                2 => self.fill_one()?,
                _ => self.call(Call::Touch(touched))?,
            }
            self.stream.synchronize()?;
            *took = begun.elapsed().as_secs_f64();
        }
        Ok(phases)
    }

    /// A unit of zeros.
    fn fill_one(&mut self) -> Result<(), cuda::Error> {
        let bytes = self.setting.unit_size.0 as usize;
        let unit = Buffer::managed(self.context, bytes)?;
        self.stream.clear(&unit, 0..bytes)?;
        if let Some(hint) = self.setting.hint {
            unit.advise(advice(hint.advice()))?;
        }
        self.units.push(Some(unit));
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), cuda::Error> {
        let number = match call {
            Call::Touch(unit)
            | Call::Prefetch(unit, _)
            | Call::Free(unit)
            | Call::Advise(unit, _) => unit,
        };
        if matches!(call, Call::Free(_)) {
            // It is free once the card has done with it.
            self.stream.synchronize()?;
            self.units[number] = None;
            return Ok(());
        }
        let Some(unit) = &self.units[number] else { return Ok(()) };
        match call {
            Call::Touch(_) => self.stream.clear(unit, 0..unit.bytes()),
            Call::Prefetch(_, to) => self.stream.prefetch(unit, side(to)),
            Call::Advise(_, own) => unit.advise(advice(own)),
            Call::Free(_) => Ok(()),
        }
    }
}

fn side(place: Place) -> Side {
    match place {
        Place::Gpu => Side::Device,
        Place::Cpu => Side::Host,
    }
}

fn advice(own: Advice) -> cuda::Advice {
    match own {
        Advice::ReadMostly => cuda::Advice::ReadMostly,
        Advice::PreferredLocation(place) => cuda::Advice::PreferredLocation(side(place)),
        Advice::AccessedBy(place) => cuda::Advice::AccessedBy(side(place)),
    }
}
