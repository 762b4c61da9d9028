//! `kintsugi model {list,show,import}`: the catalogue, what a model is made of, and models from
//! ONNX files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgAction;
use serde::Serialize;

use super::arguments::{Form, fail, form};
use crate::config::{Bytes, Config, Device, Memory, MemoryMode, Precision};
use crate::engine;
use crate::engine::memory::limits::Limits;
use crate::engine::memory::shown::MemoryPlan;
use crate::lab::memory_plan;
use crate::lab::report::svg_file;
use crate::model::catalogue::Entry;
use crate::model::cost::{self, Cost};
use crate::model::{Graph, LayerKind, Shape, catalogue, layout};
use crate::needs::{Demand, Limit, Load, Needs, needs};
use crate::observe::console::{print_line, say};
use crate::observe::spans::amount;
use crate::observe::storage::{FileSystem, Storage};
use plan::Budgeted;

mod import;
mod plan;

/// Looks at models, and makes them of ONNX files.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Lists the catalogue.
    List {
        /// One JSON object on one line.
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// Shows layers, shapes, parameters and costs of one sample.
    Show(Show),
    /// Makes a model file (*.toml) and its weights (*.safetensors) of an ONNX file.
    Import(import::Args),
}

#[derive(Debug, clap::Args)]
pub struct Show {
    /// A catalogue name or the path of a model file (*.toml).
    name: String,
    /// Height and width in pixels.
    #[arg(long, default_value_t = 224)]
    image_size: usize,
    /// Channels of an image.
    #[arg(long, default_value_t = 3)]
    channels: usize,
    /// Number of classes.
    #[arg(long, default_value_t = 1000)]
    classes: usize,
    /// Samples of a micro-batch, for what a rank needs.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
    /// OpenMP threads of a worker, for what a rank needs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// `device.precision`, for what a rank needs.
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// `device.memory_budget` ("2GiB"): shows what becomes of each layer's values within it.
    #[arg(long, value_name = "SIZE")]
    budget: Option<Bytes>,
    /// `memory.mode`, for the same. Unset: planned with --budget, else in_core.
    #[arg(long, value_name = "MODE", value_parser = MODES)]
    memory: Option<String>,
    /// Draws it over the time of a micro-batch (SVG).
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Multiplies the widths of mlp and cnn11.
    #[arg(long, default_value_t = 1.0)]
    width: f64,
    /// One JSON object on one line.
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// Of `memory.mode`.
const MODES: [&str; 6] = ["in_core", "swap_sync", "swap", "recompute", "planned", "unified"];

impl Show {
    fn mode(&self) -> &str {
        let unset = if self.budget.is_some() { "planned" } else { "in_core" };
        self.memory.as_deref().unwrap_or(unset)
    }

