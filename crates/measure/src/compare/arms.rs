//! Which arms a comparison has, and the config that each of them trains.

use std::str::FromStr;

use kiln::config::{CompilerMode, EvalStrategy, LrScaling, RunConfig, SaveStrategy, TrainBatchSize};
use kiln::plan::RunPlan;
use kiln_core::error::{Error, Result, nearest};

use super::ablation::{self, Ablate};
use super::{ArmRuns, Role};

/// Settings by which arms differ.
const BATCH: &str = "trainer.per_device_train_batch_size";
const ACCUMULATION: &str = "trainer.gradient_accumulation_steps";
const BLOCK: &str = "data.block_size";

/// The names for `--arms`.
const NAMES: [&str; 4] = ["native", "compiled", "native-large", "compiled-large"];

/// The comparison that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Names of the 2 x 2; empty means those that can be run.
    pub arms: Vec<String>,
    /// The batch of the `-large` arms.
    pub compiled_batch: Option<usize>,
    /// Also an arm with each part of the compiler off.
    pub ablate: Option<Ablate>,
    /// Also both modes at these points.
    pub sweep: Scan,
}

/// The points of `--sweep batch=4,8,block=64,128`: every batch with every block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    batch: Vec<usize>,
    block: Vec<usize>,
}

impl FromStr for Scan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = |what: &str| {
            Error::config(format!("--sweep: {what} in {text:?}"))
                .help("expected lists of whole numbers from 1, as in --sweep batch=4,8,16,block=64,128")
        };
        let mut sweep = Self::default();
        let mut list = None;
        for part in text.split(',') {
            let value = match part.split_once('=') {
                Some((name, value)) => {
                    list = Some(match name.trim() {
                        "batch" => &mut sweep.batch,
                        "block" => &mut sweep.block,
                        other => return Err(form(&format!("expected batch or block, got {other:?}"))),
                    });
                    value
                }
                None => part,
            };
            let number = value.trim().parse::<usize>().ok().filter(|number| *number > 0);
            let number =
                number.ok_or_else(|| form(&format!("expected a whole number from 1, got {:?}", value.trim())))?;
            let list = list.as_mut().ok_or_else(|| form("expected batch=.. or block=.."))?;
            if list.contains(&number) {
                return Err(form(&format!("{number} stands twice")));
            }
            list.push(number);
        }
        Ok(sweep)
    }
}

impl Scan {
    /// Every batch with every block; none where that is not swept.
    fn points(&self) -> Vec<(Option<usize>, Option<usize>)> {
        let or_none = |list: &[usize]| match list {
            [] => vec![None],
            list => list.iter().copied().map(Some).collect(),
        };
        let blocks = or_none(&self.block);
        let points = or_none(&self.batch).into_iter().flat_map(|batch| blocks.iter().map(move |block| (batch, *block)));
        points.filter(|point| *point != (None, None)).collect()
    }
}

/// An arm before it has run.
#[derive(Debug, Clone)]
pub struct PlannedArm {
    /// The config that it trains, in its mode; folder, seed, evaluation and saving are set for each
    /// run.
    pub config: RunConfig,
    /// Its description for the report.
    pub runs: ArmRuns,
}

impl Wanted {
    /// Looks at it before anything is planned.
    ///
    /// # Errors
    /// Arms that do not exist or that need a batch which was not given.
    pub fn check(&self) -> Result<()> {
        for name in &self.arms {
            if !NAMES.contains(&name.as_str()) {
                let near = nearest(name, NAMES).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
                return Err(Error::config(format!("--arms: unknown arm `{name}`"))
                    .help(format!("{near}expected some of {}", NAMES.join(", "))));
            }
        }
        let wants = |name: &str| self.arms.is_empty() || self.arms.iter().any(|wanted| wanted == name);
        if !wants(NAMES[0]) || !NAMES[1..].iter().any(|name| wants(name)) {
            return Err(Error::config(
                "--arms: expected native, which the others are compared with, and at least one other",
            )
            .help("for example --arms native,compiled"));
        }
        let large = |name: &str| name.ends_with("-large");
        if self.compiled_batch.is_none() && self.arms.iter().any(|name| large(name)) {
            return Err(Error::config("--arms: native-large and compiled-large need the compiled batch")
                .help("`kiln tune-batch FILE --mode compiled` finds it, or give it with --compiled-batch N"));
        }
        if self.ablate.is_some() && !wants("compiled") {
            return Err(Error::config(
                "--ablate: the arms with a part off are compared with compiled, which --arms lacks",
            )
            .help("add compiled to --arms, or leave --arms out"));
        }
        Ok(())
    }
}

