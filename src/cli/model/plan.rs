//! What becomes of a micro-batch's values within a budget, in words and as JSON.

use std::fmt;

use serde::Serialize;

use crate::engine::memory::sequence::Fate;
use crate::engine::memory::shown::MemoryPlan;
use crate::observe::spans::amount;

/// Values of one fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Group {
    values: usize,
    bytes: u64,
}

/// What becomes of a layer's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LayerFates<'a> {
    layer: &'a str,
    kept_bytes: u64,
    swapped_bytes: u64,
    computed_again_bytes: u64,
}

/// A plan of memory as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Budgeted<'a> {
    mode: &'a str,
    budget_bytes: Option<u64>,
    near_in_core_bytes: u64,
    near_bytes: u64,
    /// Of the near ones.
    weights_bytes: u64,
    /// In turn.
    weights_loaded_bytes: u64,
    far_bytes: u64,
    kept: Group,
    swapped: Group,
    computed_again: Group,
    copied_out_bytes: u64,
    copied_back_bytes: u64,
    /// Where the shares come from.
    prices: &'static str,
    computed_again_share: f64,
    waited_share: f64,
    layers: Vec<LayerFates<'a>>,
}

impl<'a> Budgeted<'a> {
    /// Of a plan in this mode.
    pub(super) fn of(plan: &'a MemoryPlan, mode: &'a str) -> Self {
        let forecast = &plan.within.forecast;
        let [near_in_core_bytes, near_bytes] = plan.near_bytes();
        let [weights_bytes, weights_loaded_bytes] = plan.copies_bytes();
        let group = |fate| {
            let (values, bytes) = plan.with(fate);
            Group { values, bytes }
        };
        let share = |seconds: f64| seconds / forecast.seconds.max(f64::MIN_POSITIVE);
        Self {
            mode,
            budget_bytes: plan.budget_bytes,
            near_in_core_bytes,
            near_bytes,
            weights_bytes,
            weights_loaded_bytes,
            far_bytes: plan.far_bytes,
            kept: group(Fate::Keep),
            swapped: group(Fate::Swap),
            computed_again: group(Fate::Recompute),
            copied_out_bytes: forecast.moved_bytes[0],
            copied_back_bytes: forecast.moved_bytes[1],
            prices: "guessed",
            computed_again_share: share(forecast.again),
            waited_share: share(forecast.waits),
            layers: layers(plan),
        }
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.layers.iter().map(|row| row.layer.len()).max().unwrap_or(0).max(5);
        let mut line = |name: &str, cells: [&str; 3]| {
            let [kept, swapped, again] = cells;
            write!(f, "\n{name:<longest$}  {kept:>12} {swapped:>12} {again:>14}")
        };
        line("layer", ["kept", "swapped", "computed again"])?;
        for row in &self.layers {
            let bytes = [row.kept_bytes, row.swapped_bytes, row.computed_again_bytes];
            let cells = bytes.map(|bytes| if bytes == 0 { "-".into() } else { amount(bytes) });
            line(row.layer, [&cells[0], &cells[1], &cells[2]])?;
        }
        Ok(())
    }
}

/// Layers that have any values, in order.
fn layers(plan: &MemoryPlan) -> Vec<LayerFates<'_>> {
    let row =
        |layer| LayerFates { layer, kept_bytes: 0, swapped_bytes: 0, computed_again_bytes: 0 };
    let mut rows: Vec<LayerFates<'_>> = plan.layers.iter().map(|name| row(name)).collect();
    for saved in &plan.saved {
        let row = &mut rows[saved.layer];
        *match saved.fate {
            Fate::Keep => &mut row.kept_bytes,
            Fate::Swap => &mut row.swapped_bytes,
            Fate::Recompute => &mut row.computed_again_bytes,
        } += saved.bytes;
    }
    rows.retain(|row| row.kept_bytes + row.swapped_bytes + row.computed_again_bytes > 0);
    rows
}

impl fmt::Display for Budgeted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = self.budget_bytes.map(|bytes| format!(" within {}", amount(bytes)));
        writeln!(
            f,
            "memory.mode = \"{}\"{}: near tier {} ({} in core), of it {} copies of weights; far \
             tier {}",
            self.mode,
            within.unwrap_or_default(),
            amount(self.near_bytes),
            amount(self.near_in_core_bytes),
            amount(self.weights_bytes),
            amount(self.far_bytes)
        )?;
        if self.weights_loaded_bytes > 0 {
            let bytes = amount(self.weights_loaded_bytes);
            writeln!(f, "copies of {bytes} of weights go after use, and are made again")?;
        }
        let group = |group: Group| format!("{} ({})", group.values, amount(group.bytes));
        writeln!(
            f,
            "of the values that the backward pass reads {} stay, {} are swapped, {} are computed \
             again",
            group(self.kept),
            group(self.swapped),
            group(self.computed_again)
        )?;
        write!(
            f,
            "a micro-batch copies {} out and {} back; by guessed prices (nothing was measured) \
             {:.1} % of its time computes again and {:.1} % waits for copies",
            amount(self.copied_out_bytes),
            amount(self.copied_back_bytes),
            100.0 * self.computed_again_share,
            100.0 * self.waited_share
        )?;
        self.table(f)
    }
}
