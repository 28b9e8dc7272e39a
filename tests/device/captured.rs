//! Captured steps and the other parts of the compiler: the same training without each, and with all
//! of them.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use kiln::Result;
use kiln::config::{
    CompilerMode, DeviceArguments, DeviceKind, OptimArgs, OptimizerName, Sampler, Switch, TrainingArguments,
    TrainingCompilerConfig,
};
use kiln_models::weights::StateDict;
use kiln_models::{Compute, Pass};
use kiln_train::Trainer;
use kiln_train::task::{Batch, BatchSize, TrainingTask};

use crate::common::skip::skip;
use crate::common::small_run::{SPIKE, copy, train, write, write_with_a_spike};
use crate::common::{fails, json, relative_l2, rows, rows_with_skips, succeeds, tensors};
use crate::{ONE_SHAPE, apart, apart_of_any, device, losses, on_device, prepare, prepare_with};

/// Each part of the compiler off by itself, and all of them on: the same training. With several
/// micro-batches a step, of which the last of an epoch has fewer, those are captured one by one.
#[test]
fn every_part_of_the_compiler_gives_the_figures_of_the_cpu() {
    let folder = prepare("clm");
    let weights = |run: &str| tensors(&folder.path().join(run).join("model/model.safetensors"));
    let accumulation = |steps: usize| format!("trainer.gradient_accumulation_steps={steps}");
    for steps in [1, 3] {
        succeeds(&mut train(folder.path(), &format!("cpu-{steps}"), &["--set", &accumulation(steps)]));
    }
    for (name, steps, settings) in [
        ("all", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=on"][..]),
        ("micro-batches", 3, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=on"]),
        ("no-graph", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=off"]),
        ("no-operators", 1, &["--set", "compiler.fused_ops=off"]),
        ("unfused", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.fusion=off"]),
    ] {
        let more = ["--set", &accumulation(steps)];
        let said = succeeds(on_device(folder.path(), name, &more).args(settings));
        let captured = said.lines().any(|line| line.contains("captured step          on"));
        assert_eq!(captured, ["all", "micro-batches", "no-operators"].contains(&name), "{said}");
        assert_eq!(said.contains("is captured ("), captured, "{said}");
        let cpu = format!("cpu-{steps}");
        let apart = apart(&losses(&folder.path().join(name)), &losses(&folder.path().join(&cpu)));
        println!("{name}: {apart:.1e}");
        assert!(apart < 1e-3, "{name}: {apart}");
        for (tensor, (_, values)) in weights(&cpu) {
            let apart = relative_l2(&weights(name)[&tensor].1, &values);
            assert!(apart < 1e-2, "{name} {tensor}: {apart}");
        }
    }
}

/// The weights' copies in bf16 are written by the recorded update. WGSL has no bf16.
#[test]
fn bf16_steps_give_the_figures_of_the_cpu() {
    if device() == "wgpu" {
        return skip!("bf16", "WGSL has no bf16");
    }
    let folder = prepare("clm");
    for steps in [1, 2] {
        let accumulation = format!("trainer.gradient_accumulation_steps={steps}");
        let same = [&ONE_SHAPE[..], &["--precision", "bf16", "--set", &accumulation]].concat();
        let (cpu, captured) = (format!("cpu-{steps}"), format!("captured-{steps}"));
        succeeds(&mut train(folder.path(), &cpu, &[&same[..], &["--compiler", "native"]].concat()));
        let said = succeeds(&mut on_device(folder.path(), &captured, &same));
        assert!(said.contains("is captured ("), "{said}");
        // The update writes the copies that the products read, in either way.
        let (eager, again) = (format!("eager-{steps}"), format!("{captured}-resumed"));
        succeeds(&mut on_device(folder.path(), &eager, &[&same[..], &["--set", "compiler.graph=off"]].concat()));
        assert_eq!(losses(&folder.path().join(&eager)), losses(&folder.path().join(&captured)));
        resumed(folder.path(), &captured, &same);
        assert_eq!(losses(&folder.path().join(again)), losses(&folder.path().join(&captured)));
        let apart = apart(&losses(&folder.path().join(captured)), &losses(&folder.path().join(cpu)));
        println!("bf16, {steps} micro-batches: {apart:.1e}");
        assert!(apart < 2e-2, "{steps} micro-batches: {apart}");
    }
}

/// A captured step follows the schedule and draws dropout anew: a replay repeats the kernels, not
/// the numbers.
#[test]
fn a_captured_run_resumes_and_is_the_run_that_computes_every_step() {
    for steps in [1, 2] {
        captured_runs(&format!("trainer.gradient_accumulation_steps={steps}"));
    }
}

/// The moments of an optimizer without a kernel of its own are what a resumed recording goes on
/// with.
#[test]
fn captured_runs_of_other_optimizers_resume() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    for optim in ["adam", "sgd", "lion", "lamb", "muon", "adafactor"] {
        let mut sets = vec![format!("trainer.optim={optim}"), "compiler.graph=on".into()];
        sets.extend((optim == "sgd").then(|| "trainer.optim_args=momentum=0.9".into()));
        let sets = sets.iter().flat_map(|set| ["--set", set.as_str()]);
        let settings = ONE_SHAPE.into_iter().chain(sets).collect::<Vec<_>>();
        succeeds(&mut on_device(folder.path(), optim, &settings));
        let apart = apart(&resumed(folder.path(), optim, &settings), &losses(&folder.path().join(optim)));
        assert!(apart < 1e-5, "{optim}: {apart}");
    }
}

/// The figures of the run `name`, ended again after it was taken up at its first checkpoint.
fn resumed(folder: &std::path::Path, name: &str, settings: &[&str]) -> Vec<f64> {
    let (again, path) = (format!("{name}-resumed"), folder.join(format!("{name}-resumed")));
    copy(&folder.join(name), &path);
    let text = std::fs::read_to_string(path.join("status.json")).unwrap();
    std::fs::write(path.join("status.json"), text.replace("Completed", "Stopped")).unwrap();
    std::fs::remove_dir_all(path.join("checkpoints/step-000014")).unwrap();
    succeeds(&mut on_device(folder, &again, &[settings, &["--resume"]].concat()));
    losses(&path)
}

fn captured_runs(accumulation: &str) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let settings = ["--set", accumulation, "--set", "compiler.fused_ops=on", "--set", "compiler.graph=on"];
    let run = |name: &str, more: &[&str]| {
        succeeds(on_device(folder.path(), name, &settings).args(more));
        losses(&folder.path().join(name))
    };
    let captured = run("captured", &[]);
    let again = run("again", &[]);
    assert!(apart(&captured, &again) < 1e-5, "a seed is a run: {}", apart(&captured, &again));
    let resumed = resumed(folder.path(), "captured", &settings);
    assert!(apart(&captured, &resumed) < 1e-5, "{}", apart(&captured, &resumed));
    // Without a learning rate nothing moves: the rate is not what it was when the step was
    // recorded.
    let still = run("still", &["--set", "trainer.learning_rate=1e-30"]);
    let evaluations =
        rows(&folder.path().join("still")).iter().filter_map(|row| row["eval_loss"].as_f64()).collect::<Vec<_>>();
    assert!(evaluations.iter().all(|loss| *loss == evaluations[0]), "{evaluations:?}");
    assert_ne!(still, captured);
}

/// The figures of a run on the CPU in its native mode, and of one on the device with captured
/// steps, which is said.
fn beside_the_cpu(folder: &std::path::Path, name: &str, settings: &[&str], limit: f64) {
    let (cpu, captured) = (format!("{name}-cpu"), format!("{name}-captured"));
    succeeds(&mut train(folder, &cpu, &[settings, &["--compiler", "native"]].concat()));
    let said = succeeds(&mut on_device(folder, &captured, &[settings, &["--set", "compiler.graph=on"]].concat()));
    assert!(said.contains("is captured ("), "{name}: {said}");
    let apart = apart(&losses(&folder.join(captured)), &losses(&folder.join(cpu)));
    println!("{name}: {apart:.1e}");
    assert!(apart < limit, "{name}: {apart}");
}

/// Optimizers without a kernel compute their formula in place.
#[test]
fn every_optimizer_is_captured() {
    let folder = prepare("clm");
    for (optim, args, lr, steps) in [
        ("adam", "", "1e-3", 1),
        ("sgd", "momentum=0.9,dampening=0.2", "0.1", 2),
        ("sgd", "", "0.1", 1),
        ("lion", "", "1e-3", 1),
        ("lamb", "", "1e-2", 1),
        ("muon", "", "1e-2", 1),
        ("adafactor", "", "1e-3", 2),
        ("adafactor", "scale_parameter=true", "1e-1", 1),
    ] {
        let sets = [
            format!("trainer.optim={optim}"),
            format!("trainer.optim_args={args}"),
            format!("trainer.learning_rate={lr}"),
            format!("trainer.gradient_accumulation_steps={steps}"),
        ];
        let sets = sets.iter().filter(|set| !set.ends_with("optim_args=")).flat_map(|set| ["--set", set.as_str()]);
        let sets = ONE_SHAPE.into_iter().chain(sets).collect::<Vec<_>>();
        beside_the_cpu(folder.path(), &format!("{optim}-{steps}-{}", args.len()), &sets, 2e-3);
    }
    let refused =
        ["--set", "trainer.optim=adafactor", "--set", "trainer.optim_args=beta1=0.9", "--set", "compiler.graph=on"];
    fails(&mut on_device(folder.path(), "refused", &refused), 2, &["the first moment of adafactor (beta1)"]);
}

#[test]
fn the_loss_with_weights_and_smoothing_is_captured() {
    let folder = prepare("sequence-classification");
    let weights = ["--set", "trainer.class_weights=[1.0, 2.0, 0.5]", "--set", "trainer.label_smoothing_factor=0.1"];
    for steps in ["1", "2"] {
        let steps = format!("trainer.gradient_accumulation_steps={steps}");
        let settings = [&ONE_SHAPE[..], &weights, &["--set", &steps]].concat();
        beside_the_cpu(folder.path(), &steps, &settings, 1e-3);
    }
}

/// A layer that is computed again drops what it dropped the first time.
#[test]
fn layers_are_computed_again_in_captured_steps() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    for steps in ["1", "2"] {
        let steps = format!("trainer.gradient_accumulation_steps={steps}");
        let run = |name: &str, more: &[&str]| {
            let settings = [&ONE_SHAPE[..], &["--set", &steps, "--set", "compiler.graph=on"], more].concat();
            let said = succeeds(&mut on_device(folder.path(), name, &settings));
            assert!(said.contains("is captured ("), "{said}");
            losses(&folder.path().join(name))
        };
        let kept = run(&format!("kept-{steps}"), &[]);
        let again = run(&format!("again-{steps}"), &["--set", "trainer.activation_checkpointing=blocks"]);
        assert!(apart(&kept, &again) < 1e-4, "{}", apart(&kept, &again));
    }
}

/// Where gradients overflow, a replayed step changes neither weights nor moments, and the scale,
/// its growth and the count of updates are those of eager steps, also after a resume in the middle
/// of an epoch. Weights as large as these overflow in several steps. f16 rounds to 11 bits, which
/// the CPU does after other sums, and other fused kernels at other places: with such weights norms
/// of gradients differ by some percent. On CUDA captured steps with two micro-batches are the eager
/// ones to the bit for 8 steps, and 2.8e-2 apart in the 14th; in f32 they are the eager ones in
/// all 14.
#[test]
fn f16_steps_are_the_eager_ones_and_give_the_figures_of_the_cpu() {
    let folder = prepare_with("clm", None, &["model.initializer_range=1.0".into()]);
    for steps in ["1", "2"] {
        let accumulation = format!("trainer.gradient_accumulation_steps={steps}");
        let settings = ["--precision", "f16", "--set", &accumulation, "--set", "trainer.eval_steps=1"];
        let settings = [&ONE_SHAPE[..], &settings].concat();
        let name = format!("f16-{steps}");
        beside_the_cpu(folder.path(), &name, &settings, 1e-1);
        let path = |run: &str| folder.path().join(format!("{name}-{run}"));
        let eager = [&settings[..], &["--set", "compiler.graph=off"]].concat();
        succeeds(&mut on_device(folder.path(), &format!("{name}-eager"), &eager));
        let scaler = |run: &str| json(&path(run).join("checkpoints/step-000014/state.json"))["scaler"].clone();
        let expected = scaler("cpu");
        assert!(expected["skipped"].as_u64() > Some(1), "{expected}");
        assert_eq!(scaler("captured"), expected);
        assert_eq!(scaler("eager"), expected);
        let apart_of = |run: &str| {
            let apart = apart(&losses(&path(run)), &losses(&path("captured")));
            println!("{name} {run}: {apart:.1e}");
            apart
        };
        assert!(apart_of("eager") < 5e-2);
        let (mut last, mut overflowed, mut unmoved) = (None, false, 0);
        for row in rows_with_skips(&path("captured")) {
            if row["loss"].is_number() {
                overflowed = row["found_inf"].as_u64() > Some(0);
            } else if let Some(loss) = row["eval_loss"].as_f64() {
                assert!(last.is_none() || (last == Some(loss)) == overflowed, "{row}: {last:?} before");
                unmoved += u64::from(last.is_some() && overflowed);
                last = Some(loss);
            }
        }
        assert!(unmoved > 0);

        let on = [&settings[..], &["--set", "compiler.graph=on"]].concat();
        resumed(folder.path(), &format!("{name}-captured"), &on);
        assert_eq!(scaler("captured-resumed"), expected);
        assert!(apart_of("captured-resumed") < 1e-5);
    }
}

/// Loss and gradient norm are read between the micro-batches and the update, which is not replayed
/// then.
#[test]
fn outliers_are_not_applied_in_captured_steps() {
    let folder = tempfile::tempdir().unwrap();
    write_with_a_spike(folder.path());
    let sets = [&SPIKE[..], &["trainer.skip_update_lossz=4", "trainer.eval_steps=1", "compiler.graph=on"]].concat();
    let sets = sets.iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>();
    let said = succeeds(&mut on_device(folder.path(), "run", &[&ONE_SHAPE[..], &sets].concat()));
    assert!(said.contains("is captured (") && said.contains("step 140 is not applied: its loss"), "{said}");
    assert_eq!(said.matches("is not applied: ").count(), 1, "{said}");
    let rows = rows(&folder.path().join("run"));
    let evaluations = rows.iter().filter_map(|row| row["eval_loss"].as_f64()).collect::<Vec<_>>();
    assert_eq!(evaluations[139], evaluations[138], "no weight moved in step 140");
    for step in [138, 140] {
        assert_ne!(evaluations[step], evaluations[step - 1], "step {} is applied", step + 1);
    }
}

/// After the first few sequences of operations nothing new is fused.
#[test]
fn explorations_have_a_limit() {
    let folder = prepare("clm");
    succeeds(&mut train(folder.path(), "cpu", &ONE_SHAPE));
    let settings =
        [&ONE_SHAPE[..], &["--set", "compiler.max_explorations=3", "--set", "compiler.fused_ops=off"]].concat();
    let said = succeeds(&mut on_device(folder.path(), "limited", &settings));
    assert!(said.contains("up to 3 explorations; then unfused where it is new"), "{said}");
    let apart = apart(&losses(&folder.path().join("limited")), &losses(&folder.path().join("cpu")));
    assert!(apart < 1e-3, "{apart}");
}

/// Two parts, of which a batch uses those that it has a target for.
#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}
impl StateDict for Two {}

/// Values of a part: no whole number of vectors.
const WIDTH: usize = 33;

/// The targets of the two parts, where they have one.
type Targets<T> = (Option<T>, Option<T>);

struct Micro {
    targets: Targets<f32>,
    labels: f64,
}

impl Batch for Micro {
    type OnDevice = Targets<Tensor<1>>;

    fn size(&self) -> BatchSize {
        BatchSize { rows: 1, seq_len: 1, padded: false, tokens: 1, labels: self.labels }
    }

    fn to_device(&self, device: &Device) -> Result<Self::OnDevice> {
        let tensor = |target: f32| Tensor::from_floats([target], device);
        Ok((self.targets.0.map(tensor), self.targets.1.map(tensor)))
    }
}

#[derive(Clone)]
struct Near;

impl TrainingTask for Near {
    type Model = Two;
    /// With the number of labels.
    type Example = (Targets<f32>, f64);
    type Batch = Micro;

    const CAN_BE_CAPTURED: bool = true;

    fn model(&self, _: Compute, device: &Device) -> Result<Two> {
        let part = |from: f32| {
            let values = (0..WIDTH).map(|index| from + index as f32 / 64.0).collect::<Vec<_>>();
            Param::from_tensor(Tensor::from_floats(values.as_slice(), device))
        };
        Ok(Two { first: part(-0.5), second: part(0.25) })
    }

    fn batch(&self, examples: &[Self::Example], _: usize) -> Result<Micro> {
        let (targets, labels) = examples[0];
        Ok(Micro { targets, labels })
    }

    /// The squared distances of the parts from their targets.
    fn loss(&self, model: &Two, (first, second): &Targets<Tensor<1>>, _: Pass<'_>) -> Result<Tensor<1>> {
        let of = |part: &Param<Tensor<1>>, target: &Option<Tensor<1>>| {
            target.as_ref().map(|target| (part.val() - target.clone()).powi_scalar(2).sum())
        };
        let losses = [of(&model.first, first), of(&model.second, second)];
        Ok(losses.into_iter().flatten().reduce(|one, other| one + other).unwrap())
    }
}

/// Micro-batches that use the one part, the other or both, in every order within a step and from
/// one step to the next. A part that no micro-batch of a step uses keeps its weights and moments,
/// and one that is used late begins then. A micro-batch without a label adds nothing.
#[test]
fn a_part_that_some_micro_batches_use_is_updated_as_in_eager_steps() {
    let folder = tempfile::tempdir().unwrap();
    // Of each step's two micro-batches the parts that they use: 1, 2 or both (3); with 4 without a
    // label.
    let steps = [[1, 1], [1, 6], [1, 2], [2, 1], [2, 2], [3, 1], [1, 3], [2, 3], [3, 2], [1, 1], [3, 3], [2, 2]];
    let target = |parts: u32, part: u32, at: usize| (parts & part != 0).then_some(1.5 + at as f32 / 16.0 * part as f32);
    let rows = steps.concat().into_iter().enumerate();
    let rows = rows.map(|(at, parts)| {
        let labels = if parts & 4 == 0 { 1.0 } else { 0.0 };
        ((target(parts, 1, at), target(parts, 2, at)), labels)
    });
    let rows = rows.collect::<Vec<_>>();
    let damped = OptimArgs { momentum: Some(0.9), dampening: Some(0.2), ..OptimArgs::default() };
    for (optim, optim_args, accumulation) in [
        (OptimizerName::AdamW, OptimArgs::default(), 2),
        (OptimizerName::AdamW, OptimArgs::default(), 1),
        (OptimizerName::AdamW, OptimArgs::default(), 3),
        (OptimizerName::Lion, OptimArgs::default(), 2),
        (OptimizerName::Adafactor, OptimArgs::default(), 2),
        (OptimizerName::Sgd, damped, 2),
    ] {
        // A step that has no label at all is refused.
        let rows = rows.iter().copied().filter(|(_, labels)| accumulation > 1 || *labels > 0.0).collect::<Vec<_>>();
        let kind = if device() == "wgpu" { DeviceKind::Wgpu } else { DeviceKind::Cuda };
        let run = |name: &str, graph: Switch| {
            let path = folder.path().join(format!("{name}-{optim}-{accumulation}"));
            let arguments = TrainingArguments {
                optim,
                optim_args: optim_args.clone(),
                gradient_accumulation_steps: accumulation,
                per_device_train_batch_size: 1.into(),
                sampler: Sampler::Sequential,
                num_train_epochs: Some(1.0),
                learning_rate: 0.02,
                weight_decay: 0.1,
                logging_steps: Some(1.into()),
                device: DeviceArguments { kind, index: 0 },
                compiler: Some(TrainingCompilerConfig { graph, ..CompilerMode::Compiled.into() }),
                ..TrainingArguments::new(&path)
            };
            let mut trainer = Trainer::new(arguments, Near, rows.clone()).unwrap();
            trainer.train().unwrap();
            let values = |part: &Param<Tensor<1>>| part.val().into_data().iter::<f32>().collect::<Vec<_>>();
            let weights = [values(&trainer.model().first), values(&trainer.model().second)].concat();
            let log = std::fs::read_to_string(path.join("run.log")).unwrap();
            (losses(&path), weights, log.matches("is captured (").count())
        };
        let (expected, expected_weights, recordings) = run("eager", Switch::Off);
        assert_eq!(recordings, 0);
        let (got, weights, captured) = run("captured", Switch::On);
        assert_eq!(captured, 3, "a recording for each choice of parts");
        // A kernel sums 33 squares in another order, and the moments of 12 steps follow.
        let off = apart_of_any(&got, &expected);
        assert!(off < 1e-5, "{optim} {accumulation}: {off}\n{got:?}\n{expected:?}");
        let off = relative_l2(&weights, &expected_weights);
        assert!(off < 1e-5, "{optim} {accumulation}: {off}\n{weights:?}\n{expected_weights:?}");
    }
}
