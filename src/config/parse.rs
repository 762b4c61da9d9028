//! Reads TOML and `-s` overrides into a `Config`; refuses with key, value and what to write
//! instead.

use std::path::Path;

use kintsugi_ffi::regular;
use toml::{Table, Value};

use super::effect::{self, Idle};
use super::error::ConfigError;
use super::{Config, Schedule, ScheduleKind, Shown, check, keys, resolve_owners};

pub use super::identity::{changed_keys, fingerprint};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A configuration, and what there is to say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Checked; `train.owners` is filled in.
    pub config: Config,
    /// Keys of the file that the command line leaves without effect, a sentence each. They are at
    /// their defaults. And what need not be written.
    pub remarks: Vec<String>,
}

/// Reads `path`, applies the overrides in order, checks everything and fills in
/// `train.owners`: the configuration of a run, as somebody typed it.
pub fn load(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    loaded(path, overrides).map(|loaded| loaded.config)
}

/// The same, with what there is to say.
pub fn loaded(path: &Path, overrides: &[String]) -> Result<Loaded, ConfigError> {
    let mut table = table(path, overrides)?;
    let (mut remarks, mut refused) = (Vec::new(), None);
    for idle in effect::idle(&typed(table.clone())?) {
        if is_left_idle(&idle, path, overrides) {
            remarks.push(idle.remark());
            if let Some(Value::Table(section)) = table.get_mut(idle.section) {
                section.remove(idle.name);
            }
        } else {
            refused.get_or_insert(idle);
        }
    }
    let config = checked(typed(table)?)?;
    remarks.extend(check::check_sums(&config)?);
    refused.map_or(Ok(Loaded { config, remarks }), |idle| Err(idle.refusal()))
}

/// Whether the command line has made a key of the file one without effect.
fn is_left_idle(idle: &Idle, path: &Path, overrides: &[String]) -> bool {
    let key = format!("{}.{}", idle.section, idle.name);
    let names = |text: &String| {
        let rest = text.trim_start().strip_prefix(&key);
        rest.is_some_and(|rest| rest.starts_with(['.', '=', ' ']))
    };
    let file = table(path, &[]).and_then(typed);
    let is_idle_there = file.is_ok_and(|file| {
        effect::idle(&file)
            .iter()
            .any(|other| (other.section, other.name) == (idle.section, idle.name))
    });
    !overrides.iter().any(names) && !is_idle_there
}

/// Like [`load`], for a run that has begun: keys without effect, which an earlier release let pass,
/// stay as they are.
pub fn of_run(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    checked(read(path, overrides)?)
}

fn checked(mut config: Config) -> Result<Config, ConfigError> {
    config.train.owners = Some(resolve_owners(&config));
    check::check(&config)?;
    Ok(config)
}

/// Like [`load`], but leaves `train.owners` as written and checks types only: for a run that goes
/// on, whose missing values are those it was started with.
pub fn read(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    typed(table(path, overrides)?)
}

/// Whether the file or an override gives a key a value, the default or another one.
pub fn names(
    path: &Path,
    overrides: &[String],
    section: &str,
    key: &str,
) -> Result<bool, ConfigError> {
    let table = table(path, overrides)?;
    let section = table.get(section).and_then(Value::as_table);
    Ok(section.is_some_and(|section| section.contains_key(key)))
}

/// The file with the overrides.
fn table(path: &Path, overrides: &[String]) -> Result<Table, ConfigError> {
    let text = regular::read_text(path, FILE_BYTES_MAX)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let mut table: Table = toml::from_str(&text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        // The parser quotes the line.
        reason: error.to_string().trim_end().lines().map(str::shown).collect::<Vec<_>>().join("\n"),
    })?;
    for text in overrides {
        apply_override(&mut table, text)?;
    }
    Ok(table)
}

/// Puts one `section.key=value`, or `section.key.part=value`, into the table.
fn apply_override(mut table: &mut Table, text: &str) -> Result<(), ConfigError> {
    let refuse = |reason| ConfigError::Override { text: text.to_owned(), reason };
    let (key, value) = text.split_once('=').ok_or_else(|| refuse("there is no `=`"))?;
    let (path, name) =
        key.trim().rsplit_once('.').ok_or_else(|| refuse("the key names no section"))?;
    if name.is_empty() || path.split('.').any(str::is_empty) {
        return Err(refuse("the key is not complete"));
    }
    for part in path.split('.') {
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(entry) = entry else {
            return Err(refuse("the file gives a plain value where this section belongs"));
        };
        table = entry;
    }
    table.insert(name.to_owned(), override_value(value));
    Ok(())
}

/// The value as TOML, or as a string where it is not TOML.
fn override_value(text: &str) -> Value {
    toml::from_str::<Table>(&format!("value = {}", text.trim()))
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(text.trim().to_owned()))
}

