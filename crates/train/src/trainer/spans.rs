//! Measures what the parts of a step take. A part is a [`Span`] of the thread that trains: opened
//! where the part begins, and dropped where it ends. A span within another takes its time from it,
//! so no time is counted twice; what lies in no span is [`Part::Sync`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::observer::{Part, Spent};
use crate::engine::launches::kernel_launches;
use crate::reads::device_reads;

/// The spans of a run. A clone opens spans of the same run.
#[derive(Debug, Clone, Default)]
pub(super) struct Spans(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    /// The parts of open spans and when they began, the innermost last.
    open: Vec<(Part, Instant)>,
    /// The spans that have ended, while they are [kept](Spans::keep).
    kept: Option<Vec<Timed>>,
    /// Time up to here belongs to a part, or to no step.
    last: Instant,
    reads: u64,
    launches: u64,
    /// Spent by the step at hand.
    step: Spent,
    /// Time of [`Part::Communicate`] since it was last taken.
    communicated: Duration,
}

/// A span that has ended, with all that lies within it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    pub(super) part: Part,
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

/// Spends time on a part until it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Span(Rc<RefCell<State>>);

impl Spans {
    /// Opens a span of `part`. Spans are dropped in the reverse order of their opening.
    pub(super) fn open(&self, part: Part) -> Span {
        let mut state = self.0.borrow_mut();
        state.charge();
        let began = state.last;
        state.open.push((part, began));
        Span(Rc::clone(&self.0))
    }

    /// Nothing has been spent so far, and no span is open.
    pub(super) fn begin(&self) {
        *self.0.borrow_mut() = State::default();
    }

    /// The time since the last step, or since the last span, belongs to no step.
    pub(super) fn skip(&self) {
        self.0.borrow_mut().last = Instant::now();
    }

    /// Up to when time has been counted.
    pub(super) fn counted_until(&self) -> Instant {
        self.0.borrow().last
    }

    /// Keeps the spans that end from now on.
    pub(super) fn keep(&self) {
        self.0.borrow_mut().kept = Some(Vec::new());
    }

    /// Ends [`keep`](Self::keep): the spans since.
    pub(super) fn take_kept(&self) -> Vec<Timed> {
        self.0.borrow_mut().kept.take().unwrap_or_default()
    }

    /// Ends the step: what has been spent since the one before it.
    pub(super) fn end_step(&self) -> Spent {
        let mut state = self.0.borrow_mut();
        state.charge();
        std::mem::take(&mut state.step)
    }

    /// Time of exchanges with the other ranks since it was last taken, up to the end of the last of
    /// them; zero where there are no others.
    pub(super) fn take_communicated(&self) -> Duration {
        std::mem::take(&mut self.0.borrow_mut().communicated)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.charge();
        let ended = state.last;
        let span = state.open.pop().map(|(part, began)| Timed { part, began, ended });
        if let Some(kept) = &mut state.kept {
            kept.extend(span);
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            kept: None,
            last: Instant::now(),
            reads: device_reads(),
            launches: kernel_launches(),
            step: Spent::default(),
            communicated: Duration::ZERO,
        }
    }
}

impl State {
    /// Counts what has been spent since the last call as that of the innermost span.
    fn charge(&mut self) {
        let part = self.open.last().map_or(Part::Sync, |(part, _)| *part);
        let now = Instant::now();
        let time = now - std::mem::replace(&mut self.last, now);
        let reads = device_reads();
        let read = reads - std::mem::replace(&mut self.reads, reads);
        let launches = kernel_launches();
        let launched = launches - std::mem::replace(&mut self.launches, launches);
        self.step.times[part as usize] += time;
        if !matches!(part, Part::Evaluation | Part::Save) {
            self.step.device_reads += read;
            self.step.kernel_launches += launched;
        }
        if part == Part::Communicate {
            self.communicated += time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause() {
        std::thread::sleep(Duration::from_millis(4));
    }

    #[test]
    fn spans_within_others_take_their_time_from_them_and_all_add_up() {
        let (began, spans) = (Instant::now(), Spans::default());
        {
            let _update = spans.open(Part::Update);
            pause();
            {
                let _communicate = spans.clone().open(Part::Communicate);
                pause();
                let forward = spans.open(Part::Forward);
                pause();
                drop(forward);
                pause();
            }
            pause();
        }
        pause();
        let (spent, elapsed) = (spans.end_step(), began.elapsed());
        let [update, communicate, forward, sync] =
            [Part::Update, Part::Communicate, Part::Forward, Part::Sync].map(|part| spent.time(part));
        let [once, twice] = [4, 8].map(Duration::from_millis);
        assert!(update >= twice && communicate >= twice && forward >= once && sync >= once, "{spent:?}");
        assert_eq!(spent.times.iter().sum::<Duration>(), update + communicate + forward + sync, "{spent:?}");
        assert!(update + communicate + forward + sync <= elapsed, "{spent:?} in {elapsed:?}");
        assert_eq!(spans.take_communicated(), communicate);
        assert_eq!(spans.take_communicated(), Duration::ZERO);
    }

    #[test]
    fn skipped_time_is_that_of_no_step_and_an_earlier_span_is() {
        let spans = Spans::default();
        drop(spans.open(Part::Save));
        let beginning = Instant::now();
        spans.begin();
        let evaluation = spans.open(Part::Evaluation);
        pause();
        drop(evaluation);
        let before = beginning.elapsed();
        pause();
        let skipping = Instant::now();
        spans.skip();
        drop(spans.open(Part::Data));
        let (spent, after) = (spans.end_step(), skipping.elapsed());
        assert!(spent.time(Part::Evaluation) >= Duration::from_millis(4), "{spent:?}");
        assert_eq!(spent.time(Part::Save), Duration::ZERO, "of what was before");
        let all = spent.times.iter().sum::<Duration>();
        assert!(all <= before + after, "{spent:?} in {before:?} and {after:?}");
        assert_eq!(spans.end_step().time(Part::Evaluation), Duration::ZERO);
    }
}
