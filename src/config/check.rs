//! What a well-formed configuration must also be: possible, and within what this version does.

use kintsugi_ffi::fixed::SUMMANDS_MAX;

use super::error::{ConfigError, refuse};
use super::{
    Config, Data, DataFormat, DeviceKind, Every, ExchangeKind, FaultKind, Limit, MemoryMode, Model,
    PlannedFault, Point, Rung, Shown, Validation, Who, pictures, resolve_owners,
};

/// Each spare is a process that looks around a hundred times a second.
const SPARES_MAX: u32 = 64;

/// Refuses with the key, its value and what to write instead.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    check_sizes(config)?;
    check_shares(&config.data)?;
    pictures::check(&config.data)?;
    check_soft_targets(config)?;
    check_owners(config)?;
    check_text(&config.model)?;
    check_init_hash(&config.model)?;
    check_rates(config)?;
    check_recovery(config)?;
    check_faults(config)?;
    check_device(config)
}

/// Most of each that any machine is known to have, or any set to need: beyond lies a slip of the
/// finger, and numbers that no longer multiply.
mod most {
    pub const RANKS: u64 = 1 << 20;
    pub const THREADS: u64 = 4096;
    pub const PIECES: u64 = 4096;
    pub const SAMPLES: u64 = 1 << 40;
    pub const BATCH: u64 = 1 << 24;
    pub const STEPS: u64 = 1 << 50;
    pub const EPOCHS: u64 = 1 << 30;
    pub const CLASSES: u64 = 1 << 20;
    pub const PREFETCH: u64 = 1024;
    pub const BUCKET_BYTES: u64 = 1 << 40;
    pub const TRIES: u64 = 1000;
    pub const EVALUATIONS: u64 = 1_000_000;
    pub const KEPT: u64 = 1_000_000;
}

/// Hexadecimal digits of 128 bits.
const HASH_DIGITS: usize = 32;

fn check_text(model: &Model) -> Result<(), ConfigError> {
    match &model.text {
        Some(text) if !model.is_file() => {
            let reason = "it is the text of a model file, and model.name is of the catalogue: \
                          leave it out, and launch writes it";
            refuse("model.text", text.shown(), reason)
        }
        _ => Ok(()),
    }
}

fn check_init_hash(model: &Model) -> Result<(), ConfigError> {
    let Some(hash) = &model.init_hash else { return Ok(()) };
    let digits = hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    match model.init.is_some() && digits {
        true => Ok(()),
        false => {
            let reason = "it is the XXH3-128 of the file of model.init, in 32 hexadecimal digits: \
                          leave it out, and launch writes it";
            refuse("model.init_hash", hash.shown(), reason)
        }
    }
}

/// Shapes of a beta distribution: below, nearly every share is 0 or 1; above, 1/2.
const ALPHA_MIN: f64 = 0.001;
const ALPHA_MAX: f64 = 1000.0;

/// The keys that spread a sample's label over several classes.
fn check_soft_targets(config: &Config) -> Result<(), ConfigError> {
    for (key, alpha) in [
        ("data.mixup_alpha", config.data.mixup_alpha),
        ("data.cutmix_alpha", config.data.cutmix_alpha),
    ] {
        if let Some(alpha) = alpha
            && !(ALPHA_MIN..=ALPHA_MAX).contains(&alpha)
        {
            let reason = format!(
                "shares are drawn from Beta(alpha, alpha): write a number from {ALPHA_MIN} to \
                 {ALPHA_MAX}, or leave the key out"
            );
            return refuse(key, alpha, reason);
        }
    }
    if let Some(smoothing) = config.train.label_smoothing
        && !(0.0..1.0).contains(&smoothing)
    {
        let reason = "it is a share of each label: write a number from 0 to below 1";
        return refuse("train.label_smoothing", smoothing, reason);
    }
    Ok(())
}

/// The shares of `[data]`.
fn check_shares(data: &Data) -> Result<(), ConfigError> {
    let bad = data.bad_images_max;
    if !(0.0..=1.0).contains(&bad) {
        return refuse("data.bad_images_max", bad, "it is a share: write a number from 0 to 1");
    }
    let ratio = data.bundle_ratio;
    if !(ratio > 0.0 && ratio <= 1.0) {
        let reason = "it is a bundle's share of an owner's samples: write a number above 0, to 1";
        return refuse("data.bundle_ratio", ratio, reason);
    }
    let splits = matches!(data.format, DataFormat::ImageFolder | DataFormat::Tar);
    let Some(share) = data.validation.as_ref().and_then(Validation::share) else { return Ok(()) };
    match (splits, &data.train) {
        (true, Some(_)) => Ok(()),
        (true, None) => {
            let reason = "it is a share of the set that data.train names, and that is unset: set \
                          data.train, for example with -s data.train=FOLDER";
            refuse("data.validation", share, reason)
        }
        (false, _) => {
            let reason = "samples are split off an image folder or tar shards only; the other \
                          formats have a validation set of their own: leave the key out";
            refuse("data.validation", share, reason)
        }
    }
}

