//! Where the time of a run goes: log windows, the steady state, and what is no training time
//! (evaluation, saving).

use std::time::{Duration, Instant};

use burn::tensor::Device;
use kiln_core::metrics::Record;
use kiln_core::stats;

use super::callback::Progress;
use crate::engine::device::{MemoryUse, memory_use};

/// The clock of a run.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) start: Instant,
    /// How far the run had come when this process took it up.
    before: Progress,
    window_start: Instant,
    window_steps: u64,
    window_tokens: u64,
    /// How long the loader had been waited for when the window began.
    waited_before: Duration,
    /// `(step_ms, tokens_per_s)` of every log window but the first, which is the warm-up.
    steady: Vec<(f64, f64)>,
    /// `communicate_ms` of the same windows, where there are other ranks.
    steady_communicate_ms: Vec<f64>,
    warmup: Option<Duration>,
    /// Time of the warm-up stage before the first step, where there was one.
    stage: Option<Duration>,
    eval: Duration,
    /// Time of `compiler.verify`, where it was asked for.
    verify: Option<Duration>,
    /// How long training waited for saving.
    save_wait: Duration,
    device: Device,
    /// The most memory of all log rows.
    peak_mib: Option<f64>,
}

impl Clock {
    /// Starts now, with `before` behind it, for a run on `device`.
    pub(super) fn start(before: Progress, device: Device) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            before,
            window_start: now,
            window_steps: 0,
            window_tokens: 0,
            waited_before: Duration::ZERO,
            steady: Vec::new(),
            steady_communicate_ms: Vec::new(),
            warmup: None,
            stage: None,
            eval: Duration::ZERO,
            verify: None,
            save_wait: Duration::ZERO,
            device,
            peak_mib: None,
        }
    }

    /// The warm-up stage took `elapsed`, up to now: time of the run, but of no step.
    pub(super) fn charge_warmup(&mut self, elapsed: Duration) {
        self.start = self.start.checked_sub(elapsed).unwrap_or(self.start);
        self.stage = Some(elapsed);
    }

    /// Nor is a check of the compiler that took `elapsed`, up to now. `before` says that no step
    /// has been made yet.
    pub(super) fn exclude_check(&mut self, elapsed: Duration, before: bool) {
        self.verify = Some(self.verify.unwrap_or_default() + elapsed);
        if before {
            self.start = self.start.checked_sub(elapsed).unwrap_or(self.start);
        } else {
            self.window_start += elapsed;
        }
    }

    /// The steps that this process has made.
    pub(super) fn steps(&self, progress: &Progress) -> u64 {
        progress.step - self.before.step
    }

    /// A step was made.
    pub(super) fn step(&mut self, tokens: u64) {
        self.window_steps += 1;
        self.window_tokens += tokens;
    }

    /// Evaluation is not training time: the open window starts that much later.
    pub(super) fn exclude_evaluation(&mut self, elapsed: Duration) {
        self.eval += elapsed;
        self.window_start += elapsed;
    }

    /// Nor is waiting for a checkpoint.
    pub(super) fn exclude_saving(&mut self, elapsed: Duration) {
        self.save_wait += elapsed;
        self.window_start += elapsed;
    }

    /// The run was held up for `elapsed`, up to now, which is no time of it at all.
    pub(super) fn exclude_waiting(&mut self, elapsed: Duration) {
        self.start += elapsed;
        self.window_start += elapsed;
    }

    /// Ends the window that started at the last log row. Its values have just been read, so the
    /// device is idle. `waited` is how long this process has waited for batches in all,
    /// `communicated` the time of exchanges in the window, zero where there are no other ranks.
    /// `loss` is the mean over the steps of the window, `grad_norm` and `lr` are the last step's.
    /// The first row after a warm-up stage says what that took.
    pub(super) fn close_window(
        &mut self,
        progress: &Progress,
        [loss, grad_norm, lr]: [f64; 3],
        waited: Duration,
        communicated: Duration,
    ) -> Record {
        let seconds = self.window_start.elapsed().as_secs_f64();
        let step_ms = seconds * 1e3 / self.window_steps as f64;
        let tokens_per_s = self.window_tokens as f64 / seconds;
        let stage = self.stage.filter(|_| self.warmup.is_none());
        match self.warmup {
            Some(_) => self.steady.push((step_ms, tokens_per_s)),
            None => self.warmup = Some(self.window_start.elapsed()),
        }
        let communicate_ms =
            (!communicated.is_zero()).then(|| communicated.as_secs_f64() * 1e3 / self.window_steps as f64);
        if let Some(ms) = communicate_ms.filter(|_| self.warmup.is_some() && !self.steady.is_empty()) {
            self.steady_communicate_ms.push(ms);
        }
        let data_wait = (waited - self.waited_before).as_secs_f64() / seconds;
        self.window_start = Instant::now();
        (self.window_steps, self.window_tokens, self.waited_before) = (0, 0, waited);
        let MemoryUse { peak_mib, reserved_mib } = memory_use(&self.device);
        self.peak_mib = self.peak_mib.into_iter().chain(peak_mib).reduce(f64::max);
        let row = Record::default()
            .with("step", progress.step)
            .with("epoch", progress.epoch)
            .with("samples", progress.samples)
            .with("tokens", progress.tokens)
            .with("loss", loss)
            .with("grad_norm", grad_norm)
            .with("learning_rate", lr)
            .with("step_ms", step_ms)
            .with("tokens_per_s", tokens_per_s)
            .with("data_wait", data_wait)
            .with("peak_mib", self.peak_mib)
            .with("reserved_mib", reserved_mib);
        let row = communicate_ms.into_iter().fold(row, |row, ms| row.with("communicate_ms", ms));
        match stage {
            Some(stage) => row.with("warmup_seconds", stage.as_secs_f64()),
            None => row,
        }
    }

    /// The last row: Hugging Face's keys, then medians of the steady state, which leaves the first
    /// log window out. `warmup_seconds` is the warm-up stage, or that window where there was none;
    /// `train_runtime` has it in it. Speeds are this process's; `saving` is what reading and
    /// writing checkpoints took, most of it beside training.
    pub(super) fn summary(&self, progress: &Progress, train_loss: f64, saving: Duration) -> Record {
        let runtime = self.start.elapsed().as_secs_f64();
        let median = |pick: fn(&(f64, f64)) -> f64| {
            let values = self.steady.iter().map(pick).collect::<Vec<_>>();
            (!values.is_empty()).then(|| stats::median(&values))
        };
        let summary = Record::default()
            .with("step", progress.step)
            .with("train_runtime", runtime)
            .with("train_samples_per_second", (progress.samples - self.before.samples) as f64 / runtime)
            .with("train_steps_per_second", (progress.step - self.before.step) as f64 / runtime)
            .with("train_loss", train_loss)
            .with("epoch", progress.epoch)
            .with("samples", progress.samples)
            .with("tokens", progress.tokens)
            .with("steady_step_ms", median(|window| window.0))
            .with("steady_tokens_per_second", median(|window| window.1))
            .with("warmup_seconds", self.stage.or(self.warmup).map(|warmup| warmup.as_secs_f64()))
            .with("eval_seconds", self.eval.as_secs_f64())
            .with("save_seconds", saving.as_secs_f64())
            .with("save_wait_seconds", self.save_wait.as_secs_f64())
            .with("peak_mib", self.peak_mib);
        let communicate = (!self.steady_communicate_ms.is_empty()).then(|| stats::median(&self.steady_communicate_ms));
        let summary = communicate.into_iter().fold(summary, |row, ms| row.with("steady_communicate_ms", ms));
        match self.verify {
            Some(verify) => summary.with("verify_seconds", verify.as_secs_f64()),
            None => summary,
        }
    }
}
