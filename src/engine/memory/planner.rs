//! Which values stay, which are swapped and which are computed again, within a budget: pure.
//!
//! A family of schedules is made first, whatever the budget: chains that begin with everything kept
//! and let the cheapest value go, one step after another, each with other bounds on what may be on
//! the way. Of those whose places fit a budget the one with the shortest forecast is taken. So more
//! budget never means a longer forecast, and the smallest budget that will do is known.

use super::play::{Forecast, Life, forecast, lives, profile, seconds};
use super::schedule::{Copying, Costs, Turn, rewritten, schedule};
use super::sequence::{Fate, Uses, sequence};

/// Values of fewer bytes stay: to move them gains nothing.
pub const MOVED_BYTES_MIN: usize = 16 << 10;
/// Values that a chain tries before it lets one go, of each fate.
const TRIED_MAX: usize = 4;
/// Links of a chain at most: of models with more values several go at a time.
const LINKS_MAX: usize = 96;

/// How much may be on the way in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flight {
    /// Computing waits for each copy.
    AtOnce,
    /// At most so many bytes.
    Bytes(usize),
}

/// One schedule of the family.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Of each value.
    pub fates: Vec<Fate>,
    /// Its copies.
    pub flight: Flight,
    /// What it should take.
    pub forecast: Forecast,
}

impl Candidate {
    /// What comes of these fates.
    pub fn new(uses: &Uses<'_>, costs: &Costs, fates: Vec<Fate>, flight: Flight) -> Self {
        let turns = turns(uses, costs, &fates, flight);
        let forecast = forecast(uses, &turns, costs);
        Self { fates, flight, forecast }
    }

    /// What it does.
    pub fn turns(&self, uses: &Uses<'_>, costs: &Costs) -> Vec<Turn> {
        turns(uses, costs, &self.fates, self.flight)
    }
}

fn turns(uses: &Uses<'_>, costs: &Costs, fates: &[Fate], flight: Flight) -> Vec<Turn> {
    let copying = match flight {
        Flight::AtOnce => Copying::AtOnce,
        Flight::Bytes(flight_bytes_max) => Copying::Timed { costs, flight_bytes_max },
    };
    schedule(uses, &sequence(uses, fates), copying)
}

/// All schedules that are considered, the quickest first. `allowed`: which fates there are beside
/// `Keep`.
pub fn family(uses: &Uses<'_>, costs: &Costs, allowed: &[Fate]) -> Vec<Candidate> {
    let copied = uses.saved.iter().filter(|&&value| !uses.is_loaded[value]);
    let largest = copied.map(|&value| uses.draft.bytes[value]).max().unwrap_or(0);
    let flights = match allowed.contains(&Fate::Swap) {
        false => vec![Flight::AtOnce],
        true => vec![
            Flight::Bytes(usize::MAX),
            Flight::Bytes(3 * largest),
            Flight::Bytes(largest),
            Flight::AtOnce,
        ],
    };
    let mut family = Vec::new();
    for flight in flights {
        family.extend(chain(uses, costs, allowed, &[], flight));
        if let [_, _, ..] = allowed {
            // What is computed again needs room itself: with copies alone, made at once, there is
            // the least to hold, whatever the prices.
            let converted = if flight == Flight::AtOnce { &[] } else { allowed };
            family.extend(chain(uses, costs, &[Fate::Swap], converted, flight));
        }
    }
    let order = |a: &Candidate, b: &Candidate| {
        // Of equally quick ones that which moves less, and then holds less.
        let (a, b) = (&a.forecast, &b.forecast);
        let seconds = a.seconds.total_cmp(&b.seconds);
        let moved = a.moved_bytes.cmp(&b.moved_bytes);
        seconds.then(moved).then(a.live_bytes.cmp(&b.live_bytes))
    };
    family.sort_by(order);
    family
}

