//! Which operator has a fused kernel on which device and under which precision: one table,
//! [`FUSED`]. The default of `compiler.fused_ops`, the operators that a precision leaves plain, and
//! the table that a user reads are derived from it.

use burn::tensor::FloatDType;

/// The operators that have a fused form, in the order in which a step meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Rows of a table, and the sum of their gradients ([`embedding`](super::embedding)).
    Embedding,
    /// Dropout, alone or with bias and residual ([`dropout`](super::dropout)).
    Dropout,
    /// LayerNorm with its residual ([`layer_norm`](super::layer_norm)).
    LayerNorm,
    /// Root mean square normalisation ([`rms_norm`](super::rms_norm)).
    RmsNorm,
    /// Matrix product and bias ([`linear`](super::linear)).
    Linear,
    /// Rotary positions of query and key ([`rotary`](super::rotary)).
    Rotary,
    /// Attention without stored scores ([`attention`](super::attention)). Of rows of several
    /// documents it is fused on the CPU alone; elsewhere they have the plain form with a mask.
    Attention,
    /// Bias and GELU or another activation ([`gelu`](super::gelu)).
    Gelu,
    /// SiLU of a gate times another projection ([`swiglu`](super::swiglu)).
    Swiglu,
    /// Vocabulary projection and cross-entropy without stored logits
    /// ([`cross_entropy`](super::cross_entropy)).
    CrossEntropy,
    /// AdamW's update in one pass, and the norm over all gradients ([`adamw`](super::adamw)).
    AdamW,
}

/// Some of the operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operators(u16);

impl Operators {
    /// Whether `operator` is among them.
    pub fn contains(self, operator: Operator) -> bool {
        self.0 & (1 << operator as u16) != 0
    }
}

impl FromIterator<Operator> for Operators {
    fn from_iter<I: IntoIterator<Item = Operator>>(operators: I) -> Self {
        Self(operators.into_iter().fold(0, |bits, operator| bits | 1 << operator as u16))
    }
}

/// A kind of device that the models run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The CPU: Burn's backend Flex.
    Cpu,
    /// A GPU through wgpu (Vulkan, Metal, DirectX 12), in the compiled engine (feature `compiler`).
    Wgpu,
    /// A GPU through CUDA, in the compiled engine (feature `compiler`).
    Cuda,
}

impl Target {
    /// Every kind, in the order of the table's columns.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Wgpu, Self::Cuda];
}

/// Types of matrix products, in the order of the table's columns.
pub const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

/// Whether an operator has a fused form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It has, and the compiled mode uses it.
    Default,
    /// It has none, for this reason.
    Missing(&'static str),
}

/// One row of [`FUSED`].
#[derive(Debug, Clone, Copy)]
pub struct FusedForm {
    /// The operator.
    pub operator: Operator,
    /// Its name in configs and messages.
    pub name: &'static str,
    /// Its fused form on each [`Target`], in the order of [`Target::ALL`].
    pub targets: [Availability; 3],
    /// Its fused form in a run whose matrix products are in each of [`DTYPES`], whatever the
    /// device.
    pub dtypes: [Availability; 3],
}

const YES: Availability = Availability::Default;
const NOT_SCALED: Availability = Availability::Missing(
    "it takes gradients in the forward pass, before the loss scale could lift them into f16's range",
);
const NO_SKIP: Availability = Availability::Missing("it cannot skip a step whose scaled gradients overflow");

const fn row(
    operator: Operator,
    name: &'static str,
    targets: [Availability; 3],
    dtypes: [Availability; 3],
) -> FusedForm {
    FusedForm { operator, name, targets, dtypes }
}

/// The fused forms, in the order in which a step meets the operators. An operator is fused where
/// both its target and its type allow it.
#[rustfmt::skip]
pub const FUSED: [FusedForm; 11] = [
    //                                            cpu  wgpu cuda   f32  bf16      f16
    row(Operator::Embedding,    "embedding",     [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Dropout,      "dropout",       [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::LayerNorm,    "layer_norm",    [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::RmsNorm,      "rms_norm",      [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Linear,       "linear",        [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Rotary,       "rotary",        [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Attention,    "attention",     [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Gelu,         "gelu",          [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::Swiglu,       "swiglu",        [YES, YES, YES], [YES, YES,      YES]),
    row(Operator::CrossEntropy, "cross_entropy", [YES, YES, YES], [YES, YES,      NOT_SCALED]),
    row(Operator::AdamW,        "adamw",         [YES, YES, YES], [YES, YES,      NO_SKIP]),
];

impl Operator {
    /// Every operator, in the order in which a step meets them.
    pub const ALL: [Self; FUSED.len()] = {
        let mut all = [Self::Embedding; FUSED.len()];
        let mut row = 0;
        while row < FUSED.len() {
            all[row] = FUSED[row].operator;
            assert!(all[row] as usize == row, "the rows are in the order of the enum");
            row += 1;
        }
        all
    };

    fn row(self) -> FusedForm {
        FUSED[self as usize]
    }

    /// The name in configs and messages.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its fused form on `target`.
    pub fn on(self, target: Target) -> Availability {
        self.row().targets[target as usize]
    }

    /// Its fused form in a run whose matrix products are in `dtype`; there is none in a type that
    /// is not in [`DTYPES`].
    pub fn within(self, dtype: FloatDType) -> Availability {
        let column = DTYPES.iter().position(|known| *known == dtype);
        column.map_or(Availability::Missing("no kernel computes in this type"), |column| self.row().dtypes[column])
    }
}
