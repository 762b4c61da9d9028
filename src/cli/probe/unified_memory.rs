//! `kintsugi probe unified-memory`: the ten actions on a card that is its caller's own, and what
//! they would ask of any other.

use std::process::ExitCode;

use kintsugi_ffi::cuda::{Context, Device, Driver};

use super::super::arguments::{fail, print_json};
use crate::lab::report::{Table, command_line};
use crate::lab::unified_memory::actions::{ACTIONS, Setting, TOUCHED, units};
use crate::lab::unified_memory::card::{Seen, probe};
use crate::observe::console::{self, print_line};
use crate::observe::spans::amount;

/// Does the ten actions of the paper on CUDA's unified memory on a card, or says what they would
/// ask of one
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setting: Setting,
    /// Do them: nobody else computes on the card, and the machine may be started again
    #[arg(long)]
    i_own_this_gpu: bool,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// 2: there is no card, or it is not asked for more than it has.
pub fn run(args: &Args) -> ExitCode {
    let Setting { units: number, unit_size, hint } = args.setting;
    let all = unit_size.0.saturating_mul(u64::from(number) + 1);
    let hint = hint.map_or(String::new(), |hint| format!(", each advised {}", hint.advice()));
    let would = if args.i_own_this_gpu { "Fills" } else { "It would fill" };
    print_line!(
        "{would} a card with {number} managed units of {unit_size}{hint}, then for each of these \
         actions: act, ask for one unit more ({} in all), touch one of {}:",
        amount(all),
        units(&TOUCHED)
    );
    for action in &ACTIONS {
        print_line!("{:>2} {action}", action.number);
    }
    let instead = "`kintsugi simulate unified-memory` plays it without a card";
    let card = Driver::open(None).and_then(|driver| Ok(driver.devices()?.into_iter().next()));
    match card {
        Err(missing) => fail(2, format!("this needs an NVIDIA card: {missing}; {instead}")),
        Ok(None) => fail(2, format!("this needs an NVIDIA card: none is visible; {instead}")),
        Ok(Some(_)) if !args.i_own_this_gpu => fail(
            2,
            format!(
                "a card that is asked for more than it has can hang until the machine starts \
                 again: add --i-own-this-gpu where nobody else needs it; {instead}"
            ),
        ),
        Ok(Some(card)) => match seen(args, &card) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail(2, format!("{why}; {instead}")),
        },
    }
}

fn seen(args: &Args, card: &Device) -> Result<(), String> {
    let context = Context::of(card).map_err(|error| error.to_string())?;
    let name = card.name().map_err(|error| error.to_string())?;
    let said = &mut |action: &_| print_line!("doing {action}");
    let rows = probe(&args.setting, &context, said)?;
    print(&name, &rows);
    if args.json {
        print_json(&serde_json::json!({
            "probe": "unified_memory",
            "command": command_line(),
            "card": name,
            "units": args.setting.units,
            "unit_bytes": args.setting.unit_size.0,
            "hint": args.setting.hint,
            "actions": rows,
        }));
    }
    Ok(())
}

fn print(card: &str, rows: &[Seen]) {
    let head = ["action", "slow to touch", "away by the published policy", "act", "overcommit"];
    let touched = TOUCHED.map(|unit| format!("touch x[{unit}]"));
    let mut table = Table::new(head.map(String::from).into_iter().chain(touched));
    for row in rows {
        let times = [row.seconds.act, row.seconds.overcommit].into_iter().chain(row.seconds.touch);
        let names =
            [format!("{:>2} {}", row.action, row.calls), units(&row.slow), units(&row.published)];
        let times = times.map(|seconds| format!("{seconds:.4} s"));
        table.row(names.into_iter().chain(times).collect::<Vec<String>>());
    }
    print_line!("\nMeasured on {card}:");
    console::print_text(&table.text());
    let same = rows.iter().filter(|row| row.slow == row.published).count();
    print_line!("{same} of {} as by the published policy.", rows.len());
}
