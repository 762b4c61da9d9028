//! What is told of each key: the table of `configs/README.md` (the one text that says what keys
//! mean), what values they take and their defaults, asked of the schema itself. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use toml::{Table, Value};

use super::{Config, foreign, keys, parse};

const README: &str = include_str!("../../configs/README.md");

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The keys that it is about.
    pub keys: Vec<&'static str>,
    /// Their defaults, as they are written there.
    pub default: &'static str,
    /// What they mean; Markdown.
    pub meaning: &'static str,
}

/// All rows, in the order in which they are written.
pub fn rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
        let (_, after) = README.split_once("\n## Keys\n").unwrap_or_default();
        let table = after.lines().skip_while(|line| !line.starts_with("| `"));
        table.map_while(row).collect()
    });
    &ROWS
}

fn row(line: &'static str) -> Option<Row> {
    let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, " | ");
    let (names, default, meaning) = (cells.next()?, cells.next()?, cells.next()?);
    let names = names.split('`').skip(1).step_by(2);
    let keys = names.map(|name| name.trim_matches(['[', ']'])).collect();
    Some(Row { keys, default, meaning })
}

/// All there is to say of one key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Key {
    /// `section.name`
    pub key: String,
    /// What may be written, with its unit.
    pub value: String,
    /// As TOML; where the schema has none, what the table says follows.
    pub default: String,
    /// What it means.
    pub meaning: String,
    /// Other keys that the meaning is about.
    pub with: Vec<String>,
}

/// The names of all keys, `section.name`, in the schema's order.
pub fn names() -> Vec<String> {
    keys::all().collect()
}

/// Every key of the schema, section by section.
pub fn all() -> Vec<Key> {
    let defaults = defaults();
    keys::all().map(|key| described(key, &defaults)).collect()
}

/// The key that is meant by its full name, by what it is called elsewhere, or by its name alone
/// where only one section has it.
///
/// # Errors
/// What may have been meant.
pub fn find(typed: &str) -> Result<Key, String> {
    let all = all();
    let known = |key: &str| all.iter().find(|known| known.key == key).cloned();
    if let Some(found) = known(typed).or_else(|| foreign::key(typed).and_then(known)) {
        return Ok(found);
    }
    let named: Vec<&Key> =
        all.iter().filter(|known| known.key.rsplit('.').next() == Some(typed)).collect();
    if let [only] = named.as_slice() {
        return Ok((*only).clone());
    }
    let hint = match typed.rsplit_once('.') {
        Some((section, name)) => keys::hint(Some(section), name),
        None => keys::hint(None, typed),
    };
    Err(format!("unknown key `{typed}`; {hint}"))
}

/// Those whose name, other names or meaning hold a word.
pub fn search(word: &str) -> Vec<Key> {
    let word = word.to_lowercase();
    let holds = |text: &str| text.to_lowercase().contains(&word);
    let is_it = |name: &&str| *name == word || name.split('_').any(|part| part == word);
    let others = |key: &str| foreign::names_of(key).iter().any(is_it);
    let mut found = all();
    found.retain(|key| holds(&key.key) || holds(&key.meaning) || others(&key.key));
    found
}

fn defaults() -> BTreeMap<String, String> {
    let table = Table::try_from(Config::default()).unwrap_or_default();
    let mut defaults = BTreeMap::new();
    for (section, content) in &table {
        for (name, value) in content.as_table().into_iter().flatten() {
            defaults.insert(format!("{section}.{name}"), value.to_string());
        }
    }
    defaults
}

fn described(key: String, defaults: &BTreeMap<String, String>) -> Key {
    let row = rows().iter().find(|row| row.keys.contains(&key.as_str()));
    let with = row.map_or(&[][..], |row| &row.keys).iter().filter(|other| **other != key);
    let alone = row.filter(|row| row.keys.len() == 1);
    let follows = || alone.map_or_else(|| "unset".to_owned(), |row| row.default.replace('`', ""));
    Key {
        value: kind(&key),
        default: defaults.get(&key).cloned().unwrap_or_else(follows),
        meaning: row.map_or_else(String::new, |row| plain(row.meaning)),
        with: with.map(|other| (*other).to_owned()).collect(),
        key,
    }
}

