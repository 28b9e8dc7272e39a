//! A model that Kiln does not ship goes through the same Trainer as Kiln's own.

#[path = "own_model/llama.rs"]
mod llama;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Tensor;
use kiln::arguments::Samples;
use kiln::config::{
    ActivationCheckpointing, BatchArguments, BatchScaling, CompilerMode, EvalStrategy, Interval, OnExisting,
    OptimizerName, PaddingStrategy, Precision, Sampler, SaveStrategy, TrainBatchSize, TrainingArguments,
};
use kiln::core::metrics::Record;
use kiln::optim::{LambdaLr, ParameterUpdate, UpdateRule};
use kiln::trainer::{Callback, Progress, StopAfter};
use kiln::{Result, Session, Trainer};
use kiln_measure::proof::parity::modes;
use llama::{NextNumber, progressions};

use crate::common::small_run::copy;

fn arguments(folder: &Path, mode: CompilerMode, given: TrainingArguments) -> TrainingArguments {
    TrainingArguments {
        output_dir: folder.into(),
        on_existing: OnExisting::Resume,
        max_steps: Some(8),
        learning_rate: 1e-2,
        gradient_accumulation_steps: 2,
        logging_steps: Some(1.into()),
        eval_strategy: EvalStrategy::Steps,
        eval_steps: Some(4.into()),
        save_strategy: SaveStrategy::Steps,
        save_steps: 4.into(),
        load_best_model_at_end: true,
        metric_for_best_model: Some("accuracy".into()),
        compiler: Some(mode.into()),
        ..given
    }
}

fn session(arguments: TrainingArguments) -> Result<Session<NextNumber>> {
    Session::new(arguments, NextNumber, progressions(0..60))?.with_validation(progressions(60..70))
}

/// Rows of `metrics.jsonl` without what is a matter of time and memory.
fn figures(folder: &Path) -> Vec<String> {
    let rows = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let figures =
        ["step", "epoch", "samples", "tokens", "loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"];
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        figures.iter().map(|name| row[*name].to_string()).collect::<Vec<_>>().join(" ")
    };
    rows.lines().filter(|line| !line.contains("train_runtime")).map(row).collect()
}

#[test]
fn a_run_that_is_stopped_and_resumed_is_the_same_to_the_bit() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    for mode in [CompilerMode::Native, CompilerMode::Compiled] {
        for (name, trainer) in [
            ("plain", TrainingArguments::default()),
            (
                "balanced",
                TrainingArguments {
                    activation_checkpointing: ActivationCheckpointing::Balanced,
                    optim: OptimizerName::Lion,
                    ..TrainingArguments::default()
                },
            ),
        ] {
            let [straight, stopped] =
                ["straight", "stopped"].map(|run| folder.path().join(format!("{mode}-{name}-{run}")));
            let open = |run: &Path| session(arguments(run, mode, trainer.clone())).unwrap();
            Trainer::from_session(open(&straight)).unwrap().train().unwrap();
            let output = Trainer::from_session(open(&stopped)).unwrap().with_callback(StopAfter(3)).train().unwrap();
            assert_eq!(output.step, 3);
            let output = Trainer::from_session(open(&stopped)).unwrap().train().unwrap();
            assert_eq!(output.step, 8);
            let last = Path::new("checkpoints").join("step-000008");
            for file in
                ["model/model.safetensors".into(), last.join("model.safetensors"), last.join("optimizer.safetensors")]
            {
                let [a, b] = [&straight, &stopped].map(|run| fs::read(run.join(&file)).unwrap());
                assert!(a == b, "{mode} {name}: {} differs", file.display());
            }
            assert_eq!(figures(&straight), figures(&stopped));
            assert!(!straight.join("fault").exists());
        }
    }
}