/// From everything kept to as little as possible: values go by the fates of `let_go`, and have
/// those of `conversions` once they have gone.
fn chain(
    uses: &Uses<'_>,
    costs: &Costs,
    let_go: &[Fate],
    conversions: &[Fate],
    flight: Flight,
) -> Vec<Candidate> {
    let moved = |&&value: &&usize| uses.draft.bytes[value] >= MOVED_BYTES_MIN;
    let movable = uses.saved.iter().filter(moved).count();
    let at_a_time = movable.div_ceil(LINKS_MAX).max(1);
    let keep = vec![Fate::Keep; uses.draft.bytes.len()];
    let mut links = vec![Candidate::new(uses, costs, keep, flight)];
    // Each link lets at least one value go.
    for _ in 0..movable {
        let last = links.last().expect("it began with one");
        let mut best = next(uses, costs, let_go, last);
        if best.is_empty() {
            break;
        }
        best.truncate(at_a_time);
        let mut fates = last.fates.clone();
        best.iter().for_each(|&(value, fate)| fates[value] = fate);
        links.push(Candidate::new(uses, costs, fates, flight));
        // Each conversion leaves a swapped value less.
        for _ in 0..movable {
            let last = links.last().expect("it began with one");
            let Some(better) = converted(uses, costs, conversions, last, at_a_time) else {
                break;
            };
            links.push(better);
        }
    }
    links
}

/// The same with values computed again that were swapped, cheap ones, where the link is what is
/// waited for; `None`: that would be no quicker, or hold more.
fn converted(
    uses: &Uses<'_>,
    costs: &Costs,
    allowed: &[Fate],
    last: &Candidate,
    at_a_time: usize,
) -> Option<Candidate> {
    if last.forecast.waits <= 0.0 || !allowed.contains(&Fate::Recompute) {
        return None;
    }
    let swapped = uses.saved.iter().filter(|&&value| last.fates[value] == Fate::Swap);
    let priced = swapped.filter_map(|&value| {
        let seconds = price(uses, costs, &last.fates, value, Fate::Recompute)?;
        Some((seconds / uses.draft.bytes[value] as f64, value))
    });
    let mut priced: Vec<(f64, usize)> = priced.collect();
    priced.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let tried = priced.chunks(at_a_time).take(TRIED_MAX).map(|values| {
        let mut fates = last.fates.clone();
        values.iter().for_each(|&(_, value)| fates[value] = Fate::Recompute);
        let takes = seconds(uses, &turns(uses, costs, &fates, last.flight), costs);
        (takes < last.forecast.seconds).then(|| Candidate::new(uses, costs, fates, last.flight))
    });
    let less = |then: &Candidate| then.forecast.live_bytes <= last.forecast.live_bytes;
    let better = tried.flatten().filter(less);
    better.min_by(|a, b| a.forecast.seconds.total_cmp(&b.forecast.seconds))
}

/// The same with ever more of what is swapped computed again instead, the cheapest first.
pub fn converting(uses: &Uses<'_>, costs: &Costs, from: &Candidate) -> Vec<Candidate> {
    let all = from.fates.iter().filter(|fate| **fate == Fate::Swap).count();
    let at_a_time = all.div_ceil(LINKS_MAX).max(1);
    let mut links: Vec<Candidate> = Vec::new();
    // Each link leaves at least one swapped value less.
    loop {
        let fates = &links.last().unwrap_or(from).fates;
        let swapped = (0..fates.len()).filter(|&value| fates[value] == Fate::Swap);
        let priced = swapped.filter_map(|value| {
            let seconds = price(uses, costs, fates, value, Fate::Recompute)?;
            Some((seconds / uses.draft.bytes[value] as f64, value))
        });
        let mut priced: Vec<(f64, usize)> = priced.collect();
        if priced.is_empty() {
            return links;
        }
        priced.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut fates = fates.clone();
        priced.iter().take(at_a_time).for_each(|&(_, value)| fates[value] = Fate::Recompute);
        links.push(Candidate::new(uses, costs, fates, from.flight));
    }
}

