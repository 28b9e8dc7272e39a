//! Scaled dot-product attention that stores no `seq x seq` matrix: scores are computed in blocks of
//! query rows, and the backward computes them again from what is saved: query, key, value and one
//! number a row (log-sum-exp).
//!
//! This file is the operator and its autodiff; `cpu.rs` computes it on the CPU, `cube.rs` on wgpu
//! and CUDA, and there `flash` in bf16 and f16 on tensor cores.

mod cpu;
#[cfg(feature = "compiler")]
pub(super) mod cube;
#[cfg(feature = "compiler")]
pub(super) mod flash;
pub mod plain;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, autodiff::Autodiff, backend_extension};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};

use super::autodiff::{Call, Differentiate};
use super::contract::Contract;
use super::device::DeviceKernels;
use super::dropout::DropoutRng;
use super::{Form as OpForm, Operator, Ops, trace};
use plain::{causal_mask, local_mask, merge_heads, padding_mask, split_heads};

/// Query, key and value, as the projections before the attention leave them.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // handles that live for one call
pub enum Qkv {
    /// Side by side, `[batch * seq, 3 * heads * head_dim]`.
    Packed(Tensor<2>),
    /// Apart, `[batch * seq, heads * head_dim]` each; the query may be `[batch, heads * head_dim]`,
    /// one a sequence, where no mask is causal. Keys and values may have fewer heads, a number that
    /// divides the queries': the width tells how many, and each is read by as many heads of
    /// queries, one after the other.
    Separate {
        /// The queries.
        query: Tensor<2>,
        /// The keys.
        key: Tensor<2>,
        /// The values.
        value: Tensor<2>,
    },
}

impl Qkv {
    /// The tensor with the queries.
    pub(super) fn first(&self) -> &Tensor<2> {
        match self {
            Self::Packed(qkv) | Self::Separate { query: qkv, .. } => qkv,
        }
    }

    fn dtype(&self) -> FloatDType {
        self.first().dtype().into()
    }
}

/// Which keys a query attends to. It is made once for all layers of a forward pass.
#[derive(Debug, Clone)]
pub struct Mask {
    form: Form,
    is_causal: bool,
    /// Tokens of a sequence.
    seq: usize,
    /// How many sequences it is for; none for any number.
    batch: Option<usize>,
    /// The queries that see no key, `[batch, 1, seq, 1]`, and what they attend to; none where they
    /// attend evenly to all keys, as in the eager attention of `transformers`, where all scores are
    /// the most negative number.
    unseen: Option<(Unseen, Tensor<4, Bool>)>,
}

/// The attention of a query that sees no key, for example one before the first token of a row that
/// is padded on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// Evenly to the keys up to its own that a causal mask shows it, as in GPT-Neo of
    /// `transformers`: the most negative number is added to their scores, which are lost in it but
    /// have their gradients, while those of later keys become minus infinity.
    Earlier,
    /// To nothing, as in PyTorch's `scaled_dot_product_attention`: the result is 0.
    Nothing,
}

#[derive(Debug, Clone)]
enum Form {
    /// True where a key is hidden, `[batch or 1, 1, seq or 1, seq]`; none when all are seen.
    Plain(Option<Tensor<4, Bool>>),
    /// `keys [batch, seq]`, true = attend; `[1, 1]` and unread where no token is padding.
    Fused { rows: Rows, keys: Tensor<2, Bool> },
}

impl Mask {
    /// A mask for sequences of `seq` tokens: with `causal` no query sees a later key;
    /// `attention_mask [batch, seq]` (true = attend) hides padding. A query that sees no key at all
    /// attends evenly to all of them, as in `transformers`.
    ///
    /// # Panics
    /// For no token, and for an `attention_mask` of another length.
    pub fn new(seq: usize, causal: bool, attention_mask: Option<Tensor<2, Bool>>, device: &Device, ops: Ops) -> Self {
        let contract = Contract::new("attention", ops.form(Operator::Attention), device.clone());
        contract.ensure(seq > 0, "seq", "1 token or more", seq);
        let batch = attention_mask.as_ref().map(|mask| mask.dims()[0]);
        if let (Some(mask), Some(batch)) = (&attention_mask, batch) {
            contract.tensor("attention_mask", mask, [batch, seq]);
        }
        let form = match (ops.form(Operator::Attention), causal, attention_mask) {
            (OpForm::Fused, _, Some(keys)) => Form::Fused { rows: Rows::Padded, keys },
            (OpForm::Fused, _, None) => Form::Fused { rows: Rows::Full, keys: Tensor::full([1, 1], true, device) },
            (OpForm::Plain, false, mask) => Form::Plain(mask.map(padding_mask)),
            (OpForm::Plain, true, None) => Form::Plain(Some(causal_mask(seq, 0, device))),
            (OpForm::Plain, true, Some(mask)) => {
                let shape = [mask.dims()[0], 1, seq, seq];
                let causal = causal_mask(seq, 0, device).expand(shape);
                Form::Plain(Some(padding_mask(mask).expand(shape).bool_or(causal)))
            }
        };
        Self { form, is_causal: causal, seq, batch, unseen: None }
    }

