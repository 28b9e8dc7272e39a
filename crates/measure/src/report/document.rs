//! A report as a document: what its text, its Markdown and its HTML show, each in its own form. It
//! is about the arms of a comparison, or about one run.

use kiln::session::provenance::Provenance;
use serde::Serialize;

use crate::compare::{ArmReport, Comparison, Learned, Moments, Report, Role, figure_names};
use crate::loss_parity::Parity;
use crate::table::{Rows, Table, fixed, scientific, significant};
use crate::verdict::Verdict;

/// How a statement is meant: the colour of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tone {
    /// It is as one wishes.
    Good,
    /// It is not.
    Bad,
    /// It is to be looked at.
    Doubtful,
    /// It is so.
    Plain,
}

/// A sentence that decides something.
#[derive(Serialize)]
pub(super) struct Statement {
    pub(super) tone: Tone,
    pub(super) sentence: String,
}

impl Statement {
    pub(super) fn new(tone: Tone, sentence: impl Into<String>) -> Self {
        Self { tone, sentence: sentence.into() }
    }
}

/// Lines under a heading.
#[derive(Serialize)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) lines: Vec<String>,
    /// Its lines are a text, not a list.
    pub(super) is_text: bool,
    /// Few read it: it is small on paper, and its text is folded.
    pub(super) is_small: bool,
    /// Its lines are those of a plan: a name of 15 columns and text, which hangs where it is
    /// broken.
    pub(super) hangs: bool,
    /// How its lines begin in a terminal; none where they are not shown there.
    pub(super) in_terminal: Option<&'static str>,
}

impl Section {
    /// A list that a terminal shows, each line after `in_terminal`.
    pub(super) fn list(title: &'static str, lines: Vec<String>, in_terminal: Option<&'static str>) -> Self {
        Self { title, lines, is_text: false, is_small: in_terminal.is_none(), hangs: false, in_terminal }
    }

    /// A text, which a terminal does not show.
    pub(super) fn text(title: &'static str, lines: Vec<String>, is_small: bool) -> Self {
        Self { title, lines, is_text: true, is_small, hangs: false, in_terminal: None }
    }
}

/// Which class was predicted for which.
#[derive(Serialize)]
pub(super) struct Matrix {
    pub(super) caption: String,
    pub(super) labels: Vec<String>,
    /// Rows of the confusion matrix: a label, and for each prediction its count and its share of
    /// the row in percent.
    pub(super) rows: Vec<(String, Vec<(u64, u64)>)>,
}

impl Matrix {
    /// The counts alone.
    pub(super) fn table(&self) -> Table {
        let columns = self.labels.iter().enumerate().collect::<Vec<_>>();
        let mut rows = Rows::new(&columns);
        for (name, counts) in &self.rows {
            rows.add(name.trim_start(), |(column, _)| Some(counts.get(*column)?.0.to_string()));
        }
        rows.table(|(_, label)| label)
    }
}

/// A report of arms, or of a run.
#[derive(Serialize)]
pub(super) struct Document {
    pub(super) title: String,
    pub(super) made_at: String,
    /// The main result, in a sentence.
    pub(super) answer: Option<Statement>,
    /// Sentences on each comparison and on the noise; for a run, its warnings; for a sweep, the
    /// time that compiling saved.
    pub(super) statements: Vec<Statement>,
    /// The heading over them.
    pub(super) statements_title: &'static str,
    /// Arms that failed, and why.
    pub(super) failures: Vec<String>,
    pub(super) conclusions: Vec<String>,
    /// The label of each arm.
    pub(super) labels: Vec<String>,
    /// The rows of the table are the things that are compared, and its columns their figures.
    pub(super) is_list: bool,
    pub(super) table: Table,
    pub(super) matrix: Option<Matrix>,
    /// The sections after the figures.
    pub(super) sections: Vec<Section>,
}