/// What may go next, the cheapest first.
fn next(uses: &Uses<'_>, costs: &Costs, allowed: &[Fate], last: &Candidate) -> Vec<(usize, Fate)> {
    let waiting = waiting(uses, &last.turns(uses, costs), &last.fates);
    let mut ranked: Vec<(f64, usize, Fate)> = Vec::new();
    for fate in [Fate::Swap, Fate::Recompute] {
        // What was loaded can always be loaded again.
        let may = |value| allowed.contains(&fate) || uses.is_loaded[value];
        let mut tried: Vec<(f64, usize)> = waiting
            .iter()
            .filter(|&&value| may(value))
            .filter_map(|&value| Some((price(uses, costs, &last.fates, value, fate)?, value)))
            .collect();
        tried.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (at, (price, value)) in tried.into_iter().enumerate() {
            let bytes = uses.draft.bytes[value] as f64;
            let mut rank = price / bytes;
            if at < TRIED_MAX {
                let mut fates = last.fates.clone();
                fates[value] = fate;
                let then = seconds(uses, &turns(uses, costs, &fates, last.flight), costs);
                // A little of its price, so that of what costs nothing now the cheaper goes.
                let more = then - last.forecast.seconds + 1e-3 * price;
                rank = more / bytes;
            } else if at >= 4 * TRIED_MAX {
                break;
            }
            ranked.push((rank, value, fate));
        }
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut seen = Vec::new();
    ranked.retain(|&(_, value, _)| {
        let new = !seen.contains(&value);
        seen.push(value);
        new
    });
    ranked.into_iter().map(|(_, value, fate)| (value, fate)).collect()
}

/// Seconds of a link, or of computing, that it would take to let a value go; `None`: it cannot.
fn price(uses: &Uses<'_>, costs: &Costs, fates: &[Fate], value: usize, fate: Fate) -> Option<f64> {
    match fate {
        Fate::Keep => None,
        // The state has it.
        Fate::Swap if uses.is_loaded[value] => None,
        Fate::Swap => {
            let bytes = uses.draft.bytes[value] as f64;
            Some(bytes / costs.rates[0].min(costs.rates[1]))
        }
        Fate::Recompute => {
            let stays = |other: usize| fates[other] != Fate::Recompute && is_saved(uses, other);
            let steps = uses.again(value, &stays)?;
            Some(steps.into_iter().map(|step| costs.step_seconds[step]).sum())
        }
    }
}

fn is_saved(uses: &Uses<'_>, value: usize) -> bool {
    uses.saved.binary_search(&value).is_ok()
}

/// Kept values that only wait where most bytes live.
fn waiting(uses: &Uses<'_>, turns: &[Turn], fates: &[Fate]) -> Vec<usize> {
    let lives = lives(uses, turns);
    let profile = profile(uses, turns, &lives);
    let peak = (0..profile.len()).max_by_key(|&at| (profile[at], std::cmp::Reverse(at)));
    let Some(peak) = peak else { return Vec::new() };
    let touched = |value: usize| match turns[peak] {
        Turn::Step(step) => {
            let step = &uses.draft.steps[step];
            step.reads.contains(&value) || step.writes.contains(&value)
        }
        Turn::Begin(_, of) | Turn::End(_, of) => of == value,
        Turn::Keep(_) | Turn::Hold(_) => false,
    };
    let waits = |life: &&Life| {
        (life.first..=life.last).contains(&peak)
            && fates[life.value] == Fate::Keep
            && uses.draft.bytes[life.value] >= MOVED_BYTES_MIN
            && is_saved(uses, life.value)
            && !touched(life.value)
    };
    let mut values: Vec<usize> = lives.iter().filter(waits).map(|life| life.value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Bytes of the near tier that the places of a candidate take.
pub fn placed_bytes(uses: &Uses<'_>, costs: &Costs, candidate: &Candidate) -> usize {
    let (draft, _) = rewritten(uses.draft, &candidate.turns(uses, costs));
    draft.place().arena_bytes
}

/// The quickest of a family that fits into `budget_bytes` of the near tier.
///
/// # Errors
/// None does: the smallest budget for which there is one.
pub fn fit<'f>(
    uses: &Uses<'_>,
    costs: &Costs,
    family: &'f [Candidate],
    budget_bytes: usize,
) -> Result<&'f Candidate, usize> {
    // No placement takes less than what lives.
    let may_fit = |candidate: &&Candidate| candidate.forecast.live_bytes <= budget_bytes;
    let fits = |candidate: &&Candidate| placed_bytes(uses, costs, candidate) <= budget_bytes;
    let quickest = family.iter().filter(may_fit).find(fits);
    quickest.ok_or_else(|| smallest(uses, costs, family))
}

/// The smallest budget for which one of a family fits.
pub fn smallest(uses: &Uses<'_>, costs: &Costs, family: &[Candidate]) -> usize {
    let mut by_size: Vec<&Candidate> = family.iter().collect();
    by_size.sort_by_key(|candidate| candidate.forecast.live_bytes);
    let mut least = usize::MAX;
    for candidate in by_size {
        if candidate.forecast.live_bytes >= least {
            break;
        }
        least = least.min(placed_bytes(uses, costs, candidate));
    }
    least
}
