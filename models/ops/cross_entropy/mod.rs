//! Projection onto the vocabulary and cross-entropy in one operator, in chunks of rows: the logits
//! of a batch never exist.
//!
//! A chunk's logits are computed, turned into probabilities, then into the gradient with respect to
//! the logits in the same memory, and multiplied back into the gradients of the hidden states and
//! of the weight (three matrix products, as the plain composition has). So the forward computes the
//! gradients, and the backward only multiplies them by what comes from above. Rows whose label is
//! ignored are left out altogether.
//!
//! The vocabulary is not padded on the CPU, as it is elsewhere ([`padded`]): its matrix products
//! gain nothing from it. Forward and backward, in turn, on 2 cores of a shared machine, quickest of
//! 7: 796 ms with 50,257 classes and 784 with 50,304 (features 768, 512 rows; medians 845 and 860),
//! 131 ms with 8,191 and 138 with 8,192 (features 384, 1,024 rows; medians 162 and 152): less than
//! two such runs differ by.

#[cfg(feature = "compiler")]
pub(super) mod cube;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Int, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate, HasGradient};
use super::contract::Contract;
use super::embedding::{Shared, TiedTable};
use super::flex::{self, FlexTensor};
use super::list::Optional;
use super::products::{self, Factor, Matrix, Operands, Output, Rounding};
use super::simd::{exp_shifted, max, sum, vectorised};
use super::{Form, Operator, Ops, trace};

/// Projection onto the vocabulary and cross-entropy of the logits: its inputs.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Hidden states, `[n, features]`, in f32 or bf16.
    pub x: Tensor<2>,
    /// Projection, `[classes, features]`: the token embedding where that is tied; of the type of
    /// `x`, and on the CPU possibly in that of the products beside an `x` in f32.
    pub weight: Tensor<2>,
    /// Added to the logits, `[classes]`.
    pub bias: Option<Tensor<1>>,
    /// The right class of each row, `[n]`; any class where `row_weight` is 0.
    pub target: Tensor<1, Int>,
    /// 1 for a row that counts and 0 for one that is ignored, `[n]`; none when every row counts.
    pub row_weight: Option<Tensor<1>>,
    /// Part of the probability that is spread evenly over all classes, as torch's
    /// `label_smoothing`; 0 for none.
    pub label_smoothing: f64,
    /// How the products take their operands, those of the gradients included, which on the CPU are
    /// rounded to its type; elsewhere that is the type of `x` and `weight`. The right factor is the
    /// transpose of `weight`.
    pub operands: Operands,
}

impl CrossEntropy {
    /// The sum over rows of `row_weight * (logsumexp(logits) - (1 - s) logits[target] - s
    /// mean(logits))`, `[1]`, where `logits = x weight^T + bias` and `s` is the label smoothing.
    ///
    /// # Panics
    /// For tensors of other shapes than the fields', a label smoothing outside `[0, 1]` and, on the
    /// CPU, a target that is no class; in the fused form for other types than the fields' and for
    /// tensors on different devices.
    pub fn sum(self, ops: Ops) -> Tensor<1> {
        self.tied_sum(None, ops)
    }

    /// [`sum`](Self::sum) where `weight` has the values of the table `tied`, if that has been
    /// looked up, in f32 or rounded: in the fused form the gradient of a weight that learns is the
    /// table's, to which the backward of the lookup adds its own.
    ///
    /// # Panics
    /// Where [`sum`](Self::sum) panics, and for a table of another shape than `weight`.
    pub fn tied_sum(self, tied: Option<&TiedTable>, ops: Ops) -> Tensor<1> {
        let form = ops.form(Operator::CrossEntropy);
        let _time = trace::call("cross_entropy");
        self.check(form);
        match form {
            Form::Plain => self.plain(),
            Form::Fused => {
                let Self { x, weight, bias, target, row_weight, label_smoothing, operands } = self;
                let settings = Settings { label_smoothing, operands };
                let row_weight = row_weight.unwrap_or_else(|| Tensor::ones([x.dims()[0]], &x.device()));
                let row_weight = row_weight.into_dispatch();
                let tied = tied.filter(|_| weight.is_tracked()).and_then(TiedTable::for_loss);
                let (table, has_gradient) = match tied {
                    Some(Shared { table, has_gradient }) => {
                        let contract = Contract::new("cross_entropy", form, x.device());
                        contract.floats("tied", &table, weight.dims(), DType::F32);
                        (Some(table), has_gradient)
                    }
                    None => (None, HasGradient::default()),
                };
                let (x, weight, target) = (x.into_dispatch(), weight.into_dispatch(), target.into_dispatch());
                let (bias, table) = (bias.into(), table.into());
                let inputs = Inputs { x, weight, bias, table, target, row_weight, settings, has_gradient };
                Tensor::from_dispatch(<Dispatch as CrossEntropyOp>::cross_entropy(inputs))
            }
        }
    }

