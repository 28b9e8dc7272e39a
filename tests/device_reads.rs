//! Nothing is read from the device between log steps. One test in a process of its own, since the counter is the process's.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use kiln::config::{DataSection, EvalStrategy, ModelKind, ModelSection, Precision, SaveStrategy, TrainerSection};
use kiln::execution::device_reads;
use kiln::metrics::Record;
use kiln::task::Task;
use kiln::trainer::{Callback, Control, Progress};
use kiln::{RunConfig, Trainer};

/// Reads so far, after every step and after every log row.
#[derive(Default)]
struct Seen {
    after_step: Vec<u64>,
    logged: Vec<u64>,
}

struct Count(Arc<Mutex<Seen>>);

impl Callback for Count {
    fn on_step_end(&mut self, _: &Progress, _: &mut Control) {
        self.0.lock().unwrap().after_step.push(device_reads());
    }

    fn on_log(&mut self, progress: &Progress, _: &Record) {
        self.0.lock().unwrap().logged.push(progress.step);
    }
}

/// In f16, too, where the device decides at every step whether it counts.
#[test]
fn only_log_steps_read_from_the_device() {
    for precision in [Precision::F32, Precision::F16] {
        reads_of_a_run(precision);
    }
}

fn reads_of_a_run(precision: Precision) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    let rows = (0..40).map(|i| format!("{{\"input_ids\": [{}, 2, 3, 4]}}\n", i % 9));
    std::fs::write(&data, rows.collect::<String>()).unwrap();
    let mut model = ModelSection::new(ModelKind::Gpt2).with("vocab_size", 16);
    for (field, value) in [("n_layer", 1), ("n_head", 1), ("n_embd", 8), ("n_positions", 8)] {
        model = model.with(field, value);
    }
    let config = RunConfig::builder(folder.path().join("run"))
        .model(model)
        .precision(precision)
        .data(DataSection::tokenized(Task::Clm, [data.display().to_string()]))
        .trainer(TrainerSection {
            max_steps: Some(20),
            gradient_accumulation_steps: 2,
            logging_steps: Some(8.into()),
            eval_strategy: EvalStrategy::No,
            save_strategy: SaveStrategy::No,
            ..TrainerSection::default()
        })
        .build()
        .unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let start = device_reads();
    Trainer::new(config.plan().unwrap()).unwrap().with_callback(Count(seen.clone())).train().unwrap();

    let seen = seen.lock().unwrap();
    assert_eq!(seen.logged, [8, 16, 20]);
    // `on_step_end` runs before the row of its step is read, so the first read shows after step 9.
    let expected = (1..=20).map(|step| {
        start
            + if step <= 8 {
                0
            } else if step <= 16 {
                1
            } else {
                2
            }
    });
    assert_eq!(seen.after_step, expected.collect::<Vec<_>>());
    assert_eq!(device_reads() - start, 4, "three rows and the mean loss of the summary");
}
