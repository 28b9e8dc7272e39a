//! A test that the machine lacks something for is skipped with a line that says so, or fails where
//! `KILN_TEST_REQUIRE` forbids that.
#![allow(unused_imports, unused_macros)] // not every test binary has such tests

/// `skip!("mpi", "no mpirun: install it")` prints the line `skipped TEST: no mpirun: install it` to
/// stderr, which the test runner does not capture. It panics where the environment variable
/// `KILN_TEST_REQUIRE` has the name `mpi` among its names, which commas separate.
macro_rules! skip {
    ($need:expr, $($reason:tt)+) => {{
        let (need, reason): (&str, String) = ($need, format!($($reason)+));
        let required = std::env::var("KILN_TEST_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|name| name.trim() == need);
        assert!(!is_required, "KILN_TEST_REQUIRE has {need}, so this test must not be skipped: {reason}");
        let thread = std::thread::current();
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("skipped {}: {reason}\n", thread.name().unwrap_or("a test")),
        );
    }};
}
pub(crate) use skip;