    /// A causal mask for sequences of `seq` tokens where a query sees at most `window` keys, its
    /// own among them; `attention_mask [batch, seq]` (true = attend) hides padding. There is no
    /// fused form, except where all of a sequence lies in the window and the mask is the causal
    /// one.
    ///
    /// # Panics
    /// For no token, and for an `attention_mask` of another length.
    pub fn local(
        seq: usize,
        window: usize,
        attention_mask: Option<Tensor<2, Bool>>,
        device: &Device,
        ops: Ops,
    ) -> Self {
        if seq <= window {
            return Self::new(seq, true, attention_mask, device, ops);
        }
        let causal = Self::new(seq, true, attention_mask, device, Ops::Plain);
        let local = local_mask(seq, 0, window, device);
        let form = match causal.form {
            Form::Plain(Some(hidden)) => {
                let shape = hidden.dims();
                Form::Plain(Some(hidden.bool_or(local.expand(shape))))
            }
            other => other,
        };
        Self { form, ..causal }
    }

    /// A mask for rows of which only those that `attention_mask [batch, seq]` (true = attend) shows
    /// are there, one sequence after the other: each attends to all of its own sequence, with
    /// `causal` to what is before it. The fused form on the CPU alone.
    pub(crate) fn unpadded(attention_mask: Tensor<2, Bool>, causal: bool) -> Self {
        let [batch, seq] = attention_mask.dims();
        let form = Form::Fused { rows: Rows::Unpadded, keys: attention_mask };
        Self { form, is_causal: causal, seq, batch: Some(batch), unseen: None }
    }

    /// A causal mask for rows of several documents, where `documents [batch, seq]` is the number of
    /// each token's: no query sees a key of another, nor one that `attention_mask [batch, seq]`
    /// hides, and with a `window` at most so many, its own among them. The plain form. `unseen` is
    /// what a query attends to that sees no key.
    pub(crate) fn of_documents(
        documents: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        window: Option<usize>,
        unseen: Unseen,
    ) -> Self {
        let ([batch, seq], device) = (documents.dims(), documents.device());
        let shape = [batch, 1, seq, seq];
        let of_keys = documents.clone().reshape([batch, 1, 1, seq]).expand(shape);
        let of_queries = documents.reshape([batch, 1, seq, 1]).expand(shape);
        let hidden = match window {
            Some(window) => local_mask(seq, 0, window, &device),
            None => causal_mask(seq, 0, &device),
        };
        let hidden = of_queries.not_equal(of_keys).bool_or(hidden.expand(shape));
        let (hidden, unseen) = match (attention_mask, unseen) {
            (None, _) => (hidden, None),
            (Some(mask), unseen) => {
                let all = padding_mask(mask).expand(shape).bool_or(hidden.clone());
                let queries = all.clone().all_dim(3);
                match unseen {
                    Unseen::Nothing => (all, Some((unseen, queries))),
                    Unseen::Earlier => {
                        let shown = queries.clone().expand(shape).bool_and(hidden.bool_not());
                        (all.bool_and(shown.bool_not()), Some((unseen, queries)))
                    }
                }
            }
        };
        Self { form: Form::Plain(Some(hidden)), is_causal: true, seq, batch: Some(batch), unseen }
    }
}

/// Which rows there are for the keys of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All, and the mask shows all of them.
    Full,
    /// All, and the mask hides some.
    Padded,
    /// The rows that the mask shows.
    Unpadded,
}

/// The sizes and settings of one attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Number of sequences.
    pub batch: usize,
    /// Number of heads of queries; divides their width.
    pub heads: usize,
    /// The factor of the scores, as a rule `1 / sqrt(head_dim)`.
    pub scale: f64,
    /// Probability that dropout zeroes a weight.
    pub dropout: f64,
    /// Where dropout takes its random numbers from.
    pub rng: DropoutRng<'a>,
    /// The type of the products' operands in the fused form on the CPU, which rounds them to bf16
    /// itself (in f16 they stay f32). All other forms multiply in the type of the inputs.
    pub products: FloatDType,
}

