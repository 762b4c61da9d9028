//! What `evaluate` and `predict` need to know of an imported checkpoint, which no run has written:
//! its model, and how pictures are looked at.

use std::path::Path;

use toml::Value;

use crate::config::{Model, parse};
use crate::data::Normalization;
use crate::model::catalogue;
use crate::observe::storage::Storage;
use crate::train::checkpoint::Snapshot;
use crate::train::checkpoint::weights::IMPORTED;

/// Stands above it.
const WHY: &str = "\
# Written by `kintsugi checkpoint import`, for evaluate and predict. The weights do not say all that
# decides how pictures are looked at: add data.format, data.crop, data.mean and others where they
# are not the defaults, or say them with -s.
";

/// Writes the configuration of an imported checkpoint, where there is none of a run: that one knows
/// more.
///
/// # Errors
/// It cannot be written, or would be refused where it is read.
pub fn configure(storage: &dyn Storage, snapshot: &Snapshot, width: f64) -> Result<(), String> {
    let there = storage.list(Path::new("")).map_err(|error| error.to_string())?;
    if there.iter().any(|name| name == "config.toml") {
        return Ok(());
    }
    let text = text(snapshot, width)?;
    parse::of_text(&text).map_err(|error| error.to_string())?;
    let written =
        storage.write_whole(Path::new(IMPORTED), &[WHY.as_bytes(), b"\n", text.as_bytes()]);
    written.map_err(|error| format!("cannot write {IMPORTED}: {error}"))
}

fn text(snapshot: &Snapshot, width: f64) -> Result<String, String> {
    let mut model = Model { name: snapshot.model_name.clone(), width, ..Model::default() };
    // Whatever becomes of a model's file, the weights are of this one.
    catalogue::keep_text(&mut model).map_err(|error| error.to_string())?;
    let quoted = |text: String| Value::from(text).to_string();
    let mut lines = vec!["[model]".to_owned(), format!("name = {}", quoted(model.name))];
    lines.extend(model.text.map(|text| format!("text = {}", quoted(text))));
    lines.push(format!("width = {width:?}"));
    lines.extend(["[data]".to_owned(), format!("image_size = {}", snapshot.input[1])]);
    let own = snapshot.normalization.iter().flat_map(Normalization::texts);
    lines.extend(own.map(|(key, numbers)| format!("{key} = {numbers}")));
    lines.extend(
        ["[train]", "epochs = 1 # nothing trains; a configuration says how long", ""]
            .map(str::to_owned),
    );
    Ok(lines.join("\n"))
}