    #[track_caller]
    fn check(&self, form: Form) {
        let contract = Contract::new("cross_entropy", form, self.x.device());
        let ([rows, features], [classes, _]) = (contract.matrix("x", &self.x), contract.matrix("weight", &self.weight));
        let of_x = contract.factor("x", &self.x);
        contract.floats("x", &self.x, [rows, features], of_x);
        contract.ensure(classes > 0, "weight", "1 class or more", self.weight.dims());
        // On the CPU the products round their operands themselves.
        let of_weight = if of_x == DType::F32 { contract.rounded("weight", &self.weight) } else { of_x };
        contract.floats("weight", &self.weight, [classes, features], of_weight);
        if let Some(bias) = &self.bias {
            contract.floats("bias", bias, [classes], DType::F32);
        }
        contract.ids("target", &self.target, rows, classes);
        if let Some(row_weight) = &self.row_weight {
            contract.floats("row_weight", row_weight, [rows], DType::F32);
        }
        let smoothing = self.label_smoothing;
        contract.ensure((0.0..=1.0).contains(&smoothing), "label_smoothing", "a part from 0 to 1", smoothing);
    }

    fn plain(self) -> Tensor<1> {
        let (x, weight) = match self.operands.dtype {
            FloatDType::F32 => (self.x, self.weight),
            dtype => (self.x.cast(dtype), self.weight.cast(dtype)),
        };
        let logits = x.matmul(weight.transpose()).cast(FloatDType::F32);
        let logits = match self.bias {
            Some(bias) => logits + bias.unsqueeze(),
            None => logits,
        };
        let loss = plain(logits, self.target, self.label_smoothing, None);
        match self.row_weight {
            Some(weight) => (loss * weight).sum(),
            None => loss.sum(),
        }
    }
}

/// Cross-entropy as a composition of Burn's operations, the reference of the fused kernels: for
/// each row with target `y` `(1 - e) w_y (-log p_y) + e / C sum_c w_c (-log p_c)`, with `p =
/// softmax(logits)` and `e` the label smoothing (Szegedy et al. 2016), which is
/// `torch.nn.functional.cross_entropy` with `reduction="none"`.
///
/// - `logits`: `[n, C]`, f32
/// - `target`: `[n]`, each below `C`
/// - `class_weights`: `[C]`; none counts every class 1
/// - returns `[n]`, f32
pub fn plain(
    logits: Tensor<2>,
    target: Tensor<1, Int>,
    label_smoothing: f64,
    class_weights: Option<Tensor<1>>,
) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    // The maximum only keeps exp from overflowing; its gradient cancels, so it is not tracked.
    let shifted = logits.clone() - logits.detach().max_dim(1);
    let log_sum = shifted.clone().exp().sum_dim(1).log(); // [n, 1]
    let picked = shifted.clone().gather(1, target.clone().reshape([rows, 1])); // [n, 1]
    let picked = (log_sum.clone() - picked).reshape([rows]);
    let picked = if label_smoothing == 0.0 { picked } else { picked * (1.0 - label_smoothing) };
    let picked = match &class_weights {
        Some(weights) => picked * weights.clone().select(0, target),
        None => picked,
    };
    if label_smoothing == 0.0 {
        return picked;
    }
    let all = log_sum - shifted; // -log p, [n, C]
    let all = match class_weights {
        Some(weights) => all * weights.unsqueeze(),
        None => all,
    };
    picked + all.sum_dim(1).reshape([rows]) * (label_smoothing / classes as f64)
}

