//! The `kiln` command. Everything it does is in the library.

/// Ends the process where memory runs out, with an error and its exit code (see
/// [`kiln_cli::Allocator`]).
#[global_allocator]
static ALLOCATOR: kiln_cli::Allocator = kiln_cli::Allocator;

fn main() -> std::process::ExitCode {
    kiln_cli::main()
}
