//! Whether a simulated run ended as it was promised. Independent of what is checked: it looks at
//! bits, files and endings, and compares them with the order of samples and with a run to which
//! nothing happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::cluster::comm::sim::End;
use crate::config::{FaultKind, Rung};
use crate::data::sampler::Order;
use crate::observe::event::{Event, Kind};
use crate::observe::ledger::{self, AuditReport, Entry};
use crate::observe::log::parse_lines;
use crate::observe::result::{RunResult, Status};
use crate::observe::storage::Storage;
use crate::train::TrainError;
use crate::train::record::journal::{EVENTS, LEDGER};

use super::bits;
pub use super::bits::{Calm, calm};
use super::change::Change;
use super::rank::Left;
use super::scenario::{self, SAMPLES, STEPS, Scenario};
use super::stand_in::Seen;
use super::supervise::{Ended, Final, Played, begun_from};

mod copies;
mod rounds;

/// What is wrong with a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It did not end within its bounds.
    Stuck(String),
    /// It ended, but not as promised.
    Wrong(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stuck(what) => write!(f, "stuck: {what}"),
            Self::Wrong(what) => write!(f, "wrong: {what}"),
        }
    }
}

/// What was done to the state on purpose, which changes what may be expected of it.
#[derive(Debug, Clone, Copy)]
struct Marks {
    /// A bit of some rank's weights was turned over: until that is found, replicas differ.
    flipped: bool,
}

impl Marks {
    fn of(played: &Played) -> Self {
        Self { flipped: played.files.flips() > 0 }
    }

    /// A flip that a restart's checkpoint may have kept cannot be seen afterwards; nor one whose
    /// rank died of something else, its gradients in everybody's sums; nor one in the only rank
    /// that is left of those that began.
    fn bits_are_known(self, scenario: &Scenario, played: &Played) -> bool {
        let [attempt] = &played.attempts[..] else { return !self.flipped };
        let flipped = |rank: usize| {
            let strikes = |fault: &scenario::Fault| match fault {
                scenario::Fault::Point(p) => {
                    p.kind == FaultKind::BitFlip && p.rank as usize == rank
                }
                _ => false,
            };
            scenario.faults.iter().any(strikes)
        };
        let began = attempt.ends.iter().take(scenario.config.run.ranks as usize).enumerate();
        // Who is evicted ends by itself.
        let lived = |end: &End<Left>| matches!(end, End::Finished(_));
        let (struck, sound): (Vec<_>, Vec<_>) = began.partition(|(rank, _)| flipped(*rank));
        let compared =
            struck.iter().all(|(_, end)| lived(end)) && sound.iter().any(|(_, end)| lived(end));
        !self.flipped || compared
    }
}

/// Checks everything; the first fault is returned.
pub fn check(scenario: &Scenario, played: &Played, calm: &Calm) -> Result<(), Fault> {
    check_ends(played)?;
    let result = match &played.end {
        Final::Stuck(what) => return Err(Fault::Stuck(what.clone())),
        Final::Refused(why) => return may_refuse(scenario, played, why).map_err(Fault::Wrong),
        Final::Result(result) => result,
    };
    let events: Vec<Event> = played.lines(EVENTS);
    let entries: Vec<Entry> = played.lines(LEDGER);
    let marks = Marks::of(played);
    let as_calm = result.exact && !scenario.is_free() && !began_anew_otherwise(scenario, played);
    let checks = [
        check_readable::<Event>(played, EVENTS),
        check_readable::<Entry>(played, LEDGER),
        check_status(scenario, played, result, marks),
        check_weights(scenario, played, calm, marks, as_calm),
        check_survivors(played),
        check_starts(scenario, played, &events, marks),
        check_events(&events),
        check_announced(scenario, played, &events, &entries),
        check_told(scenario, played, &events),
        copies::check(scenario, played, result),
        if scenario.is_free() { rounds::check_computed(played) } else { Ok(()) },
    ];
    checks.into_iter().collect::<Result<(), String>>().map_err(Fault::Wrong)?;
    if result.status == Status::Completed {
        check_completed((scenario, played), result, &entries).map_err(Fault::Wrong)?;
        if as_calm && marks.bits_are_known(scenario, played) {
            bits::check(scenario, played, result, &events, calm).map_err(Fault::Wrong)?;
        }
    }
    Ok(())
}