/// The numbers among the fields of [`CrossEntropy`].
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub label_smoothing: f64,
    pub operands: Operands,
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    #[extension_type]
    pub bias: Optional<B>,
    pub target: IntTensor<B>,
    pub row_weight: FloatTensor<B>,
    pub settings: Settings,
    /// The table that the gradient of the weight is given to, if it is not the weight itself.
    #[extension_type]
    pub table: Optional<B>,
    /// Whether the table has a gradient.
    pub has_gradient: HasGradient,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait CrossEntropyOp: Backend {
    fn cross_entropy(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// Gradients of the loss sum, in f32 whatever the type of the factors.
#[derive(Debug, Clone)]
pub(super) struct Gradient<F> {
    pub x: F,
    /// None where it is not wanted: the weight is frozen.
    pub weight: Option<F>,
    pub bias: Option<F>,
}

/// The gradients that are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Any.
    pub any: bool,
    /// The gradient of the weight.
    pub weight: bool,
}

impl Wanted {
    const NONE: Self = Self { any: false, weight: false };

    /// The gradients of the inputs that are `tracked`; the second input is the weight.
    fn of(tracked: &[bool]) -> Self {
        Self { any: tracked.contains(&true), weight: tracked.get(1) == Some(&true) }
    }
}

/// The kernels that a backend supplies.
pub(super) trait CrossEntropyKernel: Backend {
    /// The loss sum, and its gradients if any is wanted.
    fn forward(inputs: Inputs<Self>, wanted: Wanted) -> (FloatTensor<Self>, Option<Gradient<FloatTensor<Self>>>);

    /// `gradient * upstream`, `upstream` being `[1]`.
    fn scale(gradient: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Without autodiff the operator is its kernel's forward.
impl<B: CrossEntropyKernel> CrossEntropyOp for B {
    fn cross_entropy(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs, Wanted::NONE).0
    }
}

impl<B: CrossEntropyKernel, C: CheckpointStrategy> CrossEntropyOp for Autodiff<B, C> {
    fn cross_entropy(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let has_gradient = inputs.has_gradient.clone();
        let inputs = Inputs {
            x: call.input(inputs.x),
            weight: match inputs.table.given() {
                Some(table) => {
                    call.input(table);
                    inputs.weight.into_primitive()
                }
                None => call.input(inputs.weight),
            },
            bias: inputs.bias.map(|bias| call.input(bias)),
            target: inputs.target,
            row_weight: inputs.row_weight.into_primitive(),
            settings: inputs.settings,
            table: Optional::Missing,
            has_gradient: inputs.has_gradient,
        };
        call.record(|tracked| {
            let (loss, gradient) = B::forward(inputs, Wanted::of(tracked));
            (loss, (gradient, has_gradient))
        })
    }
}

impl<B: CrossEntropyKernel> Differentiate<B> for (Option<Gradient<FloatTensor<B>>>, HasGradient) {
    fn gradients(self, upstream: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let (Some(Gradient { x, weight, bias }), has_gradient) = self else { return Vec::new() };
        let gradients = [Some(x), weight, bias].into_iter().zip(tracked);
        let gradients = gradients
            .map(|(grad, tracked)| grad.filter(|_| *tracked).map(|grad| B::scale(grad, upstream.clone())))
            .collect::<Vec<_>>();
        if gradients[1].is_some() {
            has_gradient.set();
        }
        gradients
    }
}

/// Columns of the logits of `classes` classes on wgpu and CUDA: a multiple of 256 where that adds
/// at most a sixteenth, so that the products of an odd vocabulary read and write vectors, and
/// CUDA's allocator, which aligns rows, leaves none of their memory out.
pub fn padded(classes: usize) -> usize {
    if classes < 16 * 256 { classes } else { classes.next_multiple_of(256) }
}

/// Rows in a chunk: enough that adding a chunk's share to the gradient of the weight (`classes *
/// features`, read and written for every chunk) costs less than the chunk's logits (`rows *
/// classes`, passed over about four times).
fn chunk_rows(features: usize) -> usize {
    features.clamp(128, 1024)
}

impl CrossEntropyKernel for Flex {
    fn forward(inputs: Inputs<Self>, wanted: Wanted) -> (FlexTensor, Option<Gradient<FlexTensor>>) {
        let gradients = wanted.any;
        let (x, weight) = (flex::widened(inputs.x), flex::strided(inputs.weight));
        let bias = inputs.bias.given().map(flex::row_major);
        let ([n, features], [classes, _]) = (flex::dims2(&x), flex::dims2(&weight));
        let target = flex::integers(&inputs.target);
        let row_weight = flex::row_major(inputs.row_weight);
        let weight_of = |row: usize| flex::values(&row_weight)[row];
        let counted = (0..n).filter(|&row| weight_of(row) != 0.0).collect::<Vec<_>>();

        let chunk = chunk_rows(features).min(counted.len().max(1));
        let operands = inputs.settings.operands;
        let (transposed, rounding) = (Self::float_transpose(weight.clone()), operands.dtype.into());
        let (projection, to_logits) = (flex::factor(&weight), flex::right_factor(&transposed, &operands));
        let bias = bias.as_ref().map(flex::values);
        // The gradient of the logits is rounded for its two products while a row is in the caches;
        // that of a bias sums it as it is.
        let is_narrow = gradients && bias.is_none() && rounding == Rounding::Bf16;
        // Where every row counts, chunks are read and written in place; otherwise their rows are
        // gathered and put back.
        let all = counted.len() == n;
        let mut gathered = vec![0.0; if all { 0 } else { chunk * features }];
        let mut dgathered = vec![0.0; if all || !gradients { 0 } else { chunk * features }];
        let mut dx = vec![0.0; if gradients { n * features } else { 0 }];
        let mut dbias = vec![0.0; if gradients && bias.is_some() { classes } else { 0 }];
        let (mut logits, mut dweight) = (Vec::new(), Vec::new());
        let mut total = 0.0f64;
        for rows in counted.chunks(chunk) {
            let hidden = if all {
                &flex::values(&x)[rows[0] * features..][..rows.len() * features]
            } else {
                for (&row, hidden) in rows.iter().zip(gathered.chunks_exact_mut(features)) {
                    hidden.copy_from_slice(&flex::values(&x)[row * features..][..features]);
                }
                &gathered[..rows.len() * features]
            };
            let hidden = Matrix::new(hidden, rows.len(), features);
            if logits.is_empty() {
                logits = products::product(hidden, to_logits, None, rounding);
            } else {
                let logits = &mut logits[..rows.len() * classes];
                products::multiply(logits, hidden, to_logits, Output::Overwrite, rounding);
            }
            let logits = &mut logits[..rows.len() * classes];
            let losses = logits.par_chunks_exact_mut(classes).zip(rows).map(|(logits, &row)| {
                if let Some(bias) = bias {
                    flex::add_rows(bias, logits);
                }
                let loss =
                    loss_row(logits, target[row] as usize, inputs.settings.label_smoothing as f32, weight_of(row));
                if is_narrow {
                    flex::narrow_in_place(logits);
                }
                f64::from(loss)
            });
            total += losses.collect::<Vec<_>>().into_iter().sum::<f64>();
            if !gradients {
                continue;
            }
            let dlogits = if is_narrow {
                Factor::Bf16(flex::narrowed_rows(logits, classes))
            } else {
                Factor::F32(Matrix::new(logits, rows.len(), classes))
            };
            if all {
                let dx = &mut dx[rows[0] * features..][..rows.len() * features];
                products::multiply(dx, dlogits, projection, Output::Overwrite, rounding);
            } else {
                let dgathered = &mut dgathered[..rows.len() * features];
                products::multiply(dgathered, dlogits, projection, Output::Overwrite, rounding);
                for (&row, dhidden) in rows.iter().zip(dgathered.chunks_exact(features)) {
                    dx[row * features..][..features].copy_from_slice(dhidden);
                }
            }
            if !wanted.weight {
                // It is frozen.
            } else if dweight.is_empty() {
                dweight = products::product(dlogits.t(), hidden, None, rounding);
            } else {
                products::multiply(&mut dweight, dlogits.t(), hidden, Output::Add, rounding);
            }
            if bias.is_some() {
                for (dbias, sum) in dbias.iter_mut().zip(flex::column_sums(logits, classes)) {
                    *dbias += sum;
                }
            }
        }
        if wanted.weight && dweight.is_empty() {
            dweight = vec![0.0; classes * features]; // no row counts
        }
        let gradient = gradients.then(|| Gradient {
            x: flex::tensor(dx, [n, features]),
            weight: wanted.weight.then(|| flex::tensor(dweight, [classes, features])),
            bias: bias.is_some().then(|| flex::tensor(dbias, [classes])),
        });
        (flex::tensor(vec![total as f32], [1]), gradient)
    }

    fn scale(gradient: FlexTensor, upstream: FlexTensor) -> FlexTensor {
        let upstream = flex::values(&flex::row_major(upstream))[0];
        if upstream == 1.0 {
            return gradient;
        }
        flex::overwritten(gradient, |gradient| {
            gradient.par_chunks_mut(flex::block_rows(1)).for_each(|block| scale(block, upstream));
        })
    }
}

vectorised! {
    fn scale(x: &mut [f32], by: f32) {
        for x in x {
            *x *= by;
        }
    }
}

vectorised! {
    /// The loss of one row, times its `weight`; `logits` become its gradient,
    /// `weight * (softmax(logits) - (1 - s) onehot(target) - s / classes)`.
    fn loss_row(logits: &mut [f32], target: usize, smoothing: f32, weight: f32) -> f32 {
        let classes = logits.len() as f32;
        let largest = max(logits);
        let right = logits[target] - largest;
        let mean = if smoothing == 0.0 { 0.0 } else { sum(logits, |x| x - largest) / classes };
        let total = exp_shifted::<FMA>(logits, largest);
        let (by, spread) = (weight / total, weight * smoothing / classes);
        for x in logits.iter_mut() {
            *x = *x * by - spread;
        }
        logits[target] -= weight * (1.0 - smoothing);
        weight * (total.ln() - (1.0 - smoothing) * right - smoothing * mean)
    }
}
