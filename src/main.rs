//! The `kiln` command. Everything it does is in the library.

fn main() -> std::process::ExitCode {
    kiln::cli::main()
}
