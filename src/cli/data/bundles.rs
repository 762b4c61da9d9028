//! `kintsugi data inspect CONFIG`: the sets of a configuration, and what the bundles hold that its
//! order cuts the training set into.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::config::{Shown, parse};
use crate::data::sampler::Order;
use crate::data::sampler::composition::{Bundle, Composition, composition};
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::observe::console::print_line;

use super::super::arguments::{Form, fail, print_json};
use super::neighbours;
use super::report::{DATA_ERROR, print, report};

/// Bundles that the table shows; `--json` lists all.
const BUNDLES_SHOWN: usize = 20;
/// Classes that fit on a line as bars.
const BARS_MAX: usize = 40;

/// What is said of the order.
#[derive(Debug, Serialize)]
struct Bundles {
    bundle_ratio: f64,
    owners: u32,
    global_batch: u64,
    #[serde(flatten)]
    composition: Composition,
}

/// Exit 0; 2: the configuration is refused; 3: a set cannot be used.
pub fn inspect(path: &Path, overrides: &[String], form: Form) -> Result<ExitCode, DataError> {
    let config = match parse::load(path, overrides) {
        Ok(config) => config,
        Err(error) => return Ok(fail(2, error)),
    };
    let set = open(&config.data, Split::Train, config.run.seed)?;
    let order = Order::of(&config, set.source.len())?;
    let source = &set.source;
    let bundles = Bundles {
        bundle_ratio: order.bundling.ratio,
        owners: order.owners,
        global_batch: order.global_batch,
        composition: composition(&order, source.classes(), |id| source.label(id)),
    };
    let made = || "(made)".to_owned();
    let train = config.data.train.as_deref().map_or_else(made, Shown::shown);
    let mut reports = vec![report(&set, Split::Train, train)?];
    if config.data.has_validation() {
        let set = open(&config.data, Split::Validation, config.run.seed)?;
        let validation = config.data.validation.as_ref().map_or_else(made, Shown::shown);
        reports.push(report(&set, Split::Validation, validation)?);
    }
    let usable = reports.iter().all(|report| report.usable);
    if form == Form::Json {
        let neighbours = neighbours::parted(&config.data, config.run.seed)?;
        print_json(&serde_json::json!({
            "usable": usable, "splits": reports, "bundles": bundles, "neighbours": neighbours
        }));
    } else {
        reports.iter().for_each(print);
        neighbours::print(&config.data, config.run.seed)?;
        print_bundles(path, &bundles, source.classes());
    }
    Ok(ExitCode::from(if usable { 0 } else { DATA_ERROR }))
}

fn print_bundles(config: &Path, shown: &Bundles, classes: &[String]) {
    let Composition { bundles, degrees, warnings } = &shown.composition;
    let of = config.shown();
    let (Some(first), Some(last)) = (bundles.first(), bundles.last()) else { return };
    if bundles.len() < 2 {
        print_line!("order of {of}: no bundles, {} owners", shown.owners);
        return;
    }
    let short = match last.samples == first.samples {
        true => String::new(),
        false => format!(" (the last {})", last.samples),
    };
    print_line!(
        "order of {of}: {} bundles of {} samples{short}, data.bundle_ratio = {}, {} owners",
        bundles.len(),
        first.samples,
        shown.bundle_ratio,
        shown.owners
    );
    let drawn = *degrees as f64 * (1.0 - 1.0 / bundles.len() as f64);
    print_line!(
        "  A bundle's samples are drawn from the whole set, also where that is sorted by class: \
         its chi-square against the set is about {drawn:.1}."
    );
    let has_bars = classes.len() <= BARS_MAX;
    if has_bars {
        print_line!(
            "  Bars are its classes, in the order above: {} as many as in the set, {} none, {} \
             twice as many or more.",
            bar(1.0),
            bar(0.0),
            bar(2.0)
        );
    }
    let rows = shown_first(bundles);
    if rows.len() < bundles.len() {
        print_line!("  The {} with the most of one class (--json lists all):", rows.len());
    }
    let width = if has_bars { classes.len().max("classes".len()) } else { 0 };
    let head = if has_bars { "classes" } else { "" };
    print_line!("  bundle   samples  chi-square  {head:<width$}  most frequent class");
    for bundle in rows {
        let bars = if has_bars { bars(bundle, bundles) } else { String::new() };
        print_line!(
            "  {:>6}  {:>8}  {:>10.1}  {bars:<width$}  {} {:.1} % ({:.1} % of the set)",
            bundle.bundle,
            bundle.samples,
            bundle.chi_square,
            classes[bundle.top_class].shown(),
            bundle.top_share * 100.0,
            bundle.top_share_of_set * 100.0
        );
    }
    for warning in warnings {
        print_line!("  warning: {warning}");
    }
}

/// All bundles in their order where they are few, else those that one class leads by most.
fn shown_first(bundles: &[Bundle]) -> Vec<&Bundle> {
    let mut rows: Vec<&Bundle> = bundles.iter().collect();
    if rows.len() > BUNDLES_SHOWN {
        let lead = |bundle: &Bundle| bundle.top_share - bundle.top_share_of_set;
        rows.sort_by(|a, b| lead(b).total_cmp(&lead(a)));
        rows.truncate(BUNDLES_SHOWN);
    }
    rows
}

/// The histogram of a bundle, a bar for each class.
fn bars(bundle: &Bundle, all: &[Bundle]) -> String {
    let samples: u64 = all.iter().map(|bundle| bundle.samples).sum();
    let ratio = |class: usize| {
        let of_set: u64 = all.iter().map(|bundle| bundle.classes[class]).sum();
        let expected = of_set as f64 * bundle.samples as f64 / samples.max(1) as f64;
        bundle.classes[class] as f64 / expected.max(f64::MIN_POSITIVE)
    };
    (0..bundle.classes.len()).map(|class| bar(ratio(class))).collect()
}

/// A class as high as what a bundle has of it, as a multiple of its share of the set.
fn bar(ratio: f64) -> char {
    const HEIGHTS: [char; 9] = ['.', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    HEIGHTS[(ratio * 4.0).round().clamp(0.0, 8.0) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(number: u64, classes: [u64; 3], lead: f64) -> Bundle {
        Bundle {
            bundle: number,
            samples: classes.iter().sum(),
            classes: classes.to_vec(),
            top_class: 0,
            top_share: 0.3 + lead,
            top_share_of_set: 0.3,
            chi_square: 0.0,
        }
    }

    #[test]
    fn bars_say_how_a_bundle_differs_from_the_set() {
        let all = [bundle(0, [8, 4, 0], 0.1), bundle(1, [0, 4, 8], 0.1)];
        assert_eq!([bars(&all[0], &all), bars(&all[1], &all)], ["█▄.", ".▄█"]);
    }

    #[test]
    fn of_many_bundles_the_most_biased_are_shown() {
        let many: Vec<Bundle> = (0..50).map(|n| bundle(n, [1, 1, 1], n as f64 / 100.0)).collect();
        let shown: Vec<u64> = shown_first(&many).iter().map(|bundle| bundle.bundle).collect();
        assert_eq!(shown, (30..50).rev().collect::<Vec<u64>>());
        let few: Vec<u64> = shown_first(&many[..20]).iter().map(|bundle| bundle.bundle).collect();
        assert_eq!(few, (0..20).collect::<Vec<u64>>());
    }
}
