//! Entry point: parses, dispatches, exits with the code that `cli` returns.

/// A failed allocation ends the process at once.
#[global_allocator]
static ALLOCATOR: kintsugi_ffi::allocator::Ending = kintsugi_ffi::allocator::Ending;

fn main() -> std::process::ExitCode {
    kintsugi::cli::main()
}
