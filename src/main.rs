//! Entry point: parses, dispatches, exits with the code that `cli` returns.

fn main() -> std::process::ExitCode {
    kintsugi::cli::main()
}