/// The whole table as a `Config`. Each key is tried alone first, so that an error names it.
fn typed(table: Table) -> Result<Config, ConfigError> {
    for (section, content) in &table {
        if !keys::sections().contains(&section.as_str()) {
            return Err(unknown_section(section));
        }
        let Value::Table(content) = content else {
            return Err(ConfigError::BadValue {
                key: section.clone(),
                value: content.to_string(),
                reason: "this is a section".into(),
                example: format!("[{section}] on a line of its own, its keys below"),
            });
        };
        for (key, value) in content {
            if !keys::keys_of(section).contains(&key.as_str()) {
                return Err(unknown_key(section, key));
            }
            match (section.as_str(), key.as_str(), value) {
                ("faults", "plan", Value::Array(plan)) => check_fault_plan(plan)?,
                _ => check_value(section, key, value)?,
            }
        }
    }
    let has_warm_up = table.get("schedule").is_some_and(|own| own.get("warm_up").is_some());
    let refused = |error: toml::de::Error| ConfigError::Refused {
        key: "configuration".into(),
        value: "...".into(),
        reason: error.to_string(),
    };
    let mut config: Config = Value::Table(table).try_into().map_err(refused)?;
    if config.schedule.kind == ScheduleKind::OneCycle && !has_warm_up {
        config.schedule.warm_up = Schedule::CYCLE_RISES;
    }
    Ok(config)
}

fn unknown_section(section: &str) -> ConfigError {
    let hint = match keys::nearest(section, keys::sections().iter().copied()) {
        Some(name) => format!("did you mean the section [{name}]?"),
        None => format!("the sections are {}", keys::sections().join(", ")),
    };
    ConfigError::UnknownKey { key: section.to_owned(), hint }
}

fn unknown_key(section: &str, key: &str) -> ConfigError {
    let hint = match keys::nearest_key(section, key) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("[{section}] knows {}", keys::keys_of(section).join(", ")),
    };
    ConfigError::UnknownKey { key: format!("{section}.{key}"), hint }
}

/// Tries one key alone: all others have defaults.
fn check_value(section: &str, key: &str, value: &Value) -> Result<(), ConfigError> {
    let alone = Table::from_iter([(key.to_owned(), value.clone())]);
    let whole = Table::from_iter([(section.to_owned(), Value::Table(alone))]);
    match Value::Table(whole).try_into::<Config>() {
        Ok(_) => Ok(()),
        Err(error) => {
            let reason = plain_reason(error.message());
            let example = format!("{section}.{key} = {}", example_value(section, key, &reason));
            let key = format!("{section}.{key}");
            Err(ConfigError::BadValue { key, value: value.to_string(), reason, example })
        }
    }
}

fn check_fault_plan(plan: &[Value]) -> Result<(), ConfigError> {
    const EXAMPLE: &str = r#"faults.plan = [{ kind = "kill", rank = 2, step = 40 }]"#;
    for (index, fault) in plan.iter().enumerate() {
        let key = format!("faults.plan[{index}]");
        let bad = |key: String, reason: String| ConfigError::BadValue {
            key,
            value: fault.to_string(),
            reason,
            example: EXAMPLE.into(),
        };
        let Value::Table(entry) = fault else {
            return Err(bad(key, "a planned fault is a table".into()));
        };
        if let Some(name) = entry.keys().find(|k| !keys::fault_keys().contains(&k.as_str())) {
            let hint = match keys::nearest(name, keys::fault_keys().iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("a planned fault knows {}", keys::fault_keys().join(", ")),
            };
            return Err(ConfigError::UnknownKey { key: format!("{key}.{name}"), hint });
        }
        let result = fault.clone().try_into::<super::PlannedFault>();
        result.map_err(|error| bad(key, plain_reason(error.message())))?;
    }
    Ok(())
}

/// Serde's words in the user's.
fn plain_reason(message: &str) -> String {
    let mut text = message.trim().replace('\n', " ");
    for (theirs, ours) in [
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected u32", "expected a whole number, 0 or more"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected path string", "expected a path as a string"),
        ("expected a sequence", "expected a list in [ ]"),
        ("invalid type: ", "this is "),
        ("invalid value: ", "this is "),
        ("floating point `", "the number `"),
        ("integer `", "the whole number `"),
        ("boolean `", "the truth value `"),
        ("unknown variant", "there is no choice"),
    ] {
        text = text.replace(theirs, ours);
    }
    text
}

/// What a right value looks like: the default, else one that fits what was expected.
fn example_value(section: &str, key: &str, reason: &str) -> String {
    let defaults = Table::try_from(Config::default()).unwrap_or_default();
    if let Some(value) = defaults.get(section).and_then(|s| s.get(key)) {
        return value.to_string();
    }
    match (section, key) {
        ("train", "max_seconds") => "600.0",
        ("device", "memory_budget") => "\"8GiB\"",
        ("memory", "link") => "\"8GB/s\"",
        ("data", "mean") => "[0.485, 0.456, 0.406]",
        ("data", "deviation") => "[0.229, 0.224, 0.225]",
        ("data", "throttle") => r#"{ rate = "8MB/s", latency = "2ms" }"#,
        ("recovery", "ladder") => r#"["respawn", "shrink", "restart"]"#,
        ("faults", "mtbf_seconds") => "60.0",
        _ if reason.contains("expected a whole number") => "4",
        _ if reason.contains("expected a number") => "1.0",
        _ => "\"...\"",
    }
    .to_owned()
}
