//! `kiln bisect FILE`: which column of the compiler's table makes compiled differ from native, or
//! makes it slower. Each of Kiln's fused operators is made plain by itself, and what else the
//! device has (Burn's fusion, its tuning, captured steps) is switched off by itself; that without
//! which the difference is gone is to blame. Where nothing is, every operator is fused by itself,
//! which finds those that are wrong together.

use kiln::config::{CompilerMode, RunConfig};
use kiln::engine::compiler::columns::{Column, only};
use kiln_core::error::{Error, Result};
use kiln_models::Operator;

use kiln_train::trial::report::{Parity, report};

use super::parity::{Runner, computed_and_captured, in_mode};
use kiln_train::trial::probe::{Look, Probe};

/// Compiled counts as slower when a step takes this much longer than native, relative, or the noise
/// of two native runs.
const SLOWER: f64 = 0.05;

/// Milliseconds that the steps of a timing take together, so that what else the machine does lasts
/// no longer than some of them: short steps are made more often.
const TIMED_MS: f64 = 500.0;

/// The most steps of a timing.
const MOST_TIMED: usize = 100;

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Compiled computes what native does, and is not slower.
    Nothing {
        /// The comparison.
        parity: Box<Parity>,
        /// Median time of a step in milliseconds, native and compiled.
        step_ms: [f64; 2],
    },
    /// Compiled differs because of these columns; none means that no single one is to blame.
    Wrong {
        /// The comparison with everything on.
        parity: Box<Parity>,
        /// The columns.
        columns: Vec<Column>,
        /// All of them have to be off for the difference to go; otherwise any one of them.
        together: bool,
    },
    /// Compiled is slower because of these columns; none means that no single one is to blame.
    Slow {
        /// Median time of a step in milliseconds, native and compiled.
        step_ms: [f64; 2],
        /// The columns, each with the time of a step without it.
        columns: Vec<(Column, f64)>,
    },
}

