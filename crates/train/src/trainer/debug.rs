//! `compiler.debug = true`: what the training compiler did in a run, written into `compiler/` of
//! the run folder when the run ends, however it ends, and shown as a table. Which operators were
//! fused and which were not and why, the batch shapes with their counts and first step, device
//! reads by the place that read, and where the build has Burn's fusion, the blocks it fused and the
//! kernels it launched (`observe`). Looking takes time, so rows of such a run carry
//! `timings_not_comparable`, and no report makes a speed-up of it.

use std::fs;
use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{write_json, write_whole};
use kiln_core::host;
use kiln_core::words::duration;
use kiln_models::Operator;
use serde_json::{Value, json};

use crate::engine::handover::Engine;
use crate::plan::TrainPlan;
use crate::reads::DeviceReads;
use crate::run_folder::{COMPILER, COMPILER_FILES};
use crate::session::Session;
use crate::task::TrainingTask;
use crate::trainer::Shapes;

/// The mark of rows whose times are those of no run without `debug`.
pub const MARK: &str = "timings_not_comparable";

/// Looks at a run from now on.
#[derive(Debug)]
pub(crate) struct Watch {
    before: DeviceReads,
    #[cfg(feature = "compiler")]
    observed: crate::engine::compiler::observe::Observed,
}

impl Watch {
    /// For the run of `plan`; none where nobody asked.
    pub(crate) fn start(plan: &TrainPlan) -> Option<Self> {
        plan.engine.debug.then(|| Self {
            before: DeviceReads::now(),
            #[cfg(feature = "compiler")]
            observed: crate::engine::compiler::observe::Observed::start(),
        })
    }

    /// Ends looking: writes what was seen below the run folder `folder` and returns it as lines of
    /// a table.
    pub(crate) fn finish<T: TrainingTask>(
        self,
        session: &Session<T>,
        folder: &Path,
        shapes: &Shapes,
        step: u64,
    ) -> Result<Vec<String>> {
        let plan = session.plan();
        let reads = DeviceReads::now().since(&self.before);
        #[cfg(feature = "compiler")]
        let device = self.observed.finish(&session.device);
        #[cfg(not(feature = "compiler"))]
        let device = Value::Null;
        let operators = operators(plan);
        let report = json!({
            "schema": "kiln.compiler-debug/1",
            "timings": "not comparable: compiler.debug",
            "kiln_version": env!("CARGO_PKG_VERSION"),
            "engine": Engine::this(),
            "device": plan.engine.device.describe(),
            "steps": step,
            "parts": plan.engine.parts,
            "operators": operators_to_json(&operators),
            "shapes": shapes.to_json(),
            "device_reads": reads.sites().iter().map(|(site, count)| json!({ "site": site, "reads": count })).collect::<Value>(),
            "burn": device,
        });
        let lines = table(&report, &operators, &reads, step);
        let target = folder.join(COMPILER);
        fs::create_dir_all(&target).map_err(|error| Error::io(format!("write {}", target.display()), &error))?;
        let [as_json, summary] = COMPILER_FILES.map(|name| target.join(name));
        write_json(&as_json, &report)?;
        write_whole(&summary, (lines.join("\n") + "\n").as_bytes())?;
        Ok(lines)
    }
}

/// Every operator of Kiln's, with why it is not fused where it is not.
fn operators(plan: &TrainPlan) -> Vec<(Operator, Option<String>)> {
    let why = |operator: Operator| plan.engine.plain_operators.get(operator.name()).cloned();
    Operator::ALL.into_iter().map(|operator| (operator, why(operator))).collect()
}

fn operators_to_json(operators: &[(Operator, Option<String>)]) -> Value {
    let operator = |(operator, why): &(Operator, Option<String>)| {
        let form = if why.is_none() { "fused" } else { "plain" };
        json!({ "operator": operator.name(), "form": form, "because": why })
    };
    operators.iter().map(operator).collect()
}

/// The choices by which the run of `plan` computes: the form of each operator, and on a CPU the
/// instructions of products in bf16 and the threads.
pub(super) fn choices(plan: &TrainPlan) -> Value {
    json!({
        "operators": operators_to_json(&operators(plan)),
        "bf16_products": plan.engine.device.bf16_products.map(|unit| unit.name()),
        "threads": host::threads(),
    })
}

/// Rows that are shown of what may have many; the file has all.
const SHOWN: usize = 12;