    /// Whether somebody wants to know what becomes of values.
    fn asks_for_plan(&self) -> bool {
        self.budget.is_some() || self.memory.is_some() || self.timeline.is_some()
    }
}

/// Runs; 0, or 2 for a model that does not exist or does not fit, 1 where nothing can be written.
pub fn run(args: &Args) -> ExitCode {
    let text = match args {
        Args::List { json: Form::Json } => list_json(),
        Args::List { json: Form::Table } => list_text(),
        Args::Show(show) => match (describe(show), &show.timeline) {
            (Ok(Described { text, drawing: Some(drawing) }), Some(path)) => {
                // `write_whole`: a browser that reloads it never sees half of it.
                let written = FileSystem::new("").write_whole(path, &[drawing.as_bytes()]);
                if let Err(error) = written {
                    return fail(1, error);
                }
                text
            }
            (Ok(Described { text, .. }), _) => text,
            (Err(error), _) => {
                say!("kintsugi: {error}");
                return ExitCode::from(2);
            }
        },
        Args::Import(args) => return import::run(args),
    };
    print_line!("{text}");
    ExitCode::SUCCESS
}

/// What there is to see of a model.
struct Described {
    text: String,
    /// Of its plan of memory, where that was asked for.
    drawing: Option<String>,
}

fn list_text() -> String {
    let longest = catalogue::MODELS.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let line = |entry: &Entry| format!("{:<longest$} {}", entry.name, entry.about);
    catalogue::MODELS.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn list_json() -> String {
    let model = |entry: &Entry| {
        let Entry { name, about, side_min, .. } = entry;
        serde_json::json!({"name": name, "about": about, "image_size_min": side_min})
    };
    let models: Vec<_> = catalogue::MODELS.iter().map(model).collect();
    serde_json::json!({ "models": models }).to_string()
}

#[derive(Serialize)]
struct LayerRow<'a> {
    name: &'a str,
    kind: &'static str,
    details: &'a LayerKind,
    inputs: Vec<&'a str>,
    shape: Shape,
    #[serde(flatten)]
    cost: Cost,
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
    input: Shape,
    classes: usize,
    layers: Vec<LayerRow<'a>>,
    total: Cost,
    statistics: usize,
    precision: Precision,
    batch: u32,
    /// What a rank of one worker needs.
    needs: &'a [Demand],
    /// Why its activations are only estimated.
    unplanned: Option<String>,
    /// What becomes of values, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Budgeted<'a>>,
}

fn rows(graph: &Graph, precision: Precision) -> Vec<LayerRow<'_>> {
    let name = |input: &Option<usize>| input.map_or("image", |at| graph.nodes[at].name.as_str());
    graph
        .nodes
        .iter()
        .zip(cost::of(graph, engine::value_bytes(precision)))
        .map(|(node, cost)| LayerRow {
            name: &node.name,
            kind: node.kind.name(),
            details: &node.kind,
            inputs: node.inputs.iter().map(name).collect(),
            shape: node.shape,
            cost,
        })
        .collect()
}

fn describe(show: &Show) -> Result<Described, String> {
    let image = [show.channels, show.image_size, show.image_size];
    let graph = catalogue::build(&show.name, image, show.classes, show.width);
    let graph = graph.map_err(|error| error.to_string())?;
    let layout = layout::of(&graph);
    let layers = rows(&graph, show.precision);
    let total = layers.iter().fold(Cost::default(), |sum, row| sum + row.cost);
    let (need, planned) = need(show, &graph);
    let (plan, unplanned) = match planned {
        Ok(plan) => (show.asks_for_plan().then_some(plan), None),
        Err(why) if show.asks_for_plan() => return Err(why),
        Err(why) => (None, Some(why)),
    };
    let model = Model {
        name: &graph.name,
        input: graph.input,
        classes: graph.classes,
        layers,
        total,
        statistics: layout.statistics,
        precision: show.precision,
        batch: show.batch,
        needs: &need.parts,
        unplanned,
        memory: plan.as_ref().map(|plan| Budgeted::of(plan, show.mode())),
    };
    let text = match show.json {
        Form::Json => serde_json::to_string(&model).expect("names and numbers are JSON"),
        Form::Table => table(&model, &need),
    };
    let heading = format!("{}, {} samples: {}", show.name, show.batch, show.mode());
    let drawn = plan.as_ref().filter(|_| show.timeline.is_some());
    let drawing = drawn.map(|plan| svg_file(&memory_plan::timeline(plan, &heading)));
    Ok(Described { text, drawing })
}

/// What one rank of one worker needs that trains with the defaults, and what becomes of its values.
fn need(show: &Show, graph: &Graph) -> (Needs, Result<MemoryPlan, String>) {
    let mut config = Config::default();
    (config.run.ranks, config.train.workers) = (1, 1);
    config.train.global_batch = u64::from(show.batch);
    let (precision, memory_budget) = (show.precision, show.budget);
    config.device = Device { precision, memory_budget, ..Device::default() };
    config.memory = Memory { mode: mode(show.mode()), ..Memory::default() };
    let (batch, threads) = (show.batch as usize, show.threads as usize);
    let limits = &Limits::of(&config, 1);
    let plan = engine::memory_plan(graph, &config.device, batch, threads, limits);
    let planned = plan.as_ref().ok().map(MemoryPlan::footprint);
    let load = Load { ranks: 1, samples: config.train.global_batch, planned };
    (needs(&config, graph, load), plan.map_err(|error| error.to_string()))
}

