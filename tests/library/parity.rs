//! Native against compiled: `kiln parity`, `kiln bisect` with a wrong operator planted, and `kiln
//! verify-resume --modes`.

use std::path::Path;

use kiln::OpenSession;

use kiln::engine::compiler::columns::Column;
use kiln::{Result, RunConfig, Session};
use kiln_measure::proof::bisect::{Finding, bisect};
use kiln_measure::proof::parity::parity;
use kiln_models::Operator;
use kiln_models::weights::save;
use kiln_train::trial::probe::{Look, Probe};
use kiln_train::trial::{probe, verify};

use crate::common::small_run::write;
use crate::common::{fails, kiln, succeeds};

#[test]
fn both_modes_compute_the_same() {
    for task in ["clm", "mlm"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let stdout = succeeds(kiln(folder.path()).args(["parity", "config.toml", "--steps", "4"]));
        assert!(stdout.starts_with("4 steps, f32: the loss, "), "{stdout}");
        assert!(stdout.contains("fused in compiled       embedding, dropout, layer_norm"), "{stdout}");
        assert!(stdout.contains("native against native   loss 0.0e0, gradient 0.0e0, weight change 0.0e0"), "{stdout}");
        assert!(stdout.ends_with("native and compiled compute the same\n"), "{stdout}");
        assert!(!folder.path().join("run").exists(), "the run folder is left alone");
    }
}

#[test]
fn gradients_that_differ_within_the_limits_are_told() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // The compiled attention does not round scores and weights, which the native one does: all
    // gradients differ, each by less than what bf16 allows of all.
    let stdout =
        succeeds(kiln(folder.path()).args(["parity", "config.toml", "--steps", "2", "--set", "precision=bf16"]));
    let compiled = stdout.lines().find(|line| line.starts_with("native against compiled")).unwrap();
    let gradient = compiled.split_once("gradient ").unwrap().1.split_once(',').unwrap().0.parse::<f64>().unwrap();
    assert!((1e-6..5e-2).contains(&gradient), "{stdout}");
    assert!(stdout.contains("native against native   loss 0.0e0, gradient 0.0e0, weight change 0.0e0"), "{stdout}");
    assert!(stdout.ends_with("native and compiled compute the same\n"), "{stdout}");
}

#[test]
fn a_probe_that_fails_says_why() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    std::fs::remove_file(folder.path().join("data.jsonl")).unwrap();
    fails(kiln(folder.path()).args(["parity", "config.toml"]), 2, &["the native probe: ", "data.jsonl"]);
    fails(kiln(folder.path()).args(["bisect", "config.toml"]), 2, &["the native probe: ", "data.jsonl"]);
}

#[test]
fn a_check_begins_with_the_weights_that_it_is_given() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let session = |seed: u64| {
        let data = format!("data.train={:?}", folder.path().join("data.jsonl").display().to_string());
        let set = [data, "compiler.enabled=compiled".into(), format!("trainer.seed={seed}")];
        Session::open(RunConfig::load_with(folder.path().join("config.toml"), &set).unwrap()).unwrap()
    };
    let (one, other) = (session(1), session(2));
    let weights = |session: &Session, name: &str| {
        let at = folder.path().join(name);
        std::fs::create_dir(&at).unwrap();
        save(&session.model(&session.device).unwrap().0, &at).unwrap();
        at
    };
    // How far the modes are apart in the last bits is as different as the weights are.
    let distance = |from: Option<&Path>| verify::check(&one, from).unwrap().unwrap().distance;
    assert_eq!(distance(Some(&weights(&one, "own"))), distance(None));
    assert_ne!(distance(Some(&weights(&other, "other"))), distance(None));
    assert!(verify::check(&one, Some(&folder.path().join("missing"))).is_err());
}

