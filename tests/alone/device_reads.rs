//! Nothing is read from the device between log steps, and what does read is named.

use std::sync::{Arc, Mutex};

use burn::tensor::Tensor;
use kiln::OpenSession;
use kiln::config::Task;
use kiln::config::{DataSection, EvalStrategy, ModelKind, ModelSection, Precision, SaveStrategy, TrainingArguments};
use kiln::core::metrics::Record;
use kiln::reads::{DeviceReads, device_reads, read_scalars};
use kiln::trainer::step_closures::{StepClosures, When};
use kiln::trainer::{Callback, Control, DeviceValues, Progress};
use kiln::{RunConfig, Session, Trainer};

/// The reads of every step before its row, which are to be none, and of every row.
#[derive(Default)]
struct Seen {
    before: DeviceReads,
    steps: Vec<(u64, DeviceReads)>,
    rows: Vec<(u64, DeviceReads)>,
    /// Every step's loss, as a step closure got it.
    losses: Vec<(u64, f64)>,
    /// The loss of every row.
    row_losses: Vec<(u64, f64)>,
}

struct Count {
    seen: Arc<Mutex<Seen>>,
    /// Reads something in every step, as a callback that shows a loss might.
    reads: bool,
}

impl Callback for Count {
    fn on_step_begin(&mut self, _: &Progress) {
        self.seen.lock().unwrap().before = DeviceReads::now();
    }

    fn on_step_values(&mut self, progress: &Progress, values: DeviceValues<'_>, closures: &mut StepClosures<'static>) {
        let (seen, step) = (self.seen.clone(), progress.step);
        closures.add(When::AtLog, [values.loss.clone()], move |values| {
            seen.lock().unwrap().losses.push((step, values[0]));
        });
    }

    fn on_step_end(&mut self, progress: &Progress, _: &mut Control) {
        if self.reads {
            read_scalars(vec![Tensor::from_floats([1.0f32], &burn::tensor::Device::flex())]).unwrap();
        }
        let mut seen = self.seen.lock().unwrap();
        let now = DeviceReads::now();
        let read = now.since(&seen.before);
        seen.steps.push((progress.step, read));
        seen.before = now;
    }

    fn on_log(&mut self, progress: &Progress, row: &Record) {
        let mut seen = self.seen.lock().unwrap();
        seen.row_losses.push((progress.step, row.get("loss").unwrap()));
        let read = DeviceReads::now().since(&seen.before);
        seen.rows.push((progress.step, read));
    }
}

/// The steps that read although the budget of a step outside its row is 0, with the places that do.
fn beyond_budget(seen: &Seen) -> Vec<String> {
    let over = seen.steps.iter().filter(|(_, reads)| reads.total() > 0);
    over.map(|(step, reads)| format!("step {step}: {reads}, the budget is 0")).collect()
}

/// In f16, too, where the device decides at every step whether it counts.
#[test]
fn only_log_steps_read_from_the_device() {
    if crate::ran_alone(module_path!(), "only_log_steps_read_from_the_device") {
        return;
    }
    for precision in [Precision::F32, Precision::F16] {
        let start = device_reads();
        let seen = a_run(precision, false);
        assert_eq!(beyond_budget(&seen), Vec::<String>::new());
        assert_eq!(seen.rows.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [8, 16, 20]);
        for (step, reads) in &seen.rows {
            assert_eq!(reads.total(), 1, "the row of step {step}: {reads}");
            assert!(reads.sites()[0].0.starts_with("crates/train/src/trainer/log.rs:"), "{reads}");
        }
        // With the rows came what closures waited for.
        assert_eq!(seen.losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
        // A row shows the mean over the steps since the row before it, which the device has added
        // up in f32.
        for ((row, loss), before) in seen.row_losses.iter().zip([0, 8, 16]) {
            let window = &seen.losses[before..*row as usize];
            let mean = window.iter().map(|(_, loss)| loss).sum::<f64>() / window.len() as f64;
            assert!((loss / mean - 1.0).abs() < 1e-6, "step {row}: {loss} is not {mean}");
        }
        assert_eq!(device_reads() - start, 3, "three rows, from which the summary's mean loss follows");
    }
    let over = beyond_budget(&a_run(Precision::F32, true));
    assert_eq!(over.len(), 20);
    let says = over[4].starts_with("step 5: 1 device reads: 1 by ");
    assert!(says && over[4].contains("tests/alone/device_reads.rs:"), "{}", over[4]);
}

fn a_run(precision: Precision, reads: bool) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    let rows = (0..40).map(|i| format!("{{\"input_ids\": [{}, 2, 3, 4]}}\n", i % 9));
    std::fs::write(&data, rows.collect::<String>()).unwrap();
    let mut model = ModelSection::new(ModelKind::Gpt2).with("vocab_size", 16);
    for (field, value) in [("n_layer", 1), ("n_head", 1), ("n_embd", 8), ("n_positions", 8)] {
        model = model.with(field, value);
    }
    let arguments = TrainingArguments {
        precision,
        max_steps: Some(20),
        gradient_accumulation_steps: 2,
        logging_steps: Some(8.into()),
        eval_strategy: EvalStrategy::No,
        save_strategy: SaveStrategy::No,
        ..TrainingArguments::new(folder.path().join("run"))
    };
    let config = RunConfig::builder(arguments)
        .model(model)
        .data(DataSection::tokenized(Task::Clm, [data.display().to_string()]))
        .build()
        .unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let count = Count { seen: seen.clone(), reads };
    Trainer::from_session(Session::open(config).unwrap()).unwrap().with_callback(count).train().unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}