impl Document {
    pub(super) fn of(report: &Report) -> Self {
        let failures = report.arms.iter().filter_map(|arm| Some(format!("{}: {}", arm.name, arm.failure.as_ref()?)));
        let folders = report.arms.iter().map(|arm| {
            let runs = arm.runs.iter().map(|run| run.display().to_string()).collect::<Vec<_>>();
            format!("{}: {}", arm.name, if runs.is_empty() { "none".into() } else { runs.join(", ") })
        });
        let compiling = answer(report);
        let answered = compiled(report).filter(|_| compiling.is_some());
        let best = best(report).filter(|_| compiling.is_none());
        let statement = |of: &Comparison, who| {
            let sentence = sentence(of, answered.is_some_and(|answered| answered.arm == of.arm))?;
            // Runs that were started apart are told apart by more than what they do.
            let is_apart = of.learned.is_some() && of.verdict != Verdict::NotComparable;
            let tone = if is_apart { Tone::Plain } else { tone(of.verdict) };
            Some(Statement::new(tone, format!("{who}{sentence}")))
        };
        let statements = report.comparisons.iter().filter_map(|comparison| statement(comparison, ""));
        // Only a report without an answer about the best run has these sentences.
        let learned = report.comparisons.iter().filter(|_| best.is_none()).filter_map(|comparison| {
            let (tone, sentence) = which_is_better(comparison, comparison.learned.as_ref()?);
            Some(Statement::new(tone, format!("{} against {}: {sentence}.", comparison.arm, comparison.against)))
        });
        Self {
            title: report.title.clone(),
            made_at: report.made_at.clone(),
            statements: learned
                .chain(report.noise.iter().filter_map(|noise| statement(noise, "noise: ")))
                .chain(statements)
                .collect(),
            answer: compiling.or(best),
            is_list: false,
            statements_title: "Verdicts",
            failures: failures.collect(),
            conclusions: conclusions(report),
            labels: report.arms.iter().map(|arm| arm.label.clone()).collect(),
            table: table(report),
            matrix: None,
            sections: vec![
                Section::list("Differences of the arms", differences(report), Some("Differs: ")),
                Section::list("Notes", report.notes.clone(), Some("Note: ")),
                Section::list("Provenance", provenance(report), None),
                Section::list("Raw samples: metrics.jsonl and steps.jsonl in", folders.collect(), None),
            ],
        }
    }
}

fn tone(word: Verdict) -> Tone {
    match word {
        Verdict::Faster => Tone::Good,
        Verdict::Slower => Tone::Bad,
        Verdict::Same => Tone::Plain,
        Verdict::NotComparable => Tone::Doubtful,
    }
}

/// The comparison of the compiled arm at the native batch with native.
fn compiled(report: &Report) -> Option<&Comparison> {
    let compiled = report.arms.iter().find(|arm| arm.role == Role::Compiled)?;
    report.comparisons.iter().find(|comparison| comparison.arm == compiled.name)
}

/// "Should I compile?", answered from the verdict with its interval, the length of the run and the
/// losses; none for a report without a compiled arm at the native batch.
fn answer(report: &Report) -> Option<Statement> {
    let arm = report.arms.iter().find(|arm| arm.role == Role::Compiled)?;
    let Some(comparison) = compiled(report) else {
        let why = arm.failure.as_deref().unwrap_or("there is nothing to compare");
        return Some(Statement::new(Tone::Doubtful, format!("Should I compile? This cannot be said: {why}.")));
    };
    let Some(speedup) = comparison.speedup.filter(|_| comparison.verdict != Verdict::NotComparable) else {
        let reason = comparison.reason.as_deref().unwrap_or("no reason is known");
        let sentence = format!("Should I compile? This cannot be said: the two are not comparable ({reason}).");
        return Some(Statement::new(Tone::Doubtful, sentence));
    };
    let ratio = format!("{:.2}x (98 % interval {:.2} to {:.2})", speedup.ratio, speedup.low, speedup.high);
    let (pays, steps) = (report.derived.break_even_step, report.whole.map(|whole| whole.steps));
    let run = steps.map_or("the run".into(), |steps| format!("the {steps} steps of the run"));
    let (mut tone, answer) = match (comparison.verdict, pays) {
        (Verdict::Faster, Some(step)) if steps.is_none_or(|steps| step <= steps as f64) => {
            let when = if step < 1.0 { "from the start on".into() } else { format!("after step {step:.0} of {run}") };
            (Tone::Good, format!("Yes: compiled is {ratio} as fast as native and has paid for its start {when}"))
        }
        (Verdict::Faster, Some(step)) => {
            let late = format!("has paid for its start after step {step:.0} only, which is beyond {run}");
            (Tone::Plain, format!("Not for a run this short: compiled is {ratio} as fast as native, but {late}"))
        }
        (Verdict::Faster, None) => (
            Tone::Plain,
            format!(
                "Perhaps: compiled is {ratio} as fast as native, and when it has paid for its start was not measured"
            ),
        ),
        (Verdict::Slower, _) => (Tone::Bad, format!("No: compiled is slower, {ratio} as fast as native")),
        // An interval that is as wide as that hides a gain or a loss that somebody would want.
        (Verdict::Same | Verdict::NotComparable, _) if speedup.high / speedup.low > 1.2 => {
            let more = "the interval is wide, and more --repeats or a quieter machine would narrow it";
            (Tone::Doubtful, format!("Nothing speaks for it yet: no difference could be measured, {ratio}; {more}"))
        }
        (Verdict::Same | Verdict::NotComparable, _) => {
            (Tone::Plain, format!("No: it makes no measurable difference here, {ratio}"))
        }
    };
    let parity = comparison.parity.as_ref().map_or("; whether both learn the same was not measured".into(), |parity| {
        if !parity.passed {
            tone = Tone::Bad;
        }
        let agree = if parity.passed { "agree" } else { "do NOT agree" };
        format!("; their losses {agree} ({})", parity_in_words(parity))
    });
    Some(Statement::new(tone, format!("Should I compile? {answer}{parity}.")))
}