/// Lion, by the formula of the paper: Kiln's own is its oracle.
#[derive(Debug)]
struct OwnLion(&'static str);

impl UpdateRule for OwnLion {
    fn name(&self) -> String {
        self.0.into()
    }
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }
    fn update(&self, update: ParameterUpdate, state: &mut Vec<Tensor<1>>) -> Tensor<1> {
        let ParameterUpdate { value, grad, lr, weight_decay, .. } = update;
        let past = state.pop().unwrap_or_else(|| grad.zeros_like());
        let direction = (past.clone() * 0.9 + grad.clone() * (1.0 - 0.9)).sign();
        state.push(past * 0.99 + grad * (1.0 - 0.99));
        value * (1.0 - lr * weight_decay) - direction * lr
    }
}

/// Leaves no state, though it names one.
#[derive(Debug)]
struct Forgetful;

impl UpdateRule for Forgetful {
    fn name(&self) -> String {
        "forgetful".into()
    }
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }
    fn update(&self, update: ParameterUpdate, _: &mut Vec<Tensor<1>>) -> Tensor<1> {
        update.value - update.grad * update.lr
    }
}

fn own_linear() -> LambdaLr {
    LambdaLr::new("own linear", |step, total| (total - step) as f64 / total as f64)
}

#[test]
fn an_optimizer_and_a_schedule_of_ones_own_train_and_resume() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let of_lion = |run: &str, optim, beta2| {
        let given = TrainingArguments { weight_decay: 0.1, optim, adam_beta2: beta2, ..TrainingArguments::default() };
        let arguments = arguments(&folder.path().join(run), CompilerMode::Compiled, given);
        TrainingArguments { learning_rate: 1e-3, ..arguments }
    };
    let kilns = of_lion("kilns", OptimizerName::Lion, 0.99);
    Trainer::from_session(session(kilns.clone()).unwrap()).unwrap().train().unwrap();
    let default = TrainingArguments::default().adam_beta2;
    let own = |run: &str, name| {
        let trainer = Trainer::from_session(session(of_lion(run, OptimizerName::AdamW, default)).unwrap()).unwrap();
        trainer.with_optimizer(OwnLion(name)).unwrap().with_schedule(own_linear()).unwrap()
    };
    let mut trainer = own("own", "lion");
    let text = trainer.describe().unwrap();
    assert!(text.contains("own linear: 1.000e-3 at step 1") && text.contains("lion, weight decay 0.1"), "{text}");
    assert!(!text.contains("adamw_torch"), "{text}");
    trainer.train().unwrap();
    assert_eq!(figures(&kilns.output_dir), figures(&folder.path().join("own")));
    let stopped = own("stopped", "lion").with_callback(StopAfter(3)).train().unwrap();
    assert_eq!(stopped.step, 3);
    let error = own("stopped", "another lion").train().unwrap_err().to_string();
    assert!(error.contains("trainer.optim was \"lion\" and is \"another lion\""), "{error}");
    assert_eq!(own("stopped", "lion").train().unwrap().step, 8);
    for file in ["model/model.safetensors", "checkpoints/step-000008/optimizer.safetensors"] {
        let [a, b, c] = ["kilns", "own", "stopped"].map(|run| fs::read(folder.path().join(run).join(file)).unwrap());
        assert!(a == b && b == c, "{file} differs");
    }

    let refused = |arguments: TrainingArguments, part: &str| {
        let error = session(arguments).and_then(|session| session.with_optimizer(OwnLion("lion"))).err();
        assert!(error.as_ref().is_some_and(|error| error.to_string().contains(part)), "{part}: {error:?}");
    };
    refused(kilns, "trainer.optim: has no effect, since the program brings the optimizer `lion` along");
    let plain = || of_lion("refused", OptimizerName::AdamW, default);
    refused(TrainingArguments { adam_beta1: 0.8, ..plain() }, "trainer.adam_beta1: has no effect");
    refused(TrainingArguments { precision: Precision::F16, ..plain() }, "cannot do");
    let mut sharded = plain();
    sharded.distributed.optimizer_sharding = true;
    refused(sharded, "distributed.optimizer_sharding = true with trainer.optim = \"lion\"");
    let forgetful = session(of_lion("forgetful", OptimizerName::AdamW, default)).unwrap().with_optimizer(Forgetful);
    let error = Trainer::from_session(forgetful.unwrap()).unwrap().train().unwrap_err().to_string();
    assert!(error.contains("does not fit: expected exp_avg with") && error.contains("UpdateRule::state"), "{error}");
    let session = session(TrainingArguments { warmup_steps: 3.into(), ..plain() }).unwrap();
    let error = session.with_schedule(own_linear()).err().unwrap().to_string();
    assert!(error.contains("trainer.warmup_steps: has no effect, since the program brings the schedule"), "{error}");
    let below = LambdaLr::new("below 0", |step, _| 0.5 - step as f64);
    let error = Trainer::new(plain(), NextNumber, progressions(0..60)).unwrap().with_schedule(below).err().unwrap();
    assert!(error.to_string().contains("got -0.5 for step 2"), "{error}");
}

