//! An arm: the trainer's own loop, held up before a step until it is this process's turn; see
//! [`super::protocol`]. It measures nothing itself: times are those of `steps.jsonl`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use kiln::engine::device::memory_use;
use kiln::plan::TrainPlan;
use kiln::run_folder::STEP_TIMES;
use kiln::session::OpenSession;
use kiln::session::Session;
use kiln::session::provenance::Provenance;
use kiln::trainer::laps::{Laps, StepTimes};
use kiln::trainer::observer::{Observer, Spent};
use kiln::trainer::step_closures::{StepClosures, When};
use kiln::trainer::{Callback, Control, DeviceValues, Progress, Purpose, Shape, Trainer};
use kiln_core::error::{Error, Result};
use kiln_core::process;

use super::protocol::{END, Hello, Turn};
use crate::operators::Shapes;

/// Trains `session` by turns until it is told to end; with `writes_model` it then writes a model as
/// any run does.
///
/// # Errors
/// An error of the training, and a line that is no command.
pub fn serve_steps(session: Session, writes_model: bool) -> Result<()> {
    let turns = Arc::new(Mutex::new(Turns {
        times: session.plan().run.output_dir.join(STEP_TIMES),
        read: 0,
        left: 0,
        device: session.device.clone(),
        provenance: Provenance::of(&session)?,
        losses: Arc::default(),
        began: false,
        ended: false,
        failed: None,
    }));
    let laps = Laps::on(&session.facts().device);
    let trained = Trainer::from_session(session)?
        .with_purpose(Purpose::Measurement { writes_model })
        .with_observer(HeldUp { laps, turns: turns.clone() })
        .with_callback(Answers(turns.clone()))
        .train();
    match lock(&turns).failed.take() {
        Some(error) => Err(error),
        None => trained.map(drop),
    }
}

/// Measures the operators of the model of `session` by turns until it is told to end.
///
/// # Errors
/// The device's, and a line that is no command.
pub fn serve_operators(session: &Session) -> Result<()> {
    let plan = session.plan();
    let run_plan = session.run_plan()?;
    let (config, task) = run_plan.model_and_task()?;
    let shapes = Shapes::new(config, task, plan.batch.micro, plan.batch.seq_len);
    let device = &session.device;
    say(&hello(&Provenance::of(session)?, plan))?;
    while let Some(repeats) = command()? {
        let operators = shapes.measure(plan.engine.compute(), device, repeats)?;
        say(&Turn { steps: Vec::new(), operators, peak_mib: memory_use(device).peak_mib })?;
    }
    Ok(())
}

fn hello(provenance: &Provenance, plan: &TrainPlan) -> Hello {
    Hello {
        provenance: serde_json::to_value(provenance).expect("names and numbers are JSON"),
        batch: plan.batch.micro,
        total_steps: plan.steps.total as u64,
        padding: Some(plan.data.padding_cost.waste),
    }
}

fn say<T: serde::Serialize>(answer: &T) -> Result<()> {
    let mut line = serde_json::to_string(answer).map_err(|error| Error::data(format!("an answer: {error}")))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            process::await_end();
        }
        Error::io("answer the driver", &error)
    })
}

/// The N of the next `run N`; none at `end`. The process ends where the input ends, even in the
/// middle of a turn.
fn command() -> Result<Option<usize>> {
    let orders = process::orders()?.lock().unwrap_or_else(PoisonError::into_inner);
    // Where no line comes any more, this process is about to end: a run that nobody has measured
    // must not come to look like a finished one.
    let line = orders.recv().map_err(|_| Error::data("the driver of this worker has ended"))?;
    if line.trim() == END {
        return Ok(None);
    }
    let count = line.trim().strip_prefix("run ").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    count.map(Some).ok_or_else(|| Error::config(format!("expected `run N` or `{END}`, got {:?}", line.trim())))
}

