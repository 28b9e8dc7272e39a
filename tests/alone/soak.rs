//! 2,000 steps stay flat, in both modes and in f16: neither what lives grows nor what is taken from
//! the system. On the CPU that is the heap of the process; with `KILN_TEST_DEVICE=wgpu` it is the
//! pools of the device, and the mode is the one of this build's engine.

use std::sync::{Arc, Mutex};

use crate::counting::live;
use burn::tensor::Device;
use kiln::OpenSession;
use kiln::config::Task;
use kiln::config::{
    DataSection, DeviceArguments, DeviceKind, EvalStrategy, ModelKind, ModelSection, Precision, SaveStrategy,
    TrainingArguments, TrainingCompilerConfig, Validation,
};
use kiln::core::host::resident_mib;
use kiln::trainer::{Callback, Control, Progress};
use kiln::{RunConfig, Session, Trainer};

const STEPS: usize = 2000;

/// Bytes that may come to live between step 500 and step 2,000: rows of the log, and batches that
/// the loader has made before they are wanted. A tensor of `[1]` a step would be more.
const MAY_LIVE: isize = 64 << 10;

/// MiB that the process may take meanwhile: pages that the heap of another thread comes to use.
const MAY_TAKE: f64 = 4.0;

/// Bytes that live, and MiB that are taken from the system.
type Memory = (isize, Option<f64>);

/// Memory after step 500 and after the last.
struct Sample(Device, Arc<Mutex<Vec<Memory>>>);

impl Callback for Sample {
    fn on_step_end(&mut self, progress: &Progress, _: &mut Control) {
        if [STEPS as u64 / 4, STEPS as u64].contains(&progress.step) {
            let memory = match self.0.memory_pool_usage() {
                Some(usage) => (usage.bytes_in_use as isize, Some(usage.bytes_reserved as f64 / f64::from(1 << 20))),
                None => (live(), resident_mib()),
            };
            self.1.lock().unwrap().push(memory);
        }
    }
}

#[test]
fn memory_stays_flat_for_2000_steps() {
    if crate::ran_alone(module_path!(), "memory_stays_flat_for_2000_steps") {
        return;
    }
    let device = std::env::var("KILN_TEST_DEVICE").map_or(DeviceKind::Cpu, |kind| kind.parse().unwrap());
    for (compiled, precision) in
        [(false, Precision::F32), (false, Precision::F16), (true, Precision::F32), (true, Precision::F16)]
    {
        if device != DeviceKind::Cpu && compiled != cfg!(feature = "compiler") {
            continue; // the other engine's
        }
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.jsonl");
        let rows = (0..64).map(|i| format!("{{\"input_ids\": [{}, 2, 3, 4]}}\n", i % 9));
        std::fs::write(&data, rows.collect::<String>()).unwrap();
        let mut model = ModelSection::new(ModelKind::Gpt2).with("vocab_size", 16);
        for (field, value) in [("n_layer", 1), ("n_head", 1), ("n_embd", 8), ("n_positions", 8)] {
            model = model.with(field, value);
        }
        let data = DataSection {
            validation: Some(Validation::Share(0.2)),
            ..DataSection::tokenized(Task::Clm, [data.display().to_string()])
        };
        let arguments = TrainingArguments {
            precision,
            compiler: compiled.then(TrainingCompilerConfig::default),
            device: DeviceArguments { kind: device, index: 0 },
            max_steps: Some(STEPS),
            per_device_train_batch_size: 2.into(),
            logging_steps: Some(50.into()),
            eval_strategy: EvalStrategy::Steps,
            eval_steps: Some(250.into()),
            save_strategy: SaveStrategy::No,
            ..TrainingArguments::new(folder.path().join("run"))
        };
        let config = RunConfig::builder(arguments).model(model).data(data);
        let samples = Arc::new(Mutex::new(Vec::new()));
        let session = Session::open(config.build().unwrap()).unwrap();
        let sample = Sample(session.device.clone(), samples.clone());
        Trainer::from_session(session).unwrap().with_callback(sample).train().unwrap();
        let samples = samples.lock().unwrap();
        let [(early, taken_early), (late, taken)] = samples[..] else { panic!("two samples: {samples:?}") };
        println!(
            "compiled {compiled} {precision}: {early} and {late} bytes live, {taken_early:?} and {taken:?} MiB taken"
        );
        assert!(late - early < MAY_LIVE, "compiled {compiled} {precision}: {} bytes more", late - early);
        if let Some((early, late)) = taken_early.zip(taken) {
            assert!(late - early < MAY_TAKE, "compiled {compiled} {precision}: from {early} to {late} MiB");
        }
    }
}