/// The arms of a comparison of `base`, whose native plan is `planned`, in the order of a repeat:
/// the reference first, itself again last; and what the reader must know about arms that are left
/// out.
///
/// # Errors
/// Arms that do not exist or that need a batch which was not given; a batch that is not known;
/// nothing to ablate.
pub fn arms(base: &RunConfig, wanted: &Wanted, planned: &RunPlan) -> Result<(Vec<PlannedArm>, Vec<String>)> {
    wanted.check()?;
    let wants = |name: &str| wanted.arms.is_empty() || wanted.arms.iter().any(|wanted| wanted == name);
    let mut notes = Vec::new();
    let TrainBatchSize::Size(micro) = base.trainer.per_device_train_batch_size else {
        return Err(Error::config(
            "trainer.per_device_train_batch_size = \"auto\": a comparison needs the native batch as a number",
        )
        .help("`kiln tune-batch FILE --mode both` finds both; then --set trainer.per_device_train_batch_size=N --compiled-batch M"));
    };
    let compiled_batch = match wanted.compiled_batch {
        Some(batch) if batch != micro => Some(batch),
        Some(_) => {
            notes.push(format!("the compiled batch is the native one, {micro}: there is no batch share"));
            None
        }
        None => {
            notes.push(format!(
                "no compiled batch is known (`kiln tune-batch FILE --mode compiled`, or --compiled-batch N): both modes ran at the native batch of {micro}, and there \
                 is no batch share"
            ));
            None
        }
    };
    let mut all = Vec::new();
    let mut add =
        |name: String, label: String, role: Role, mode: CompilerMode, config: RunConfig, point: Option<String>| {
            let changed = |key: &str, changed: bool| changed.then(|| key.to_owned());
            let changes = [
                changed(BATCH, config.trainer.per_device_train_batch_size != micro),
                changed(
                    ACCUMULATION,
                    config.trainer.gradient_accumulation_steps != base.trainer.gradient_accumulation_steps,
                ),
                changed(BLOCK, config.data.block_size != base.data.block_size),
            ];
            let (changes, runs) = (changes.into_iter().flatten().collect(), Vec::new());
            let runs = ArmRuns { name, label, role, changes, point, runs, process_seconds: Vec::new(), failure: None };
            let mut config = config;
            config.trainer.set_compiler(mode);
            all.push(PlannedArm { config, runs });
        };
    let at = |batch: usize| format!("batch {batch}");
    let (native, compiled) = (CompilerMode::Native, CompilerMode::Compiled);
    add("native".into(), format!("native, {}", at(micro)), Role::Reference, native, base.clone(), None);
    if wants("compiled") {
        add("compiled".into(), format!("compiled, {}", at(micro)), Role::Compiled, compiled, base.clone(), None);
    }
    if let Some(batch) = compiled_batch {
        let (config, how) = with_batch(base, batch);
        notes.push(how);
        let point = Some(format!("b{batch}"));
        if wants("native-large") {
            let label = format!("native, {}", at(batch));
            add("native-large".into(), label, Role::NativeLarge, native, config.clone(), point.clone());
        }
        if wants("compiled-large") {
            let label = format!("compiled, {}", at(batch));
            add("compiled-large".into(), label, Role::CompiledLarge, compiled, config, point);
        }
    }
    if let Some(ablate) = wanted.ablate {
        let (ablations, note) = ablation::of(base, ablate, planned)?;
        notes.push(note);
        for ablation in ablations {
            add(ablation.name, ablation.label, Role::Ablation, compiled, ablation.config, None);
        }
    }
    for (batch, block) in wanted.sweep.points() {
        let mut config = batch.map_or_else(|| base.clone(), |batch| with_batch(base, batch).0);
        config.data.block_size = block.or(config.data.block_size);
        let names = [batch.map(|batch| format!("b{batch}")), block.map(|block| format!("s{block}"))];
        let point = names.into_iter().flatten().collect::<Vec<_>>().join("-");
        let text = [batch.map(|batch| format!("batch {batch}")), block.map(|block| format!("block {block}"))];
        let text = text.into_iter().flatten().collect::<Vec<_>>().join(", ");
        for mode in [native, compiled] {
            let (name, label) = (format!("{mode}-{point}"), format!("{mode}, {text}"));
            add(name, label, Role::Sweep, mode, config.clone(), Some(point.clone()));
        }
    }
    add("native-again".into(), format!("native, {}, again", at(micro)), Role::Again, native, base.clone(), None);
    Ok((all, notes))
}