/// Errors are measured on what is there for it: asked of a run that begins, since who only looks at
/// its training set needs no other.
///
/// # Errors
/// What to set.
pub fn check_measured(config: &Config) -> Result<(), ConfigError> {
    let data = &config.data;
    // Without shards to train on there is more to say, and whoever opens them says it.
    let is_named = data.train.is_some();
    if config.evaluation.every == Every::Never || data.has_validation() || !is_named {
        return Ok(());
    }
    let reason = "the run would have nothing to measure its error on: write a share of data.train \
                  that is kept for it (\"10%\"), or where such a set lies, or set \
                  evaluation.every = \"never\"";
    refuse("data.validation", "unset", reason)
}

/// Bytes per second: a rank that waits for a copy gets nothing else done.
const LINK_MIN: u64 = 1_000_000;

fn check_sizes(config: &Config) -> Result<(), ConfigError> {
    let (train, data, recovery) = (&config.train, &config.data, &config.recovery);
    for (key, value, least, most) in [
        ("run.ranks", config.run.ranks.into(), 1, most::RANKS),
        ("train.global_batch", train.global_batch, 1, most::BATCH),
        ("train.workers", train.workers.into(), 1, most::THREADS),
        ("train.threads", train.threads.into(), 1, most::THREADS),
        ("train.owners", train.owners.unwrap_or(1).into(), 0, most::RANKS),
        ("train.accumulate", train.accumulate.unwrap_or(1).into(), 1, most::PIECES),
        ("train.bucket", train.bucket.0, 1, most::BUCKET_BYTES),
        ("train.epochs", train.epochs.unwrap_or(1), 1, most::EPOCHS),
        ("train.steps", train.steps.unwrap_or(1), 1, most::STEPS),
        ("data.image_size", data.image_size.into(), 1, pictures::SIDE_MAX),
        ("data.prefetch", data.prefetch.into(), 0, most::PREFETCH),
        ("data.decode_threads", data.decode_threads.into(), 0, most::THREADS),
        ("data.synthetic_samples", data.synthetic_samples, 1, most::SAMPLES),
        ("data.synthetic_classes", data.synthetic_classes.into(), 0, most::CLASSES),
        ("staging.workers", config.staging.workers.into(), 1, most::THREADS),
        ("evaluation.batch", config.evaluation.batch.into(), 1, most::BATCH),
        ("checkpoint.keep", config.checkpoint.keep.into(), 1, most::KEPT),
        ("train.patience", train.patience.unwrap_or(1).into(), 1, most::EVALUATIONS),
        ("checkpoint.keep_best", config.checkpoint.keep_best.into(), 0, 1),
        ("recovery.tries", recovery.tries.into(), 1, most::TRIES),
        ("recovery.min_ranks", recovery.min_ranks.into(), 1, most::RANKS),
    ] {
        if value < least {
            return refuse(key, value, "there must be at least one; write 1 or more");
        }
        if value > most {
            return refuse(key, value, format!("write {most} or less"));
        }
    }
    if let Some(link) = config.memory.link.filter(|link| link.0 < LINK_MIN) {
        let reason = "the guardian of a rank would call it hung in a copy; write \"1MB/s\" or more";
        return refuse("memory.link", link, reason);
    }
    if config.data.synthetic_classes < 2 {
        let value = config.data.synthetic_classes;
        return refuse("data.synthetic_classes", value, "a classifier needs at least 2 classes");
    }
    if let Some(seconds) = train.max_seconds
        && !(seconds > 0.0 && seconds.is_finite())
    {
        return refuse("train.max_seconds", seconds, "write a number of seconds above 0");
    }
    if train.epochs.is_none() && train.steps.is_none() && train.max_seconds.is_none() {
        let reason =
            "nothing would end the run; set train.epochs, train.steps or train.max_seconds";
        return refuse("train.epochs", "unset", reason);
    }
    if config.run.name.is_empty() || config.run.name.contains(['/', '\0']) {
        let value = format!("{:?}", config.run.name);
        return refuse("run.name", value, "it names a folder: write a name without `/`");
    }
    if config.run.name.chars().any(char::is_control) {
        let value = format!("{:?}", config.run.name);
        return refuse(
            "run.name",
            value,
            "people are shown it: write it without control characters",
        );
    }
    Ok(())
}