/// Waits for its turn before a step, and answers when the steps of a turn are made.
struct Turns {
    times: PathBuf,
    /// Bytes of the file that were read.
    read: u64,
    /// Steps of this turn that are still to be made.
    left: usize,
    device: Device,
    provenance: Provenance,
    /// `(step, loss)` of the steps up to the last row: of each its own, not the mean that the row
    /// shows.
    losses: Arc<Mutex<Vec<(u64, f64)>>>,
    /// There has been a turn, which is to be answered.
    began: bool,
    /// It was told to end, or something failed: the step that follows is the last.
    ended: bool,
    failed: Option<Error>,
}

impl Turns {
    /// Answers for the turn that ended, and waits for the next one.
    fn next(&mut self) -> Result<()> {
        if self.began {
            let steps = self.steps()?;
            say(&Turn { steps, operators: Vec::new(), peak_mib: memory_use(&self.device).peak_mib })?;
        }
        match command()? {
            Some(count) => (self.began, self.left) = (true, count - 1),
            None => self.ended = true,
        }
        Ok(())
    }

    /// The steps of which lines have been written since the last time.
    fn steps(&mut self) -> Result<Vec<StepTimes>> {
        let io = |error: std::io::Error| Error::io(format!("read {}", self.times.display()), &error);
        let mut file = File::open(&self.times).map_err(io)?;
        file.seek(SeekFrom::Start(self.read)).map_err(io)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        // Where the device is waited for every so many steps only, the last line may not be whole
        // yet.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        self.read += text.len() as u64;
        let losses = std::mem::take(&mut *lock(&self.losses));
        let step = |line: &str| {
            let mut times: StepTimes = serde_json::from_str(line)?;
            times.loss = losses.iter().find(|(step, _)| *step == times.step).map(|(_, loss)| *loss);
            Ok(times)
        };
        let steps = text.lines().map(step).collect::<std::result::Result<_, serde_json::Error>>();
        steps.map_err(|error| Error::data(format!("{}: {error}", self.times.display())))
    }

    fn fail(&mut self, error: Error) {
        self.ended = true;
        self.failed.get_or_insert(error);
    }
}

/// Writes down what steps have taken, each of which waits for its turn.
struct HeldUp {
    laps: Laps,
    turns: Arc<Mutex<Turns>>,
}

impl Observer for HeldUp {
    fn begin(&mut self, folder: &Path, progress: &Progress, is_synchronous: bool) -> Result<()> {
        self.laps.begin(folder, progress, is_synchronous)
    }

    fn before_step(&mut self, _progress: &Progress) -> Duration {
        let started = Instant::now();
        let mut turns = lock(&self.turns);
        // Within a turn nothing is waited for, however long the system held this thread up.
        let waited = if turns.left > 0 {
            turns.left -= 1;
            Duration::ZERO
        } else {
            if !turns.ended
                && let Err(error) = turns.next()
            {
                turns.fail(error);
            }
            started.elapsed()
        };
        self.laps.hold_up(waited);
        waited
    }

    fn batch(&mut self, shape: Shape) {
        self.laps.batch(shape);
    }

    fn end_step(&mut self, progress: &Progress, spent: &Spent, read: bool) -> Result<()> {
        self.laps.end_step(progress, spent, read)
    }
}

/// Answers for the run, and ends it when it is told to.
struct Answers(Arc<Mutex<Turns>>);

impl<M> Callback<M> for Answers {
    fn on_train_begin(&mut self, plan: &TrainPlan) {
        let hello = hello(&lock(&self.0).provenance, plan);
        if let Err(error) = say(&hello) {
            lock(&self.0).fail(error);
        }
    }

    fn on_step_end(&mut self, _progress: &Progress, control: &mut Control) {
        control.should_training_stop |= lock(&self.0).ended;
    }

    fn on_step_values(&mut self, progress: &Progress, values: DeviceValues<'_>, closures: &mut StepClosures<'static>) {
        let (losses, step) = (lock(&self.0).losses.clone(), progress.step);
        closures.add(When::AtLog, [values.loss.clone()], move |values| lock(&losses).push((step, values[0])));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
