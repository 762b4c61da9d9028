//! Reads TOML and `-s` overrides into a `Config`; refuses with key, value and what to write
//! instead.

use std::path::Path;

use kintsugi_ffi::regular;
use toml::{Table, Value};

use super::effect::{self, Idle};
use super::error::ConfigError;
use super::foreign;
use super::{Config, GONE, Schedule, ScheduleKind, Shown, check, keys, resolve_owners};

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
    let recovery = table.get("recovery");
    let gone = GONE.iter().filter(|(key, _)| recovery.is_some_and(|own| own.get(key).is_some()));
    remarks.extend(
        gone.map(|(key, value)| {
            format!("`recovery.{key} = {value}` is always so: leave the key out")
        }),
    );
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

/// Refuses what no run begins with: a value, or a key that does nothing beside the others.
///
/// # Errors
/// The key, and why.
pub fn acceptable(config: &Config) -> Result<(), ConfigError> {
    check::check(config)?;
    effect::idle(config).first().map_or(Ok(()), |idle| Err(idle.refusal()))
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

fn table_of(path: &Path, text: &str) -> Result<Table, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        // The parser quotes the line.
        reason: error.to_string().trim_end().lines().map(str::shown).collect::<Vec<_>>().join("\n"),
    })
}

/// Like [`of_run`], of a file that is not written yet.
pub fn of_text(text: &str) -> Result<Config, ConfigError> {
    checked(typed(table_of(Path::new("the configuration"), text)?)?)
}

/// The file with the overrides.
fn table(path: &Path, overrides: &[String]) -> Result<Table, ConfigError> {
    let text = regular::read_text(path, FILE_BYTES_MAX)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let mut table = table_of(path, &text)?;
    let model =
        |table: &Table, key: &str| table.get("model").and_then(|model| model.get(key)).cloned();
    let before = (model(&table, "name"), model(&table, "text"));
    for text in overrides {
        apply_override(&mut table, text)?;
    }
    // A run's own file has the text of the model that it names, not of one that is named now.
    let now = (model(&table, "name"), model(&table, "text"));
    if now.0 != before.0
        && now.1 == before.1
        && let Some(Value::Table(model)) = table.get_mut("model")
    {
        model.remove("text");
    }
    Ok(table)
}

