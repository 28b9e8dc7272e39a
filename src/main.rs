//! The `kiln` command. Everything it does is in the library.

/// Notes allocations that fail, so that the process can say that memory ran out (see [`kiln::cli::Allocator`]).
#[global_allocator]
static ALLOCATOR: kiln::cli::Allocator = kiln::cli::Allocator;

fn main() -> std::process::ExitCode {
    kiln::cli::main()
}
