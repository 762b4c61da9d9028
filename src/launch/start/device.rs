//! Which kind of device computes where that is left to the machine: decided when a run begins, and
//! kept.

use std::io::ErrorKind;
use std::path::Path;

use crate::config::{Config, ConfigError, DeviceKind, parse};
use crate::engine;

/// Fills in `device.kind` where it is `"auto"`: what the run in this configuration file was begun
/// on; where there is none a card that this process sees and that can compute, else processors.
/// What there is to say where a card does not.
pub fn settle(config: &mut Config, run: Option<&Path>) -> Option<String> {
    if config.device.kind != DeviceKind::Auto {
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
            config.device.kind = kind;
            let words = |why| format!("device.kind = \"auto\": processors compute, no card: {why}");
            return why_not.map(words);
        }
    }
    None
}

fn is_absent(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Read { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// The kind, and why a card that is there does not compute.
fn here(config: &Config, card: Result<bool, String>) -> (DeviceKind, Option<String>) {
    let mut on_a_card = config.clone();
    on_a_card.device.kind = DeviceKind::Cuda;
    match card {
        Ok(false) => (DeviceKind::Cpu, None),
        Err(why) => (DeviceKind::Cpu, Some(why)),
        Ok(true) => match parse::acceptable(&on_a_card) {
            Ok(()) => (DeviceKind::Cuda, None),
            Err(refusal) => (DeviceKind::Cpu, Some(refusal.to_string())),
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
        config.device.kind = DeviceKind::Auto;
        assert_eq!(here(&config, Ok(true)), (DeviceKind::Cuda, None));
        assert_eq!(here(&config, Ok(false)), (DeviceKind::Cpu, None));
        let lacking = "no libcudnn.so.9".to_string();
        assert_eq!(here(&config, Err(lacking.clone())), (DeviceKind::Cpu, Some(lacking)));
        config.train.threads = 2;
        let (kind, why) = here(&config, Ok(true));
        assert_eq!(kind, DeviceKind::Cpu);
        assert!(why.is_some_and(|why| why.contains("train.threads")));
        // A card does nothing with it.
        config.train.threads = 1;
        config.memory.mode = MemoryMode::Swap;
        config.memory.link = Some(Rate(1 << 30));
        let (kind, why) = here(&config, Ok(true));
        assert_eq!(kind, DeviceKind::Cpu, "{why:?}");
        assert!(why.is_some_and(|why| why.contains("memory.link")));
    }

    #[test]
    fn a_run_goes_on_with_what_it_was_begun_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "[device]\nkind = \"cuda\"\n").expect("written");
        let mut config = Config::default();
        config.device.kind = DeviceKind::Auto;
        settle(&mut config, Some(&file));
        assert_eq!(config.device.kind, DeviceKind::Cuda);
        config.device.kind = DeviceKind::Cpu;
        settle(&mut config, Some(&file));
        assert_eq!(config.device.kind, DeviceKind::Cpu, "what is asked for is not overruled here");
    }
}
