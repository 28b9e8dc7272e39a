//! From logits to answers, as `postprocess_qa_predictions` of `transformers`' `run_qa.py` does it:
//! the best spans of every window by the sum of their logits, the best of them over the windows of
//! a question, and for SQuAD 2.0 the choice between that and no answer.

use super::read::Question;
use super::windows::Window;

/// Start and end logits of one window, `[tokens]` each.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanLogits {
    /// Logits of the first token of the answer.
    pub start: Vec<f32>,
    /// Logits of the last token of the answer.
    pub end: Vec<f32>,
}

/// How spans are searched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanOptions {
    /// So many best starts are paired with so many best ends.
    pub n_best_size: usize,
    /// The longest answer in tokens.
    pub max_answer_length: usize,
    /// SQuAD 2.0: no answer is given when its score is more than this above the best answer's.
    pub null_score_diff_threshold: f64,
    /// Whether "no answer" may be the answer to every question, whatever the files say.
    pub version_2_with_negative: bool,
}

impl Default for SpanOptions {
    /// Defaults of `run_qa.py`: 20, 30, 0.
    fn default() -> Self {
        Self { n_best_size: 20, max_answer_length: 30, null_score_diff_threshold: 0.0, version_2_with_negative: false }
    }
}

/// An answer that was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prediction {
    /// The question's id.
    pub id: String,
    /// The text; empty for no answer.
    pub text: String,
    /// Its first and one past its last character in the context; none for no answer.
    pub span: Option<(usize, usize)>,
    /// Sum of the logits of its ends; for no answer those of `[CLS]`.
    pub score: f64,
    /// Its probability among the best spans.
    pub probability: f64,
}

/// A span of the context, in characters.
#[derive(Clone, Copy)]
struct Candidate {
    span: (usize, usize),
    score: f64,
}

/// The best answer to every question. `windows` and `logits` go together; windows of one question
/// may be anywhere.
pub fn best_answers(
    questions: &[Question],
    windows: impl IntoIterator<Item = Window>,
    logits: &[SpanLogits],
    options: &SpanOptions,
) -> Vec<Prediction> {
    let mut candidates = vec![Vec::new(); questions.len()];
    let mut no_answer = vec![f64::INFINITY; questions.len()];
    for (window, logits) in windows.into_iter().zip(logits) {
        let none = f64::from(logits.start[0]) + f64::from(logits.end[0]);
        no_answer[window.question] = no_answer[window.question].min(none);
        spans_of(&window, logits, options, &mut candidates[window.question]);
    }
    let found = questions.iter().zip(candidates).zip(no_answer);
    found.map(|((question, candidates), none)| choose(question, candidates, none, options)).collect()
}

/// Adds the spans of one window: pairs of the best starts and the best ends that lie in the
/// context, in order and not too long.
fn spans_of(window: &Window, logits: &SpanLogits, options: &SpanOptions, into: &mut Vec<Candidate>) {
    let inside = |token: usize| token.checked_sub(window.context_start).and_then(|at| window.offsets.get(at));
    // Padding is no place for an answer: were it among the best, an answer would depend on the
    // other rows of its batch.
    let own = |logits: &'_ [f32]| best(&logits[..window.input_ids.len().min(logits.len())], options.n_best_size);
    let ends = own(&logits.end);
    for start in own(&logits.start) {
        for end in &ends {
            let (Some(first), Some(last)) = (inside(start), inside(*end)) else { continue };
            if *end < start || end - start + 1 > options.max_answer_length {
                continue;
            }
            let score = f64::from(logits.start[start]) + f64::from(logits.end[*end]);
            into.push(Candidate { span: (first.0, last.1), score });
        }
    }
}

/// The places of the `count` largest values, largest first; of equal ones the later first, as
/// NumPy's reversed argsort of few values has it.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut order = (0..values.len()).collect::<Vec<_>>();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(b.cmp(a)));
    order.truncate(count);
    order
}

fn choose(question: &Question, mut candidates: Vec<Candidate>, none: f64, options: &SpanOptions) -> Prediction {
    // Stable, so of equal scores the earlier window's comes first.
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    candidates.truncate(options.n_best_size);
    let no_answer =
        |probability| Prediction { id: question.id.clone(), text: String::new(), span: None, score: none, probability };
    let Some(best) = candidates.first().copied() else { return no_answer(1.0) };
    let may_be_none = question.may_be_unanswerable;
    let scores = candidates.iter().map(|candidate| candidate.score).chain(may_be_none.then_some(none));
    let top = best.score.max(if may_be_none { none } else { f64::NEG_INFINITY });
    let total = scores.map(|score| (score - top).exp()).sum::<f64>();
    if may_be_none && none - best.score > options.null_score_diff_threshold {
        return no_answer((none - top).exp() / total);
    }
    let (from, to) = best.span;
    Prediction {
        id: question.id.clone(),
        text: question.context.chars().skip(from).take(to - from).collect(),
        span: Some(best.span),
        score: best.score,
        probability: (best.score - top).exp() / total,
    }
}
