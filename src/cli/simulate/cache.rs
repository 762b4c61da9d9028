//! `kintsugi simulate cache`: how often caches miss under the orders that training can take.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::super::arguments::{fail, print_json};
use super::super::data::report::DATA_ERROR;
use crate::config::{Shown, parse};
use crate::data::sampler::Bundling;
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::lab::caches::figure4;
use crate::lab::caches::sizes::{NAMED, SAMPLES_MAX, Set};
use crate::lab::caches::trace::Assignment;
use crate::lab::caches::{
    OF_THE_PAPER, POLICIES, Policy, READS_MAX, Row, Setting, cache_sizes, page, play,
};
use crate::lab::crowd::within;
use crate::lab::report::{NONE, Table, command_line};
use crate::observe::console::{self, print_line};
use crate::observe::event::name_of;
use crate::observe::storage::{FileSystem, Storage};

/// Most nodes: each has a trace of its own.
const NODES_MAX: u32 = 4096;
/// What is played and what is computed may lie this far apart.
const AGREE: f64 = 0.003;
/// Cache sizes that the table shows.
const SHOWN: [f64; 6] = [0.1, 0.2, 0.35, 0.4, 0.6, 0.9];

/// Plays LRU, keep (never evict), Belady's optimum and 2Q over the order that runs use: the global
/// shuffle, bundles in one direction, alternating and reversed, on one node and on several.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Samples of the training set, all of one size
    #[arg(long, value_name = "N", default_value_t = 20_000,
        value_parser = within::<u64, SAMPLES_MAX>)]
    samples: u64,
    /// File sizes instead, in blocks of 4 KiB: of the training set of a configuration, or drawn
    /// ones for the sets of the paper; LRU alone, as there
    #[arg(long, value_name = "CONFIG|food101|imagenet100", conflicts_with = "samples")]
    set: Option<PathBuf>,
    #[command(flatten)]
    setting: Setting,
    /// Draws what was simulated as one self-contained page
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Exit 0; 1: --out could not be written; 2: values without sense; 3: the set cannot be used.
pub fn run(args: &Args) -> ExitCode {
    let set = match set_of(args) {
        Ok(set) => set,
        Err(code) => return code,
    };
    let setting = &args.setting;
    if let Some(reason) = refusal(setting, &set) {
        return fail(2, reason);
    }
    let policies = if args.set.is_some() { &OF_THE_PAPER[..] } else { &POLICIES };
    let rows = match play(setting, policies, &set.sizes) {
        Ok(rows) => rows,
        Err(error) => return fail(2, error),
    };
    let relative = figure4::relative(&rows, setting.nodes[0]);
    let gains = figure4::improvements(&relative);
    let command = command_line();
    print_rows(setting, &rows);
    print_line!("{}", page::RELATIVE);
    print_line!("{}", page::relative_table(&relative).text());
    print_line!("{}", page::GAINS);
    print_line!("{}", page::gains_table(&set, &gains).text());
    for line in page::sentences(setting, &set, &gains) {
        print_line!("{line}");
    }
    if let Some(path) = &args.out {
        let page = page::html(setting, &set, &rows, &relative, &gains, &command);
        if let Err(error) = FileSystem::new("").write_whole(path, &[page.as_bytes()]) {
            return fail(1, format!("{}: {error}", path.shown()));
        }
        print_line!("{}", path.shown());
    }
    if args.json {
        let of = |assignment| -> Vec<&Row> {
            rows.iter().filter(|row| row.assignment == assignment).collect()
        };
        print_json(&serde_json::json!({
            "simulate": "cache",
            "command": command,
            "about": set.about,
            "samples": set.sizes.samples(),
            "blocks": set.sizes.total(),
            "epochs": setting.epochs,
            "owners": setting.owners,
            "seed": setting.seed,
            "rows": of(Assignment::Owners),
            "strided": of(Assignment::Strided),
            "improvements": gains,
            "published": set.published,
        }));
    }
    ExitCode::SUCCESS
}

/// What is read.
fn set_of(args: &Args) -> Result<Set, ExitCode> {
    let Some(name) = &args.set else { return Ok(Set::equal(args.samples)) };
    match NAMED.iter().position(|named| Path::new(named.name) == name) {
        Some(index) => Ok(Set::named(index, args.setting.seed)),
        None => listed(name),
    }
}

