//! What is played of managed memory, as tables for terminals and pages.

use super::actions::{self, TOUCHED, units};
use super::designs::{self, Design};
use super::sweeps::{self, AGREE, LOADS, Sweep};
use crate::lab::report::{NONE, Table};
use crate::observe::event::name_of;

/// The ten actions: who is gone, and what it took.
pub fn actions(rows: &[actions::Row]) -> Table {
    let head = ["action", "gone", "in the paper", "act", "overcommit"].map(String::from);
    let touched = TOUCHED.map(|unit| format!("touch x[{unit}]"));
    let mut table = Table::new(head.into_iter().chain(touched));
    for row in rows {
        let seconds = &row.seconds;
        let times = [seconds.act, seconds.overcommit].into_iter().chain(seconds.touch);
        let names =
            [format!("{:>2} {}", row.action, row.calls), units(&row.evicted), units(row.paper)];
        let times = times.map(|seconds| format!("{seconds:.2} s"));
        table.row(names.into_iter().chain(times).collect::<Vec<String>>());
    }
    table
}

/// How many of them end as in the paper, and what the times are.
pub fn about_actions(rows: &[actions::Row]) -> String {
    let same = rows.iter().filter(|row| row.as_in_paper()).count();
    format!(
        "{same} of {} as in the paper. Each touch is of a run of its own: touching what is gone \
         makes another go. Seconds are modelled: 25 GB/s each way, 40 ms for a fault of 2 MiB and \
         0.2 s to touch a GiB on the card, after the paper's words; filling is left out.",
        rows.len()
    )
}

/// A head with a column for each load.
fn with_loads(first: &str) -> Vec<String> {
    let loads = LOADS.map(|hundredths| format!("{}", hundredths as f64 / 100.0));
    std::iter::once(first.to_string()).chain(loads).collect()
}

/// Misses in sweeps, by X/C.
pub fn sweeps(rows: &[sweeps::Row]) -> Table {
    let head = with_loads("sweep, policy").into_iter().chain(["off by".into()]);
    let mut table = Table::new(head);
    for own in rows.chunk_by(|a, b| (a.sweep, a.policy) == (b.sweep, b.policy)) {
        let sweep = match own[0].sweep {
            Sweep::Cyclic => "forward",
            Sweep::ForwardBackward => "forward, backward",
        };
        let off = own.iter().map(|row| (row.miss - row.closed_form).abs()).fold(0.0, f64::max);
        let mut cells = vec![format!("{sweep}, {}", name_of(&own[0].policy))];
        cells.extend(own.iter().map(|row| format!("{:.3}", row.miss)));
        cells.push(format!("{off:.4}{}", if off > AGREE { " !" } else { "" }));
        table.row(cells);
    }
    table
}

/// What its last column is.
pub const ABOUT_SWEEPS: &str = "off by: largest difference from the formulas. Forward alone: 1, \
     optimum 1 - C/X. Both ways: driver max(1/2, 1 - C/X), lru and belady 1 - C/X.";

/// Misses of a step by design and X/C.
pub fn misses(rows: &[designs::Row]) -> Table {
    matrix(rows, None, |row| format!("{:.3}", row.miss))
}

/// What crosses the link in a step, towards the card and away from it, in X.
pub fn crossings(rows: &[designs::Row]) -> Table {
    matrix(rows, None, |row| format!("{:.2} {:.2}", row.to_gpu, row.to_cpu))
}

/// Modelled time of a step, as a multiple of one in core.
pub fn times(rows: &[designs::Row]) -> Table {
    let plain = LOADS.map(|load| if load > 100 { NONE.into() } else { "1.00".into() });
    matrix(rows, Some(("plain memory", plain)), |row| format!("{:.2}", row.time))
}

/// What times are made of.
pub const ABOUT_TIMES: &str = "One unit a layer, written forward, read backward and then worth \
     nothing, at one address for the whole run; direct instruction discards it too. A layer \
     computes each way for as long as its unit takes over the link (25 GB/s); a fault of 2 MiB \
     takes 1.5 ms, so that full dependence is ten times slower at one miss in two; a call takes \
     10 us.";

fn matrix(
    rows: &[designs::Row],
    first: Option<(&str, [String; LOADS.len()])>,
    cell: impl Fn(&designs::Row) -> String,
) -> Table {
    let mut table = Table::new(with_loads("design, policy"));
    if let Some((name, cells)) = first {
        table.row(std::iter::once(name.into()).chain(cells).collect::<Vec<String>>());
    }
    for own in rows.chunk_by(|a, b| (a.design, a.policy) == (b.design, b.policy)) {
        let name = name_of_row(&own[0]);
        table.row(std::iter::once(name).chain(own.iter().map(&cell)).collect::<Vec<String>>());
    }
    table
}

/// Design and policy.
pub fn name_of_row(row: &designs::Row) -> String {
    let design = match row.design {
        Design::Direct => "direct instruction",
        Design::Division => "division, order by prefetching all",
        Design::DivisionInPlace => "division, no-op prefetch after use",
        Design::DivisionWithDiscard => "the same, with discard",
        Design::Full => "full dependence",
    };
    format!("{design}, {}", name_of(&row.policy))
}
