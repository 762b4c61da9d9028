//! `kintsugi experiment EXPERIMENT`: arms x seeds, then `results.json`, `report.html` and a table;
//! or what would be refused of them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::ArgAction;
use serde_json::{Value, json};

use super::arguments::{Form, fail, form, print_json};
use crate::cluster::processors::machine::Machine;
use crate::config::Shown;
use crate::config::identity::RUNS;
use crate::lab::experiment::check::{Refused, check};
use crate::lab::experiment::file::{Changes, Experiment};
use crate::lab::experiment::forecast::Forecast;
use crate::lab::experiment::jobs::{Requests, Share, in_order, shares};
use crate::lab::experiment::place::Place;
use crate::lab::experiment::plan::PlannedRun;
use crate::lab::experiment::results::{Index, REPORT_FILE, RESULTS_FILE};
use crate::lab::experiment::runner::{Made, Runner};
use crate::lab::memory::file::Study;
use crate::lab::memory::make::make;
use crate::lab::memory::part::Frame;
use crate::lab::report::best::{self, best};
use crate::lab::report::svg::unescaped;
use crate::lab::report::{command_line, tables};
use crate::launch::nodes::Allocation;
use crate::observe::console::{self, print_line, say};
use crate::observe::machine::machine;
use crate::observe::result::Status;
use crate::observe::spans::clock;

/// Compares ways to train or to survive failures: makes every run, draws one report. Of a file of
/// measures (configs/experiment/memory-*.toml): does them, and draws theirs. Keys:
/// configs/experiment/README.md.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The experiment file (configs/experiment/*.toml).
    pub experiment: PathBuf,
    /// Where runs, results.json and report.html go; a run that is complete there is kept.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// Says what would be refused, with the exit code that it would have, and starts nothing
    #[arg(long)]
    check: bool,
    /// One JSON object as the last line
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// Runs it. Exit 0: every run is complete; 1: some are not; 2, 3: nothing was started, as `launch`
/// would have refused it, or refused the first; 85: stopped.
pub fn run(args: &Args) -> ExitCode {
    match conduct(args) {
        Ok(code) => code,
        Err(Failure::Usage(message)) => fail(2, message),
        Err(Failure::Refused(refused, arms)) => {
            let code = refused.first().map_or(2, |first| first.code);
            refused.iter().for_each(|one| say!("error: {}", one.words(arms)));
            ExitCode::from(code)
        }
        Err(Failure::Broken(error)) => fail(Status::InternalError.exit_code(), error),
    }
}