fn table(report: &Value, operators: &[(Operator, Option<String>)], reads: &DeviceReads, step: u64) -> Vec<String> {
    let mut lines = vec![format!("compiler debug: {step} steps; timings not comparable")];
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<14} {value}"));
    let fused =
        operators.iter().filter(|(_, why)| why.is_none()).map(|(operator, _)| operator.name()).collect::<Vec<_>>();
    line("fused", if fused.is_empty() { "nothing".into() } else { fused.join(", ") });
    for (operator, why) in operators {
        if let Some(why) = why {
            line("not fused", format!("{}: {why}", operator.name()));
        }
    }
    let shapes = report["shapes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for shape in shapes.iter().take(SHOWN) {
        let padded = if shape["padded"] == true { " with padding" } else { "" };
        let first = match shape["first_step"].as_u64() {
            Some(0) => "warmed".to_owned(),
            Some(step) => format!("first in step {step}"),
            None => String::new(),
        };
        let (rows, tokens, batches) = (&shape["rows"], &shape["tokens"], &shape["batches"]);
        line("shape", format!("{rows} x {tokens}{padded}: {batches} batches, {first}"));
    }
    if shapes.len() > SHOWN {
        line("", format!("and {} more shapes", shapes.len() - SHOWN));
    }
    line("device reads", format!("{} in all: rows, evaluations, checkpoints and samples", reads.total()));
    for (site, count) in reads.sites().into_iter().take(SHOWN) {
        line("", format!("{count:>6} by {site}"));
    }
    let burn = &report["burn"];
    if burn.is_null() {
        let absent = report["parts"].as_array().into_iter().flatten().find(|part| part["part"] == "Burn's fusion");
        let why = absent.and_then(|part| part["because"].as_str()).unwrap_or_default();
        line("kernels", format!("not observed: {why}"));
        return lines;
    }
    let count = |name: &str| burn[name].as_u64().unwrap_or(0);
    line(
        "Burn's fusion",
        format!(
            "{} operations in {} fused blocks, {} by themselves",
            count("fused_operations"),
            count("fused_blocks"),
            count("single_operations")
        ),
    );
    line("kernels", format!("{} launches of {} kernels", count("launches"), count("distinct_kernels")));
    let cache = &burn["cache"];
    let number = |name: &str| cache[name].as_f64().unwrap_or(0.0);
    line(
        "kernel cache",
        match cache["hit_rate"].as_f64() {
            _ if cache.is_null() => "not readable, so what was tuned and compiled is not known".into(),
            None => "everything was in it: nothing was tuned or compiled".into(),
            Some(rate) => format!(
                "{} of {} kernels were in it ({:.0} %), {} compiled in {}",
                number("found"),
                number("found") + number("compiled"),
                100.0 * rate,
                number("compiled"),
                duration(number("compile_seconds"))
            ),
        },
    );
    let tunings = cache["tunings"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !tunings.is_empty() {
        line("tuned", format!("{} choices in {}, the longest:", tunings.len(), duration(number("tune_seconds"))));
    }
    for tuning in tunings.iter().take(SHOWN) {
        let (what, winner, tried) = (&tuning["of"], &tuning["winner"], tuning["tried"].as_array().map_or(0, Vec::len));
        let [what, winner] = [what, winner].map(|text| text.as_str().unwrap_or_default());
        line("", format!("{:>8} {what}: {winner}, of {tried}", duration(tuning["seconds"].as_f64().unwrap_or(0.0))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_the_file_holds_and_says_how_much_it_leaves_out() {
        let shape =
            |tokens: usize| json!({ "rows": 4, "tokens": tokens, "padded": true, "batches": 2, "first_step": 3 });
        let mut report = json!({ "shapes": (0..14).map(shape).collect::<Value>(), "parts": [], "burn": null });
        let operators = [(Operator::Gelu, None), (Operator::Linear, Some("precision bf16".to_owned()))];
        let lines = table(&report, &operators, &DeviceReads::default(), 4);
        assert_eq!(lines[0], "compiler debug: 4 steps; timings not comparable");
        assert_eq!(lines[1].trim(), "fused          gelu");
        assert_eq!(lines[2].trim(), "not fused      linear: precision bf16");
        assert_eq!(lines[3].trim(), "shape          4 x 0 with padding: 2 batches, first in step 3");
        assert!(lines.iter().any(|line| line.trim() == "and 2 more shapes"), "{lines:?}");
        report["burn"] = json!({
            "fused_operations": 30, "fused_blocks": 4, "single_operations": 5, "launches": 9, "distinct_kernels": 3,
            "cache": {
                "found": 3, "compiled": 1, "hit_rate": 0.75, "compile_seconds": 0.5, "tune_seconds": 2.0,
                "tunings": [{ "of": "matmul", "winner": "tiled", "seconds": 2.0, "tried": [{}, {}] }],
            },
        });
        let lines = table(&report, &operators, &DeviceReads::default(), 4);
        assert!(
            lines.iter().any(|line| line.contains("30 operations in 4 fused blocks, 5 by themselves")),
            "{lines:?}"
        );
        for said in [
            "9 launches of 3 kernels",
            "3 of 4 kernels were in it (75 %), 1 compiled in 0.5s",
            "1 choices in 2s",
            "      2s matmul: tiled, of 2",
        ] {
            assert!(lines.iter().any(|line| line.contains(said)), "{said}: {lines:?}");
        }
        report["burn"]["cache"] = json!({ "found": 0, "compiled": 0, "hit_rate": null, "tunings": [] });
        let lines = table(&report, &operators, &DeviceReads::default(), 4);
        assert!(lines.iter().any(|line| line.contains("nothing was tuned or compiled")), "{lines:?}");
    }
}
