//! `kintsugi simulate unified-memory`: the ten actions of Negishi et al., misses in sweeps, and the
//! three designs of a trainer over managed memory.

use std::process::ExitCode;

use super::super::arguments::print_json;
use crate::config::MemoryPolicy;
use crate::lab::report::{NONE, Table, command_line};
use crate::lab::unified_memory::actions::{self, Setting, units};
use crate::lab::unified_memory::designs::{self, Design};
use crate::lab::unified_memory::sweeps::{self, AGREE, LOADS, Sweep};
use crate::lab::unified_memory::{SIMULATES, published};
use crate::observe::console::{self, print_line};
use crate::observe::event::name_of;

/// Plays the ten actions, sweeps and designs of the paper on CUDA's unified memory over a model of
/// the driver's lists. No card is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which of the used units leaves first
    #[arg(long, value_enum, default_value_t)]
    policy: MemoryPolicy,
    #[command(flatten)]
    setting: Setting,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Exit 0: nothing here can fail.
pub fn run(args: &Args) -> ExitCode {
    let actions = args.setting.play(args.policy);
    let (sweeps, designs) = (sweeps::play(), designs::play(args.policy));
    print_line!("{SIMULATES}");
    for policy in [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady] {
        print_line!("  {}: {}", name_of(&policy), published(policy));
    }
    print_line!("");
    print_actions(args.policy, &actions);
    print_sweeps(&sweeps);
    print_designs(&designs);
    if args.json {
        print_json(&serde_json::json!({
            "simulate": "unified_memory",
            "command": command_line(),
            "simulates": SIMULATES,
            "published": published(args.policy),
            "units": args.setting.units,
            "unit_bytes": args.setting.unit_size.0,
            "hint": args.setting.hint,
            "sweeps": sweeps,
            "designs": designs,
            "policy": args.policy,
            "actions": actions,
        }));
    }
    ExitCode::SUCCESS
}

fn print_actions(policy: MemoryPolicy, rows: &[actions::Row]) {
    print_line!(
        "The ten actions (Negishi et al., Fig. 3): who is gone after one unit too many; {}.",
        name_of(&policy)
    );
    let head = ["action", "gone", "in the paper", "act", "overcommit"].map(String::from);
    let touched = actions::TOUCHED.map(|unit| format!("touch x[{unit}]"));
    let mut table = Table::new(head.into_iter().chain(touched));
    for row in rows {
        let seconds = &row.seconds;
        let times = [seconds.act, seconds.overcommit].into_iter().chain(seconds.touch);
        let names =
            [format!("{:>2} {}", row.action, row.calls), units(&row.evicted), units(row.paper)];
        let times = times.map(|seconds| format!("{seconds:.2} s"));
        table.row(names.into_iter().chain(times).collect::<Vec<String>>());
    }
    console::print_text(&table.text());
    let same = rows.iter().filter(|row| row.as_in_paper()).count();
    print_line!(
        "{same} of {} as in the paper. Each touch is of a run of its own: touching what is gone \
         makes another go.\nSeconds are modelled: 25 GB/s each way, 40 ms for a fault of 2 MiB and \
         0.2 s to touch a GiB on the card, after the paper's words; filling is left out.\n",
        rows.len()
    );
}

/// A head with a column for each load.
fn with_loads(first: &str) -> Vec<String> {
    let loads = LOADS.map(|hundredths| format!("{}", hundredths as f64 / 100.0));
    std::iter::once(first.to_string()).chain(loads).collect()
}

fn print_sweeps(rows: &[sweeps::Row]) {
    print_line!("Share of touches that miss in sweeps over X units, room for C; by X/C.");
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
    console::print_text(&table.text());
    print_line!(
        "off by: largest difference from the formulas. Forward alone: 1, optimum 1 - C/X. Both \
         ways: driver max(1/2, 1 - C/X), lru and belady 1 - C/X.\n"
    );
}

fn print_designs(rows: &[designs::Row]) {
    print_line!("Share of touches that miss, in a step of training; by X/C.");
    print_matrix(rows, None, |row| format!("{:.3}", row.miss));
    print_line!("What crosses the link in a step, towards the card and away from it, in X.");
    print_matrix(rows, None, |row| format!("{:.2} {:.2}", row.to_gpu, row.to_cpu));
    print_line!("Modelled time of a step, as a multiple of one in core; its inverse is images/s.");
    let plain = LOADS.map(|load| if load > 100 { NONE.into() } else { "1.00".into() });
    print_matrix(rows, Some(("plain memory", plain)), |row| format!("{:.2}", row.time));
    print_line!(
        "One unit a layer, written forward, read backward and then worth nothing, at one address \
         for the whole run; direct instruction discards it too.\nA layer computes each way for as \
         long as its unit takes over the link (25 GB/s); a fault of 2 MiB takes 1.5 ms, so that \
         full dependence is ten times slower at one miss in two; a call takes 10 us."
    );
}

fn print_matrix(
    rows: &[designs::Row],
    first: Option<(&str, [String; LOADS.len()])>,
    cell: impl Fn(&designs::Row) -> String,
) {
    let mut table = Table::new(with_loads("design, policy"));
    if let Some((name, cells)) = first {
        table.row(std::iter::once(name.into()).chain(cells).collect::<Vec<String>>());
    }
    for own in rows.chunk_by(|a, b| (a.design, a.policy) == (b.design, b.policy)) {
        let name = format!("{}, {}", design_name(own[0].design), name_of(&own[0].policy));
        table.row(std::iter::once(name).chain(own.iter().map(&cell)).collect::<Vec<String>>());
    }
    print_line!("{}", table.text());
}

fn design_name(design: Design) -> &'static str {
    match design {
        Design::Direct => "direct instruction",
        Design::Division => "division, order by prefetching all",
        Design::DivisionInPlace => "division, no-op prefetch after use",
        Design::DivisionWithDiscard => "the same, with discard",
        Design::Full => "full dependence",
    }
}