#[test]
fn a_planted_wrong_operator_is_found() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let data = format!("data.train={:?}", folder.path().join("data.jsonl").display().to_string());
    let config = RunConfig::load_with(folder.path().join("config.toml"), &[data]).unwrap();
    // A real run of every probe, in which a fused GELU gives the layer below it a gradient that is
    // 1 % too long.
    let mut planted = |config: &RunConfig, steps: usize, look: Look| -> Result<Probe> {
        let session = Session::open(config.clone().checked()?)?;
        let mut probe = probe::run(&session, session.plan().engine.ops, steps, look)?;
        if session.plan().engine.ops.fused_operators().contains(&Operator::Gelu) {
            let gradients = probe.steps.iter_mut().flat_map(|step| &mut step.gradients);
            for gradient in gradients.filter(|gradient| gradient.name.ends_with("h.1.mlp.c_fc.weight")) {
                gradient.norm *= 1.01;
                gradient.projection *= 1.01;
            }
        }
        Ok(probe)
    };
    let difference = parity(&config, 2, &mut planted).unwrap().difference.unwrap();
    assert_eq!(difference.step, 1);
    assert!(
        difference.what.contains("gradient of") && difference.what.ends_with("h.1.mlp.c_fc.weight"),
        "{difference}"
    );
    let mut said = Vec::new();
    let found = bisect(&config, 2, &mut planted, &mut |line| said.push(line.to_owned())).unwrap();
    let Finding::Wrong { columns, .. } = found else { panic!("not found: {found:?}") };
    assert_eq!(columns, [Column::Operator(Operator::Gelu)]);
    assert!(said.contains(&"without gelu: the same as native".to_owned()), "{said:?}");
    assert_eq!(said.len(), Operator::ALL.len(), "{said:?}");
}

#[test]
fn bisect_finds_nothing_where_nothing_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let stdout = succeeds(kiln(folder.path()).args(["bisect", "config.toml", "--steps", "2"]));
    // Which mode is faster on a model this small is not for a test to say.
    assert!(
        stdout.contains("nothing to find: compiled computes what native does")
            || stdout.contains("compiled is slower:")
    );
    let off = ["bisect", "config.toml", "--set", "compiler.fused_ops=off"];
    fails(kiln(folder.path()).args(off), 2, &["nothing of the compiler is on", "compiler.fused_ops"]);
}

#[test]
fn a_run_may_be_stopped_in_either_mode_and_continued_in_either() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "mlm");
    let stdout = succeeds(kiln(folder.path()).args(["verify-resume", "config.toml", "--modes"]));
    let lines = stdout.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), 4, "{stdout}");
    for (line, way) in
        lines.iter().zip(["native -> native", "compiled -> compiled", "native -> compiled", "compiled -> native"])
    {
        assert!(line.starts_with(&format!("{way}: 6 steps equal 3 steps, a stop and 3 steps: ")), "{line}");
    }
    assert!(lines[..2].iter().all(|line| line.ends_with("the same, bit for bit")), "{stdout}");
    assert!(lines[2..].iter().all(|line| line.contains("the layout of the files to the byte")), "{stdout}");
    for precision in ["bf16", "f16"] {
        let set = format!("precision={precision}");
        let stdout = succeeds(kiln(folder.path()).args(["verify-resume", "config.toml", "--modes", "--set", &set]));
        let lines = stdout.lines().collect::<Vec<_>>();
        assert!(lines[..2].iter().all(|line| line.ends_with("the same, bit for bit")), "{stdout}");
        let within = "the weight change of every layer to 2e-2";
        assert!(lines.len() == 4 && lines[2..].iter().all(|line| line.contains(within)), "{stdout}");
    }
}

#[test]
fn narrow_types_have_limits_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    for task in ["clm", "mlm"] {
        write(folder.path(), task);
        for precision in ["bf16", "f16"] {
            let set = format!("precision={precision}");
            let stdout = succeeds(kiln(folder.path()).args(["parity", "config.toml", "--steps", "6", "--set", &set]));
            println!("{task} {stdout}");
            assert!(stdout.starts_with(&format!("6 steps, {precision}: the loss, ")), "{stdout}");
            let more = if precision == "bf16" { ", cross_entropy, adamw" } else { "" };
            let names = "embedding, dropout, layer_norm, rms_norm, linear, rotary, attention, gelu, swiglu";
            let line = format!("fused in compiled       {names}{more}\n");
            assert!(stdout.contains(&line), "{stdout}");
            assert!(stdout.ends_with("native and compiled compute the same\n"), "{stdout}");
        }
    }
}