/// The name of a figure of evaluations for people: `validation loss`.
pub(super) fn validation(name: &str) -> String {
    format!("validation {}", name.trim_start_matches("eval_").replace('_', " "))
}

/// "Which is better?", answered from the validation figures of finished runs; none for others.
fn best(report: &Report) -> Option<Statement> {
    const QUESTION: &str = "Which is better?";
    if let [comparison] = &report.comparisons[..] {
        let learned = comparison.learned.as_ref()?;
        let (tone, sentence) = which_is_better(comparison, learned);
        let sentence = learned.reason.as_ref().map_or(sentence, |reason| format!("This cannot be said: {reason}"));
        return Some(Statement::new(tone, format!("{QUESTION} {sentence}.")));
    }
    let learned = report.comparisons.iter().map(|comparison| Some((comparison, comparison.learned.as_ref()?)));
    let learned = learned.collect::<Option<Vec<_>>>().filter(|learned| !learned.is_empty())?;
    let reasons = learned.iter().filter_map(|(comparison, learned)| {
        Some(format!("{} against {}: {}", comparison.arm, comparison.against, learned.reason.as_ref()?))
    });
    let reasons = reasons.collect::<Vec<_>>();
    let left_out = if reasons.is_empty() { String::new() } else { format!(". Left out: {}", reasons.join("; ")) };
    let compared = learned.into_iter().filter(|(_, learned)| learned.reason.is_none()).collect::<Vec<_>>();
    let Some((first, figures)) = compared.first() else {
        let sentence = format!("{QUESTION} This cannot be said: {}.", reasons.join("; "));
        return Some(Statement::new(Tone::Doubtful, sentence));
    };
    // The first figure that all have, with the value of each.
    let common = figures.deciding().find_map(|figure| {
        let value = |(comparison, learned): &(&Comparison, &Learned)| {
            let own = learned.deciding().find(|own| own.name == figure.name)?;
            Some((comparison.arm.clone(), own.values[0]))
        };
        let values = compared.iter().map(value).collect::<Option<Vec<_>>>()?;
        Some((figure, figure.greater_is_better?, values))
    });
    let Some((figure, greater, values)) = common else {
        let each = compared.iter().map(|(comparison, learned)| {
            let names = learned.deciding().map(|figure| validation(&figure.name)).collect::<Vec<_>>();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            format!("{} against {}: {names}", comparison.arm, comparison.against)
        });
        let each = each.collect::<Vec<_>>().join("; ");
        let sentence = format!("{QUESTION} This cannot be said: no figure compares in all of them ({each}){left_out}.");
        return Some(Statement::new(Tone::Doubtful, sentence));
    };
    let mut ranked = vec![(first.against.clone(), figure.values[1])];
    ranked.extend(values);
    // A value that is no number is worse than any.
    let worth = |value: f64| if greater { -value } else { value };
    ranked.sort_by(|(_, a), (_, b)| a.is_nan().cmp(&b.is_nan()).then(worth(*a).total_cmp(&worth(*b))));
    let best = ranked[0].1;
    let tied = ranked.iter().filter(|(_, value)| *value == best || best.is_nan());
    let tied = tied.map(|(arm, _)| arm.as_str()).collect::<Vec<_>>();
    let winner = match &tied[..] {
        [winner] => (*winner).to_string(),
        several if best.is_nan() => format!("neither {}", several.join(" nor ")),
        several => format!("neither {}, which are equal", several.join(" nor ")),
    };
    let tone = match tied.len() {
        _ if !reasons.is_empty() => Tone::Doubtful,
        1 => Tone::Good,
        _ => Tone::Plain,
    };
    let list = ranked.iter().map(|(arm, value)| {
        let short = significant(*value);
        let longer = ranked.iter().map(|(_, other)| apart([*value, *other])).find(|[text, _]| *text != short);
        format!("{arm} {}", longer.map_or(short, |[text, _]| text))
    });
    let list = list.collect::<Vec<_>>().join(", ");
    let by = validation(&figure.name);
    Some(Statement::new(tone, format!("{QUESTION} {winner}, by the {by} at the end: {list}{left_out}.")))
}

