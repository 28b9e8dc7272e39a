//! The `kiln` command. Everything it does is in the library.

/// Ends the process where memory runs out, with an error and its exit code (see [`kiln::cli::Allocator`]).
#[global_allocator]
static ALLOCATOR: kiln::cli::Allocator = kiln::cli::Allocator;

fn main() -> std::process::ExitCode {
    kiln::cli::main()
}
