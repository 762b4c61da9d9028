//! Which kind of device computes where that is left to the machine: decided when a run begins, and
//! kept.

use std::io::ErrorKind;
use std::path::Path;

use crate::config::{AUTO, Config, ConfigError, parse};
use crate::engine;

/// A card, by its name in a configuration.
const CARD: &str = "cuda";
/// Processors.
const HOST: &str = "cpu";

/// Fills in `device.kind` where it is `"auto"`: what the run in this configuration file was begun
/// on; where there is none a card that this process sees and that can compute, else processors.
/// What there is to say where a card does not.
pub fn settle(config: &mut Config, run: Option<&Path>) -> Option<String> {
    if config.device.kind != AUTO {
        return None;
    }
    match run.map(|file| parse::read(file, &[])) {
        Some(Ok(begun)) => config.device.go_on_from(&begun.device),
        // Whoever goes on with it reads it again, and tells what is wrong.
        Some(Err(error)) if !is_absent(&error) => {}
        _ => {
            let workers = config.run.ranks.saturating_mul(config.train.workers);
            let card = engine::has_card(workers as usize);
            let (kind, why_not) = here(config, card);
            config.device.kind = kind.into();
            let words = |why| format!("device.kind = {AUTO:?}: processors compute, no card: {why}");
            return why_not.map(words);
        }
    }
    None
}

fn is_absent(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Read { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// The kind, and why a card that is there does not compute.
fn here(config: &Config, card: Result<bool, String>) -> (&'static str, Option<String>) {
    let mut on_a_card = config.clone();
    on_a_card.device.kind = CARD.into();
    match card {
        Ok(false) => (HOST, None),
        Err(why) => (HOST, Some(why)),
        Ok(true) => match parse::acceptable(&on_a_card) {
            Ok(()) => (CARD, None),
            Err(refusal) => (HOST, Some(refusal.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MemoryMode, Rate};

    #[test]
    fn a_card_computes_where_it_is_there_and_can() {
        let mut config = Config::default();
        config.train.steps = Some(3);
        config.device.kind = AUTO.into();
        assert_eq!(here(&config, Ok(true)), (CARD, None));
        assert_eq!(here(&config, Ok(false)), (HOST, None));
        let lacking = "no libcudnn.so.9".to_string();
        assert_eq!(here(&config, Err(lacking.clone())), (HOST, Some(lacking)));
        config.train.threads = 2;
        let (kind, why) = here(&config, Ok(true));
        assert_eq!(kind, HOST);
        assert!(why.is_some_and(|why| why.contains("train.threads")));
        // A card does nothing with it.
        config.train.threads = 1;
        config.memory.mode = MemoryMode::Swap;
        config.memory.link = Some(Rate(1 << 30));
        let (kind, why) = here(&config, Ok(true));
        assert_eq!(kind, HOST, "{why:?}");
        assert!(why.is_some_and(|why| why.contains("memory.link")));
    }

    #[test]
    fn a_run_goes_on_with_what_it_was_begun_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "[device]\nkind = \"cuda\"\n").expect("written");
        let mut config = Config::default();
        config.device.kind = AUTO.into();
        settle(&mut config, Some(&file));
        assert_eq!(config.device.kind, CARD);
        config.device.kind = HOST.into();
        settle(&mut config, Some(&file));
        assert_eq!(config.device.kind, HOST, "what is asked for is not overruled here");
    }
}
