//! `kiln push` and `trainer.push_to_hub` against a Hub on 127.0.0.1 that looks at what it is sent.
//! Without the Cargo feature `push`, what a build says that cannot push.

#[cfg(feature = "push")]
mod server;
#[cfg(feature = "push")]
mod writes;

use crate::common::fails;
use crate::common::small_run::{train, write};
#[cfg(not(feature = "push"))]
use crate::common::{kiln, messages::messages};

#[cfg(not(feature = "push"))]
#[test]
fn a_build_that_cannot_push_names_the_way() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    for args in [["run", "a/b/c"], ["run", "org/name"]] {
        let mut command = kiln(folder.path());
        messages.add(args.join(" "), fails(command.arg("push").args(args), 2, &["help:"]));
    }
}

#[test]
fn a_run_that_cannot_be_uploaded_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = ["--set", "trainer.push_to_hub=true", "--set", "trainer.hub_model_id=org/name"];
    let mut command = train(folder.path(), "run", &set);
    command.env("HF_HOME", folder.path().join("home")).env_remove("HF_TOKEN").env("HF_HUB_OFFLINE", "0");
    let lacks = if cfg!(feature = "push") { "there is no token" } else { "the Cargo feature `push`" };
    fails(&mut command, 2, &["trainer.push_to_hub", lacks]);
    assert!(!folder.path().join("run").exists());
    let all = ["--set", "trainer.hub_strategy=all_checkpoints"];
    fails(&mut train(folder.path(), "run", &all), 2, &["all_checkpoints", "checkpoint"]);
}
