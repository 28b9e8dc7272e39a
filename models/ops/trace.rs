//! Times calls of operators, where somebody asks for it: those of the thread that asks, in the
//! forward pass, and in the backward pass those of the fused form, whose backward is their own. On
//! a device that works asynchronously a call returns when its work is handed over, and the time is
//! that of the call.

use std::cell::RefCell;
use std::time::Instant;

thread_local! {
    /// None where nobody asks.
    static RECORDED: RefCell<Option<Recorded>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Recorded {
    /// The operators that are being called, the innermost last.
    open: Vec<&'static str>,
    calls: Vec<Timed>,
}

/// A call of an operator.
#[derive(Debug, Clone, Copy)]
pub struct Timed {
    /// The operator.
    pub operator: &'static str,
    /// Whether it computed gradients.
    pub is_backward: bool,
    /// When the call began.
    pub began: Instant,
    /// When it returned.
    pub ended: Instant,
}

/// Times what this thread calls from now on.
pub fn start() {
    RECORDED.set(Some(Recorded::default()));
}

/// Ends [`start`]: the calls since, in the order in which they returned.
pub fn stop() -> Vec<Timed> {
    RECORDED.take().map(|recorded| recorded.calls).unwrap_or_default()
}

/// Times the call of an operator until it is dropped.
#[must_use]
pub(super) struct Call {
    operator: &'static str,
    is_backward: bool,
    /// None where nobody asks.
    began: Option<Instant>,
}

/// A call of `operator` begins.
pub(super) fn call(operator: &'static str) -> Call {
    Call::new(operator, false)
}

/// The backward of a call of `operator` begins.
pub(super) fn backward(operator: &'static str) -> Call {
    Call::new(operator, true)
}

/// The operator that is being called; none where nobody asks.
pub(super) fn current() -> Option<&'static str> {
    RECORDED.with_borrow(|recorded| recorded.as_ref()?.open.last().copied())
}

impl Call {
    fn new(operator: &'static str, is_backward: bool) -> Self {
        let is_asked = RECORDED
            .with_borrow_mut(|recorded| recorded.as_mut().map(|recorded| recorded.open.push(operator)).is_some());
        Self { operator, is_backward, began: is_asked.then(Instant::now) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(began) = self.began else { return };
        let (operator, is_backward, ended) = (self.operator, self.is_backward, Instant::now());
        RECORDED.with_borrow_mut(|recorded| {
            if let Some(recorded) = recorded {
                recorded.open.pop();
                recorded.calls.push(Timed { operator, is_backward, began, ended });
            }
        });
    }
}
