//! `kintsugi simulate unified-memory`: the ten actions of Negishi et al., misses in sweeps, and the
//! three designs of a trainer over managed memory.

use std::process::ExitCode;

use super::super::arguments::print_json;
use crate::config::MemoryPolicy;
use crate::lab::report::command_line;
use crate::lab::unified_memory::actions::{self, Setting};
use crate::lab::unified_memory::{SIMULATES, designs, published, sweeps, tables};
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
    console::print_text(&tables::actions(rows).text());
    print_line!("{}\n", tables::about_actions(rows));
}

fn print_sweeps(rows: &[sweeps::Row]) {
    print_line!("Share of touches that miss in sweeps over X units, room for C; by X/C.");
    console::print_text(&tables::sweeps(rows).text());
    print_line!("{}\n", tables::ABOUT_SWEEPS);
}

fn print_designs(rows: &[designs::Row]) {
    print_line!("Share of touches that miss, in a step of training; by X/C.");
    print_line!("{}", tables::misses(rows).text());
    print_line!("What crosses the link in a step, towards the card and away from it, in X.");
    print_line!("{}", tables::crossings(rows).text());
    print_line!("Modelled time of a step, as a multiple of one in core; its inverse is images/s.");
    print_line!("{}", tables::times(rows).text());
    print_line!("{}", tables::ABOUT_TIMES);
}