/// No rank and no worker of it is without an owner.
///
/// # Errors
/// What to set.
pub fn check_owners(config: &Config) -> Result<(), ConfigError> {
    let owners = resolve_owners(config);
    let (ranks, workers) = (config.run.ranks, config.train.workers);
    let needed = ranks.saturating_mul(workers);
    if owners < ranks {
        let reason = format!(
            "more ranks than owners: {ranks} ranks would share {owners} owners, and a rank without \
             an owner computes nothing; set train.owners to {needed} or more, or run.ranks to \
             {owners} or fewer"
        );
        return refuse("train.owners", owners, reason);
    }
    if owners < needed {
        let reason = format!(
            "more workers than owners: {ranks} ranks x {workers} workers would share {owners} \
             owners; set train.owners to {needed} or more, or train.workers lower"
        );
        return refuse("train.owners", owners, reason);
    }
    Ok(())
}

/// Sums as somebody typed them, and what there is to say of that. Runs of an earlier release had a
/// choice: what they say of themselves is not looked at here.
pub fn check_sums(config: &Config) -> Result<Option<String>, ConfigError> {
    const KEY: &str = "train.reproducible";
    let (written, owners) = (config.train.reproducible, resolve_owners(config));
    let asynchronous = config.train.exchange == ExchangeKind::Asynchronous;
    if asynchronous && written == Some(true) {
        let reason = "the asynchronous exchange applies gradients as they come, so its bits depend \
                      on timing; set train.exchange = \"synchronous\", or leave the key out";
        refuse(KEY, true, reason)?;
    }
    if !asynchronous && written == Some(false) {
        refuse(KEY, false, "plain sums, which were no faster, are gone: leave the key out")?;
    }
    if !asynchronous && owners > SUMMANDS_MAX {
        let reason = format!("a sum holds {SUMMANDS_MAX} owners at most; write as many or fewer");
        refuse("train.owners", owners, reason)?;
    }
    let said = || format!("`{KEY} = true` is always so: leave the key out");
    Ok((written == Some(true)).then(said))
}

fn check_rates(config: &Config) -> Result<(), ConfigError> {
    config.optimizer.check()?;
    config.schedule.check()?;
    if config.train.exchange == ExchangeKind::Asynchronous {
        config.optimizer.check_asynchronous()?;
        if let Some(pieces) = config.train.accumulate {
            let reason = "the asynchronous exchange moves weights after each micro-batch; raise \
                          train.owners instead, or set train.exchange = \"synchronous\"";
            return refuse("train.accumulate", pieces, reason);
        }
    }
    let width = config.model.width;
    match width > 0.0 && width.is_finite() {
        true => Ok(()),
        false => refuse("model.width", width, "write a number that is above 0"),
    }
}

fn check_recovery(config: &Config) -> Result<(), ConfigError> {
    let recovery = &config.recovery;
    let rungs = recovery.rungs();
    let shown = format!("{rungs:?}").to_lowercase();
    if rungs.is_empty() {
        let reason = "write at least one rung, for example [\"respawn\", \"restart\"]";
        return refuse("recovery.ladder", "[]", reason);
    }
    if rungs.iter().enumerate().any(|(i, rung)| rungs[..i].contains(rung)) {
        return refuse("recovery.ladder", shown, "a rung stands there twice; name each once");
    }
    if rungs[..rungs.len() - 1].contains(&Rung::Restart) {
        let reason = "\"restart\" ends the world, so nothing can follow it; put it last";
        return refuse("recovery.ladder", shown, reason);
    }
    if recovery.min_ranks > config.run.ranks {
        let reason = format!("the run has {} ranks; write as many or fewer", config.run.ranks);
        return refuse("recovery.min_ranks", recovery.min_ranks, reason);
    }
    let spares = recovery.spares.unwrap_or(0);
    if spares > 0 && !rungs.contains(&Rung::Spare) {
        let reason = "recovery.ladder has no \"spare\", so nobody would promote them; add it";
        return refuse("recovery.spares", spares, reason);
    }
    if spares > SPARES_MAX {
        let reason = format!("that many would only wait; write {SPARES_MAX} or fewer");
        return refuse("recovery.spares", spares, reason);
    }
    if recovery.warm_spares && spares == 0 {
        let reason = "there are no spares; set recovery.spares to 1 or more";
        return refuse("recovery.warm_spares", "true", reason);
    }
    for (key, span) in [
        ("recovery.start_limit", recovery.start_limit),
        ("recovery.node_timeout", recovery.node_timeout),
        ("recovery.time_limit", recovery.time_limit),
        ("checkpoint.mtbf", config.checkpoint.mtbf),
    ] {
        if span.0.is_zero() {
            return refuse(key, span, "write a duration above 0, for example \"30s\"");
        }
    }
    let limit = recovery.time_limit;
    if recovery.node_timeout >= limit {
        let reason = format!("it must be shorter than recovery.time_limit ({limit})");
        return refuse("recovery.node_timeout", recovery.node_timeout, reason);
    }
    if let Limit::Time(step) = recovery.step_timeout
        && (step.is_zero() || step >= limit.0)
    {
        let reason = format!("it must be above 0 and shorter than recovery.time_limit ({limit})");
        return refuse("recovery.step_timeout", recovery.step_timeout, reason);
    }
    Ok(())
}

