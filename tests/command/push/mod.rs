//! `kiln push` and `trainer.push_to_hub` against a Hub on 127.0.0.1 that looks at what it is sent.
//! Without the Cargo feature `push`, what a build says that cannot push.

#[cfg(feature = "push")]
mod server;
#[cfg(feature = "push")]
mod writes;

#[cfg(not(feature = "push"))]
use crate::common::messages::messages;
use crate::common::small_run::{train, write};
use crate::common::{fails, kiln, succeeds};

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
    let all = [&set[..], &["--set", "trainer.hub_strategy=all_checkpoints"]].concat();
    fails(&mut train(folder.path(), "run", &all), 2, &["all_checkpoints", "checkpoint"]);
    // A token in a config would be ignored, and is told of without its value.
    for key in ["hub_token", "push_to_hub_token"] {
        let token = format!("trainer.{key}=hf_ofAnotherAccount");
        let set = [&set[..], &["--set", &token]].concat();
        let said = fails(&mut train(folder.path(), "run", &set), 2, &["HF_TOKEN", key]);
        assert!(!said.contains("is not used to upload: hf_") && !said.contains("no token"), "{said}");
    }
    // They change nothing where nothing is uploaded.
    let idle = ["trainer.hub_strategy=all_checkpoints", "trainer.hub_token=hf_ofAnotherAccount"];
    let mut command = kiln(folder.path());
    let said = succeeds(command.args(["plan", "config.toml", "--set", idle[0], "--set", idle[1]]));
    assert!(said.contains("hub_strategy") && said.contains("hub_token") && !said.contains("hf_of"), "{said}");
    // The path of a run folder may end in no name, which is seen when variables are replaced.
    let mut command = kiln(folder.path());
    command.args([
        "train",
        "config.toml",
        "--set",
        "trainer.push_to_hub=true",
        "--set",
        "run.output_dir='${RUN_NAME}'",
    ]);
    fails(command.env("RUN_NAME", "none/.."), 2, &["set trainer.hub_model_id"]);
}
