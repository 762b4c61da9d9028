//! What the run does next, and what a commit asks for: pure functions of the position, which is the
//! same on every rank, so that all choose the same.

use crate::config::Every;

use crate::train::plan::Plan;
use crate::train::repair::size::{Asks, Resizer};
use crate::train::repair::spares::Spares;
use crate::train::state::position::{Ending, Position};
use crate::train::state::rank::Rank;
use crate::train::vote::Requests;

/// One thing that all ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// The replicas are compared.
    Compare,
    /// The validation set.
    Evaluate,
    /// The run ends.
    Finish(Ending),
    /// Another number of ranks.
    Resize,
    /// The next step.
    Step,
}

/// The next task of all ranks.
pub fn next(position: &Position, plan: &Plan) -> Task {
    if position.is_to_be_compared(plan.integrity) {
        return Task::Compare;
    }
    // A run that pauses owes its evaluation to the one that goes on.
    if position.evaluation_due && !position.ending.is_some_and(Ending::is_a_pause) {
        return Task::Evaluate;
    }
    match position.ending {
        Some(ending) => Task::Finish(ending),
        None if position.resize_due => Task::Resize,
        None => Task::Step,
    }
}

/// What is known of a step that has just been committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Boundary {
    /// It was its epoch's last.
    pub ends_epoch: bool,
    /// Ranks that were lost are to come back behind it.
    pub regrows: bool,
}

/// What a commit adds to the position besides its ledger line.
pub fn after_commit(position: &mut Position, plan: &Plan, asked: Requests, boundary: Boundary) {
    position.evaluation_due |= plan.evaluates()
        && match plan.evaluation {
            Every::Epoch | Every::Auto => boundary.ends_epoch,
            Every::Steps(steps) => position.step.is_multiple_of(steps),
            Every::Time(_) => asked.evaluate,
            Every::Never => false,
        };
    position.resize_due |= asked.resize || boundary.regrows;
    position.settle(plan);
    if position.ending.is_some() {
        return;
    }
    if asked.out_of_time {
        position.end(Ending::OutOfTime, plan);
    } else if asked.stop {
        position.end(Ending::Interrupted, plan);
    } else if asked.renew {
        position.end(Ending::Renewed, plan);
    }
}

/// What a rank knows of by itself, without its world.
#[derive(Debug, Clone, Copy)]
pub struct Outside {
    /// The run's age.
    pub seconds: f64,
    /// A signal to end has come.
    pub stops: bool,
}

/// What this rank asks of all others with its next vote.
pub fn requests(rank: &Rank, now: Outside, spares: &Spares, resizer: &Resizer) -> Requests {
    let (plan, position) = (&rank.plan, &rank.state.position);
    let mut asks = Requests {
        stop: now.stops,
        out_of_time: plan.max_seconds.is_some_and(|limit| now.seconds >= limit),
        ..Requests::default()
    };
    if !rank.is_writer() {
        return asks;
    }
    let size = resizer.asks(&rank.world, rank.clock.now());
    asks.resize = size == Asks::Size && plan.regrow.is_some();
    asks.renew = size == Asks::Renewal || (plan.renews && spares.are_used_up(&rank.world));
    asks.evaluate = evaluation_is_due(position, plan, now.seconds);
    asks
}

/// Whether a boundary of an interval in time lies between the last evaluation and now.
fn evaluation_is_due(position: &Position, plan: &Plan, seconds: f64) -> bool {
    let Every::Time(interval) = plan.evaluation else { return false };
    let (last, interval) = (position.evaluated_ms as f64 / 1e3, interval.as_secs_f64());
    plan.validation_samples > 0 && (seconds / interval).floor() > (last / interval).floor()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::Interval;
    use crate::data::sampler::Order;

    fn plan() -> Plan {
        let config: Config = toml::from_str("[train]\nsteps = 10\n").unwrap();
        Plan {
            integrity: Interval::Steps(4),
            ..Plan::of(&config, &Order::new(960, 4, 1, 96).unwrap(), 100)
        }
    }

    fn at(step: u64) -> Position {
        Position { step, verified: step, ..Position::start() }
    }

    #[test]
    fn a_step_comes_unless_something_else_is_due() {
        let next = |position: &Position| next(position, &plan());
        assert_eq!(next(&at(3)), Task::Step);
        assert_eq!(next(&Position { resize_due: true, ..at(3) }), Task::Resize);
        assert_eq!(next(&Position { evaluation_due: true, ..at(3) }), Task::Evaluate);
        assert_eq!(next(&Position { verified: 0, ..at(4) }), Task::Compare);
        assert_eq!(next(&Position { verified: 0, ..at(3) }), Task::Step, "not at its interval");
    }

    #[test]
    fn an_end_is_compared_and_evaluated_first_and_a_pause_is_not_evaluated() {
        let ends = |ending| Position { ending: Some(ending), evaluation_due: true, ..at(3) };
        let next = |position: &Position| next(position, &plan());
        let unproved = Position { verified: 0, ..ends(Ending::Completed) };
        assert_eq!(next(&unproved), Task::Compare);
        assert_eq!(next(&ends(Ending::Completed)), Task::Evaluate);
        assert_eq!(next(&ends(Ending::Interrupted)), Task::Finish(Ending::Interrupted));
    }

    #[test]
    fn what_an_earlier_start_owes_is_dropped_where_nothing_is_evaluated_any_more() {
        let mut position = Position { evaluation_due: true, ..at(3) };
        position.settle(&plan());
        assert_eq!(next(&position, &plan()), Task::Evaluate);
        let never = Plan { evaluation: Every::Never, ..plan() };
        position.settle(&never);
        assert_eq!(next(&position, &never), Task::Step);
    }

    #[test]
    fn the_last_step_ends_a_run_whatever_was_asked() {
        let asked = Requests { stop: true, ..Requests::default() };
        let mut position = at(10);
        after_commit(&mut position, &plan(), asked, Boundary::default());
        assert_eq!(position.ending, Some(Ending::Completed));
        let mut position = at(9);
        after_commit(&mut position, &plan(), asked, Boundary::default());
        assert_eq!(position.ending, Some(Ending::Interrupted));
    }
}