fn check_faults(config: &Config) -> Result<(), ConfigError> {
    if let Some(mean) = config.faults.mtbf_seconds
        && !(mean > 0.0 && mean.is_finite())
    {
        return refuse("faults.mtbf_seconds", mean, "write a number of seconds above 0");
    }
    for (index, fault) in config.faults.plan.iter().enumerate() {
        check_fault(config, &format!("faults.plan[{index}]"), fault)?;
    }
    Ok(())
}

/// Why such a run never comes to a point.
fn never_in(phase: Point, config: &Config) -> Option<&'static str> {
    let mode = config.memory.mode;
    // A card's driver tells nobody what it moves.
    let is_managed = config.device.kind == DeviceKind::Cuda && mode == MemoryMode::Unified;
    match phase {
        Point::InSwapOut | Point::InSwapIn if is_managed || !mode.swaps() => {
            Some("nothing is copied with this memory.mode: set \"swap\" or \"planned\"")
        }
        Point::InRecompute if !mode.recomputes() => Some(
            "nothing is computed again with this memory.mode: set \"recompute\" or \"planned\"",
        ),
        _ => None,
    }
}

fn check_fault(config: &Config, key: &str, fault: &PlannedFault) -> Result<(), ConfigError> {
    let shown = toml::Value::try_from(fault).map_or_else(|_| "...".into(), |v| v.to_string());
    match (fault.step, fault.seconds) {
        (Some(_), Some(_)) => {
            return refuse(key, shown, "it names both step and seconds; keep one of them");
        }
        (None, None) => {
            let reason = "it names no moment; give it step = N or seconds = S";
            return refuse(key, shown, reason);
        }
        (Some(0), None) => return refuse(key, shown, "the first step is step = 1"),
        (None, Some(seconds)) if !(seconds >= 0.0 && seconds.is_finite()) => {
            return refuse(key, shown, "seconds must be 0 or above");
        }
        _ => {}
    }
    if fault.kind == FaultKind::BitFlip && fault.phase != Some(Point::InPublish) {
        let reason = "bit_flip strikes the updated weights: give it phase = \"in_publish\"";
        return refuse(key, shown, reason);
    }
    if fault.kind == FaultKind::Nan && fault.phase != Some(Point::InForward) {
        return refuse(key, shown, "nan strikes a forward pass: give it phase = \"in_forward\"");
    }
    if let Some(without) = fault.phase.and_then(|phase| never_in(phase, config)) {
        return refuse(key, shown, without);
    }
    if fault.kind == FaultKind::Nan && config.train.exchange == ExchangeKind::Asynchronous {
        return refuse(key, shown, "the asynchronous exchange has no nan: leave it out");
    }
    if fault.who != Who::Rank && fault.rank != 0 {
        return refuse(key, shown, "only who = \"rank\" names one: leave one of them out");
    }
    match fault.pause {
        Some(_) if fault.kind != FaultKind::Slow => {
            return refuse(key, shown, "only kind = \"slow\" has a pause; leave it out");
        }
        Some(pause) if pause.0.is_zero() => {
            return refuse(key, shown, "a pause of nothing slows nobody; leave it out for 50 ms");
        }
        _ => {}
    }
    if fault.who == Who::Rank && fault.rank >= config.run.ranks {
        let reason =
            format!("there is no rank {}; {} ranks start at 0", fault.rank, config.run.ranks);
        return refuse(key, shown, reason);
    }
    Ok(())
}

fn check_device(config: &Config) -> Result<(), ConfigError> {
    let threads = config.train.threads;
    if config.device.kind == DeviceKind::Cuda && threads != 1 {
        let reason = "what the host does for a card is shared out to all processors of its rank: \
                      leave it out";
        return refuse("train.threads", threads, reason);
    }
    config.device.check()
}
