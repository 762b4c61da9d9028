//! `kintsugi scale RUN RANKS`: asks a running run for another number of ranks or nodes. The request
//! is a file in the run directory; the writer rank reads it at a step boundary. With `--nodes` it
//! is launch that reads it: the world ends at a step boundary and begins again on so many nodes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cluster::world::World;
use crate::config::{Config, ExchangeKind, Shown, Span, parse, resolve_owners};
use crate::lab::report::read::read_result;
use crate::launch::ending::verdict::may_restart;
use crate::launch::nodes::scale::{Picture, Request};
use crate::observe::console::print_line;
use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::{FileSystem, Storage};
use crate::run_folder::RANKS_REQUEST;
use crate::run_folder::has_ended;

use super::arguments::fail;

/// How often the world is looked at while waiting.
const LOOK: Duration = Duration::from_millis(50);

/// Asks a running run for another number of ranks or nodes, between two steps: more ranks are
/// spawned and merged, or the last ones leave; over several nodes all start again from memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory
    #[arg(value_name = "RUN")]
    pub(super) run: PathBuf,
    /// Ranks it is to have, at most train.owners [with --nodes: as many per node as before]
    #[arg(value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..),
        required_unless_present = "nodes")]
    ranks: Option<u32>,
    /// Nodes of the allocation that it is to have: spare ones are taken in, others given back
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Waits so long for the world to have them, for example 30s
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
}

/// Writes the request. Exit 0 when it is written (with `--wait`: when the world has that size).
pub fn run(args: &Args) -> ExitCode {
    match ask(args) {
        Ok(line) => {
            print_line!("{line}");
            ExitCode::SUCCESS
        }
        Err((code, message)) => fail(code, message),
    }
}

/// A refusal: exit code and reason.
type Refusal = (u8, String);

fn ask(args: &Args) -> Result<String, Refusal> {
    let run = &args.run;
    let world = if_there(insist(|| World::read(run))).map_err(|error| (1, error.to_string()))?;
    let world = world.ok_or_else(|| {
        (2, format!("{} holds no world.json: no run has formed its world there", run.shown()))
    })?;
    let config = parse::read(&run.join("config.toml"), &[]).map_err(|e| (2, e.to_string()))?;
    let stage = match read_result(run).map_err(|error| (1, error.to_string()))? {
        Some(result) if has_ended(run, &result) => Stage::Ended,
        _ => Stage::Running,
    };
    let picture = Picture::read(&FileSystem::new(run)).map_err(|error| (1, error.to_string()))?;
    match (args.nodes, args.ranks) {
        (Some(nodes), ranks) => ask_nodes(args, Request { nodes, ranks }, picture, &config, stage),
        // Spares wait there, which ranks that come and go cannot tell of it: launch can.
        (None, Some(ranks)) if picture.is_some() => {
            let used = picture.as_ref().map_or(1, |picture| picture.used.len());
            let nodes = ranks.min(u32::try_from(used).unwrap_or(u32::MAX));
            let request = Request { nodes, ranks: Some(ranks) };
            ask_nodes(args, request, picture, &config, stage)
        }
        (None, Some(ranks)) => {
            check(ranks, &world, &config, stage)?;
            ask_ranks(args, ranks, world.ranks())
        }
        (None, None) => Err((2, "name a number of ranks, or --nodes".into())),
    }
}

fn ask_ranks(args: &Args, ranks: u32, before: usize) -> Result<String, Refusal> {
    let run = &args.run;
    let text = format!("{ranks}\n");
    let written = FileSystem::new(run).write_whole(Path::new(RANKS_REQUEST), &[text.as_bytes()]);
    written.map_err(|error| (1, format!("cannot leave the request: {error}")))?;
    match args.wait {
        None => Ok(format!("asked for {ranks} ranks ({before} now): see kintsugi status")),
        Some(limit) => wait_for(run, ranks, limit.0),
    }
}

/// Leaves the request for launch, which knows the nodes.
fn ask_nodes(
    args: &Args,
    request: Request,
    picture: Option<Picture>,
    config: &Config,
    stage: Stage,
) -> Result<String, Refusal> {
    let storage = FileSystem::new(&args.run);
    let picture = check_nodes(request, picture, config, stage)?;
    let (nodes, ranks) = (request.nodes, request.ranks(&picture));
    if request.is_done(&picture) {
        return Ok(format!("the run already has {nodes} nodes, {ranks} ranks"));
    }
    let written = request.write(&storage);
    written.map_err(|error| (1, format!("cannot leave the request: {error}")))?;
    let before = picture.used.len();
    match args.wait {
        None => Ok(format!("asked for {nodes} nodes, {ranks} ranks ({before} nodes now)")),
        Some(limit) => wait_for_nodes(&args.run, request, ranks, limit.0),
    }
}

/// Whether the run can have so many nodes; its present ones.
fn check_nodes(
    request: Request,
    picture: Option<Picture>,
    config: &Config,
    stage: Stage,
) -> Result<Picture, Refusal> {
    if stage == Stage::Ended {
        return Err((1, "this run has ended: there is nobody to ask".into()));
    }
    let Some(picture) = picture else {
        let text = "this run has no allocation of several nodes (launch in a SLURM job writes \
                    nodes.json): --nodes cannot be; scale RUN RANKS changes its ranks";
        return Err((2, text.into()));
    };
    if !may_restart(config) {
        let text = "recovery.ladder has no \"restart\", by which a run comes to other nodes";
        return Err((2, text.into()));
    }
    match request.refusal(&picture, resolve_owners(config)) {
        Some(why) => Err((2, why)),
        None => Ok(picture),
    }
}

