//! Config files that include others.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::config::Interval;

/// A folder with these files, and the config that is read from the first of them.
fn read(files: &[(&str, &str)], overrides: &[&str]) -> (tempfile::TempDir, Result<RunConfig>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let overrides = overrides.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let config = RunConfig::load_with(folder.path().join(files[0].0), &overrides).map(RunConfig::from);
    (folder, config)
}

const BASE: &str = "precision = \"bf16\"\n[model]\nkind = \"gpt2\"\nn_layer = 3\n[data]\ntask = \"clm\"\ntrain = \"a.txt\"\n\
                    [tokenizer]\ntrain_vocab_size = 300\n[trainer]\nmax_steps = 9\nwarmup_ratio = 0.5\noptim = \"sgd\"\n\
                    optim_args = { momentum = 0.5, nesterov = true }\nevaluation_strategy = \"no\"\n";

#[test]
fn a_later_file_wins_and_the_file_wins_over_all() {
    let second = "[trainer]\nlearning_rate = 1e-3\nweight_decay = 0.2\nnum_train_epochs = 2\n[compiler]\n";
    let own = "include = [\"lib/base.toml\", \"second.toml\"]\n[trainer]\nlearning_rate = 2e-3\nfp16 = true\n\
               warmup_steps = 3\noptim_args = { momentum = 0.9 }\n";
    let files = [
        ("run.toml", own),
        ("lib/base.toml", "include = \"../deep.toml\"\n[trainer]\nseed = 5\n"),
        ("deep.toml", BASE),
        ("second.toml", second),
    ];
    let (folder, config) = read(&files, &[]);
    let config = config.unwrap();
    let trainer = &config.trainer;
    assert_eq!((trainer.learning_rate, trainer.weight_decay, trainer.seed), (2e-3, 0.2, 5));
    // Two units of the length, and of the warm-up: the later layer states it.
    assert_eq!((trainer.max_steps, trainer.num_train_epochs), (None, Some(2.0)));
    assert_eq!(trainer.warmup_steps, Interval::Steps(3));
    // The switch of the file over the key of an included one; a table is taken whole.
    assert_eq!(trainer.precision, Precision::F16);
    let args = OptimArgs { momentum: Some(0.9), ..Default::default() };
    assert_eq!((trainer.optim, &trainer.optim_args), (OptimizerName::Sgd, &args));
    assert_eq!(trainer.compiler_mode(), CompilerMode::Compiled, "a section without keys says something");
    assert_eq!(config.model.fields["n_layer"], toml::Value::from(3));
    assert_eq!(trainer.output_dir, Path::new("runs/run"), "the name of the file itself");
    let at = |name: &str| folder.path().join(name).display().to_string();
    assert_eq!(config.included, [at("lib/../deep.toml"), at("lib/base.toml"), at("second.toml")]);
    // What is written stands alone.
    let alone = RunConfig::parse(&config.to_toml().unwrap(), "plan.toml").unwrap();
    assert_eq!(*alone, RunConfig { included: Vec::new(), ..config });
}

#[test]
fn mistakes_name_the_file_that_has_them() {
    let refused = Refused(messages!());
    let own = "include = \"base.toml\"\n[trainer]\nlogging_steps = 2\n";
    let refuse = |name: &str, own: &str, base: &str, overrides: &[&str]| {
        let (folder, config) = read(&[("run.toml", own), ("base.toml", base)], overrides);
        let path = folder.path().display().to_string();
        refused.add(name, config.map_err(|error| error.in_terms_of(&[(&path, "DIR")])));
    };
    refuse("a key that does not exist", own, &BASE.replace("max_steps", "max_stepz"), &[]);
    refuse("a section that does not exist", own, &format!("{BASE}[trainr]\n"), &[]);
    refuse("a value that makes no sense", own, &BASE.replace("0.5\n", "7.5\n"), &[]);
    refuse("a value of another type", own, &BASE.replace("= 9", "= \"nine\""), &[]);
    refuse("no TOML", own, "[trainer\n", &[]);
    refuse("no such file", "include = \"bas.toml\"\n", BASE, &[]);
    refuse("a folder", "include = \".\"\n", BASE, &[]);
    refuse("no name", "include = [\"base.toml\", 3]\n", BASE, &[]);
    refuse("itself", "include = \"run.toml\"\n", BASE, &[]);
    refuse("a circle", own, &format!("include = \"./run.toml\"\n{BASE}"), &[]);
    refuse("a misspelt key", "inclde = \"base.toml\"\n", BASE, &[]);
    refuse("an override", own, BASE, &["include=base.toml"]);
    refused.add("a text", RunConfig::parse(&format!("include = \"base.toml\"\n{BASE}"), "a text"));
}
