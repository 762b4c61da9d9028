//! What is in a data set: every sample is decoded, sizes and bad ones are told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::config::Shown;
use crate::data::set::DataSet;
use crate::data::source::Source;
use crate::data::{DataError, Split};
use crate::observe::console::{self, print_line};
use crate::observe::threads;

/// Exit code of a set that is missing, unreadable or changed (README, "Exit codes").
pub const DATA_ERROR: u8 = 3;
/// Most threads that decode at once.
const THREADS_MAX: usize = 16;
/// Bad files that the table shows; `--json` lists all.
const BAD_SHOWN: usize = 20;

/// A bar on a terminal, nothing elsewhere.
pub fn bar(total: u64, what: &str) -> ProgressBar {
    let bar = console::bar::bar(Some(total));
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// What is said of one split.
#[derive(Debug, Serialize)]
pub struct Report {
    pub split: &'static str,
    pub path: String,
    pub samples: u64,
    pub channels: u32,
    pub classes: Vec<ClassCount>,
    pub width: Option<Range>,
    pub height: Option<Range>,
    pub bad: Vec<BadFile>,
    pub images_per_second: f64,
    pub fingerprint: String,
    /// What is not read, and what its owner should look at.
    pub remarks: Vec<String>,
    pub usable: bool,
}

#[derive(Debug, Serialize)]
pub struct ClassCount {
    pub name: String,
    pub samples: u64,
}

#[derive(Debug, Serialize)]
pub struct Range {
    pub min: u32,
    pub median: u32,
    pub max: u32,
}

#[derive(Debug, Serialize)]
pub struct BadFile {
    pub name: String,
    pub reason: String,
}

/// Sizes and bad files, as found by several threads.
#[derive(Default)]
pub struct Looked {
    /// Samples that were decoded, or could not be.
    pub count: u64,
    pub widths: Vec<u32>,
    pub heights: Vec<u32>,
    /// By their numbers, in this order.
    pub bad: Vec<(u64, BadFile)>,
    /// The storage did not answer: nothing is known of what it holds.
    away: Option<DataError>,
}

/// Decodes a whole set.
///
/// # Errors
/// Its storage does not answer.
pub fn report(set: &DataSet, split: Split, path: String) -> Result<Report, DataError> {
    let source = &set.source;
    let start = Instant::now();
    let found = look(set, split, None)?;
    Ok(Report {
        split: split.name(),
        path,
        samples: source.len(),
        channels: source.channels(),
        classes: counted(&**source),
        usable: !found.widths.is_empty(),
        width: range(found.widths),
        height: range(found.heights),
        bad: found.bad.into_iter().map(|(_, bad)| bad).collect(),
        images_per_second: source.len() as f64 / start.elapsed().as_secs_f64(),
        fingerprint: format!("{:016x}", source.fingerprint()),
        remarks: source.remarks().to_vec(),
    })
}

/// The samples of each class.
pub fn counted(source: &dyn Source) -> Vec<ClassCount> {
    let mut counts = vec![0u64; source.classes().len()];
    (0..source.len()).for_each(|id| counts[source.label(id) as usize] += 1);
    let classes = source.classes().iter().zip(counts);
    classes.map(|(name, samples)| ClassCount { name: name.clone(), samples }).collect()
}

pub fn range(mut values: Vec<u32>) -> Option<Range> {
    values.sort_unstable();
    let median = *values.get(values.len() / 2)?;
    Some(Range { min: *values.first()?, median, max: *values.last()? })
}

/// Prime, so that its multiples come to every number of a smaller set once, spread over it.
const SPREAD: u128 = 4_294_967_291;

/// Decodes a whole set, or what there is time for of it, spread over it.
///
/// # Errors
/// Its storage does not answer.
pub fn look(set: &DataSet, split: Split, longest: Option<Duration>) -> Result<Looked, DataError> {
    let (source, begun) = (&*set.source, Instant::now());
    let next = AtomicU64::new(0);
    let all = Mutex::new(Looked::default());
    let bar = bar(source.len(), split.name());
    let late = || longest.is_some_and(|longest| begun.elapsed() > longest);
    let work = || {
        let (mut own, mut bytes) = (Looked::default(), Vec::new());
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= source.len() || late() {
                break;
            }
            let id = match longest {
                None => at,
                Some(_) => (u128::from(at) * SPREAD % u128::from(source.len())) as u64,
            };
            match set.read(id, &mut bytes) {
                Ok(image) => {
                    own.widths.push(image.width);
                    own.heights.push(image.height);
                }
                Err(error @ DataError::Store(_)) => {
                    own.away = Some(error);
                    break;
                }
                Err(error) => own.bad.push((id, bad_file(source, id, error))),
            }
            own.count += 1;
            bar.inc(1);
        }
        let mut all = all.lock().unwrap_or_else(|poison| poison.into_inner());
        all.count += own.count;
        all.widths.append(&mut own.widths);
        all.heights.append(&mut own.heights);
        all.bad.append(&mut own.bad);
        all.away = all.away.take().or(own.away);
    };
    let number = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    std::thread::scope(|scope| threads::share(scope, number, work));
    bar.finish_and_clear();
    let mut all = all.into_inner().unwrap_or_else(|poison| poison.into_inner());
    if let Some(error) = all.away {
        return Err(error);
    }
    all.bad.sort_unstable_by_key(|(id, _)| *id);
    Ok(all)
}

fn bad_file(source: &dyn Source, id: u64, error: DataError) -> BadFile {
    match error {
        DataError::Sample { name, reason } | DataError::Lost { name, reason } => {
            BadFile { name, reason }
        }
        DataError::Set(reason) | DataError::Store(reason) | DataError::Place(reason) => {
            BadFile { name: source.name(id), reason }
        }
    }
}

/// For people.
pub fn print(report: &Report) {
    print_line!(
        "{} {}: {} samples, {} classes, {} channels, fingerprint {}",
        report.split,
        report.path,
        report.samples,
        report.classes.len(),
        report.channels,
        report.fingerprint
    );
    for class in &report.classes {
        print_line!("  {:>8}  {}", class.samples, class.name.shown());
    }
    let show = |range: &Range| format!("{} / {} / {}", range.min, range.median, range.max);
    if let (Some(width), Some(height)) = (&report.width, &report.height) {
        print_line!(
            "  width {}, height {} (min / median / max); {:.0} images/s",
            show(width),
            show(height),
            report.images_per_second
        );
    }
    for remark in &report.remarks {
        print_line!("  {remark}");
    }
    if !report.bad.is_empty() {
        print_line!("  {} bad of {}:", report.bad.len(), report.samples);
    }
    for bad in report.bad.iter().take(BAD_SHOWN) {
        print_line!("    {}: {}", bad.name, bad.reason);
    }
    if report.bad.len() > BAD_SHOWN {
        print_line!("    ... (--json lists all)");
    }
    if !report.usable {
        print_line!("  nothing in it can be decoded: not usable");
    }
}
