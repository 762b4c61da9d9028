//! A configuration's keys by the names that a command line gives them. Pure.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// A value in an arm's name: a text without quotes.
pub fn told(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Tables are sections: `{ recovery = { ladder = [...] } }` has the key `recovery.ladder`.
pub fn keys(table: &Table) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(section) => {
                let inner = keys(section).into_iter();
                all.extend(inner.map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            value => {
                all.insert(key.clone(), value.clone());
            }
        }
    }
    all
}
