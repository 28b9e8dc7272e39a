//! The columns of the table that every plan prints, as what can be switched off: all of Kiln's
//! operators or one of them, Burn's fusion, its tuning, captured steps. `kiln bisect` looks among
//! them for the one to blame, `kiln compare --ablate` measures what each is worth.

use kiln_models::Operator;

use crate::engine::compiler::settings::{FusedOps, TrainingCompilerConfig};
use crate::engine::settings::{AutotuneLevel, DeviceKind, Switch};

/// A column, or one operator of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Kiln's fused operators, all of them.
    Operators,
    /// One of them.
    Operator(Operator),
    /// Burn's fusion.
    Fusion,
    /// Burn's autotune, which cannot be switched off but told to try as little as it can.
    Autotune,
    /// Captured steps.
    Graph,
}

impl Column {
    /// The columns that are on under `compiler` on a device of kind `kind` where the operators
    /// `fused` are, in the order of the table.
    pub fn on(compiler: &TrainingCompilerConfig, kind: DeviceKind, fused: &[Operator]) -> Vec<Self> {
        let is_gpu = kind != DeviceKind::Cpu;
        let columns = [
            (Self::Operators, !fused.is_empty()),
            (Self::Fusion, is_gpu && compiler.fusion != Switch::Off),
            (Self::Autotune, is_gpu && compiler.autotune != AutotuneLevel::Minimal),
            (Self::Graph, is_gpu && compiler.graph != Switch::Off),
        ];
        columns.into_iter().filter(|(_, is_on)| *is_on).map(|(column, _)| column).collect()
    }

    /// Switches it off; an operator alone out of `fused`, those that are fused. Captured steps need
    /// some of the others, so they are not insisted on.
    pub fn switch_off(self, compiler: &mut TrainingCompilerConfig, fused: &[Operator]) {
        if compiler.graph == Switch::On {
            compiler.graph = Switch::Auto;
        }
        match self {
            Self::Operators => compiler.fused_ops = Switch::Off.into(),
            Self::Operator(operator) => {
                compiler.fused_ops = only(fused.iter().copied().filter(|other| *other != operator).collect());
            }
            Self::Fusion => compiler.fusion = Switch::Off,
            Self::Autotune => compiler.autotune = AutotuneLevel::Minimal,
            Self::Graph => compiler.graph = Switch::Off,
        }
    }
}

/// How a config file switches `columns` off, where `fused` are fused, as in `compiler.graph =
/// "off"`.
pub fn settings(columns: &[Column], fused: &[Operator]) -> String {
    let rest = fused.iter().filter(|operator| !columns.contains(&Column::Operator(**operator)));
    let rest = rest.map(|operator| format!("\"{}\"", operator.name())).collect::<Vec<_>>();
    let has_operators = columns.iter().any(|column| matches!(column, Column::Operator(_)));
    let fused_ops = if columns.contains(&Column::Operators) || (has_operators && rest.is_empty()) {
        Some("compiler.fused_ops = \"off\"".to_owned())
    } else {
        has_operators.then(|| format!("compiler.fused_ops = [{}]", rest.join(", ")))
    };
    let others = columns.iter().filter_map(|column| match column {
        Column::Operators | Column::Operator(_) => None,
        Column::Fusion => Some("compiler.fusion = \"off\"".to_owned()),
        Column::Autotune => Some("compiler.autotune = \"minimal\"".to_owned()),
        Column::Graph => Some("compiler.graph = \"off\"".to_owned()),
    });
    fused_ops.into_iter().chain(others).collect::<Vec<_>>().join(" and ")
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Operators => "Kiln's fused operators",
            Self::Operator(operator) => operator.name(),
            Self::Fusion => "Burn's fusion",
            Self::Autotune => "autotune above minimal",
            Self::Graph => "captured steps",
        })
    }
}

/// `operators` alone, as a setting.
pub fn only(operators: Vec<Operator>) -> FusedOps {
    if operators.is_empty() { Switch::Off.into() } else { FusedOps::Only(operators) }
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::engine::operators;

    #[test]
    fn a_device_has_its_columns_and_each_its_setting() {
        let compiler = TrainingCompilerConfig::default();
        assert_eq!(Column::on(&compiler, DeviceKind::Cpu, &Operator::ALL), [Column::Operators]);
        let all = [Column::Operators, Column::Fusion, Column::Autotune, Column::Graph];
        let on = |compiler: &TrainingCompilerConfig, kind| {
            Column::on(compiler, kind, &operators::fused(&compiler.fused_ops, kind, FloatDType::F32))
        };
        assert_eq!(on(&compiler, DeviceKind::Wgpu), all);
        assert_eq!(on(&compiler, DeviceKind::Cuda), all);
        for column in all {
            let mut without = compiler.clone();
            column.switch_off(&mut without, &Operator::ALL);
            let left = on(&without, DeviceKind::Wgpu);
            assert_eq!(left, all.into_iter().filter(|other| *other != column).collect::<Vec<_>>());
        }
        let gelu = Column::Operator(Operator::Gelu);
        assert_eq!(settings(&[gelu], &[Operator::Gelu, Operator::AdamW]), "compiler.fused_ops = [\"adamw\"]");
        assert_eq!(settings(&[gelu], &[Operator::Gelu]), "compiler.fused_ops = \"off\"");
        assert_eq!(
            settings(&all, &Operator::ALL),
            "compiler.fused_ops = \"off\" and compiler.fusion = \"off\" and compiler.autotune = \"minimal\" and \
             compiler.graph = \"off\""
        );
    }
}