/// Readers take a file only if all its lines but a torn last one can be read.
fn check_readable<T: DeserializeOwned>(played: &Played, name: &str) -> Result<(), String> {
    let path = Path::new(name);
    let body = played.files.memory.read(path).unwrap_or_default();
    parse_lines::<T>(path, &body).map(drop).map_err(|error| error.to_string())
}

/// What must not come from any process: a panic, or a commit rule that was broken.
fn check_ends(played: &Played) -> Result<(), Fault> {
    for attempt in &played.attempts {
        for (process, end) in attempt.ends.iter().enumerate() {
            let number = attempt.number;
            if let End::Panicked(text) = end {
                let text = format!("attempt {number}: process {process} panicked: {text}");
                return Err(Fault::Wrong(text));
            }
            if let End::Finished(Left { status: Err(TrainError::JobLost(text)), .. }) = end
                && text.contains("commit rule was broken")
            {
                return Err(Fault::Wrong(format!("attempt {number}: {text}")));
            }
        }
    }
    Ok(())
}

/// A run may refuse to begin only when every checkpoint it had was damaged, or where there are
/// other samples than it began with.
fn may_refuse(scenario: &Scenario, played: &Played, reason: &str) -> Result<(), String> {
    let kept = played.attempts.last().and_then(|attempt| attempt.checkpoint);
    match (played.damaged.is_empty(), kept) {
        (false, None) => Ok(()),
        _ if others_are_listed(scenario, played) => Ok(()),
        _ => Err(format!("it refused to begin although a checkpoint was good: {reason}")),
    }
}

