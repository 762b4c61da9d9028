//! `kintsugi data inspect CONFIG`: the sets of a configuration, and what the bundles hold that its
//! order cuts the training set into.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::super::arguments::Form;
use super::report::{DATA_ERROR, print, report};
use crate::config::{Config, DataFormat, Shown, parse};
use crate::data::composition::{Composition, composition};
use crate::data::open::open;
use crate::data::sampler::Order;
use crate::data::{DataError, Split};
use crate::observe::console::{print_line, say};

/// Bundles that the table shows; `--json` lists all.
const BUNDLES_SHOWN: usize = 20;

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
        Err(error) => {
            say!("error: {error}");
            return Ok(ExitCode::from(2));
        }
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
    let mut reports = vec![report(&set, Split::Train, train)];
    if has_validation(&config) {
        let set = open(&config.data, Split::Validation, config.run.seed)?;
        let validation = config.data.validation.as_ref().map_or_else(made, Shown::shown);
        reports.push(report(&set, Split::Validation, validation));
    }
    let usable = reports.iter().all(|report| report.usable);
    if form == Form::Json {
        let whole = serde_json::json!({ "usable": usable, "splits": reports, "bundles": bundles });
        print_line!("{whole}");
    } else {
        reports.iter().for_each(print);
        print_bundles(path, &bundles, source.classes());
    }
    Ok(ExitCode::from(if usable { 0 } else { DATA_ERROR }))
}

/// One folder of images, or of shards, without another one has no validation set.
fn has_validation(config: &Config) -> bool {
    let data = &config.data;
    let has_one = match data.format {
        DataFormat::ImageFolder => data.train.is_none(),
        DataFormat::Tar => false,
        _ => true,
    };
    has_one || data.validation.is_some()
}

fn print_bundles(config: &Path, shown: &Bundles, classes: &[String]) {
    let Composition { bundles, degrees, warnings } = &shown.composition;
    let samples = |bundle: usize| bundles.get(bundle).map_or(0, |bundle| bundle.samples);
    if bundles.len() < 2 {
        print_line!("order of {}: no bundles, {} owners", config.shown(), shown.owners);
        return;
    }
    print_line!(
        "order of {}: {} bundles of {} samples (the last {}), data.bundle_ratio = {}, {} owners; \
         chi-square against the set, {degrees} degrees of freedom",
        config.shown(),
        bundles.len(),
        samples(0),
        samples(bundles.len() - 1),
        shown.bundle_ratio,
        shown.owners
    );
    print_line!("  bundle   samples  chi-square  most frequent class");
    for bundle in bundles.iter().take(BUNDLES_SHOWN) {
        print_line!(
            "  {:>6}  {:>8}  {:>10.1}  {} {:.1} % ({:.1} % of the set)",
            bundle.bundle,
            bundle.samples,
            bundle.chi_square,
            classes[bundle.top_class].shown(),
            bundle.top_share * 100.0,
            bundle.top_share_of_set * 100.0
        );
    }
    if bundles.len() > BUNDLES_SHOWN {
        print_line!("  ... (--json lists all)");
    }
    for warning in warnings {
        print_line!("  warning: {warning}");
    }
}
