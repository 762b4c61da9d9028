//! What this process runs on and what it is: processor, memory and versions, in words.

use std::sync::OnceLock;

use super::spans::amount;

/// Processor, cores and memory, in words.
pub fn machine() -> String {
    // A simulation asks thousands of times.
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(looked_at).clone()
}

fn looked_at() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| -> Option<String> {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "processor".into());
    let kilobytes = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split(' ').next().and_then(|number| number.parse::<u64>().ok()));
    let memory = kilobytes.map(|kb| format!(", {}", amount(1024 * kb)));
    format!("{cores} cores of {model}{}", memory.unwrap_or_default())
}

/// The program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The newest commit of its sources when it was built, where they were a repository (`rpath.rs`).
pub const COMMIT: Option<&str> = option_env!("KINTSUGI_COMMIT");