/// The run must complete, unless what went wrong allows for less.
fn check_status(
    scenario: &Scenario,
    played: &Played,
    result: &RunResult,
    marks: Marks,
) -> Result<(), String> {
    let restarts = scenario.config.recovery.rungs().contains(&Rung::Restart);
    let fired: Vec<u64> = played.attempts.iter().map(|attempt| attempt.fired).collect();
    let troubled = |last: usize| fired.iter().rev().take(last).all(|&fired| fired > 0);
    // Whoever is evicted may have been struck in an attempt before.
    for attempt in played.attempts.iter().filter(|_| !marks.flipped) {
        check_quiet(attempt)?;
    }
    let allowed = match result.status {
        Status::Completed => true,
        Status::NoProgress => restarts && fired.len() >= 3 && troubled(3),
        Status::JobLost => !restarts && (troubled(1) || marks.flipped),
        // Other samples than the run's, or than the other ranks', are refused.
        Status::DataError => others_are_listed(scenario, played),
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    let (status, reason) = (result.status, &result.reason);
    Err(format!("it ended as {status:?} ({reason}); faults fired by attempt: {fired:?}"))
}

/// Whether those who started the last attempt list other samples than the run's or each other's.
fn others_are_listed(scenario: &Scenario, played: &Played) -> bool {
    let last = played.attempts.last().map_or(0, |attempt| attempt.number);
    scenario.changes().any(|changed| changed.disturbs_start(last))
}

/// Whether all ranks computed otherwise from the first step that counts: such a run is exact, but
/// its bits are those of no run that is played here.
fn began_anew_otherwise(scenario: &Scenario, played: &Played) -> bool {
    // By what it computed: a full disk may have taken no event of its start.
    let anew = played.sightings.iter().filter(|seen| seen.step == 0).map(|seen| seen.attempt);
    let anew = anew.max().unwrap_or(0);
    scenario.changes().any(|changed| changed.computes_otherwise(anew))
}

/// An attempt in which nothing goes wrong ends well on every rank.
fn check_quiet(attempt: &Ended) -> Result<(), String> {
    if attempt.fired > 0 {
        return Ok(());
    }
    for (process, end) in attempt.ends.iter().enumerate() {
        let fine = match end {
            End::Finished(left) => matches!(
                left.status,
                Ok(Status::Completed | Status::Interrupted) | Err(TrainError::Configuration(_))
            ),
            _ => false,
        };
        if !fine {
            let number = attempt.number;
            return Err(format!("attempt {number} was quiet, but process {process}: {end:?}"));
        }
    }
    Ok(())
}

/// Equal bits: in a run that says it is exact, those of the run without failures; in every run, on
/// all ranks that lived to the end of an attempt.
fn check_weights(
    scenario: &Scenario,
    played: &Played,
    calm: &Calm,
    marks: Marks,
    as_calm: bool,
) -> Result<(), String> {
    if marks.flipped {
        return Ok(());
    }
    let mut last: BTreeMap<(u32, usize), u64> = BTreeMap::new();
    let mut states: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    // Of an earlier attempt, steps with other instructions may have been thrown away.
    let thrown_away = computes_otherwise(scenario);
    let newest = played.attempts.last().map_or(0, |attempt| attempt.number);
    for seen in &played.sightings {
        let Seen { attempt, process, step, weights, .. } = *seen;
        let whose = format!("attempt {attempt}, process {process}, step {}", step + 1);
        if last.insert((attempt, process), step).is_some_and(|before| before > step) {
            return Err(format!("{whose}: it went back, a committed step was lost"));
        }
        let ended = played.attempts.iter().find(|ended| ended.number == attempt);
        let lived = ended.is_some_and(|e| matches!(e.ends.get(process), Some(End::Finished(_))));
        let comparable = as_calm && (attempt == newest || !thrown_away);
        if comparable && calm.weights.get(&step) != Some(&weights) {
            return Err(format!("{whose}: other weights than without failures"));
        }
        if lived && *states.entry((attempt, step)).or_insert(weights) != weights {
            return Err(format!("{whose}: replicas differ"));
        }
    }
    Ok(())
}

/// Whether some process may have computed other bits on purpose.
fn computes_otherwise(scenario: &Scenario) -> bool {
    scenario.changes().any(|changed| changed.change == Change::Instructions)
}

/// Ranks that completed an attempt agree on how, where and with what.
fn check_survivors(played: &Played) -> Result<(), String> {
    for attempt in &played.attempts {
        let mut first = None;
        for end in &attempt.ends {
            let End::Finished(left) = end else { continue };
            let Ok(status) = &left.status else { continue };
            // A spare that nobody needed has nothing to show.
            if left.digest == 0 {
                continue;
            }
            let mine = (*status, left.step, left.digest);
            if *first.get_or_insert(mine) != mine {
                let number = attempt.number;
                return Err(format!("attempt {number}: ranks ended as {first:?} and {mine:?}"));
            }
        }
    }
    Ok(())
}

/// Each attempt goes on from the newest good checkpoint: no published step is given up. Where state
/// outlives the processes, it goes on from there or from later, and no committed step is given up.
fn check_starts(
    scenario: &Scenario,
    played: &Played,
    events: &[Event],
    marks: Marks,
) -> Result<(), String> {
    let mut kept = 0;
    for attempt in &played.attempts {
        let (number, newest) = (attempt.number, attempt.checkpoint);
        if !attempt.slots_untouched {
            kept = 0;
        }
        let Some(from) = begun_from(events, number) else { continue };
        let published = newest.unwrap_or(0);
        let right = if scenario.in_file { from >= published } else { from == published };
        if !right {
            return Err(format!(
                "attempt {number} began from step {from}, the newest good checkpoint is {newest:?}"
            ));
        }
        // Slots go where a checkpoint holds as much, and that may have been damaged since.
        if from < kept && played.damaged.is_empty() && !marks.flipped {
            return Err(format!(
                "attempt {number} began from step {from}, although {kept} had been committed"
            ));
        }
        kept = surely_committed(played, number).max(from);
    }
    Ok(())
}

/// The last step of an attempt that did not only happen to a rank that died of it: some process
/// that had committed it went on to commit another.
fn surely_committed(played: &Played, attempt: u32) -> u64 {
    let mut steps: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
    for seen in played.sightings.iter().filter(|seen| seen.attempt == attempt) {
        let [last, newest] = steps.entry(seen.process).or_default();
        if seen.step > *newest {
            (*last, *newest) = (*newest, seen.step);
        }
    }
    steps.into_values().map(|[last, _]| last).max().unwrap_or(0)
}

/// What the events say: nobody dies twice, and no step is told twice in one world.
fn check_events(events: &[Event]) -> Result<(), String> {
    let (mut dead, mut told) = (Vec::new(), BTreeSet::new());
    for event in events {
        let place = (event.attempt, event.generation, event.step);
        if matches!(event.kind, Kind::Step { .. }) && !told.insert(place) {
            return Err(format!("step {} is told twice", event.step));
        }
        let Kind::Recovered(record) = &event.kind else { continue };
        for lost in &record.lost {
            if dead.contains(&lost.member) {
                return Err(format!("member {} is lost twice", lost.member));
            }
            dead.push(lost.member);
        }
    }
    Ok(())
}

/// Each attempt that committed a step has told before how it began.
fn check_announced(
    scenario: &Scenario,
    played: &Played,
    events: &[Event],
    entries: &[Entry],
) -> Result<(), String> {
    if scenario.has_full_disk() {
        return Ok(());
    }
    for number in played.attempts.iter().map(|attempt| attempt.number) {
        let commits = |entry: &Entry| matches!(entry, Entry::Step(line) if line.attempt == number);
        let begins = |e: &Event| e.attempt == number && matches!(e.kind, Kind::RunStart { .. });
        if entries.iter().any(commits) && !events.iter().any(begins) {
            return Err(format!("attempt {number} has steps, and no start"));
        }
    }
    Ok(())
}

/// Where one process died and the others lived on, its repair is told, once.
fn check_told(scenario: &Scenario, played: &Played, events: &[Event]) -> Result<(), String> {
    if scenario.has_full_disk() {
        return Ok(());
    }
    for attempt in &played.attempts {
        let dead = attempt.ends.iter().filter(|end| matches!(end, End::Died));
        if dead.count() != 1 {
            continue;
        }
        let here = || events.iter().filter(|event| event.attempt == attempt.number);
        let noticed = here().filter(|event| matches!(event.kind, Kind::FailureDetected { .. }));
        for generation in noticed.map(|event| event.generation) {
            let tells = |kind: &Kind| match kind {
                Kind::Recovered(record) => record.generation == generation,
                _ => false,
            };
            let told = here().filter(|event| tells(&event.kind)).count();
            if told != 1 {
                let number = attempt.number;
                return Err(format!(
                    "attempt {number}: repair {generation} is told {told} times, not once"
                ));
            }
        }
    }
    Ok(())
}

fn check_completed(
    (scenario, played): (&Scenario, &Played),
    result: &RunResult,
    entries: &[Entry],
) -> Result<(), String> {
    let order = Order::of(&scenario.config, SAMPLES).map_err(|error| error.to_string())?;
    let report = match scenario.is_free() {
        true => rounds::audited(&order, entries, result)?,
        false => audited(&order, entries, (scenario, played), result)?,
    };
    if let Some(finding) = report.findings.first() {
        return Err(format!("audit: {finding}"));
    }
    if report.lost_steps != result.lost_steps {
        let (ledger, told) = (report.lost_steps, result.lost_steps);
        return Err(format!("lost steps: the ledger has {ledger}, result.json {told}"));
    }
    Ok(())
}

/// Whether nobody knows how old a flaw is that was found in what outlived an end: it says so.
fn is_doubted(played: &Played) -> bool {
    let untouched = played.attempts.iter().all(|attempt| attempt.slots_untouched);
    let touched = Marks::of(played).flipped || !untouched;
    let said = |event: Event| match event.kind {
        Kind::Inexact { reason } => Some(reason.contains("replicas of it")),
        _ => None,
    };
    let said: Vec<bool> = played.lines(EVENTS).into_iter().filter_map(said).collect();
    played.attempts.len() > 1 && touched && said.contains(&true) && !said.contains(&false)
}

/// The ledger of a run that is synchronous.
fn audited(
    order: &Order,
    entries: &[Entry],
    (scenario, played): (&Scenario, &Played),
    result: &RunResult,
) -> Result<AuditReport, String> {
    let report = ledger::audit(entries, &mut |step| order.expected(step), SAMPLES);
    if result.steps != STEPS || report.steps != STEPS {
        let (told, counted) = (result.steps, report.steps);
        return Err(format!("it completed {told} of {STEPS} steps, the ledger counts {counted}"));
    }
    match result.exact || computes_otherwise(scenario) || is_doubted(played) {
        true => Ok(report),
        false => Err("it is not exact although all compute alike".into()),
    }
}