impl<'a> Attention<'a> {
    /// `softmax(scale q k^T) v` for every head (Vaswani et al. 2017; with shared keys and values
    /// Ainslie et al. 2023), softmax in f32, dropout on its weights: as many rows as there are
    /// queries, `[batch * seq, heads * head_dim]` or what a `mask` without padding shows. The form
    /// is the mask's.
    ///
    /// # Panics
    /// For sizes that do not fit together: those of the tensors, of the mask, and the fields of
    /// this; in the fused form for tensors of different types, of another than f32, f16 and bf16,
    /// or on different devices.
    pub fn forward(self, qkv: Qkv, mask: &Mask) -> Tensor<2> {
        self.written(qkv.dtype(), qkv, mask)
    }

    pub(super) fn written(self, dtype: FloatDType, qkv: Qkv, mask: &Mask) -> Tensor<2> {
        let _time = trace::call("attention");
        let device = self.check(&qkv, mask);
        match &mask.form {
            Form::Plain(hidden) => self.plain(qkv, hidden.clone(), mask.unseen.clone()),
            Form::Fused { rows, keys } => {
                let dtype = DeviceKernels::on(&device).written(Operator::Attention, qkv.dtype(), dtype);
                self.fused(qkv, mask.is_causal, *rows, keys.clone(), dtype)
            }
        }
    }

    /// Asks for arguments that fit together; their device.
    #[track_caller]
    fn check(self, qkv: &Qkv, mask: &Mask) -> Device {
        let Self { batch, heads, .. } = self;
        let form = match mask.form {
            Form::Plain(_) => OpForm::Plain,
            Form::Fused { .. } => OpForm::Fused,
        };
        let first = qkv.first();
        let contract = Contract::new("attention", form, first.device());
        contract.ensure(batch > 0, "batch", "1 sequence or more", batch);
        contract.ensure(heads > 0, "heads", "1 head or more", heads);
        contract.probability("dropout", self.dropout);
        let dtype = contract.factor("query", first);
        let keys = match qkv {
            Qkv::Packed(qkv) => {
                let [rows, width] = contract.matrix("qkv", qkv);
                let expected = format_args!("a width that 3 x {heads} heads divide");
                contract.ensure(width.is_multiple_of(3 * heads), "qkv", expected, [rows, width]);
                rows
            }
            Qkv::Separate { query, key, value } => {
                let ([queries, width], [rows, kv_width]) = (contract.matrix("query", query), key.dims());
                let expected = format_args!("a width that {heads} heads divide");
                contract.ensure(width.is_multiple_of(heads), "query", expected, [queries, width]);
                let head_dim = width / heads;
                let kv_heads = kv_width / head_dim;
                let is_shared = kv_heads > 0 && kv_width.is_multiple_of(head_dim) && heads.is_multiple_of(kv_heads);
                let expected = format_args!("a width of {head_dim} times a number that divides {heads} heads");
                contract.ensure(is_shared, "key", expected, [rows, kv_width]);
                contract.floats("key", key, [rows, kv_width], dtype);
                contract.floats("value", value, [rows, kv_width], dtype);
                let one_each = queries == batch && !mask.is_causal;
                let expected = format_args!("{rows} rows, as there are keys, or without a causal mask {batch}");
                contract.ensure(queries == rows || one_each, "query", expected, [queries, width]);
                rows
            }
        };
        contract.ensure(mask.batch.is_none_or(|of| of == batch), "mask", format_args!("{batch} sequences"), mask.batch);
        // Where the rows of padding are not there, the kernel counts those that are: the mask is on
        // the device.
        if !matches!(mask.form, Form::Fused { rows: Rows::Unpadded, .. }) {
            let expected = format_args!("{batch} x {} rows, as the mask has", mask.seq);
            contract.ensure(keys == batch * mask.seq, "key", expected, keys);
        }
        first.device()
    }

    fn plain(self, qkv: Qkv, hidden: Option<Tensor<4, Bool>>, unseen: Option<(Unseen, Tensor<4, Bool>)>) -> Tensor<2> {
        let [query, key, value] = match qkv {
            Qkv::Separate { query, key, value } => [query, key, value],
            Qkv::Packed(qkv) => {
                let [rows, width] = qkv.dims();
                let d = width / 3;
                [0, 1, 2].map(|i| qkv.clone().slice([0..rows, i * d..(i + 1) * d]))
            }
        };
        let head_dim = query.dims()[1] / self.heads;
        let [query, key, value] = [query, key, value].map(|x| {
            let heads = x.dims()[1] / head_dim;
            split_heads(x, self.batch, heads) // [batch, heads, seq, head_dim]
        });
        let (evenly, nothing) = match unseen {
            Some((Unseen::Nothing, queries)) => (None, Some(queries)),
            Some((Unseen::Earlier, queries)) => (Some(queries), None),
            None => (None, None),
        };
        let hidden = hidden.map(|keys| plain::Hidden { keys, evenly });
        let attended = plain::attention(query, key, value, hidden, self.scale, self.dropout, self.rng);
        merge_heads(match nothing {
            Some(queries) => {
                let shape = attended.dims();
                attended.mask_fill(queries.expand(shape), 0.0)
            }
            None => attended,
        })
    }