/// Until its ranks are at work on as many nodes.
fn wait_for_nodes(
    run: &Path,
    request: Request,
    ranks: u32,
    limit: Duration,
) -> Result<String, Refusal> {
    let (storage, end) = (FileSystem::new(run), Instant::now() + limit);
    loop {
        // Of what cannot be read just now nothing is known: it is looked at again.
        let picture = Picture::read(&storage).ok().flatten().unwrap_or_default();
        let world = World::read(run).map_or(0, |world| world.ranks());
        if request.is_done(&picture) && world == ranks as usize {
            return Ok(format!("the run has {} nodes, {ranks} ranks", request.nodes));
        }
        let answered = Request::read(&storage).is_ok_and(|waits| waits.is_none());
        if let Some(why) = picture.refused.filter(|_| answered) {
            return Err((1, why));
        }
        let now = picture.used.len();
        if matches!(read_result(run), Ok(Some(result)) if has_ended(run, &result)) {
            return Err((1, format!("the run ended on {now} nodes")));
        }
        if Instant::now() >= end {
            let limit = Span(limit);
            return Err((1, format!("after {limit} it has {now} nodes; events.jsonl says why")));
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether anybody is there to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Ended,
}

/// Whether the run can have so many.
fn check(ranks: u32, world: &World, config: &Config, stage: Stage) -> Result<(), Refusal> {
    let owners = world.owners.len();
    if ranks as usize > owners {
        let text = format!(
            "{ranks} ranks but train.owners = {owners}, fixed for the run: every rank needs an \
             owner; ask for {owners} or fewer, or start a new run with more owners"
        );
        return Err((2, text));
    }
    if config.train.exchange == ExchangeKind::Asynchronous {
        let text = "an asynchronous run cannot change its size: owners cannot move between ranks \
                    that live; start it again with another -n";
        return Err((2, text.into()));
    }
    if stage == Stage::Ended {
        return Err((1, "this run has ended: there is nobody to ask".into()));
    }
    match world.spares().count() {
        _ if ranks as usize == world.ranks() => Ok(()),
        0 => Ok(()),
        spares => Err((
            2,
            format!(
                "the number of ranks cannot change while spares wait ({spares} do): stop the run \
                 and start it again with another -n"
            ),
        )),
    }
}

fn wait_for(run: &Path, ranks: u32, limit: Duration) -> Result<String, Refusal> {
    let end = Instant::now() + limit;
    loop {
        let now = World::read(run).map_or(0, |world| world.ranks());
        if now == ranks as usize {
            return Ok(format!("the world has {ranks} ranks"));
        }
        if matches!(read_result(run), Ok(Some(result)) if has_ended(run, &result)) {
            return Err((1, format!("the run ended with {now} ranks")));
        }
        if Instant::now() >= end {
            let limit = Span(limit);
            return Err((
                1,
                format!("after {limit} the world has {now} ranks; events.jsonl says why"),
            ));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::world::Role;

    fn world() -> World {
        World::of_test(4, 6)
    }

    #[test]
    fn more_ranks_than_owners_are_refused_by_name() {
        let config = Config::default();
        assert_eq!(check(6, &world(), &config, Stage::Running), Ok(()));
        assert_eq!(check(1, &world(), &config, Stage::Running), Ok(()));
        let (code, text) = check(7, &world(), &config, Stage::Running).unwrap_err();
        assert!(code == 2 && text.contains("7 ranks but train.owners = 6"), "{text}");
    }

    #[test]
    fn ranks_do_not_come_or_go_beside_spares() {
        let mut world = world();
        world.members[3].role = Role::Spare;
        let (code, text) = check(2, &world, &Config::default(), Stage::Running).unwrap_err();
        assert!(code == 2 && text.contains("while spares wait (1 do)"), "{text}");
    }

    #[test]
    fn nodes_need_an_allocation_a_run_and_a_restart() {
        let request = Request { nodes: 2, ranks: None };
        let nodes = ["n1", "n2"].map(str::to_owned).to_vec();
        let picture = Picture { allocation: nodes, ranks_per_node: 1, ..Picture::default() };
        let mut config = Config::default();
        config.train.owners = Some(4);
        let of = |picture: Option<&Picture>, config: &Config, stage| {
            check_nodes(request, picture.cloned(), config, stage).map(|_| ())
        };
        assert_eq!(of(Some(&picture), &config, Stage::Running), Ok(()));
        assert_eq!(of(Some(&picture), &config, Stage::Ended).unwrap_err().0, 1);
        assert!(of(None, &config, Stage::Running).unwrap_err().1.contains("no allocation"));
        config.recovery.ladder = Some(vec![crate::config::Rung::Shrink]);
        assert!(
            of(Some(&picture), &config, Stage::Running).unwrap_err().1.contains("recovery.ladder")
        );
    }

    #[test]
    fn asynchronous_and_ended_runs_are_refused() {
        let mut config = Config::default();
        assert_eq!(check(4, &world(), &config, Stage::Ended).unwrap_err().0, 1);
        config.train.exchange = ExchangeKind::Asynchronous;
        let (code, text) = check(4, &world(), &config, Stage::Running).unwrap_err();
        assert!(code == 2 && text.contains("asynchronous"), "{text}");
    }
}
