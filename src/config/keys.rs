//! Which keys exist, asked of serde itself so that the list cannot lag behind the schema, and the
//! nearest known one to what was typed.

use serde::de::{Deserialize, Deserializer, Error as _, Visitor, value::Error};

use super::foreign;
use super::{
    Checkpoint, Config, Data, Device, Evaluation, Faults, Memory, Model, Observe, Optimizer,
    PlannedFault, Recovery, Run, Schedule, Staging, Train,
};

/// A deserializer without data: it remembers the field names that a struct asks for, and fails.
struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("there is nothing here"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("there is nothing here"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The names of a struct's fields, as files have them.
pub fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // It always fails: only the question matters.
    let _ = T::deserialize(Fields(&mut fields));
    fields
}

/// The sections of a configuration file.
pub fn sections() -> &'static [&'static str] {
    fields_of::<Config>()
}

/// The keys of a section; empty for one that does not exist.
pub fn keys_of(section: &str) -> &'static [&'static str] {
    match section {
        "run" => fields_of::<Run>(),
        "model" => fields_of::<Model>(),
        "data" => fields_of::<Data>(),
        "staging" => fields_of::<Staging>(),
        "train" => fields_of::<Train>(),
        "optimizer" => fields_of::<Optimizer>(),
        "schedule" => fields_of::<Schedule>(),
        "evaluation" => fields_of::<Evaluation>(),
        "recovery" => fields_of::<Recovery>(),
        "checkpoint" => fields_of::<Checkpoint>(),
        "device" => fields_of::<Device>(),
        "memory" => fields_of::<Memory>(),
        "observe" => fields_of::<Observe>(),
        "faults" => fields_of::<Faults>(),
        _ => &[],
    }
}

/// The keys of one `[[faults.plan]]`.
pub fn fault_keys() -> &'static [&'static str] {
    fields_of::<PlannedFault>()
}

/// The known name that looks most like `typed`, if any looks like it at all.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Jaro-Winkler similarity below which a guess would mislead.
    const LIKENESS_MIN: f64 = 0.75;
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(typed, name), name))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Every key, as `section.name`.
pub fn all() -> impl Iterator<Item = String> {
    let of = |section: &&'static str| {
        let section = *section;
        keys_of(section).iter().map(move |name| format!("{section}.{name}"))
    };
    sections().iter().flat_map(of)
}

/// The keys of this name in whatever section.
fn named(name: &str) -> Vec<String> {
    all().filter(|key| key.rsplit('.').next() == Some(name)).collect()
}

/// What somebody may have meant who typed an unknown key, and what to write. `section`: where it
/// was typed, if that is a section.
pub fn hint(section: Option<&str>, name: &str) -> String {
    let name = name.trim_start_matches('-');
    let meant = |keys: &[String]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
        format!("did you mean {}?", keys.join(" or "))
    };
    if let Some(words) = foreign::instead(name) {
        return words.to_owned();
    }
    if let Some(key) = foreign::key(name) {
        return meant(&[key.to_owned()]);
    }
    let elsewhere = named(name);
    if !elsewhere.is_empty() {
        return meant(&elsewhere);
    }
    let of_section = section.map_or(&[][..], keys_of);
    if let (Some(section), Some(near)) = (section, nearest(name, of_section.iter().copied())) {
        return meant(&[format!("{section}.{near}")]);
    }
    let names = sections().iter().flat_map(|section| keys_of(section)).copied();
    match (section, nearest(name, names)) {
        (None, Some(near)) => meant(&named(near)),
        (Some(section), _) if !of_section.is_empty() => {
            format!("[{section}] knows {}", of_section.join(", "))
        }
        _ => "`kintsugi config keys` lists all".to_owned(),
    }
}

/// What somebody may have meant who typed an unknown section.
pub fn hint_of_section(typed: &str) -> String {
    match nearest(typed, sections().iter().copied()) {
        Some(name) => format!("did you mean the section [{name}]?"),
        None => format!("the sections are {}", sections().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_of_the_schema_has_keys() {
        assert!(sections().len() >= 14);
        for section in sections() {
            assert!(!keys_of(section).is_empty(), "{section} is missing in keys_of");
        }
        assert!(keys_of("recovery").contains(&"step_timeout"));
        assert!(fault_keys().contains(&"phase"));
    }

    #[test]
    fn a_slip_of_the_finger_finds_its_key() {
        for (section, name, meant) in [
            (Some("train"), "global_bacth", "did you mean `train.global_batch`?"),
            (Some("train"), "ranks", "did you mean `run.ranks`?"),
            (Some("train"), "batch_size", "did you mean `train.global_batch`?"),
            (None, "lr", "did you mean `optimizer.learning_rate`?"),
            (None, "lable_smoothing", "did you mean `train.label_smoothing`?"),
            (None, "every", "did you mean `evaluation.every` or `checkpoint.every`?"),
            (None, "qqqq", "`kintsugi config keys` lists all"),
        ] {
            assert_eq!(hint(section, name), meant);
        }
        assert!(hint(Some("run"), "qqqq").starts_with("[run] knows name, seed"));
        assert_eq!(hint_of_section("optimiser"), "did you mean the section [optimizer]?");
    }
}
