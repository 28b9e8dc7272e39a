//! `kiln doctor`: what it finds, and that it tells no secret.

use std::process::Command;

use crate::common::{kiln, succeeds, text};

/// The one line about `what`.
fn line<'a>(said: &'a str, what: &str) -> &'a str {
    said.lines().find(|line| line.split_whitespace().nth(1) == Some(what)).unwrap_or_else(|| panic!("{what}: {said}"))
}

fn doctor(folder: &std::path::Path) -> Command {
    let mut command = kiln(folder);
    command.arg("doctor").env_remove("KILN_MPI").env_remove("KILN_CPU_PRODUCTS");
    command
}

#[test]
fn every_part_has_a_line_and_a_secret_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = doctor(folder.path());
    command.env("HF_TOKEN", "hf_of_nobody").env("HF_ENDPOINT", "https://me:word@example.org");
    let said = succeeds(&mut command);
    for what in ["build", "cpu", "memory", "device", "mpi", "cache", "hub", "python"] {
        let state = line(&said, what).split_whitespace().next();
        assert!(matches!(state, Some("ok" | "missing")), "{said}");
    }
    let hub = "https://example.org, with a token, and HF_HUB_OFFLINE keeps Kiln from asking it";
    assert!(line(&said, "hub").contains(hub), "{said}");
    assert_eq!(line(&said, "hub").contains("needs a build with the feature push"), !cfg!(feature = "push"), "{said}");
    assert!(!said.contains("hf_of_nobody") && !said.contains("word"), "{said}");
    let online = succeeds(command.env("HF_HUB_OFFLINE", "0"));
    assert!(line(&online, "hub").contains("; the settings are checked, and the Hub is not asked"), "{online}");
    // A line that lacks something says what gives it.
    let mut lines = said.lines();
    while let Some(missing) = lines.find(|line| line.starts_with("missing")) {
        assert!(lines.next().is_some_and(|line| line.trim_start().starts_with("help: ")), "{missing}");
    }
}

#[test]
fn what_is_wrong_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let cases = [
        ("KILN_CPU_PRODUCTS", "nonsense".into(), "cpu"),
        ("KILN_MPI", "libmissing.so".into(), "mpi"),
        ("KILN_CACHE", file.join("cache").display().to_string(), "cache"),
        ("HF_ENDPOINT", "nowhere".into(), "hub-cache"),
    ];
    for (name, value, what) in cases {
        let output = doctor(folder.path()).env(name, &value).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(&format!("error: wrong here: {what}\n")), "{name}: {said}");
        assert!(line(&said, what).starts_with("wrong "), "{name}: {said}");
    }
}