/// What a key takes, found by trying.
fn kind(key: &str) -> String {
    let takes = |value: Value| parse::refusal_of(key, &value).is_none();
    let texts = |text: &str| takes(Value::String(text.into()));
    let choices = parse::refusal_of(key, &Value::String("?".into())).and_then(|why| choices(&why));
    let number = || match (takes(Value::Float(0.5)), takes(Value::Integer(4))) {
        (true, _) if texts("5epochs") => Some(r#"a number, or a length such as "5epochs""#),
        (true, _) => Some("a number"),
        (false, true) => Some("a whole number"),
        _ => None,
    };
    let list = |value: Value, n: usize| takes(Value::Array(vec![value; n]));
    let words = match choices {
        _ if key == "faults.plan" => "a list of tables",
        Some(choices) => return choices,
        None if takes(Value::Boolean(true)) => "true or false",
        None if number().is_some() => number().unwrap_or_default(),
        None if texts("?") && takes(share()) => "a text, in quotes, or a table, as below",
        None if texts("?") => "a text, in quotes",
        None if quantity(&texts).is_some() => return quantity(&texts).unwrap_or_default(),
        None if takes(Value::Table(Table::new())) => "a table, as below",
        None if list(Value::String("respawn".into()), 1) => "a list of texts",
        None if list(Value::Float(0.5), 1) => "a list of numbers",
        None if list(Value::Float(0.5), 2) => "a list of two numbers",
        None if list(Value::Float(0.5), 3) => "a list of three numbers",
        None => "what is told below",
    };
    words.to_owned()
}

/// What a set may be split off by.
fn share() -> Value {
    let keys = [("share", "10%"), ("group", "(.*)_")];
    let text = |(key, value): (&str, &str)| (key.to_owned(), Value::String(value.into()));
    Value::Table(Table::from_iter(keys.map(text)))
}

/// What texts with a unit a key takes, and which words in their place.
fn quantity(takes: &impl Fn(&str) -> bool) -> Option<String> {
    let quoted = |texts: &[&str]| -> Vec<String> {
        let taken = texts.iter().filter(|text| takes(text));
        taken.map(|text| format!("\"{text}\"")).collect()
    };
    let kinds = [
        ("a length, such as", &["100steps", "30s"][..]),
        ("an amount of bytes, such as", &["4MiB"]),
        ("bytes a second, such as", &["8MB/s"]),
    ];
    let found = kinds.iter().map(|(kind, examples)| (kind, quoted(examples)));
    let (kind, examples) = found.into_iter().find(|(_, examples)| !examples.is_empty())?;
    let words = quoted(&["epoch", "auto", "never", "off"]);
    let quantity = format!("{kind} {}", examples.join(" or "));
    Some(std::iter::once(quantity).chain(words).collect::<Vec<_>>().join(", or "))
}

/// The choices that a refusal names.
fn choices(refusal: &str) -> Option<String> {
    let names = parse::choices(refusal);
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Markdown as plain text: links lose where they lead to.
fn plain(markdown: &str) -> String {
    let (mut text, mut rest) = (String::new(), markdown);
    while let Some((before, after)) = rest.split_once("](") {
        let (lead, name) = before.rsplit_once('[').unwrap_or((before, ""));
        text.push_str(lead);
        text.push_str(name);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &str) -> Key {
        find(key).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The schema's keys are the table's, each in one row.
    #[test]
    fn every_key_has_one_row_and_every_row_its_keys() {
        let mut written: Vec<String> =
            rows().iter().flat_map(|row| &row.keys).map(|key| (*key).to_owned()).collect();
        let mut known: Vec<String> = keys::all().collect();
        written.sort_unstable();
        known.sort_unstable();
        assert_eq!(written, known);
        assert!(all().iter().all(|key| key.meaning.len() > 10), "a meaning is missing");
    }

    /// What the table says of defaults is what the schema has.
    #[test]
    fn the_tables_defaults_are_the_schemas() {
        let mut others = Vec::new();
        for row in rows().iter().filter(|row| row.keys.len() == 1) {
            let (key, written) = (row.keys[0], row.default.replace('`', ""));
            let (section, name) = key.split_once('.').unwrap();
            let parsed = format!("[{section}]\n{name} = {written}\n").parse::<Table>();
            let config = parsed.ok().and_then(|table| table.try_into::<Config>().ok());
            let told = config.and_then(|config| Table::try_from(config).ok());
            let is_unset = !defaults().contains_key(key) && written.starts_with("unset");
            let is_same = is_unset || told == Table::try_from(Config::default()).ok();
            others.extend((!is_same).then_some(key));
        }
        // Of these the schema has no value, or no line: the table says what follows.
        let follow = ["train.owners", "recovery.ladder", "recovery.spares", "faults.plan"];
        assert_eq!(others, follow);
    }

    #[test]
    fn what_a_key_takes_is_found_by_trying() {
        for (key, value) in [
            ("train.global_batch", "a whole number"),
            ("schedule.warm_up", r#"a number, or a length such as "5epochs""#),
            ("optimizer.learning_rate", "a number"),
            ("data.augment", "true or false"),
            ("recovery.time_limit", r#"a length, such as "30s""#),
            ("recovery.integrity_every", r#"a length, such as "100steps", or "off""#),
            (
                "evaluation.every",
                r#"a length, such as "100steps" or "30s", or "epoch", or "auto", or "never""#,
            ),
            ("data.validation", "a text, in quotes, or a table, as below"),
            ("train.bucket", r#"an amount of bytes, such as "4MiB""#),
            ("model.name", "a text, in quotes"),
            ("optimizer.name", r#""sgd", "adamw", "lars""#),
            ("optimizer.betas", "a list of two numbers"),
            ("data.mean", "a list of three numbers"),
        ] {
            assert_eq!(of(key).value, value, "{key}");
        }
        let vague: Vec<_> = all().into_iter().filter(|key| key.value.ends_with("below")).collect();
        let vague: Vec<_> = vague.iter().map(|key| key.key.as_str()).collect();
        assert_eq!(vague, ["data.validation", "data.color_jitter", "data.throttle"]);
    }

    #[test]
    fn a_key_is_found_by_what_people_call_it() {
        assert_eq!(of("lr").key, "optimizer.learning_rate");
        assert_eq!(of("global_batch").key, "train.global_batch");
        assert_eq!(of("batch").key, "train.global_batch");
        assert_eq!(of("device.kind").key, "device.kind");
        assert!(find("every").unwrap_err().contains("`evaluation.every` or `checkpoint.every`"));
        assert!(search("momentum").iter().any(|key| key.key == "optimizer.momentum"));
        assert_eq!(search("batch_size")[0].key, "train.global_batch");
        assert_eq!(plain("a ([b](c/d.md)) `[1, 2]`"), "a (b) `[1, 2]`");
    }
}
