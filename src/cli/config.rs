//! `kintsugi config keys | explain | show`: what can be configured, what a key means, what a run
//! would have and where each value comes from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgAction;
use toml::{Table, Value};

use super::arguments::{Form, fail, form, print_json};
use crate::config::manual::{self, Key};
use crate::config::{ConfigError, Shown, parse};
use crate::observe::console::{print_line, print_text, say};

/// Keys of configurations.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Lists all keys with their defaults
    Keys(Keys),
    /// Says what a key means, what it takes and what it is where nobody sets it
    Explain(Explain),
    /// Shows a configuration with every key, and where each value comes from
    Show(Show),
}

/// `config keys`
#[derive(Debug, clap::Args)]
pub struct Keys {
    /// Only those with this word in their name or meaning, or that are called so elsewhere.
    pub word: Option<String>,
    /// One JSON object on one line instead of the table.
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    pub json: Form,
}

/// `config explain`
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// section.key, or its name alone, or what it is called elsewhere (lr, batch_size).
    pub key: String,
}

/// `config show`
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The run's configuration (TOML).
    pub config: PathBuf,
    /// Overrides one key: section.key=value.
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// One JSON object on one line instead of TOML.
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    pub json: Form,
}

/// Exit 0; 1: no key has the word; 2: there is no such key, or the configuration is wrong.
pub fn run(args: &Args) -> ExitCode {
    match args {
        Args::Keys(args) => list(args),
        Args::Explain(args) => match manual::find(&args.key) {
            Ok(key) => {
                print_text(&explained(&key));
                ExitCode::SUCCESS
            }
            Err(reason) => fail(2, reason),
        },
        Args::Show(args) => match shown(args) {
            Ok(values) => {
                print(&values, args.json);
                ExitCode::SUCCESS
            }
            Err(error) => fail(2, error),
        },
    }
}

fn list(args: &Keys) -> ExitCode {
    let keys = match &args.word {
        Some(word) => manual::search(word),
        None => manual::all(),
    };
    if keys.is_empty() {
        return fail(1, "no key has this word; `kintsugi config keys` lists all");
    }
    if args.json == Form::Json {
        print_json(&serde_json::json!({ "keys": keys }));
        return ExitCode::SUCCESS;
    }
    let width = keys.iter().map(|key| key.key.len()).max().unwrap_or(0);
    for key in &keys {
        print_line!("{:<width$}  {:<14}  {}", key.key, key.default, first_words(&key.meaning));
    }
    ExitCode::SUCCESS
}

/// As much of a meaning as a line of a list has room for.
fn first_words(meaning: &str) -> String {
    const WIDTH: usize = 70;
    let first = meaning.split(". ").next().unwrap_or_default();
    let first = first.split("; ").next().unwrap_or_default().trim_end_matches('.');
    match first.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", first[..end].trim_end()),
        None => first.to_owned(),
    }
}

fn explained(key: &Key) -> String {
    let Key { value, default, .. } = key;
    let mut text = format!("{}\n  takes    {value}\n  default  {default}\n", key.key);
    if !key.with.is_empty() {
        text.push_str(&format!("  with     {}\n", key.with.join(", ")));
    }
    text + "\n" + &key.meaning + "\n"
}

/// A key of a resolved configuration.
#[derive(Debug, serde::Serialize)]
struct Resolved {
    key: String,
    value: Value,
    /// Where it was set: the file, `-s`, or nowhere.
    from: String,
}

fn shown(args: &Show) -> Result<Vec<Resolved>, ConfigError> {
    let loaded = parse::loaded(&args.config, &args.set)?;
    for remark in &loaded.remarks {
        say!("{remark}");
    }
    let mut values = Vec::new();
    let table = Table::try_from(&loaded.config).unwrap_or_default();
    for key in manual::names() {
        let (section, name) = key.split_once('.').unwrap_or_default();
        let Some(value) = table.get(section).and_then(|own| own.get(name)) else { continue };
        let (value, from) = (value.clone(), origin(&args.config, &args.set, section, name)?);
        values.push(Resolved { key, value, from });
    }
    Ok(values)
}

fn origin(path: &Path, set: &[String], section: &str, name: &str) -> Result<String, ConfigError> {
    let key = format!("{section}.{name}");
    let sets = |text: &&String| {
        let typed = text.split('=').next().unwrap_or_default().trim();
        typed == key || typed.starts_with(&format!("{key}."))
    };
    if let Some(text) = set.iter().rfind(sets) {
        return Ok(format!("-s {text}"));
    }
    if parse::names(path, &[], section, name)? {
        return Ok(path.shown());
    }
    Ok(if key == "train.owners" { "follows from ranks and workers" } else { "default" }.into())
}

/// As TOML that `launch` takes, with where each value comes from behind it.
fn print(values: &[Resolved], form: Form) {
    if form == Form::Json {
        print_json(&serde_json::json!({ "keys": values }));
        return;
    }
    let line = |value: &Resolved| {
        let name = value.key.rsplit('.').next().unwrap_or_default();
        format!("{name} = {}", value.value)
    };
    let width = values.iter().map(|value| line(value).len()).filter(|width| *width < 48).max();
    let (width, mut section) = (width.unwrap_or(0), "");
    for value in values {
        let (own, _) = value.key.split_once('.').unwrap_or_default();
        if own != section {
            print_line!("{}[{own}]", if section.is_empty() { "" } else { "\n" });
            section = own;
        }
        print_line!("{:<width$}  # {}", line(value), value.from);
    }
}