/// `base` with another micro-batch: the global batch stays where it can, else it grows with the
/// micro-batch.
fn with_batch(base: &RunConfig, batch: usize) -> (RunConfig, String) {
    let mut config = base.clone();
    let trainer = &mut config.trainer;
    let micro = trainer.per_device_train_batch_size.size().unwrap_or(1);
    let global = trainer.batch.global_batch_size.unwrap_or(micro.saturating_mul(trainer.gradient_accumulation_steps));
    let accumulation = global / micro;
    trainer.per_device_train_batch_size = batch.into();
    let how = if global.is_multiple_of(batch) {
        trainer.gradient_accumulation_steps = global / batch;
        format!("batch {batch}: the global batch stays, {global} = {batch} x {} micro-batches", global / batch)
    } else {
        (trainer.batch.global_batch_size, trainer.gradient_accumulation_steps) = (None, accumulation);
        format!(
            "batch {batch}: the global batch grows from {global} to {batch} x {accumulation} = {}; {}",
            batch.saturating_mul(accumulation),
            match (base.trainer.learning_rate_scaling.scaling, base.trainer.learning_rate_scaling.reference_batch) {
                (LrScaling::None, _) | (_, None) => "[learning_rate] does not scale the learning rate with it",
                _ => "the learning rate follows it, as [learning_rate] says",
            }
        )
    };
    (config, how)
}