/// As the configuration reads it.
fn mode(word: &str) -> MemoryMode {
    toml::Value::from(word).try_into().expect("one of the words of memory.mode")
}

fn shape(shape: Shape) -> String {
    match shape {
        [features, 1, 1] => features.to_string(),
        [channels, height, width] => format!("{channels}x{height}x{width}"),
    }
}

fn table(model: &Model<'_>, need: &Needs) -> String {
    let width = model.layers.iter().map(|row| row.name.len()).max().unwrap_or(0).max(5);
    let mut lines = vec![
        format!("{}: input {}, {} classes", model.name, shape(model.input), model.classes),
        format!(
            "{:<width$}  {:<15} {:>13} {:>12} {:>14} {:>12}",
            "layer", "kind", "result", "parameters", "MFLOP forward", "saved"
        ),
    ];
    let line = |name: &str, kind: &str, result: &str, cost: &Cost| {
        format!(
            "{name:<width$}  {kind:<15} {result:>13} {:>12} {:>14.2} {:>12}",
            cost.parameters,
            cost.forward_flops as f64 / 1e6,
            amount(cost.saved_bytes)
        )
    };
    for row in &model.layers {
        lines.push(line(row.name, row.kind, &shape(row.shape), &row.cost));
    }
    lines.push(line("total", "", "", &model.total));
    lines.push(format!(
        "parameters {}; one sample: forward {:.1} MFLOP, backward {:.1} MFLOP, kept for \
         backward {}",
        amount(4 * model.total.parameters),
        model.total.forward_flops as f64 / 1e6,
        model.total.backward_flops as f64 / 1e6,
        amount(model.total.saved_bytes)
    ));
    lines.extend(model.memory.iter().map(ToString::to_string));
    let (batch, precision) = (model.batch, model.precision.name());
    lines.extend(model.unplanned.iter().map(|why| format!("a step cannot be planned: {why}")));
    lines.push(format!(
        "a rank that trains it with the defaults, {batch} samples at a time in {precision}, needs \
         {} of memory, and {} of disk:",
        amount(need.bytes(Limit::Memory)),
        amount(need.bytes(Limit::Disk))
    ));
    lines.extend(need.parts.iter().map(|part| format!("  {part}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(name: &str, json: Form) -> Result<String, String> {
        let (image_size, channels, classes, width) = (224, 3, 32, 1.0);
        let (batch, threads, precision) = (2, 1, Precision::F32);
        let (name, budget, memory, timeline) = (name.into(), None, None, None);
        let described = describe(&Show {
            name,
            image_size,
            channels,
            classes,
            batch,
            threads,
            precision,
            budget,
            memory,
            timeline,
            width,
            json,
        });
        described.map(|described| described.text)
    }

    #[test]
    fn json_and_table_state_the_same_parameters() {
        let json: serde_json::Value =
            serde_json::from_str(&show("cnn11", Form::Json).expect("known")).expect("JSON");
        let parameters = json["total"]["parameters"].as_u64().expect("a count");
        let table = show("cnn11", Form::Table).expect("known");
        assert!(table.contains(&parameters.to_string()), "{table}");
        assert!(table.contains(&amount(4 * parameters)), "{table}");
    }

    #[test]
    fn the_words_of_a_mode_are_the_configuration_s() {
        let modes = MODES.map(mode);
        assert_eq!(
            modes.map(|mode| toml::Value::try_from(mode).unwrap().as_str().unwrap().to_owned()),
            MODES
        );
    }

    #[test]
    fn an_unknown_model_is_refused() {
        assert!(show("cnn12", Form::Json).is_err_and(|e| e.contains("`cnn11`")));
    }
}
