//! Exact match and F1 as the official evaluation scripts of SQuAD 1.1 and 2.0 define them, on
//! answers without case, punctuation and articles.

use std::collections::HashMap;

use super::read::Question;
use super::spans::Prediction;

/// Scores of a set of answers, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Answers that equal one of the accepted ones.
    pub exact_match: f64,
    /// Overlap of words with the best of the accepted ones.
    pub f1: f64,
    /// The two over questions with an answer, and over those without; none where there are no such
    /// questions.
    pub has_answer: Option<(f64, f64)>,
    /// See `has_answer`.
    pub no_answer: Option<(f64, f64)>,
}

impl Scores {
    /// The scores by the names of the official scripts: `exact_match` and `f1`, and for version 2.0
    /// their parts.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let mut named = vec![("exact_match", self.exact_match), ("f1", self.f1)];
        if let Some((exact, f1)) = self.has_answer {
            named.extend([("HasAns_exact", exact), ("HasAns_f1", f1)]);
        }
        if let Some((exact, f1)) = self.no_answer {
            named.extend([("NoAns_exact", exact), ("NoAns_f1", f1)]);
        }
        named
    }
}

/// Scores `predictions`, one a question, in the order of `questions`.
pub fn scores(questions: &[Question], predictions: &[Prediction]) -> Scores {
    let of = |wanted: &dyn Fn(&Question) -> bool| -> Option<(f64, f64)> {
        let pairs = questions.iter().zip(predictions).filter(|(question, _)| wanted(question));
        let each = pairs.map(|(question, prediction)| one(question, &prediction.text)).collect::<Vec<_>>();
        let mean = |part: fn(&(f64, f64)) -> f64| 100.0 * each.iter().map(part).sum::<f64>() / each.len() as f64;
        (!each.is_empty()).then(|| (mean(|score| score.0), mean(|score| score.1)))
    };
    let (exact_match, f1) = of(&|_| true).unwrap_or((f64::NAN, f64::NAN));
    let version_2 = questions.iter().any(|question| question.may_be_unanswerable);
    let (has_answer, no_answer) = if version_2 {
        (of(&|question| !question.answers.is_empty()), of(&|question| question.answers.is_empty()))
    } else {
        (None, None)
    };
    Scores { exact_match, f1, has_answer, no_answer }
}

/// Exact match and F1 of one answer, each the best over the accepted ones.
fn one(question: &Question, predicted: &str) -> (f64, f64) {
    // The script of version 2.0 leaves out accepted answers of which nothing is left, and takes ""
    // when none remains.
    let accepted = question.answers.iter().map(|answer| answer.text.as_str());
    let mut accepted = if question.may_be_unanswerable {
        accepted.filter(|text| !normalized(text).is_empty()).collect::<Vec<_>>()
    } else {
        accepted.collect()
    };
    if accepted.is_empty() {
        accepted.push("");
    }
    let best = |score: fn(&str, &str) -> f64| {
        accepted.iter().map(|accepted| score(accepted, predicted)).fold(f64::NEG_INFINITY, f64::max)
    };
    // Where nothing is left of either side, the script of version 1.1 finds no word in common.
    let f1_of_1 =
        |accepted: &str, predicted: &str| if normalized(predicted).is_empty() { 0.0 } else { f1(accepted, predicted) };
    (best(exact_match), if question.may_be_unanswerable { best(f1) } else { best(f1_of_1) })
}

/// 1 when both are the same without case, punctuation and articles, else 0.
pub fn exact_match(accepted: &str, predicted: &str) -> f64 {
    f64::from(u8::from(normalized(accepted) == normalized(predicted)))
}

/// The harmonic mean of precision and recall of the words of `predicted`, counted with
/// multiplicity; when one of them has no word, 1 if neither has.
pub fn f1(accepted: &str, predicted: &str) -> f64 {
    let (accepted, predicted) = (normalized(accepted), normalized(predicted));
    if accepted.is_empty() || predicted.is_empty() {
        return f64::from(u8::from(accepted == predicted));
    }
    let mut left = HashMap::<&str, usize>::new();
    for word in &accepted {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in &predicted {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (common as f64 / predicted.len() as f64, common as f64 / accepted.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// The words of `text` in lower case, without ASCII punctuation and without articles.
fn normalized(text: &str) -> Vec<String> {
    let bare = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect::<String>();
    // The script replaces `\b(a|an|the)\b` by a space. Without punctuation a word boundary is any
    // change between letters, digits or underscores (of which none is left) and other characters.
    let mut spaced = String::new();
    let mut word = String::new();
    let finish = |word: &mut String, spaced: &mut String| {
        if matches!(word.as_str(), "a" | "an" | "the") {
            spaced.push(' ');
        } else {
            spaced.push_str(word);
        }
        word.clear();
    };
    for c in bare.chars() {
        if c.is_alphanumeric() {
            word.push(c);
        } else {
            finish(&mut word, &mut spaced);
            spaced.push(c);
        }
    }
    finish(&mut word, &mut spaced);
    spaced.split_whitespace().map(str::to_owned).collect()
}