/// The config of one run of an arm: the schedule and the data of the config, and no evaluation,
/// saving or text sample but in the first repeat, where evaluation and saving are measured.
pub(super) fn run_config(
    arm: &PlannedArm,
    folder: std::path::PathBuf,
    repeat: usize,
    logging_steps: usize,
) -> RunConfig {
    let mut config = arm.config.training_only(folder, logging_steps);
    let (given, trainer) = (&arm.config.trainer, &mut config.trainer);
    if given.eval_strategy != EvalStrategy::No && repeat == 0 {
        trainer.eval_strategy = EvalStrategy::Epoch;
    }
    if given.save_strategy != SaveStrategy::No && repeat == 0 {
        (trainer.save_strategy, trainer.save_only_model) = (SaveStrategy::Epoch, given.save_only_model);
    }
    // Every repeat learns from other weights and another order, so that the loss has a band; all
    // arms of it from the same.
    trainer.data_seed = trainer.data_seed.map(|seed| seed.wrapping_add(repeat as u64));
    trainer.seed = trainer.seed.wrapping_add(repeat as u64);
    config
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A GPT-2 whose tokens stand in a file.
    fn planned(folder: &std::path::Path) -> (RunConfig, RunPlan) {
        std::fs::write(folder.join("data.jsonl"), "{\"input_ids\": [1, 2, 3, 4]}\n".repeat(64)).unwrap();
        let text = format!(
            "[run]\noutput_dir = {:?}\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 1\nn_embd = 8\nn_positions = 8\n\
             vocab_size = 32\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = {:?}\n[device]\nkind = \"cpu\"\n",
            folder.join("run"),
            folder.join("data.jsonl")
        );
        let config = RunConfig::parse(&text, "config.toml").unwrap();
        (config.clone().into(), config.plan().unwrap())
    }

    fn arms(base: &RunConfig, wanted: &Wanted) -> Result<(Vec<PlannedArm>, Vec<String>)> {
        let folder = tempfile::tempdir().unwrap();
        let (_, plan) = planned(folder.path());
        super::arms(base, wanted, &plan)
    }

    fn names(wanted: &Wanted) -> Vec<String> {
        arms(&RunConfig::default(), wanted).unwrap().0.into_iter().map(|arm| arm.runs.name).collect()
    }

    #[test]
    fn an_ablation_has_an_arm_for_each_part_that_can_be_off() {
        let of = |ablate| {
            let names = names(&Wanted { ablate: Some(ablate), ..Wanted::default() });
            names.into_iter().filter(|name| name.starts_with("compiled-")).collect::<Vec<_>>()
        };
        assert_eq!(of(Ablate::Columns), ["compiled-no-fused-ops"]);
        let operators = ["embedding", "dropout", "layer-norm", "linear", "attention", "gelu", "cross-entropy", "adamw"];
        let mut expected = vec!["compiled-no-fused-ops".to_owned()];
        expected.extend(operators.map(|operator| format!("compiled-no-{operator}")));
        assert_eq!(of(Ablate::Operators), expected);
        let mut off = RunConfig::default();
        off.trainer.compiler.get_or_insert_default().fused_ops = kiln::config::Switch::Off.into();
        let error = arms(&off, &Wanted { ablate: Some(Ablate::Columns), ..Wanted::default() }).unwrap_err();
        assert!(error.to_string().contains("nothing of the compiler can be switched off"), "{error}");
    }

    #[test]
    fn the_two_by_two_needs_a_compiled_batch() {
        assert_eq!(names(&Wanted::default()), ["native", "compiled", "native-again"]);
        let wanted = Wanted { compiled_batch: Some(12), ..Wanted::default() };
        assert_eq!(names(&wanted), ["native", "compiled", "native-large", "compiled-large", "native-again"]);
        let (all, notes) = arms(&RunConfig::default(), &wanted).unwrap();
        assert_eq!(all[2].runs.changes, [BATCH]);
        assert!(notes[0].contains("grows from 8 to 12 x 1 = 12"), "{notes:?}");
        let mut base = RunConfig::default();
        base.trainer.gradient_accumulation_steps = 4;
        let (all, notes) = arms(&base, &Wanted { compiled_batch: Some(16), ..Wanted::default() }).unwrap();
        assert_eq!(all[3].runs.changes, [BATCH, ACCUMULATION]);
        assert!(notes[0].contains("32 = 16 x 2 micro-batches"), "{notes:?}");
    }

    #[test]
    fn sweeps_pair_the_modes_at_every_point() {
        let sweep = "batch=2,4,block=16".parse::<Scan>().unwrap();
        let wanted = Wanted { sweep, ..Wanted::default() };
        let swept = names(&wanted).into_iter().filter(|name| name.contains("-b")).collect::<Vec<_>>();
        assert_eq!(swept, ["native-b2-s16", "compiled-b2-s16", "native-b4-s16", "compiled-b4-s16"]);
        for bad in ["", "4", "batch=", "batch=0", "batch=four", "size=4", "batch=4,8,4"] {
            assert!(bad.parse::<Scan>().unwrap_err().to_string().contains("--sweep"), "{bad}");
        }
    }

    #[test]
    fn arms_are_checked() {
        let message = |list: &[&str]| {
            let wanted = Wanted { arms: list.iter().map(|name| (*name).into()).collect(), ..Wanted::default() };
            arms(&RunConfig::default(), &wanted).unwrap_err().to_string()
        };
        assert!(message(&["native", "compild"]).contains("did you mean `compiled`?"));
        assert!(message(&["compiled"]).contains("expected native"));
        assert!(message(&["native", "native"]).contains("at least one other"));
        assert!(message(&["native", "compiled-large"]).contains("--compiled-batch"));
    }
}
