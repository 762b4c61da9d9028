//! From a file of measures to `results.json` and `report.html`.

use std::io;
use std::path::Path;

use super::file::Measure;
use super::part::{Frame, Part};
use super::{fits, managed, page, steps, trade};
use crate::lab::experiment::results::{REPORT_FILE, RESULTS_FILE};
use crate::observe::console::say;
use crate::observe::storage::{FileSystem, Storage};

/// Does all measures in order, and writes both files after each.
///
/// # Errors
/// What kept a measure from being done, for a person; or files from being written.
pub fn make(frame: &Frame<'_>, out: &Path) -> Result<Vec<Part>, String> {
    let (mut parts, all) = (Vec::new(), &frame.study.measures);
    for (at, measure) in all.iter().enumerate() {
        say!("[{}/{}] {}", at + 1, all.len(), measure.title());
        let part = match measure {
            Measure::LargestBatch(of) => fits::largest_batches(of),
            Measure::FarTier(of) => fits::far_tiers(of),
            Measure::StepTime(of) => steps::times(of),
            Measure::ManagedMemory(of) => Ok(managed::played(of)),
            Measure::PinnedOrCached(of) => trade::curve(of),
        };
        parts.push(part.map_err(|reason| format!("{}: {reason}", measure.title()))?);
        write(frame, out, &parts).map_err(|error| error.to_string())?;
    }
    Ok(parts)
}

fn write(frame: &Frame<'_>, out: &Path, parts: &[Part]) -> io::Result<()> {
    let part = |part: &Part| {
        let Part { title, source, rows, .. } = part;
        serde_json::json!({ "title": title, "source": source, "rows": rows })
    };
    let results = serde_json::json!({
        "title": frame.study.title,
        "command": frame.command,
        "machine": frame.machine,
        "experiment": frame.text,
        "measures": parts.iter().map(part).collect::<Vec<_>>(),
    });
    let storage = FileSystem::new(out);
    storage.write_whole(RESULTS_FILE.as_ref(), &[&serde_json::to_vec_pretty(&results)?])?;
    storage.write_whole(REPORT_FILE.as_ref(), &[page::html(frame, parts).as_bytes()])
}