/// Which of two finished runs is better, after as many steps and at the end.
fn which_is_better(comparison: &Comparison, learned: &Learned) -> (Tone, String) {
    if let Some(reason) = &learned.reason {
        return (Tone::Doubtful, format!("this cannot be said: {reason}"));
    }
    let moments = [(&learned.equal_steps, false), (&learned.end, true)];
    let moments = moments.into_iter().filter_map(|(evaluated, is_end)| Some((evaluated.as_ref()?, is_end)));
    let judged = moments.map(|(evaluated, is_end)| {
        let winner = evaluated.decisive().and_then(|figure| figure.better());
        // The winner's values come first.
        let first = winner.unwrap_or(0);
        let when = match [evaluated.steps[first], evaluated.steps[1 - first]] {
            [step, other] if step == other && is_end => format!("at the end, after {step} steps"),
            [step, other] if is_end => format!("at the end, after {step} and {other} steps"),
            [step, _] => format!("after {step} steps each"),
        };
        let known = evaluated.figures.iter().filter(|figure| figure.greater_is_better.is_some());
        let figures = known.enumerate().map(|(at, figure)| {
            let name = validation(&figure.name);
            let name = if at == 0 { name.as_str() } else { name.trim_start_matches("validation ") };
            let [value, other] = apart([figure.values[first], figure.values[1 - first]]);
            let but = if winner.is_some() && figure.better() == Some(1 - first) { "but " } else { "" };
            format!("{but}{name} {value} against {other}")
        });
        (winner, when, figures.collect::<Vec<_>>().join(", "))
    });
    let judged = judged.collect::<Vec<_>>();
    let name = |winner: Option<usize>| match winner {
        Some(0) => comparison.arm.as_str(),
        Some(_) => comparison.against.as_str(),
        None => "neither",
    };
    match &judged[..] {
        [(winner, when, figures), (also, then, more)] if winner == also => (
            if winner.is_some() { Tone::Good } else { Tone::Plain },
            format!("{}, {when} ({figures}) and {then} ({more})", name(*winner)),
        ),
        [(winner, when, figures)] => {
            (if winner.is_some() { Tone::Good } else { Tone::Plain }, format!("{}, {when} ({figures})", name(*winner)))
        }
        several => {
            let each = several.iter().map(|(winner, when, figures)| format!("{} {when} ({figures})", name(*winner)));
            (Tone::Plain, each.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Two values with four significant digits, or all digits where they would read as equal.
fn apart(values: [f64; 2]) -> [String; 2] {
    let [a, b] = values.map(significant);
    if a == b && values[0] != values[1] && !values[0].is_nan() { values.map(|value| value.to_string()) } else { [a, b] }
}

/// Every row that has something.
fn table(report: &Report) -> Table {
    let mut rows = Rows::new(&report.arms);
    let equal = report.derived.equal;
    let moment = |pick: fn(&Moments<f64>) -> f64| equal.as_ref().map_or(0.0, pick);
    let at = |pick: fn(&Moments<Option<f64>>) -> Option<f64>| {
        move |arm: &ArmReport| arm.loss_at_equal.as_ref().and_then(pick)
    };
    let evaluation = |arm: &ArmReport, name: &str| arm.evaluation.as_ref()?.get(name);
    let after = |arm: &ArmReport, step: f64, name: &str| {
        arm.evaluations.iter().rev().find(|row| row.get("step") == Some(step))?.get(name)
    };
    let steps_of = |arm: &ArmReport| arm.evaluations.iter().filter_map(|row| row.get("step")).collect::<Vec<_>>();
    let common = report.arms.iter().map(steps_of);
    let common = common.reduce(|a, b| a.into_iter().filter(|step| b.contains(step)).collect()).unwrap_or_default();
    // A figure at the end of all is none at an equal step besides.
    let is_end = |step: f64| report.arms.iter().all(|arm| evaluation(arm, "step") == Some(step));
    let common = common.last().copied().filter(|step| *step > 0.0 && !is_end(*step));
    let mut names = Vec::new();
    for name in report.arms.iter().filter_map(|arm| arm.evaluation.as_ref()).flat_map(figure_names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        rows.add(&validation(name), |arm| evaluation(arm, name).map(significant));
        if let Some(step) = common {
            rows.add(&format!("  after {step:.0} steps"), |arm| after(arm, step, name).map(significant));
        }
    }
    rows.number("evaluated after step", 0, |arm| evaluation(arm, "step"));
    rows.add("batch", |arm| match (arm.micro_batch?, arm.accumulation.unwrap_or(1)) {
        (micro, 1) => Some(micro.to_string()),
        (micro, accumulation) => Some(format!("{micro} x {accumulation}")),
    });
    rows.add("learning rate, peak", |arm| arm.learning_rate.map(scientific));
    rows.number("block", 0, |arm| arm.block.map(|block| block as f64));
    rows.add("runs, windows", |arm| Some(format!("{}, {}", arm.repeats, arm.figures.windows)));
    rows.add("failed", |arm| arm.failure.clone());
    rows.number("samples/s", 2, |arm| arm.figures.samples_per_s);
    rows.number("tokens/s", 0, |arm| arm.figures.tokens_per_s);
    rows.number("step ms, median", 1, |arm| arm.step_ms_p50);
    rows.number("step ms, p95", 1, |arm| arm.step_ms_p95);
    rows.number("step ms, max", 1, |arm| arm.step_ms_max);
    rows.number("  data wait", 1, |arm| Some(arm.budget_ms?.data));
    rows.number("  forward", 1, |arm| Some(arm.budget_ms?.forward));
    rows.number("  backward", 1, |arm| Some(arm.budget_ms?.backward));
    rows.number("  communicate", 1, |arm| arm.budget_ms.map(|budget| budget.communicate).filter(|ms| *ms > 0.0));
    rows.number("  update", 1, |arm| Some(arm.budget_ms?.update));
    rows.number("  sync and log", 1, |arm| Some(arm.budget_ms?.sync));
    rows.number("  evaluation, spread", 1, |arm| Some(arm.budget_ms?.evaluation));
    rows.number("  saving, spread", 1, |arm| Some(arm.budget_ms?.save));
    rows.number("warm-up s, first run", 2, |arm| arm.warmup_seconds_first);
    rows.number("warm-up s, later runs", 2, |arm| arm.warmup_seconds_later);
    rows.number("start and end s", 2, |arm| arm.startup_seconds);
    rows.number("peak memory MiB", 0, |arm| arm.figures.peak_mib);
    // An operation on the CPU is a call, and no launch.
    rows.number("kernel launches a step", 0, |arm| arm.figures.kernel_launches_per_step.filter(|count| *count > 0.0));
    rows.number("device reads a step", 1, |arm| arm.figures.device_reads_per_step);
    rows.number("model GFLOP/s", 1, |arm| arm.model_gflops);
    rows.add("of the GEMM peak", |arm| Some(format!("{:.1} %", arm.model_flops_utilization? * 100.0)));
    rows.number("last loss", 4, |arm| arm.last_loss);
    rows.number(&format!("  smoothed, at step {}", moment(|at| at.steps)), 4, at(|at| at.steps));
    rows.number(&format!("  smoothed, at {} tokens", fixed(moment(|at| at.tokens), 0)), 4, at(|at| at.tokens));
    rows.number(&format!("  smoothed, at {:.1} s", moment(|at| at.seconds)), 4, at(|at| at.seconds));
    rows.number("s to the target loss", 1, |arm| arm.seconds_to_target);
    rows.number("billable s, whole run", 0, |arm| arm.billable_seconds);
    rows.number("cost, whole run", 4, |arm| arm.cost);
    rows.number("energy Wh, whole run", 4, |arm| arm.energy_wh);
    rows.table(|arm| &arm.name)
}

/// The share by which losses differ, and how many of them were held against each other.
fn parity_in_words(parity: &Parity) -> String {
    let which = if parity.by_mean { "the means of " } else { "" };
    format!(
        "{which}{} losses differ by {:.1e} relative at most, limit {:.0e}",
        parity.losses, parity.relative, parity.limit
    )
}

/// A comparison in a sentence. Where the answer of the report has the speed-up (`answered`), the
/// sentence is about time and throughput alone, and there is none without a difference.
fn sentence(comparison: &Comparison, answered: bool) -> Option<String> {
    let Comparison { arm, against, verdict, .. } = comparison;
    let subject = format!("{arm} against {against}");
    let Some(speedup) = comparison.speedup.filter(|_| *verdict != Verdict::NotComparable) else {
        let reason = comparison.reason.as_deref().unwrap_or("no reason is known");
        return (!answered).then(|| format!("{subject}: {verdict} ({reason})"));
    };
    if comparison.learned.is_some() {
        return Some(format!(
            "{subject}: {:.3}x as fast, 98 % interval {:.3} to {:.3}; the times come from different starts, so that the machine and its load may \
             make the difference (`kiln compare` runs both by turns)",
            speedup.ratio, speedup.low, speedup.high
        ));
    }
    let interval = format!("; {:.3}x, 98 % interval {:.3} to {:.3}", speedup.ratio, speedup.low, speedup.high);
    let interval = if answered { String::new() } else { interval };
    let billable = comparison.billable_saved_percent;
    let billable = billable.map_or(String::new(), |saved| format!(", billable seconds saved {saved:.1} %"));
    let gained = format!(
        "; time saved {:.1} %, throughput gained {:.1} %{billable}",
        comparison.time_saved_percent.unwrap_or(0.0),
        comparison.throughput_gained_percent.unwrap_or(0.0)
    );
    let gained = if *verdict == Verdict::Same { String::new() } else { gained };
    (!(answered && gained.is_empty())).then(|| format!("{subject}: {verdict}{interval}{gained}"))
}

/// A limit of the speed-up that lies above this limits nothing.
const MOST_CEILING: f64 = 10.0;

/// The conclusions from the comparisons, a line each.
fn conclusions(report: &Report) -> Vec<String> {
    let derived = &report.derived;
    let mut lines = Vec::new();
    // The answer says it where there is one batch.
    let has_batches = report.arms.iter().any(|arm| arm.role == Role::CompiledLarge);
    if let Some(advice) = derived.advice.as_ref().filter(|_| has_batches) {
        lines.push(format!("Advice: {advice}."));
    }
    if let (Some(total), Some(compiler), Some(batch)) =
        (derived.total_speedup, derived.compiler_share, derived.batch_share)
    {
        lines.push(format!("Speed-up {total:.3} = compiler {compiler:.3} x batch {batch:.3}{}.", in_the_noise(report)));
    }
    if let (Some(native), Some(interaction)) = (derived.native_batch_share, derived.interaction) {
        lines.push(format!("The larger batch alone gives native {native:.3}; interaction {interaction:.3}."));
    }
    if let Some(step) = derived.break_even_step {
        let later =
            derived.break_even_step_later.map_or(String::new(), |step| format!(" ({step:.0} with warm caches)"));
        lines.push(format!("Break-even: compiling has paid for its start after step {step:.0}{later}."));
    }
    if let (Some(ceiling), Some(share)) =
        (derived.ceiling.filter(|ceiling| *ceiling <= MOST_CEILING), derived.compute_share)
    {
        lines.push(format!(
            "Limit of compiling: {:.1} % of the native step is forward, backward and update; the rest stays as it is, so no \
             compiler can give more than {ceiling:.1}x at this batch.",
            share * 100.0
        ));
    }
    let answered = answer(report).and_then(|_| compiled(report));
    let is_new = |comparison: &&Comparison| answered.is_none_or(|answered| answered.arm != comparison.arm);
    let checked = report.comparisons.iter().filter(is_new);
    let checked = checked.filter_map(|comparison| Some((comparison, comparison.parity.as_ref()?)));
    // Ablations and sweeps are many, and worth a word each only where they fail.
    let is_extra = |arm: &str| {
        let arm = report.arms.iter().find(|other| other.name == arm);
        arm.is_some_and(|arm| matches!(arm.role, Role::Ablation | Role::Sweep))
    };
    let (mut extra, mut largest) = (0, 0.0f64);
    for (comparison, parity) in checked {
        if parity.passed && is_extra(&comparison.arm) {
            (extra, largest) = (extra + 1, largest.max(parity.relative));
            continue;
        }
        lines.push(format!(
            "Loss parity, {} against {}: {}: {}.",
            comparison.arm,
            comparison.against,
            parity_in_words(parity),
            if parity.passed { "passed" } else { "failed" }
        ));
    }
    if extra > 0 {
        lines.push(format!(
            "Loss parity of {extra} arms of ablation and sweep: passed, they differ by {largest:.1e} relative at most."
        ));
    }
    if let Some(target) = derived.target_loss {
        lines.push(format!("Target loss: {target:.4} (smoothed over 5 log rows)."));
    }
    if let Some(gemm) = report.gemm_gflops {
        lines.push(format!(
            "The device reaches {gemm:.0} GFLOP/s in a product of 2048 x 2048 f32 matrices. Model FLOP: 6 x weights that \
             multiply + 12 x layers x width x length a token."
        ));
    }
    lines
}

/// A remark that names the share of a product of speed-ups, or the whole, that is within the noise;
/// empty where none is.
fn in_the_noise(report: &Report) -> String {
    let of = |role: Role| report.arms.iter().find(|arm| arm.role == role);
    let same = |role: Role| {
        let arm = of(role)?;
        let comparison = report.comparisons.iter().find(|comparison| comparison.arm == arm.name)?;
        (comparison.verdict == Verdict::Same).then_some(match role {
            Role::Compiled => "the compiler's share",
            _ => "the whole",
        })
    };
    let same = [Role::Compiled, Role::CompiledLarge].into_iter().filter_map(same).collect::<Vec<_>>();
    if same.is_empty() { String::new() } else { format!("; {} is within the noise", same.join(" and ")) }
}

/// Labelled differences of the arms, a line each.
fn differences(report: &Report) -> Vec<String> {
    let of = |comparison: &Comparison| {
        let pair = format!("{} against {}", comparison.against, comparison.arm);
        comparison.differences.iter().map(move |difference| format!("{pair}: {difference}")).collect::<Vec<_>>()
    };
    report.comparisons.iter().flat_map(of).collect()
}

/// Machine and program, for provenance: a line for what all arms share, and one for each arm.
fn provenance(report: &Report) -> Vec<String> {
    let mut all = report.arms.iter().filter_map(|arm| arm.provenance.as_ref()).map(machine).collect::<Vec<_>>();
    all.dedup();
    let one = (all.len() == 1).then(|| all.remove(0));
    let each = report.arms.iter().map(|arm| match (&arm.provenance, &one) {
        (None, _) if arm.failure.is_some() => format!("{}: it has no run", arm.name),
        (None, _) => format!("{}: unknown, the run was made by an earlier Kiln", arm.name),
        (Some(it), Some(_)) => format!("{}: {}", arm.name, own(it)),
        (Some(it), None) => format!("{}: {}; {}", arm.name, own(it), machine(it)),
    });
    one.iter().cloned().chain(each).collect()
}

/// Program and machine of a run.
pub(super) fn machine(it: &Provenance) -> String {
    let memory = it.memory_mib.map_or(String::new(), |mib| format!(", {:.0} GiB", mib / 1024.0));
    format!(
        "kiln {}, commit {} ({} build), Burn {}; {}{}; {}, {} threads{memory}; {}",
        it.kiln,
        it.commit.as_deref().unwrap_or("unknown"),
        it.build,
        it.burn,
        it.device,
        match &it.driver {
            Some(driver) => format!(", driver {driver}"),
            None if it.device.starts_with("cpu") => String::new(),
            None => ", driver unknown".into(),
        },
        it.cpu.as_deref().unwrap_or("processor unknown"),
        it.threads,
        it.system,
    )
}

/// The mode, the fused operators and the config of a run.
pub(super) fn own(it: &Provenance) -> String {
    let fused = match &it.fused_operators {
        Some(fused) if !fused.is_empty() => format!("fused {}", fused.join(", ")),
        None if it.fused_ops => "fused operators".into(),
        _ => "no fused operators".into(),
    };
    format!("{} with {fused}; config {}", it.mode, it.config_sha256.get(..12).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::compare::{Derived, Evaluated, Figure, WholeRun};
    use crate::stats::Interval;

    /// A comparison of compiled with native, whose run has 500 steps.
    fn compared(verdict: Verdict, speedup: [f64; 3], pays: Option<f64>, parity: Option<bool>) -> Report {
        let arm = |name: &str, role| ArmReport { name: name.into(), role, ..ArmReport::default() };
        let [ratio, low, high] = speedup;
        let parity = parity.map(|passed| Parity {
            passed,
            max_delta: 1e-6,
            relative: 1e-6,
            limit: 1e-4,
            losses: 20,
            by_mean: false,
        });
        Report {
            schema: String::new(),
            title: String::new(),
            made_at: String::new(),
            arms: vec![arm("native", Role::Reference), arm("compiled", Role::Compiled)],
            noise: None,
            comparisons: vec![Comparison {
                arm: "compiled".into(),
                against: "native".into(),
                verdict,
                reason: Some("the losses differ".into()),
                speedup: (verdict != Verdict::NotComparable).then_some(Interval { ratio, low, high }),
                time_saved_percent: None,
                throughput_gained_percent: None,
                billable_saved_percent: None,
                learned: None,
                parity,
                differences: Vec::new(),
            }],
            derived: Derived { break_even_step: pays, ..Derived::default() },
            whole: Some(WholeRun { steps: 500, samples: 4000, evaluations: 0, saves: 1 }),
            gemm_gflops: None,
            price_per_hour: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn whether_to_compile_is_answered_in_a_sentence() {
        let of = |verdict, speedup, pays, parity| {
            let answer = answer(&compared(verdict, speedup, pays, parity)).unwrap();
            (answer.tone, answer.sentence)
        };
        let (tone, text) = of(Verdict::Faster, [1.25, 1.2, 1.3], Some(120.0), Some(true));
        assert_eq!(
            (tone, text.as_str()),
            (
                Tone::Good,
                "Should I compile? Yes: compiled is 1.25x (98 % interval 1.20 to 1.30) as fast as native and has paid for its \
                 start after step 120 of the 500 steps of the run; their losses agree (20 losses differ by 1.0e-6 relative at most, limit \
                 1e-4)."
            )
        );
        let (tone, text) = of(Verdict::Faster, [1.25, 1.2, 1.3], Some(900.0), None);
        assert!(
            tone == Tone::Plain && text.contains("Not for a run this short") && text.contains("step 900"),
            "{text}"
        );
        let (tone, text) = of(Verdict::Faster, [1.25, 1.2, 1.3], Some(0.0), Some(false));
        assert!(tone == Tone::Bad && text.contains("from the start on; their losses do NOT agree"), "{text}");
        let (tone, text) = of(Verdict::Slower, [0.8, 0.7, 0.9], None, Some(true));
        assert!(tone == Tone::Bad && text.contains("No: compiled is slower, 0.80x"), "{text}");
        let (tone, text) = of(Verdict::Same, [1.0, 0.99, 1.01], None, Some(true));
        assert!(tone == Tone::Plain && text.contains("No: it makes no measurable difference"), "{text}");
        let (tone, text) = of(Verdict::Same, [1.4, 0.6, 3.0], None, Some(true));
        assert!(tone == Tone::Doubtful && text.contains("more --repeats"), "{text}");
        let (tone, text) = of(Verdict::NotComparable, [1.0; 3], None, None);
        assert!(tone == Tone::Doubtful && text.contains("not comparable (the losses differ)"), "{text}");
    }

    /// The names of figures with the values of a run and of run `a`, or the reason why the two do
    /// not compare.
    type Figures<'a> = Result<&'a [(&'a str, [f64; 2])], &'a str>;

    /// The answer about run `a` and others.
    fn best_of(others: &[(&str, Figures)]) -> (Tone, String) {
        let mut report = compared(Verdict::NotComparable, [1.0; 3], None, None);
        let pattern = report.comparisons.remove(0);
        report.comparisons.extend(others.iter().map(|(name, figures)| {
            let figure = |(name, values): &(&str, [f64; 2])| Figure {
                name: (*name).into(),
                values: *values,
                greater_is_better: Some(*name != "eval_loss"),
            };
            let learned = match figures {
                Ok(figures) => {
                    let figures = figures.iter().map(figure).collect();
                    Learned { end: Some(Evaluated { steps: [7, 7], figures }), ..Learned::default() }
                }
                Err(reason) => Learned { reason: Some((*reason).into()), ..Learned::default() },
            };
            Comparison { arm: (*name).into(), against: "a".into(), learned: Some(learned), ..pattern.clone() }
        }));
        let best = best(&report).unwrap();
        (best.tone, best.sentence)
    }

    #[test]
    fn of_many_runs_a_figure_of_all_names_the_best() {
        let loss = |value: f64| ("eval_loss", [value, 0.5]);
        let accuracy = |value: f64| ("eval_accuracy", [value, 0.8]);
        // The loss of c is of other label smoothing.
        let (b, c) = ([loss(0.4), accuracy(0.7)], [accuracy(0.9)]);
        let (of_b, of_c): (Figures, Figures) = (Ok(&b[..]), Ok(&c[..]));
        for order in [[("b", of_b), ("c", of_c)], [("c", of_c), ("b", of_b)]] {
            let said = "Which is better? c, by the validation accuracy at the end: c 0.9000, a 0.8000, b 0.7000.";
            assert_eq!(best_of(&order), (Tone::Good, said.to_string()));
        }
        let said = "Which is better? b, by the validation loss at the end: b 0.4000, a 0.5000. Left out: c against a: no data.";
        assert_eq!(best_of(&[("c", Err("no data")), ("b", of_b)]), (Tone::Doubtful, said.to_string()));
        let said = "Which is better? This cannot be said: no figure compares in all of them (b against a: validation loss; c \
                    against a: validation accuracy).";
        assert_eq!(best_of(&[("b", Ok(&b[..1])), ("c", of_c)]), (Tone::Doubtful, said.to_string()));
        let said = "Which is better? This cannot be said: b against a: no data; c against a: no labels.";
        assert_eq!(best_of(&[("b", Err("no data")), ("c", Err("no labels"))]), (Tone::Doubtful, said.to_string()));
    }

    #[test]
    fn equal_runs_have_no_best_one() {
        let of = |[a, b, c]: [f64; 3]| {
            let [b, c] = [b, c].map(|value| [("eval_loss", [value, a])]);
            let (tone, text) = best_of(&[("b", Ok(&b[..])), ("c", Ok(&c[..]))]);
            (tone, text.replace("Which is better? ", "").replace(", by the validation loss at the end", ""))
        };
        let cases = [
            ([0.5; 3], Tone::Plain, "neither a nor b nor c, which are equal: a 0.5000, b 0.5000, c 0.5000."),
            ([0.6, 0.5, 0.5], Tone::Plain, "neither b nor c, which are equal: b 0.5000, c 0.5000, a 0.6000."),
            ([f64::NAN; 3], Tone::Plain, "neither a nor b nor c: a NaN, b NaN, c NaN."),
            ([f64::NAN, f64::INFINITY, 0.5], Tone::Good, "c: c 0.5000, b inf, a NaN."),
            ([0.123_451, 0.123_452, 0.7], Tone::Good, "a: a 0.123451, b 0.123452, c 0.7000."),
        ];
        for (values, tone, text) in cases {
            assert_eq!(of(values), (tone, text.to_string()), "{values:?}");
        }
    }
}