/// Puts one `section.key=value`, or `section.key.part=value`, into the table. One without a section
/// is put there too: as an unknown key it is refused with the right one.
fn apply_override(mut table: &mut Table, text: &str) -> Result<(), ConfigError> {
    let refuse = |reason| ConfigError::Override { text: text.to_owned(), reason };
    let (key, value) = text.split_once('=').ok_or_else(|| refuse("there is no `=`"))?;
    let key = key.trim();
    if key.split('.').any(str::is_empty) {
        return Err(refuse("the key is not complete"));
    }
    let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
    for part in path.split('.').filter(|part| !part.is_empty()) {
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
    let unknown = unknown_keys(&table);
    if !unknown.is_empty() {
        return Err(ConfigError::UnknownKeys { keys: unknown });
    }
    for (section, content) in &table {
        let Value::Table(content) = content else { return Err(no_section(section, content)) };
        for (key, value) in content {
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

/// Keys and sections that nobody reads, each with what may have been meant.
fn unknown_keys(table: &Table) -> Vec<(String, String)> {
    let mut unknown = Vec::new();
    for (section, content) in table {
        let is_known = keys::sections().contains(&section.as_str());
        match content {
            Value::Table(content) if is_known => {
                let known = keys::keys_of(section);
                let others = content.iter().filter(|(key, value)| {
                    !known.contains(&key.as_str()) && !is_always_so(section, key, value)
                });
                unknown.extend(
                    others.map(|(key, _)| {
                        (format!("{section}.{key}"), keys::hint(Some(section), key))
                    }),
                );
            }
            Value::Table(_) if !is_known => {
                unknown.push((section.clone(), keys::hint_of_section(section)));
            }
            _ if !is_known => unknown.push((section.clone(), keys::hint(None, section))),
            _ => {}
        }
    }
    unknown.extend(unknown_of_plan(table));
    unknown
}

/// What runs of an earlier release wrote down that asked for nothing else.
fn is_always_so(section: &str, key: &str, value: &Value) -> bool {
    section == "recovery" && GONE.iter().any(|gone| (gone.0, &gone.1) == (key, value))
}

/// Those of planned faults.
fn unknown_of_plan(table: &Table) -> Vec<(String, String)> {
    let plan = table.get("faults").and_then(|faults| faults.get("plan"));
    let plan = plan.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let of = |(index, fault): (usize, &Value)| {
        let keys: Vec<String> =
            fault.as_table().into_iter().flat_map(Table::keys).cloned().collect();
        let others = keys.into_iter().filter(|key| !keys::fault_keys().contains(&key.as_str()));
        let told = others.map(move |name| {
            let hint = match keys::nearest(&name, keys::fault_keys().iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("a planned fault knows {}", keys::fault_keys().join(", ")),
            };
            (format!("faults.plan[{index}].{name}"), hint)
        });
        told.collect::<Vec<_>>()
    };
    plan.iter().enumerate().flat_map(of).collect()
}

/// A plain value where a section belongs: `optimizer = "adamw"`.
fn no_section(section: &str, value: &Value) -> ConfigError {
    let example = match keys::keys_of(section).contains(&"name") && value.is_str() {
        true => format!("{section}.name = {value}"),
        false => format!("[{section}] on a line of its own, its keys below"),
    };
    let (key, value) = (section.to_owned(), value.to_string());
    ConfigError::BadValue { key, value, reason: "this is a section".into(), example }
}

/// Tries one key alone: all others have defaults.
fn check_value(section: &str, key: &str, value: &Value) -> Result<(), ConfigError> {
    let Some(reason) = refusal_of(&format!("{section}.{key}"), value) else { return Ok(()) };
    let meant = value.as_str().and_then(|typed| nearest_choice(typed, &reason));
    let example = meant.unwrap_or_else(|| example_value(section, key, &reason));
    let example = format!("{section}.{key} = {example}");
    let key = format!("{section}.{key}");
    Err(ConfigError::BadValue { key, value: value.to_string(), reason, example })
}

/// Of the choices that a refusal lists, the one that was meant: `adam` is `adamw`.
fn nearest_choice(typed: &str, refusal: &str) -> Option<String> {
    let (choices, meant) = (choices(refusal), foreign::choice(typed));
    let meant = meant.filter(|meant| choices.contains(meant));
    meant.or_else(|| keys::nearest(typed, choices)).map(|meant| format!("{meant:?}"))
}

/// What a refusal says may be written, where that are names.
pub(super) fn choices(refusal: &str) -> Vec<&str> {
    let many = refusal.split_once("expected one of ").map(|(_, listed)| listed);
    let few = || refusal.split_once("expected ").map(|(_, listed)| listed);
    let listed = many.or_else(few).filter(|listed| listed.starts_with('`'));
    listed.map_or(Vec::new(), |listed| listed.split('`').skip(1).step_by(2).collect())
}

/// Why the schema takes no such value of a key alone.
pub(super) fn refusal_of(key: &str, value: &Value) -> Option<String> {
    let (section, name) = key.split_once('.')?;
    let alone = Table::from_iter([(name.to_owned(), value.clone())]);
    let whole = Table::from_iter([(section.to_owned(), Value::Table(alone))]);
    let refused = Value::Table(whole).try_into::<Config>().err()?;
    Some(plain_reason(refused.message()))
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
        if !fault.is_table() {
            return Err(bad(key, "a planned fault is a table".into()));
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
    // What a type is called in the program tells nobody anything.
    match text.split_once("expected struct ") {
        Some((before, _)) => format!("{before}expected a table in {{ }}"),
        None => text,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is written where something else belongs is refused in a user's words.
    #[test]
    fn no_refusal_names_a_type_of_the_program() {
        let table = |name: &str| Value::Table(Table::from_iter([(name.into(), 1.into())]));
        let values = [
            Value::Boolean(true),
            Value::Integer(-1),
            Value::Float(1.5),
            Value::String("?".into()),
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Boolean(true)]),
            table("x"),
        ];
        let is_word = |word: &str| {
            let is_type = ["struct", "enum", "tuple", "newtype", "u8", "u32", "u64", "i64", "f64"];
            let inner = word.chars().skip(1).any(|c| c.is_ascii_uppercase());
            let camel = word.starts_with(|c: char| c.is_ascii_uppercase())
                && inner
                && word.chars().any(|c| c.is_ascii_lowercase());
            is_type.contains(&word) || camel
        };
        let mut told = Vec::new();
        for key in keys::all().filter(|key| key != "faults.plan") {
            for value in &values {
                let Some(refusal) = refusal_of(&key, value) else { continue };
                let mut words = refusal.split(|c: char| !c.is_ascii_alphanumeric());
                if let Some(word) = words.find(|word| is_word(word) && !word.ends_with("iB")) {
                    told.push(format!("{key} = {value}: {word} in {refusal}"));
                }
            }
        }
        assert!(told.is_empty(), "{}", told.join("\n"));
    }
}