/// Looks for the column that makes compiled differ in the first `steps` steps of the run of
/// `config`, or makes it slower. `runner` makes the probes; `said` is told every one.
///
/// # Errors
/// An error of a probe; a compiled mode of which nothing is on.
pub fn bisect(
    config: &RunConfig,
    steps: usize,
    runner: &mut Runner<'_>,
    said: &mut dyn FnMut(&str),
) -> Result<Finding> {
    let native = in_mode(config, CompilerMode::Native);
    let first = runner(&native, steps, Look::Figures)?;
    let again = runner(&native, steps, Look::Figures)?;
    let compiled = in_mode(config, CompilerMode::Compiled);
    let all = computed_and_captured(&compiled, steps, runner)?;
    let fused = Operator::ALL.into_iter().filter(|operator| all.0.fused.iter().any(|name| name == operator.name()));
    let fused = fused.collect::<Vec<_>>();
    let settings = compiled.trainer.compiler.clone().unwrap_or_default();
    // The operators are columns by themselves here.
    let on = Column::on(&settings, all.0.device, &[]).into_iter();
    let on = on.filter(|column| *column != Column::Graph || all.0.captures);
    let columns = fused.iter().copied().map(Column::Operator).chain(on).collect::<Vec<_>>();
    if columns.is_empty() {
        return Err(Error::config(
            "nothing of the compiler is on for this run on this device, so there is nothing to turn off",
        )
        .help(
            "`kiln plan FILE --set compiler.enabled=true` shows what could be; compiler.fused_ops = \"on\" for one",
        ));
    }
    let parity = report(&first, &again, &all)?;
    // A difference that shows in computed steps is searched for in computed steps. A difference
    // that shows in captured steps alone is searched for in captured steps: turning off a column
    // without which no step is captured would hide the difference without being its cause.
    let computed = report(&first, &again, &(all.0.clone(), None))?.difference.is_some();
    let without = |column: Column| {
        let mut config = compiled.clone();
        column.switch_off(config.trainer.compiler.get_or_insert_default(), &fused);
        config
    };
    if parity.difference.is_some() {
        let mut same = |config: &RunConfig, what: String, may_compute: bool| -> Result<bool> {
            let probes = if computed {
                (runner(config, steps, Look::Figures)?, None)
            } else {
                computed_and_captured(config, steps, runner)?
            };
            if !computed && !may_compute && probes.1.is_none() {
                said(&format!("{what}: no step is captured"));
                return Ok(false);
            }
            let difference = report(&first, &again, &probes)?.difference;
            said(&match &difference {
                None => format!("{what}: the same as native"),
                Some(difference) => format!("{what}: {difference}"),
            });
            Ok(difference.is_none())
        };
        let (mut to_blame, mut together) = (Vec::new(), false);
        for column in &columns {
            if same(&without(*column), format!("without {column}"), *column == Column::Graph)? {
                to_blame.push(*column);
            }
        }
        // Together, if without all of them there is no difference.
        if to_blame.is_empty()
            && !fused.is_empty()
            && same(&without(Column::Operators), format!("without {}", Column::Operators), false)?
        {
            together = true;
            for operator in &fused {
                let mut alone = compiled.clone();
                alone.trainer.compiler.get_or_insert_default().fused_ops = only(vec![*operator]);
                if !same(&alone, format!("{} alone", operator.name()), true)? {
                    to_blame.push(Column::Operator(*operator));
                }
            }
        }
        return Ok(Finding::Wrong { parity: Box::new(parity), columns: to_blame, together });
    }
    let mut time =
        |config: &RunConfig, steps: usize| runner(config, steps, Look::Times).map(|probe: Probe| probe.median_ms());
    // A median needs some steps; the first is left out.
    let least = steps.max(6);
    let timed = least.max(MOST_TIMED.min((TIMED_MS / time(&native, least)?) as usize));
    let natives = [time(&native, timed)?, time(&native, timed)?];
    let compiled_ms = time(&compiled, timed)?;
    let native_ms = natives[0].min(natives[1]);
    let noise = (natives[0] - natives[1]).abs() / native_ms;
    let step_ms = [native_ms, compiled_ms];
    said(&format!("native {native_ms:.2} ms a step, compiled {compiled_ms:.2} ms"));
    let limit = native_ms * (1.0 + SLOWER.max(noise));
    if compiled_ms <= limit {
        return Ok(Finding::Nothing { parity: Box::new(parity), step_ms });
    }
    let mut to_blame = Vec::new();
    for column in columns {
        let ms = time(&without(column), timed)?;
        said(&format!("without {column}: {ms:.2} ms a step"));
        if ms <= limit {
            to_blame.push((column, ms));
        }
    }
    Ok(Finding::Slow { step_ms, columns: to_blame })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::FloatDType;

    use super::*;
    use kiln::config::DeviceKind;
    use kiln::engine::operators;
    use kiln_train::trial::figures::{StepFigures, TensorFigures};

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        config.trainer.set_compiler(CompilerMode::Compiled);
        config
    }

    /// The columns of `config` on a device of kind `kind`, with every operator by itself.
    fn columns(config: &RunConfig, kind: DeviceKind) -> Vec<Column> {
        let compiled = |compiler: &&kiln::config::TrainingCompilerConfig| compiler.enabled == CompilerMode::Compiled;
        let Some(compiler) = config.trainer.compiler.as_ref().filter(compiled) else { return Vec::new() };
        let fused = operators::fused(&compiler.fused_ops, kind, FloatDType::F32);
        let on = Column::on(compiler, kind, &fused);
        fused.into_iter().map(Column::Operator).chain(on).collect()
    }

    /// A machine on which the columns `wrong` spoil the loss, captured steps only where steps are
    /// captured, and the columns `slow` take 10 ms more.
    fn machine<'a>(
        kind: DeviceKind,
        wrong: &'a [Column],
        slow: &'a [Column],
    ) -> impl FnMut(&RunConfig, usize, Look) -> Result<Probe> + 'a {
        move |config, steps, look| {
            let on = columns(config, kind);
            // As the device has it: dropout of plain operators is not captured, nor is a step
            // without fusion.
            let operators = [Operator::Dropout, Operator::Attention].map(Column::Operator);
            let captures = [Column::Graph, Column::Fusion].iter().chain(&operators).all(|it| on.contains(it));
            let met = |column: &&Column| {
                on.contains(column) && (**column != Column::Graph || (captures && look != Look::Figures))
            };
            let spoiled = wrong.iter().filter(met).count() as f64;
            let gradient = TensorFigures { name: "a".into(), norm: 1.0, projection: 0.5 };
            let gradients = if look == Look::Figures { vec![gradient] } else { Vec::new() };
            let step = StepFigures { loss: 2.0 + spoiled, gradients, changes: Vec::new() };
            let ms = 20.0 + 10.0 * slow.iter().filter(|column| on.contains(column)).count() as f64;
            let step_ms = if look == Look::Times { vec![ms; steps] } else { Vec::new() };
            let fused = on.iter().filter_map(|column| match column {
                Column::Operator(operator) => Some(operator.name().to_owned()),
                _ => None,
            });
            let (fused, device) = (fused.collect(), kind);
            Ok(Probe { device, fused, captures, steps: vec![step; steps], step_ms, ..Probe::default() })
        }
    }

    #[test]
    fn short_steps_are_timed_more_often() {
        for (ms, expected) in [(0.5, 100), (20.0, 25), (400.0, 6)] {
            let mut timed = Vec::new();
            let mut probe = machine(DeviceKind::Cpu, &[], &[]);
            let mut runner = |config: &RunConfig, steps: usize, look: Look| -> Result<Probe> {
                let mut made = probe(config, steps, look)?;
                if look == Look::Times {
                    timed.push(steps);
                    made.step_ms = vec![ms; steps];
                }
                Ok(made)
            };
            let found = bisect(&config(), 3, &mut runner, &mut |_| {}).unwrap();
            assert!(matches!(found, Finding::Nothing { step_ms, .. } if step_ms == [ms, ms]), "{found:?}");
            assert_eq!(timed, [6, expected, expected, expected]);
        }
    }

    #[test]
    fn the_columns_to_blame_are_named() {
        let operator = Column::Operator;
        for kind in [DeviceKind::Cpu, DeviceKind::Wgpu] {
            let find = |wrong: &[Column], slow: &[Column]| {
                bisect(&config(), 3, &mut machine(kind, wrong, slow), &mut |_| {}).unwrap()
            };
            assert!(matches!(find(&[], &[]), Finding::Nothing { step_ms: [20.0, 20.0], .. }));
            let together = vec![operator(Operator::Embedding), operator(Operator::AdamW)];
            let mut faults = vec![vec![operator(Operator::Gelu)], together];
            if kind != DeviceKind::Cpu {
                faults.extend([Column::Fusion, Column::Autotune, Column::Graph].map(|column| vec![column]));
            }
            for wrong in faults {
                let Finding::Wrong { columns, parity, together } = find(&wrong, &[]) else {
                    panic!("{wrong:?} not found")
                };
                assert_eq!((together, &columns), (wrong.len() > 1, &wrong));
                let captured = if wrong == [Column::Graph] { "loss of captured steps" } else { "loss" };
                assert_eq!(
                    (parity.difference.unwrap().what.as_str(), parity.captured.is_some()),
                    (captured, kind != DeviceKind::Cpu)
                );
                let Finding::Slow { columns, step_ms } = find(&[], &wrong[..1]) else { panic!("{wrong:?} not found") };
                assert_eq!((columns, step_ms), (vec![(wrong[0], 20.0)], [20.0, 30.0]));
            }
        }
    }
}