/// A run of the version before there was `kiln-train`, with a `plan.toml` and the defaults of a
/// config file among its settings, goes on from its checkpoint of step 50.
#[test]
fn a_run_of_an_earlier_version_goes_on() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let stored = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/own_run"));
    copy(stored, folder.path());
    let arguments = TrainingArguments {
        on_existing: OnExisting::Resume,
        max_steps: Some(60),
        learning_rate: 1e-2,
        ..TrainingArguments::new(folder.path())
    };
    let mut other = arguments.clone();
    other.seed = 7;
    let open = |arguments| Trainer::new(arguments, NextNumber, progressions(0..256));
    let error = open(other).unwrap().train().unwrap_err().to_string();
    assert!(error.contains("trainer.seed was 42 and is 7") && !error.contains("data."), "{error}");
    let mut trainer = open(arguments).unwrap().with_validation(progressions(256..288)).unwrap();
    assert_eq!(trainer.train().unwrap().step, 60);
    // The stored run had 1.64 after 50 steps.
    assert!(trainer.evaluate().unwrap().metric("loss").unwrap() < 1.64);
}

#[test]
fn both_modes_compute_the_same() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let compiled = session(arguments(folder.path(), CompilerMode::Compiled, TrainingArguments::default())).unwrap();
    let found = modes(&compiled, 2).unwrap();
    assert_eq!(found.report.difference, None, "{:?}", found.report.lines());
    assert!(found.report.fused.iter().any(|name| name == "attention") && found.report.tensors == 14);
    assert!(found.native_ms > 0.0 && found.compiled_ms > 0.0);
    let native = session(arguments(folder.path(), CompilerMode::Native, TrainingArguments::default())).unwrap();
    assert!(modes(&native, 2).unwrap_err().to_string().contains("there is one mode"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the run is not touched");
}

/// Counts what it is told of a model that is not Kiln's.
struct Count(Arc<std::sync::Mutex<[usize; 2]>>);

impl Callback<<NextNumber as kiln::TrainingTask>::Model> for Count {
    fn on_optimizer_step(&mut self, _progress: &Progress, model: &<NextNumber as kiln::TrainingTask>::Model) {
        assert_eq!(burn::module::Module::num_params(model), 21_376);
        self.0.lock().unwrap()[0] += 1;
    }

    fn on_evaluate(&mut self, _progress: &Progress, row: &Record, _control: &mut kiln::trainer::Control) {
        assert!(row.get("eval_accuracy").is_some_and(|accuracy| (0.0..=1.0).contains(&accuracy)));
        self.0.lock().unwrap()[1] += 1;
    }
}

#[test]
fn its_plan_callbacks_verification_and_evaluation_are_those_of_any_run() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let mut arguments = arguments(folder.path(), CompilerMode::Compiled, TrainingArguments::default());
    arguments.compiler.as_mut().unwrap().verify = Some(kiln::config::Verify::Every(4));
    let session = session(arguments).unwrap();
    let plan = session.plan().describe();
    for part in ["Llama", "60 examples; validation 10", "8 (max_steps = 8)", "CPU", "adamw"] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    // The example's data tells no lengths, so nothing is said of tokens, and nothing can be counted
    // in them.
    assert!(!plan.contains("token") && !plan.contains("padding"), "{plan}");
    // Weights, gradients and the two moments of AdamW: 16 bytes a parameter.
    let known = session.plan().known_memory();
    assert_eq!((known.weights, known.gradients, known.optimizer), (4 * 21_376, 4 * 21_376, 8 * 21_376));
    assert!(plan.contains("at least 0.3 MiB = weights 0.1 MiB + gradients 0.1 MiB + optimizer 0.2 MiB; "), "{plan}");
    let counts = Arc::new(std::sync::Mutex::new([0; 2]));
    let mut trainer = Trainer::from_session(session).unwrap().with_step_times().with_callback(Count(counts.clone()));
    let output = trainer.train().unwrap();
    assert_eq!((output.step, *counts.lock().unwrap()), (8, [8, 2]));
    assert!(output.summary.get("train_loss").is_some_and(|loss| loss < 3.3));
    let found = trainer.evaluate().unwrap();
    assert_eq!((found.samples, found.metrics.len()), (10, 2));
    for file in ["plan.json", "status.json", "steps.jsonl", "trainer_state.json", "all_results.json"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    let log = fs::read_to_string(folder.path().join("run.log")).unwrap();
    assert!(log.contains("verify after step 4: native and compiled compute the same"), "{log}");
    if cfg!(target_os = "linux") {
        // Measured once a step had all that it needs.
        let said = log.lines().filter(|line| line.contains("at most up to step 2, 0.3 MiB of it weights")).count();
        assert_eq!(said, 1, "{log}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_reason() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let defaults = || TrainingArguments::new(folder.path());
    let refused = |arguments: TrainingArguments, part: &str| {
        let error = session(arguments).map(drop).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(TrainingArguments { do_predict: true, ..defaults() }, "trainer.do_predict: has no effect");
    refused(TrainingArguments::default(), "run.output_dir: required");
    refused(TrainingArguments { padding: PaddingStrategy::Buckets, ..defaults() }, "data.padding: has no effect");
    refused(TrainingArguments { samples: Samples::AtEnd, ..defaults() }, "generation: has no effect");
    refused(TrainingArguments { sampler: Sampler::GroupByLength, ..defaults() }, "the training data tells no lengths");
    let auto = TrainBatchSize::Auto;
    refused(
        TrainingArguments {
            per_device_train_batch_size: auto,
            batch: BatchArguments { scaling: BatchScaling::Grow, ..Default::default() },
            ..defaults()
        },
        "\"auto\" is for models that Kiln knows",
    );
    let (metric, eval_strategy) = (Some("f1".to_owned()), EvalStrategy::Epoch);
    // The task names its figures when it evaluates.
    let by_f1 = TrainingArguments { metric_for_best_model: metric, eval_strategy, ..defaults() };
    let error = Trainer::from_session(session(by_f1).unwrap()).unwrap().train().unwrap_err().to_string();
    assert!(error.contains("an evaluation of Llama has no `f1`") && error.contains("it has loss, accuracy"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
    let blocks = ActivationCheckpointing::Blocks;
    refused(TrainingArguments { activation_checkpointing: blocks, ..defaults() }, "does not know the blocks");
    let tokens = Some(Interval::Tokens(500));
    refused(TrainingArguments { eval_steps: tokens, ..defaults() }, "trainer.eval_steps counts tokens");
    refused(TrainingArguments { label_smoothing_factor: 0.1, ..defaults() }, "label_smoothing_factor");
    for precision in [Precision::Bf16, Precision::F16] {
        let two_steps = TrainingArguments { precision, max_steps: Some(2), ..defaults() };
        let outcome = session(two_steps).and_then(Trainer::from_session).and_then(|mut trainer| trainer.train());
        assert!(outcome.is_ok(), "{precision}: {outcome:?}");
        fs::remove_dir_all(folder.path()).unwrap();
    }
}