enum Failure {
    Usage(String),
    /// Of so many arms.
    Refused(Vec<Refused>, usize),
    Broken(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

fn conduct(args: &Args) -> Result<ExitCode, Failure> {
    let changes = &args.changes;
    if let Some((study, text)) = Study::load(&args.experiment).map_err(Failure::Usage)? {
        return measure(args, &study, &text);
    }
    let (experiment, text) = Experiment::load(&args.experiment).map_err(Failure::Usage)?;
    let experiment = experiment.with(changes).map_err(Failure::Usage)?;
    let plan = experiment.plan(changes);
    let out = out(args);
    let limit_seconds = accepted(&experiment, &plan, &out)?;
    let size = size(&experiment, &plan);
    let shares = shares_of(&experiment).map_err(Failure::Usage)?;
    let (seconds, config) = (experiment.seconds, experiment.config.clone());
    let (program, processors) = (std::env::current_exe()?, shares[0].processors());
    let runner = Runner { program, out, seconds, config, processors };
    if args.check {
        let ahead = Ahead::of(&runner, &plan)?.words(&plan, limit_seconds, &shares);
        return Ok(told(args, &plan, &format!("{size}; {ahead}"), limit_seconds));
    }
    let _place = Place::take(&runner.out)?.map_err(Failure::Usage)?;
    let ahead = Ahead::of(&runner, &plan)?;
    say!("{size}; {}", ahead.words(&plan, limit_seconds, &shares));
    let Ahead { kept, forecast } = ahead;
    let requests = Requests::listen()?;
    let waiting = plan.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
    let seeds: BTreeSet<u64> = waiting.map(|(run, _)| run.seed).collect();
    let runs = seeds.iter().map(|seed| experiment.warm_up(changes, *seed));
    if !warmed_up(&runner, runs, &requests)? {
        return Ok(ExitCode::from(Status::Interrupted.exit_code()));
    }
    let mut index = Index::new(&experiment, &text, &plan, command_line());
    if let Some(processors) = processors {
        index.side_by_side(shares.len(), processors);
    }
    let so_far = Mutex::new(SoFar { index, forecast, made: Vec::new(), stopped_by: None });
    let making = Making { runner, plan: &plan, kept: &kept, requests, so_far };
    in_order(plan.len(), &shares, |number, share| making.one(number, share, shares.len()))?;
    making.told(args.json)
}

/// Where runs are made: on this machine, as many at a time as the experiment says.
fn shares_of(experiment: &Experiment) -> Result<Vec<Share>, String> {
    let jobs = experiment.jobs();
    if jobs > 1 && Allocation::find().map_err(|error| error.to_string())?.is_some() {
        return Err(format!(
            "jobs = {jobs}: SLURM decides which processors of an allocation a rank has, so runs in \
             one come one after another: jobs = 1, or an allocation for each run"
        ));
    }
    shares(&Machine::here(), jobs)
}

/// False: it was interrupted.
fn warmed_up(
    runner: &Runner,
    runs: impl ExactSizeIterator<Item = PlannedRun>,
    requests: &Requests,
) -> Result<bool, Failure> {
    if runs.len() > 0 {
        say!("warming up: one step with each seed, so that no arm pays for making data");
    }
    for run in runs {
        let made = runner.warm_up(&run, requests)?;
        if made == Made::Interrupted {
            return Ok(false);
        }
        if let Some(why) = why(runner, &run, made) {
            say!("warning: the warm-up is {why}: the first arm pays for what it makes");
            break;
        }
    }
    Ok(true)
}

/// Looks at every arm; the most seconds that all runs have, where each has a limit of time.
fn accepted(
    experiment: &Experiment,
    plan: &[PlannedRun],
    out: &Path,
) -> Result<Option<f64>, Failure> {
    let (arms, seeds) = (experiment.arms.len(), experiment.seeds().len());
    let first: Vec<&PlannedRun> = plan.iter().take(arms).collect();
    let accepted = check(&experiment.config, &first, out)
        .map_err(|refused| Failure::Refused(refused, arms))?;
    let mut said: Vec<&String> = Vec::new();
    for remark in accepted.iter().flat_map(|one| &one.remarks) {
        if !said.contains(&remark) {
            say!("warning: {remark}");
            said.push(remark);
        }
    }
    let limits = accepted.iter().map(|one| one.config.train.max_seconds);
    let of_one_seed: Option<f64> = limits.sum();
    Ok(of_one_seed.map(|seconds| seconds * seeds as f64))
}

/// How many runs there are, in words.
fn size(experiment: &Experiment, plan: &[PlannedRun]) -> String {
    let several = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let (arms, seeds) = (experiment.arms.len(), experiment.seeds().len());
    let (runs, arms) = (several(plan.len(), "run"), several(arms, "arm"));
    format!("{runs} ({arms} x {})", several(seeds, "seed"))
}

/// What is known of the time before anything runs.
struct Ahead {
    /// Seconds that each run took, where it is there.
    kept: Vec<Option<f64>>,
    forecast: Forecast,
}

impl Ahead {
    fn of(runner: &Runner, plan: &[PlannedRun]) -> std::io::Result<Self> {
        let kept = plan.iter().map(|run| runner.kept_seconds(run));
        let kept = kept.collect::<std::io::Result<Vec<_>>>()?;
        let mut forecast = Forecast::default();
        for (run, seconds) in plan.iter().zip(&kept) {
            seconds.iter().for_each(|seconds| forecast.took(&run.arm, *seconds));
        }
        Ok(Self { kept, forecast })
    }

    fn words(&self, plan: &[PlannedRun], limit_seconds: Option<f64>, shares: &[Share]) -> String {
        let waiting = plan.iter().zip(&self.kept).filter(|(_, kept)| kept.is_none());
        let waiting: Vec<&str> = waiting.map(|(run, _)| run.arm.as_str()).collect();
        if waiting.is_empty() {
            return "all are complete already".into();
        }
        let complete = match plan.len() - waiting.len() {
            0 => String::new(),
            kept => format!("{kept} complete already; "),
        };
        let share = waiting.len() as f64 / plan.len() as f64 / shares.len() as f64;
        let ahead = match (self.forecast.left(waiting), limit_seconds) {
            (Some(seconds), _) => {
                format!("about {} by what those took", clock(seconds / shares.len() as f64))
            }
            (None, Some(seconds)) => {
                let most = clock(seconds * share);
                format!("{most} of training at most; steps or epochs may end runs before")
            }
            (None, None) => {
                "steps or epochs end them: how long they take is known after the first".into()
            }
        };
        complete + &ahead
    }
}

/// What would be made.
fn told(args: &Args, plan: &[PlannedRun], size: &str, limit_seconds: Option<f64>) -> ExitCode {
    let lines = plan.iter().map(PlannedRun::name);
    lines.for_each(|line| print_line!("{line}"));
    print_line!(
        "{size}\nnothing is refused; what the pictures are like, `kintsugi launch --check` says"
    );
    if args.json == Form::Json {
        let run = |run: &PlannedRun| {
            let PlannedRun { arm, seed, folder, arguments, .. } = run;
            json!({ "arm": arm, "seed": seed, "folder": folder, "arguments": arguments })
        };
        print_json(&json!({
            "experiment": args.experiment,
            "out": out(args),
            "seconds_max": limit_seconds,
            "runs": plan.iter().map(run).collect::<Vec<_>>(),
        }));
    }
    ExitCode::SUCCESS
}

/// Where everything goes.
fn out(args: &Args) -> PathBuf {
    let stem = args.experiment.file_stem().unwrap_or_default();
    args.out.clone().unwrap_or_else(|| PathBuf::from(RUNS).join(stem))
}

/// Does the measures of a file.
fn measure(args: &Args, study: &Study, text: &str) -> Result<ExitCode, Failure> {
    if args.changes != Changes::default() {
        let reason =
            "--set, --seeds, --seconds, --jobs: of runs, and this file has measures: change it";
        return Err(Failure::Usage(reason.into()));
    }
    let out = out(args);
    let models = study.build_models().map_err(Failure::Usage)?;
    if args.check {
        study.measures.iter().for_each(|measure| print_line!("{}", measure.title()));
        let measures = study.measures.len();
        print_line!("{measures} measures: nothing is refused; {models} models were built for them");
        if args.json == Form::Json {
            let titles: Vec<&str> = study.measures.iter().map(|one| one.title()).collect();
            print_json(&json!({
                "experiment": args.experiment, "out": out, "measures": titles,
            }));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let _place = Place::take(&out)?.map_err(Failure::Usage)?;
    let frame = Frame { study, text, command: &command_line(), machine: machine() };
    let parts = make(&frame, &out).map_err(Failure::Usage)?;
    for part in &parts {
        print_line!("{}. {}", part.title, part.source.words());
        for (table, _) in &part.tables {
            print_line!("{}", unescaped(&table.text()));
        }
    }
    print_line!("report: {}", out.join(REPORT_FILE).shown());
    if args.json == Form::Json {
        let measures: Vec<Value> = parts
            .iter()
            .map(|part| json!({ "title": part.title, "source": part.source, "rows": part.rows }))
            .collect();
        print_json(&json!({
            "experiment": study.title,
            "results": out.join(RESULTS_FILE),
            "report": out.join(REPORT_FILE),
            "measures": measures,
        }));
    }
    Ok(ExitCode::SUCCESS)
}

/// What came of the runs so far.
struct SoFar {
    index: Index,
    forecast: Forecast,
    made: Vec<(PlannedRun, Made)>,
    /// Which of them ended it all.
    stopped_by: Option<usize>,
}

/// Runs that are being made.
struct Making<'a> {
    runner: Runner,
    plan: &'a [PlannedRun],
    /// What those took that need not be made.
    kept: &'a [Option<f64>],
    requests: Requests,
    so_far: Mutex<SoFar>,
}

impl Making<'_> {
    fn so_far(&self) -> MutexGuard<'_, SoFar> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one, while others are made; whether to go on with the next.
    fn one(&self, number: usize, share: &Share, jobs: usize) -> std::io::Result<ControlFlow<()>> {
        let run = &self.plan[number];
        if !self.requests.heard().is_empty() {
            return Ok(ControlFlow::Break(()));
        }
        let waiting = self.plan[number..].iter().zip(&self.kept[number..]);
        let waiting = waiting.filter(|(_, kept)| kept.is_none()).map(|(run, _)| run.arm.as_str());
        let ahead = match self.so_far().forecast.left(waiting) {
            Some(seconds) if seconds > 0.0 => {
                format!("; {} to go, as runs took so far", clock(seconds / jobs as f64))
            }
            _ => String::new(),
        };
        say!("[{}/{}] {}{ahead}", number + 1, self.plan.len(), run.name());
        let begun = std::time::Instant::now();
        let made = self.runner.make(run, share, &self.requests)?;
        let so_far = &mut *self.so_far();
        match made {
            Made::Completed => so_far.forecast.took(&run.arm, begun.elapsed().as_secs_f64()),
            Made::Kept => say!("  {}: complete already: kept", run.name()),
            _ => {
                let why = why(&self.runner, run, made);
                why.iter().for_each(|why| say!("  {}: {why}", run.name()));
            }
        }
        so_far.made.push((run.clone(), made));
        if matches!(made, Made::Completed | Made::Kept) {
            so_far.index.add(run, self.runner.room_of(run));
            so_far.index.write(&self.runner.out)?;
        }
        // What refused it may refuse them all; where one is complete it does not.
        let none_is = so_far.index.runs.is_empty() && self.kept.iter().all(Option::is_none);
        let is_enough = made == Made::Interrupted || matches!(made, Made::Refused(_)) && none_is;
        if !is_enough {
            return Ok(ControlFlow::Continue(()));
        }
        so_far.stopped_by.get_or_insert(so_far.made.len() - 1);
        Ok(ControlFlow::Break(()))
    }

    /// What came of it.
    fn told(&self, form: Form) -> Result<ExitCode, Failure> {
        let so_far = self.so_far();
        let SoFar { index, made, stopped_by, .. } = &*so_far;
        let out = &self.runner.out;
        if !index.runs.is_empty() {
            let (study, runs) = index.write(out)?;
            console::print_text(&tables::arms_text(&study, &runs));
            best::words(&study, &runs).iter().for_each(|words| print_line!("{words}"));
            index.missing().iter().for_each(|missing| print_line!("{missing}"));
            print_line!("report: {}", out.join(REPORT_FILE).shown());
            if form == Form::Json {
                print_json(&json!({
                    "experiment": index.title,
                    "results": out.join(RESULTS_FILE),
                    "report": out.join(REPORT_FILE),
                    "runs": made.iter().map(row).collect::<Vec<_>>(),
                    "best": best(&study, &runs),
                    "summaries": runs,
                }));
            }
        } else if form == Form::Json {
            let runs: Vec<Value> = made.iter().map(row).collect();
            print_json(&json!({ "experiment": index.title, "runs": runs }));
        }
        let is_failed = |made: &Made| matches!(made, Made::Failed(_) | Made::Refused(_));
        let failed = made.iter().any(|(_, made)| is_failed(made));
        let is_asked = !self.requests.heard().is_empty() && made.len() < self.plan.len();
        Ok(match stopped_by.map(|at| &made[at]) {
            stopped if is_asked || matches!(stopped, Some((_, Made::Interrupted))) => {
                say!("stopped; the same command goes on with the runs that are left");
                ExitCode::from(Status::Interrupted.exit_code())
            }
            Some((run, Made::Refused(code))) => {
                say!(
                    "stopped: no run was complete, and what refused {} may refuse them all; mend \
                     it, or leave out its arm, and give the same command",
                    run.name()
                );
                ExitCode::from(*code)
            }
            _ => ExitCode::from(u8::from(failed)),
        })
    }
}

/// Why a run is not complete, and where to look.
fn why(runner: &Runner, run: &PlannedRun, made: Made) -> Option<String> {
    let how = match made {
        Made::Refused(code) => format!("refused before its first step (exit code {code})"),
        Made::Failed(Some(code)) => format!("not complete (exit code {code})"),
        Made::Failed(None) => "not complete (a signal)".into(),
        Made::Completed | Made::Kept | Made::Interrupted => return None,
    };
    let folder = runner.folder(run).shown();
    let reason = runner.reason(run).unwrap_or_else(|| "it has said why".into());
    Some(format!("{how}: {reason}; see {folder} and {folder}.log"))
}

/// What became of a run, for programs.
fn row((run, made): &(PlannedRun, Made)) -> Value {
    let (made, code) = match made {
        Made::Completed => ("completed", None),
        Made::Kept => ("kept", None),
        Made::Failed(code) => ("failed", *code),
        Made::Refused(code) => ("refused", Some(i32::from(*code))),
        Made::Interrupted => ("interrupted", None),
    };
    let (arm, seed, folder) = (&run.arm, run.seed, &run.folder);
    json!({ "arm": arm, "seed": seed, "folder": folder, "made": made, "exit_code": code })
}
