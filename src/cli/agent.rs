//! `kintsugi agent` (hidden): speaks for one node, see `launch::nodes`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::Span;
use crate::launch::nodes::agent::{Duties, Parting, serve};
use crate::launch::nodes::message::KEY_VARIABLE;
use crate::launch::nodes::orphan::{Outcome, watch};
use crate::observe::console;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where launch runs.
    #[arg(long)]
    launch: String,
    /// Its port for connections.
    #[arg(long)]
    port: u16,
    /// Its port for beats.
    #[arg(long)]
    beats: u16,
    /// This node, as SLURM calls it.
    #[arg(long)]
    node: String,
    /// The run directory's short name.
    #[arg(long)]
    run: String,
    /// Where the run keeps its slots.
    #[arg(long)]
    resident_dir: PathBuf,
    /// Silence after which launch counts as dead.
    #[arg(long)]
    timeout: Span,
    /// Where its words go: they do not pass through srun, which may be gone.
    #[arg(long)]
    log: PathBuf,
}

/// srun's own idea of where launch runs.
const LAUNCH_ADDRESS: &str = "SLURM_LAUNCH_NODE_IPADDR";

/// Of the allocation.
const JOB: &str = "SLURM_JOB_ID";

/// Serves until launch ends.
pub fn run(args: &Args) -> ExitCode {
    let log = std::fs::File::options().create(true).append(true).open(&args.log);
    // Without it srun passes them on while it can.
    let _ = log.and_then(|log| kintsugi_ffi::os::redirect_stderr(&log));
    let address = std::env::var(LAUNCH_ADDRESS).ok();
    let duties = Duties {
        hosts: [Some(args.launch.clone()), address].into_iter().flatten().collect(),
        port: args.port,
        beats: args.beats,
        key: std::env::var(KEY_VARIABLE).unwrap_or_default(),
        node: args.node.clone(),
        run: args.run.clone(),
        resident_dir: args.resident_dir.clone(),
        timeout: args.timeout.0,
    };
    let program = std::env::current_exe();
    match program.and_then(|program| serve(&duties, program)) {
        Ok(Parting::Dismissed) => ExitCode::SUCCESS,
        Ok(Parting::Orphaned(why)) => {
            say(args, &format!("launch is gone ({why}): this node was cleared up"));
            if let Ok(job) = std::env::var(JOB) {
                match watch(&job, &duties.hosts, duties.port) {
                    Outcome::Lives => {}
                    Outcome::Requeued => say(args, &format!("so is its machine: {job} requeued")),
                    Outcome::Undecided(why) => say(args, &format!("job {job}: {why}")),
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(args, &error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Whoever read it may be gone: that must not end an agent.
fn say(args: &Args, text: &str) {
    console::say!("agent of {}: {text}", args.node);
}
