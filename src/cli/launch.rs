//! `kintsugi launch`: starts the ranks under mpirun, shows their progress, and ends with the code
//! that says how the run ended.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kintsugi_ffi::cgroup::{self, Cgroup};
use kintsugi_ffi::{mpi, os};

use crate::cluster::processors::{machine, places};
use crate::cluster::resident::Folder;
use crate::config::parse::Loaded;
use crate::config::{
    CacheSize, Config, DataFormat, Every, Recovery, Rung, Shown, identity, parse, paths,
};
use crate::data::apart;
use crate::launch::ceilings::{self, Needs};
use crate::launch::estimate::{self, Sizes};
use crate::launch::job::Job;
use crate::launch::limits::Limits;
use crate::launch::logout::{Chosen, Machine, suit_resident_dir};
use crate::launch::nodes::allocation::{slurmd_timeout, stray};
use crate::launch::nodes::cluster_nodes::{ClusterNodes, Nodes};
use crate::launch::nodes::{Allocation, SPARES_DEFAULT};
use crate::launch::run_dir::{Found, Owners, RunDir};
use crate::launch::runtime::{RUNTIME_VARIABLE, Runtime, SILENCE_MAX};
use crate::launch::supervisor;
use crate::launch::{LaunchError, folders, mpirun, network};
use crate::model::{catalogue, layout};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::console::{self, print_line, say, tell};
use crate::observe::panics;
use crate::observe::progress::Progress;
use crate::observe::result::{BadImages, RunResult, Status};
use crate::observe::tensorboard::Tensorboard;
use crate::run_folder::before::Before;
use crate::run_folder::lock::{RunLock, current_attempt};
use crate::train::checkpoint::weights;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's configuration (TOML)
    config: PathBuf,
    /// Ranks to start [default: run.ranks]
    #[arg(short = 'n', long, value_name = "RANKS")]
    ranks: Option<u32>,
    /// Waiting processes per node that replace dead ranks [default: recovery.spares]
    #[arg(long, value_name = "S")]
    spares: Option<u32>,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the run lives; one that is there goes on [default: runs/NAME-HASH, from the
    /// configuration]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Starts anew: a run that is there is moved aside
    #[arg(long)]
    fresh: bool,
    /// Nodes of the allocation that wait until another one dies
    #[arg(long, value_name = "NODES", default_value_t = 0)]
    spare_nodes: u32,
    /// With fewer living nodes the run ends (exit code 75), to be requeued
    #[arg(long, value_name = "NODES", default_value_t = 1)]
    min_nodes: u32,
    /// Prints the mpirun line and starts nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs what the ranks' program stands in for, in tests of the supervisor.
const RANK_PROGRAM_VARIABLE: &str = "KINTSUGI_RANK_PROGRAM";

/// Launches and waits.
pub fn run(args: &Args) -> ExitCode {
    panics::end_with_code(Status::InternalError.exit_code());
    match launch(args) {
        // The line is what was asked for.
        Ok(status) if args.dry_run => console::conclude(ExitCode::from(status.exit_code())),
        Ok(status) => ExitCode::from(status.exit_code()),
        Err(error) => {
            say!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn launch(args: &Args) -> Result<Status, LaunchError> {
    let overrides = overrides(args);
    let Loaded { mut config, remarks } = parse::loaded(&args.config, &overrides)?;
    remarks.iter().for_each(|remark| say!("warning: {remark}"));
    let owners = match parse::read(&args.config, &overrides)?.train.owners {
        Some(_) => Owners::Asked,
        None => Owners::Unasked,
    };
    let chosen = std::env::var_os(mpirun::MPIRUN_VARIABLE).map(PathBuf::from);
    let path = std::env::var_os("PATH");
    let mpirun = mpirun::find(chosen, Path::new(mpi::mpicc()), path.as_deref())?;
    let program = std::env::current_exe()
        .map_err(|source| LaunchError::Io { what: "finding this program".into(), source })?;
    let folder = args.run_dir.clone().unwrap_or_else(|| identity::run_directory(&config));
    let run = RunDir::at(&folder)?;
    let rank_program = std::env::var_os(RANK_PROGRAM_VARIABLE).map(PathBuf::from);
    let runtime = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
    let runtime = Runtime::find(&config.run.runtime, runtime, &mpirun, &program)?;
    // After the folder was named: where a command is given does not make it another run.
    paths::resolve(&mut config)?;
    refuse_if(apart::refusal(&config, run.path()))?;
    let mut job = Job { config, run, mpirun, program, rank_program, nodes: None, runtime };
    let allocation = if stray().is_some() { None } else { Allocation::find()? };
    if let Some(allocation) = allocation {
        // After the folder was named: the same command finds its run again on one node.
        suit_several_nodes(&mut job.config.recovery);
        job.nodes = Some(Nodes {
            allocation,
            spare: args.spare_nodes,
            least: args.min_nodes,
            spares_per_node: job.config.recovery.spares.unwrap_or(0),
        });
    }
    let moved = suit_logout(args, &mut job)?;
    let limits = limits_of(&job);
    limits.check()?;
    refuse_crowd(&job)?;
    if args.dry_run {
        let attempt = current_attempt(job.run.path()).unwrap_or(0) + 1;
        let plan = job.plan(attempt, RealClock::default().unix_seconds());
        print_line!("{}", mpirun::pasteable(&plan));
        return Ok(Status::Completed);
    }
    refuse_what_cannot_run(&job.config)?;
    if let Some(text) = parse::left_out(&args.config, &overrides)? {
        say!("{text}");
    }
    print(&format!("run directory: {}", folder.shown()));
    match open(args, &mut job, owners)? {
        Opened::Completed(result) => {
            clear_slots(&job);
            print("this run is complete (--fresh starts it anew)");
            print(&summary(&result, &job.run));
            Ok(result.status)
        }
        Opened::Ours(lock, before) => {
            if let Some(text) = moved {
                say!("warning: {text}");
            }
            supervise(&job, (lock, before), limits)
        }
    }
}

/// What no run can be started with, whatever it is.
fn refuse_what_cannot_run(config: &Config) -> Result<(), LaunchError> {
    let have = ceilings::read(Cgroup::default());
    let too_small = sizes(config).and_then(|sizes| ceilings::refusal(have, needs(sizes, config)));
    refuse_if(network::isolation().or(too_small))
}

fn refuse_if(reason: Option<String>) -> Result<(), LaunchError> {
    reason.map_or(Ok(()), |reason| Err(LaunchError::Refused { reason }))
}

fn needs(sizes: Sizes, config: &Config) -> Needs {
    ceilings::needs(sizes, estimate::estimate(sizes).memory_bytes, config.recovery.resident)
}

/// Resident state that nobody placed lies where it outlives the user's sessions; what he is told.
fn suit_logout(args: &Args, job: &mut Job) -> Result<Option<String>, LaunchError> {
    let chosen = match parse::names(&args.config, &overrides(args), "recovery", "resident_dir")? {
        true => Chosen::ByUser,
        false => Chosen::ByNobody,
    };
    let run_id = job.run.id();
    Ok(suit_resident_dir(&mut job.config.recovery, chosen, &run_id, Machine::here()))
}

/// More processes than this machine can even start are a slip of the finger.
fn refuse_crowd(job: &Job) -> Result<(), LaunchError> {
    let spares = job.config.recovery.spares.unwrap_or(0);
    let (ranks, spares) = (u64::from(job.config.run.ranks), u64::from(spares));
    let nodes = job.nodes.as_ref().map_or(1, |nodes| nodes.allocation.nodes.len().max(1));
    let here = ranks.div_ceil(nodes as u64) + spares;
    let crowd = cgroup::total_memory_bytes().and_then(|memory| estimate::crowd(here, memory));
    refuse_if(crowd)
}

/// What a complete run left in memory: here, and on nodes that were lost and are back.
fn clear_slots(job: &Job) {
    job.slots().clear();
    let Some(nodes) = job.nodes.clone() else { return };
    match ClusterNodes::assemble(nodes, job.mission(), &mut || false) {
        Ok(mut nodes) => nodes.clear_slots(),
        Err(error) => say!(
            "warning: what the run left in memory on other nodes stays there ({error}); `kintsugi \
             doctor --clear` on each clears it"
        ),
    }
}

/// The time-outs in force.
fn limits_of(job: &Job) -> Limits {
    let limits = Limits::of(&job.config.recovery);
    if job.nodes.is_none() {
        return limits;
    }
    let limits = limits.over_nodes(&job.config.recovery, slurmd_timeout());
    match &job.runtime {
        Some(_) => limits.with_keepalive(SILENCE_MAX),
        None => limits,
    }
}

/// What is not configured, as several nodes need it: processes that wait are promoted
/// dependably there, and new ones are not started dependably, so none are unless asked for.
fn suit_several_nodes(recovery: &mut Recovery) {
    if recovery.ladder.is_none() {
        recovery.ladder = Some(vec![Rung::Spare, Rung::Shrink, Rung::Restart]);
        if recovery.regrow == Recovery::default().regrow {
            recovery.regrow = Every::Never;
        }
    }
    if recovery.rungs().contains(&Rung::Spare) {
        recovery.spares.get_or_insert(SPARES_DEFAULT);
    }
}

/// Command-line options are overrides of the keys they stand for.
fn overrides(args: &Args) -> Vec<String> {
    let ranks = args.ranks.map(|ranks| format!("run.ranks={ranks}"));
    let spares = args.spares.map(|spares| format!("recovery.spares={spares}"));
    args.set.iter().cloned().chain(ranks).chain(spares).collect()
}

enum Opened {
    Completed(Box<RunResult>),
    Ours(RunLock, Before),
}

/// Finds or makes the run directory and takes it from whoever holds it.
fn open(args: &Args, job: &mut Job, owners: Owners) -> Result<Opened, LaunchError> {
    let Job { config, run, .. } = job;
    let mut say = |text: &str| say!("{text}");
    let patience = config.recovery.time_limit.0;
    run.refuse_planted()?;
    let refuse = |error| LaunchError::Refused { reason: format!("model.init: {error}") };
    let mut before = None;
    if args.fresh && run.join("config.toml").exists() {
        weights::name(&mut config.model).map_err(refuse)?;
        // Moved only once nobody writes to it any more.
        let _old = RunLock::take(run.path(), patience, &mut say)?;
        // Its resident state is found by the folder's name only.
        let slots = Folder::new(&config.recovery.resident_dir, &run.id());
        let aside = run.move_aside()?;
        say(&format!("the run that was there is now {}", aside.shown()));
        before = Some(run.before(Some(aside))?);
        slots.clear();
    }
    match run.inspect(config, owners)? {
        Found::Completed(result) => return Ok(Opened::Completed(result)),
        Found::Nothing => weights::name(&mut config.model).map_err(refuse)?,
        Found::Unfinished => {}
    }
    let before = match before {
        Some(before) => before,
        None => run.before(None)?,
    };
    run.create()?;
    let lock = RunLock::take(run.path(), patience, &mut say)?;
    // The launch that held it may have completed the run meanwhile.
    if let Found::Completed(result) = run.inspect(config, owners)? {
        return Ok(Opened::Completed(result));
    }
    run.write_config(config)?;
    Ok(Opened::Ours(lock, before))
}

fn supervise(job: &Job, held: (RunLock, Before), limits: Limits) -> Result<Status, LaunchError> {
    let nodes = job.nodes.as_ref().map(|nodes| describe(nodes, job));
    let opening = opening(&job.config, &job.run, limits);
    for line in opening.into_iter().chain(processors(job)).chain(nodes) {
        say!("{line}");
    }
    let scarce = scarce(&job.config);
    let mut progress = Progress::new().max_seconds(job.config.train.max_seconds);
    let mut tensorboard =
        (job.config.observe.tensorboard).then(|| Tensorboard::new(job.run.path()).after_the_past());
    let result = supervisor::supervise(job, held, &scarce, &mut |event| {
        progress.on(event);
        if let Some(tensorboard) = &mut tensorboard {
            tensorboard.on(event);
        }
    });
    progress.finish();
    let result = result?;
    print(&summary(&result, &job.run));
    match super::report::write_beside(job.run.path()) {
        Ok(path) => print(&format!("report: {}", path.shown())),
        Err(error) => say!("warning: no report.html: {error}"),
    }
    Ok(result.status)
}

/// Which processors of this machine its ranks get. Those of other nodes decide alike.
fn processors(job: &Job) -> Vec<String> {
    let ranks = job.plan(1, 0.0).ranks_here();
    let wish = places::Wish::of(&job.config, ranks);
    let machine = machine::Machine::here();
    let line = places::line(&machine, wish, &places::places(&machine, wish));
    let line = if job.nodes.is_some() { format!("this node's {line}") } else { line };
    let warnings = places::warnings(&machine, wish);
    std::iter::once(line).chain(warnings.iter().map(|text| format!("warning: {text}"))).collect()
}

/// What a person should know of several nodes.
fn describe(nodes: &Nodes, job: &Job) -> String {
    let recovery = &job.config.recovery;
    let (all, kept) = (nodes.allocation.nodes.len(), nodes.spare);
    let rungs: Vec<String> =
        recovery.rungs().iter().map(|rung| format!("{rung:?}").to_lowercase()).collect();
    let launcher = match &job.runtime {
        Some(runtime) => format!("survived by prterun of {}", runtime.prefix.shown()),
        None => "the end of mpirun, which is started again".into(),
    };
    format!(
        "nodes: {all}, {kept} of them kept back, {} spares on each; a node is lost when its \
         agent's connection closes or after {} of silence: {launcher}; ladder {}",
        nodes.spares_per_node,
        recovery.node_timeout,
        rungs.join(", ")
    )
}

/// What a person should know before the run starts: limits, needs, shortages.
fn opening(config: &Config, run: &RunDir, limits: Limits) -> Vec<String> {
    let mut lines = vec![limits.line()];
    lines.extend(limits.doubts().into_iter().map(|doubt| format!("warning: {doubt}")));
    lines.extend(network::complaints().into_iter().map(|line| format!("warning: {line}")));
    lines.extend(folders::detour().map(|line| format!("warning: {line}")));
    lines.extend(stray().map(|stray| format!("warning: {}", stray.told())));
    if let Some(sizes) = sizes(config) {
        let need = estimate::estimate(sizes);
        lines.push(format!(
            "model: {} parameters; state of all ranks about {}, checkpoints about {}",
            sizes.parameters,
            estimate::readable(need.memory_bytes),
            estimate::readable(need.disk_bytes)
        ));
        let free_disk = os::free_disk_bytes(run.path()).ok();
        let mut short = estimate::shortages(need, cgroup::available_memory_bytes(), free_disk);
        short.extend(scarce(config));
        lines.extend(short.into_iter().map(|line| format!("warning: {line}")));
    }
    lines
}

/// What the kernel and control groups grant too little of for this run.
fn scarce(config: &Config) -> Vec<String> {
    let complain =
        |sizes| ceilings::complaints(ceilings::read(cgroup::read()), needs(sizes, config));
    sizes(config).map(complain).unwrap_or_default()
}

/// `None` where the model cannot be described from the configuration alone; the ranks will say why.
fn sizes(config: &Config) -> Option<Sizes> {
    let data = &config.data;
    let channels = if data.format == DataFormat::Mnist { 1 } else { 3 };
    let side = data.image_size as usize;
    let image = [channels, side, side];
    let graph =
        catalogue::build(&config.model.found_name(), image, classes(config), config.model.width)
            .ok()?;
    let layout = layout::of(&graph);
    Some(Sizes {
        parameters: layout.parameters as u64,
        statistics: layout.statistics as u64,
        ranks: u64::from(config.run.ranks) + warm_spares(config),
        workers: u64::from(config.train.workers),
        checkpoints: u64::from(config.checkpoint.keep),
        cache_bytes: match config.data.cache {
            CacheSize::Off => 0,
            CacheSize::Bytes(bytes) => bytes.0,
        },
    })
}

/// Spares that hold a model.
fn warm_spares(config: &Config) -> u64 {
    let recovery = &config.recovery;
    u64::from(recovery.spares.filter(|_| recovery.warm_spares).unwrap_or(0))
}

/// Good enough for an estimate: the data set itself is opened by the ranks.
fn classes(config: &Config) -> usize {
    let data = &config.data;
    match (data.format, &data.train) {
        (DataFormat::Cifar100, _) => 100,
        (DataFormat::Cifar10 | DataFormat::Mnist, _) => 10,
        (DataFormat::ImageFolder, Some(folder)) => {
            std::fs::read_dir(folder).map_or(2, |entries| entries.count().max(2))
        }
        _ => data.synthetic_classes as usize,
    }
}

/// What stdout says of a run that has ended.
fn summary(result: &RunResult, run: &RunDir) -> String {
    let status = serde_json::to_value(result.status).unwrap_or_default();
    let mut lines = vec![
        format!("{}: {}", status.as_str().unwrap_or("ended"), result.reason),
        format!(
            "{} steps, {} epochs, {} samples in {:.1} s; goodput {:.1} %",
            result.steps,
            result.epochs,
            result.samples,
            result.seconds,
            100.0 * result.goodput
        ),
    ];
    if let Some(validation) = result.validation {
        let (error, best) = (100.0 * validation.error, 100.0 * validation.best);
        lines.push(format!("validation error {error:.2} % (best {best:.2} %)"));
    }
    let BadImages { train, validation } = result.bad_images;
    if train + validation > 0 {
        lines.push(format!(
            "bad images: {train} training samples in all epochs, {validation} of the last \
             evaluation's"
        ));
    }
    if result.zero_updates > 0 {
        let zero = result.zero_updates;
        lines.push(format!(
            "{zero} steps changed no weight: their sums were not finite, or no sample of them \
             could be decoded"
        ));
    }
    let (recoveries, restarts) = (result.recoveries.len(), result.restarts.len());
    if recoveries + restarts > 0 {
        let lost = result.lost_steps;
        lines.push(format!("{recoveries} recoveries, {restarts} restarts, {lost} steps lost"));
    }
    if let Some(hash) = &result.state_sha256 {
        lines.push(format!("state_sha256 {hash}"));
    }
    lines.push(format!("result: {}", run.join("result.json").shown()));
    lines.join("\n")
}

/// A closed stdout must not end a run.
fn print(text: &str) {
    tell!("{text}");
}