    fn fused(self, qkv: Qkv, causal: bool, rows: Rows, keys: Tensor<2, Bool>, dtype: FloatDType) -> Tensor<2> {
        let dropout = self.rng.probability(self.dropout);
        let Self { batch, heads, products, .. } = self;
        let scale = self.scale as f32;
        let settings = Settings { batch, heads, scale, causal, rows, dropout, products, dtype };
        let (seed, keys) = (self.rng.seed(dropout, &keys.device()).into_dispatch(), keys.into_dispatch());
        let qkv = match qkv {
            Qkv::Packed(qkv) => Parts::Packed(qkv.into_dispatch()),
            Qkv::Separate { query, key, value } => {
                Parts::Separate(query.into_dispatch(), key.into_dispatch(), value.into_dispatch())
            }
        };
        Tensor::from_dispatch(<Dispatch as AttentionOp>::attention(Inputs { qkv, keys, seed, settings }))
    }
}

/// [`Attention`] as the kernel sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub batch: usize,
    pub heads: usize,
    pub scale: f32,
    pub causal: bool,
    /// Which rows there are for the keys of the mask.
    pub rows: Rows,
    /// Probability that a weight is zeroed; 0 without training.
    pub dropout: f64,
    /// The type of the products' operands on the CPU.
    pub products: FloatDType,
    /// The type of the result: that of the inputs, or on the CPU a narrower one.
    pub dtype: FloatDType,
}

/// One tensor with query, key and value, or three tensors.
#[derive(Debug, Clone, ExtensionType)]
pub(super) enum Parts<B: Backend> {
    Packed(FloatTensor<B>),
    Separate(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
}

impl<B: Backend> Parts<B> {
    /// The tensor with the queries.
    fn first(&self) -> &FloatTensor<B> {
        match self {
            Self::Packed(first) | Self::Separate(first, ..) => first,
        }
    }

    /// The results of `each` for every tensor.
    fn map<A: Backend>(self, mut each: impl FnMut(FloatTensor<B>) -> FloatTensor<A>) -> Parts<A> {
        match self {
            Self::Packed(qkv) => Parts::Packed(each(qkv)),
            Self::Separate(query, key, value) => Parts::Separate(each(query), each(key), each(value)),
        }
    }
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    #[extension_type]
    pub qkv: Parts<B>,
    pub keys: BoolTensor<B>,
    pub seed: IntTensor<B>,
    pub settings: Settings,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait AttentionOp: Backend {
    fn attention(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
pub(super) struct Saved<B: Backend> {
    pub inputs: Inputs<B>,
    /// Logarithm of the sum of the exponentials of each row's scores, a number for each row of each
    /// head.
    pub lse: FloatTensor<B>,
    /// The result, for kernels that keep it: those of CUDA.
    #[cfg_attr(not(feature = "compiler"), expect(dead_code))]
    pub out: Option<FloatTensor<B>>,
}

/// The kernels that a backend supplies.
pub(super) trait AttentionKernel: Backend {
    /// Whether the backward reads the result of the forward.
    fn keeps_result(_inputs: &Inputs<Self>) -> bool {
        false
    }

    /// The result, and each row's log-sum-exp.
    fn forward(inputs: &Inputs<Self>) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients, in the form of the inputs.
    fn backward(saved: Saved<Self>, dout: FloatTensor<Self>) -> Parts<Self>;
}

/// Without autodiff the operator is its kernel's forward.
impl<B: AttentionKernel> AttentionOp for B {
    fn attention(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(&inputs).0
    }
}

impl<B: AttentionKernel, C: CheckpointStrategy> AttentionOp for Autodiff<B, C> {
    fn attention(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let Inputs { qkv, keys, seed, settings } = inputs;
        let inputs = Inputs { qkv: qkv.map(|part| call.input(part)), keys, seed, settings };
        call.record(|_| {
            let (out, lse) = B::forward(&inputs);
            let kept = B::keeps_result(&inputs).then(|| out.clone());
            (out, Saved { inputs, lse, out: kept })
        })
    }
}

impl<B: AttentionKernel> Differentiate<B> for Saved<B> {
    fn gradients(self, dout: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        match B::backward(self, dout) {
            Parts::Packed(dqkv) => vec![Some(dqkv)],
            Parts::Separate(dquery, dkey, dvalue) => vec![Some(dquery), Some(dkey), Some(dvalue)],
        }
    }
}
