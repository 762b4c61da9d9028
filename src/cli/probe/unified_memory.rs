//! `kintsugi probe unified-memory`: what the ten actions would ask of a card, and why none is
//! asked.

use std::process::ExitCode;

use kintsugi_ffi::cuda::Driver;

use super::super::arguments::fail;
use crate::lab::unified_memory::actions::{ACTIONS, Setting, TOUCHED, units};
use crate::observe::console::print_line;
use crate::observe::spans::amount;

/// Says what the ten actions of the paper on CUDA's unified memory would ask of a card
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setting: Setting,
}

/// 2: there is no card, or it is not asked for more than it has.
pub fn run(args: &Args) -> ExitCode {
    let Setting { units: number, unit_size, hint } = args.setting;
    let all = unit_size.0.saturating_mul(u64::from(number) + 1);
    let hint = hint.map_or(String::new(), |hint| format!(", each advised {}", hint.advice()));
    print_line!(
        "It would fill a card with {number} managed units of {unit_size}{hint}, act, ask for one \
         unit more ({} in all) and time touching {}, for each of these actions:",
        amount(all),
        units(&TOUCHED)
    );
    for action in &ACTIONS {
        print_line!("{:>2} {action}", action.number);
    }
    let instead = "`kintsugi simulate unified-memory` plays it without a card";
    match Driver::open(None).and_then(|driver| Ok(driver.devices()?)) {
        Err(missing) => fail(2, format!("this needs an NVIDIA card: {missing}; {instead}")),
        Ok(_) => fail(
            2,
            format!(
                "a card that is asked for more than it has can hang until the machine starts \
                 again, so this version asks none; {instead}"
            ),
        ),
    }
}