/// The training set of a configuration.
fn listed(path: &Path) -> Result<Set, ExitCode> {
    let config = parse::load(path, &[]).map_err(|error| fail(2, error))?;
    let set = open(&config.data, Split::Train, config.run.seed).map_err(|error| match error {
        DataError::Place(reason) => fail(2, reason),
        other => fail(DATA_ERROR, other),
    })?;
    let name = path.shown();
    Set::listed(&name, &*set.source).map_err(|reason| fail(2, format!("{name}: {reason}")))
}

/// Values that make no sense.
fn refusal(args: &Setting, set: &Set) -> Option<String> {
    let samples = set.sizes.samples() as u64;
    let reads = samples.saturating_mul(args.epochs);
    let nodes = args.nodes.iter().all(|&nodes| (1..=NODES_MAX.min(args.owners)).contains(&nodes));
    let ratios = args.ratios.iter().all(|&ratio| ratio > 0.0 && ratio < 1.0);
    for (valid, reason) in [
        (args.epochs >= 2, "--epochs: caches are cold in the first; write 2 or more".into()),
        (reads <= READS_MAX, format!("samples x --epochs: write {READS_MAX} reads or fewer")),
        (
            u64::from(args.owners) <= samples && args.owners > 0,
            "--owners: write a number from 1 to the number of samples".into(),
        ),
        (
            nodes && !args.nodes.is_empty(),
            format!(
                "--nodes: a node without an owner reads nothing; write numbers from 1 to {}, or \
                 --owners higher",
                NODES_MAX.min(args.owners)
            ),
        ),
        (ratios, "--bundle-ratios: write shares above 0 and below 1".into()),
    ] {
        if !valid {
            return Some(reason);
        }
    }
    None
}

fn print_rows(setting: &Setting, rows: &[Row]) {
    print_line!(
        "Share of blocks read that miss after the first epoch, by the cache's share of the set."
    );
    let sizes = SHOWN.map(|size| format!("{:.0} %", size * 100.0));
    let head = ["order", "policy", "nodes"].map(String::from).into_iter().chain(sizes);
    let mut table = Table::new(head.chain(["off by".into()]));
    let line_of = |row: &Row| (row.bundling, row.policy, row.nodes, row.assignment);
    // LRU is what orders change; the others are shown where they can be compared with it.
    let shown = |own: &&[Row]| {
        let row = &own[0];
        row.policy == Policy::Lru
            || (row.bundling == Bundling::WHOLE && row.nodes == setting.nodes[0])
    };
    for own in rows.chunk_by(|a, b| line_of(a) == line_of(b)).filter(shown) {
        let (order, policy, nodes, assignment) = line_of(&own[0]);
        let nodes = match assignment {
            Assignment::Owners => format!("{nodes}"),
            Assignment::Strided => format!("{nodes}, in turn"),
        };
        let miss = |size: f64| own.iter().find(|row| row.cache == size).map(|row| row.miss);
        let misses = SHOWN.map(|size| miss(size).map_or(NONE.into(), |miss| format!("{miss:.4}")));
        let off = off_by(own).map_or("no formula".into(), |off| {
            format!("{off:.4}{}", if off > AGREE { " !" } else { "" })
        });
        let names = [page::order_name(order), name_of(&policy), nodes];
        table.row([&names[..], &misses, &[off]].concat());
    }
    let bound = SHOWN.map(|size| format!("{:.4}", 1.0 - size));
    let names = ["any order (bound 1 - c)", "any", "any"].map(String::from);
    table.row([&names[..], &bound, &[String::new()]].concat());
    console::print_text(&table.text());
    print_line!(
        "off by: largest difference from the formula over {} sizes; ! where above {AGREE}: few \
         samples, few owners a node, or files that keep takes whole. Over all {} rows (--json): \
         {:.4}.\n",
        cache_sizes().len(),
        rows.len(),
        off_by(rows).unwrap_or(0.0)
    );
}

/// The largest difference from the formula; `None` where none has one.
fn off_by(rows: &[Row]) -> Option<f64> {
    let differences = rows.iter().filter_map(|row| Some((row.miss - row.closed_form?).abs()));
    differences.max_by(f64::total_cmp)
}
