//! The protocol between arms and their driver, where one of them breaks it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use kiln_measure::interleaved::protocol::{Hello, Turn};
use proptest::prelude::*;

use crate::common::kiln;
use crate::common::small_run::write;
use crate::edits::{edited, edits};
use crate::{behaves, cases, printable, snapshot};

const HELLO: &str = r#"{"provenance": {"kiln": "x", "mode": "peer", "build": "release"}, "batch": 8, "total_steps": 100, "padding": 0.0}"#;
const TURN: &str = r#"{"steps": [{"step": 1, "samples": 8, "tokens": 64, "step_ms": 1.5, "data_ms": 0.1, "forward_ms": 0.5, "backward_ms": 0.5, "update_ms": 0.3, "sync_ms": 0.1, "synced": true, "loss": 5.5}], "peak_mib": 10.0}"#;

/// Lines of a driver, valid and invalid.
fn order() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1u32..6).prop_map(|n| format!("run {n}")),
        2 => prop::sample::select(vec![
            "end", "run 0", "run -1", "run 18446744073709551615", "run 18446744073709551616", "run", "run  2", "RUN 2", "run 2.0",
            "run 2 2", "", "\u{1b}[31m", "run \u{663}", "{}", "quit",
        ]).prop_map(str::to_owned),
        1 => "[^\n]{0,20}",
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn lines_are_read_or_refused(edits in edits()) {
        let _ = serde_json::from_slice::<Hello>(&edited(HELLO.as_bytes(), &edits));
        let _ = serde_json::from_slice::<Turn>(&edited(TURN.as_bytes(), &edits));
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn a_worker_takes_orders_or_ends(orders in prop::collection::vec(order(), 1..6)) {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "clm");
        let mut worker = kiln(place.path());
        worker.args(["worker", "config.toml"]);
        let mut child =
            worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may end before it has heard all of it.
        let _ = child.stdin.take().unwrap().write_all((orders.join("\n") + "\n").as_bytes());
        let output = child.wait_with_output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        prop_assert!(output.status.code().is_some_and(|code| [0, 1, 2, 3].contains(&code)), "{} {said}", output.status);
        prop_assert!(!said.contains("panicked at"), "{said}");
        printable(&said)?;
        for line in told.lines() {
            prop_assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(3))]

    #[test]
    fn a_peer_that_says_anything(
        name in prop::sample::select(vec!["peer", "../x", "a/b", "..", "", "\u{1b}[31m", "native", "a b"]),
        hello in edits(),
        turn in edits(),
        is_right in any::<bool>(),
    ) {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("here")).unwrap();
        let here = place.path().join("here");
        let line =
            |text: &str, edits| if is_right { text.as_bytes().to_vec() } else { edited(text.as_bytes(), edits) };
        std::fs::write(here.join("hello"), line(HELLO, &hello)).unwrap();
        std::fs::write(here.join("turn"), edited(TURN.as_bytes(), &turn)).unwrap();
        let script = here.join("peer.sh");
        let text = format!(
            "#!/bin/sh\ncat '{0}/hello'; echo\nwhile read order; do [ \"$order\" = end ] && exit 0; cat '{0}/turn'; echo; done\n",
            here.display()
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let before = snapshot(place.path(), &["here"]);
        let mut bench: Command = kiln(&here);
        bench.args(["bench", "--suite", "smoke", "--case", "gpt2-tiny", "--operators", "0", "--out", "out.json", "--peer"]);
        bench.arg(format!("{name}={}", script.display()));
        behaves(&mut bench, &[0, 1, 2, 3, 6])?;
        prop_assert_eq!(snapshot(place.path(), &["here"]), before);
    }
}
