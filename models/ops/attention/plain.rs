//! Attention as a composition of Burn's operations, with the scores of a whole batch in memory: the
//! reference of the fused kernels, and the form that generation with a key/value cache uses.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};

use crate::ops::dropout::{self, DropoutRng};

/// `[batch * seq, heads * head_dim] -> [batch, heads, seq, head_dim]`
pub fn split_heads(x: Tensor<2>, batch: usize, heads: usize) -> Tensor<4> {
    let [rows, features] = x.dims();
    x.reshape([batch, rows / batch, heads, features / heads]).swap_dims(1, 2)
}

/// `[batch, heads, seq, head_dim] -> [batch * seq, heads * head_dim]`
pub fn merge_heads(x: Tensor<4>) -> Tensor<2> {
    let [batch, heads, seq, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch * seq, heads * head_dim])
}

/// The keys that queries do not see.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// True where a key must not be seen, `[batch or 1, 1, seq or 1, keys]`.
    pub keys: Tensor<4, Bool>,
    /// True where a query attends evenly to the keys that it sees, `[batch, 1, seq, 1]`; its scores
    /// have gradients all the same. None where each attends by its scores.
    pub evenly: Option<Tensor<4, Bool>>,
}

impl From<Tensor<4, Bool>> for Hidden {
    fn from(keys: Tensor<4, Bool>) -> Self {
        Self { keys, evenly: None }
    }
}

/// Scaled dot-product attention (Vaswani et al. 2017), softmax in f32.
///
/// - `query`: `[batch, heads, seq, head_dim]`; `key`, `value`: `[batch, kv_heads, keys, head_dim]`,
///   where `kv_heads` divides `heads`
///
/// Each head of keys is read by `heads / kv_heads` heads of queries, one after the other (Ainslie
/// et al. 2023), whose rows are those of one matrix product: keys and values are not repeated.
///
/// Hidden scores become the most negative finite number, as in `transformers`: a row in which every
/// key is hidden is then uniform instead of NaN. Scores without a scale, as GPT-Neo's, can be
/// larger than f16 holds: there they are computed in f32, as `transformers` computes them.
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    hidden: Option<Hidden>,
    scale: f64,
    dropout_p: f64,
    rng: DropoutRng<'_>,
) -> Tensor<4> {
    let [batch, heads, seq, head_dim] = query.dims();
    let [_, kv_heads, keys, _] = key.dims();
    let group = heads / kv_heads;
    // [batch, heads, seq, n] <-> [batch, kv_heads, group * seq, n]
    let grouped = |x: Tensor<4>, n: usize| {
        if group == 1 { x } else { x.reshape([batch, kv_heads, group * seq, n]) }
    };
    let apart = |x: Tensor<4>, n: usize| if group == 1 { x } else { x.reshape([batch, heads, seq, n]) };
    let dtype = FloatDType::from(query.dtype());
    let (query, key) = if dtype == FloatDType::F16 && scale >= 1.0 {
        (query.cast(FloatDType::F32), key.cast(FloatDType::F32))
    } else {
        (query, key)
    };
    let scores = grouped(query * scale, head_dim).matmul(key.swap_dims(2, 3));
    let mut scores = apart(scores, keys); // [batch, heads, seq, keys]
    if dtype != FloatDType::F32 {
        scores = scores.cast(FloatDType::F32);
    }
    if let Some(Hidden { keys: hidden, evenly }) = hidden {
        if let Some(evenly) = evenly {
            let equal = scores.clone() - scores.clone().detach();
            scores = scores.mask_where(evenly.expand([batch, heads, seq, keys]), equal);
        }
        scores = scores.mask_fill(hidden.expand([batch, heads, seq, keys]), f32::MIN);
    }
    let mut weights = softmax(scores, 3);
    if dtype != FloatDType::F32 {
        weights = weights.cast(dtype);
    }
    apart(grouped(dropout::plain(weights, dropout_p, rng), keys).matmul(value), head_dim)
}

/// True where query `past + i` must not see key `j`, that is where `j > past + i`: `[1, 1, seq,
/// past + seq]`.
pub fn causal_mask(seq: usize, past: usize, device: &Device) -> Tensor<4, Bool> {
    let keys = Tensor::<1, Int>::arange(0..(past + seq) as i64, device).reshape([1, 1, 1, past + seq]);
    let queries = Tensor::<1, Int>::arange(past as i64..(past + seq) as i64, device).reshape([1, 1, seq, 1]);
    keys.expand([1, 1, seq, past + seq]).greater(queries.expand([1, 1, seq, past + seq]))
}

/// True where query `past + i` must not see key `j` in local attention: where `j > past + i`, and
/// where `j <= past + i - window`, so that a query sees `window` keys, its own among them:
/// `[1, 1, seq, past + seq]`.
pub fn local_mask(seq: usize, past: usize, window: usize, device: &Device) -> Tensor<4, Bool> {
    let shape = [1, 1, seq, past + seq];
    let keys = Tensor::<1, Int>::arange(0..(past + seq) as i64, device).reshape([1, 1, 1, past + seq]);
    let queries = Tensor::<1, Int>::arange(past as i64..(past + seq) as i64, device).reshape([1, 1, seq, 1]);
    let is_before = keys.expand(shape).lower_equal(queries.expand(shape) - window as i64);
    causal_mask(seq, past, device).bool_or(is_before)
}

/// True where a key is padding: `attention_mask [batch, keys]` (true = attend) -> `[batch, 1, 1,
/// keys]`.
pub fn padding_mask(attention_mask: Tensor<2, Bool>) -> Tensor<4, Bool> {
    let [batch, keys] = attention_mask.dims();
    attention_mask.bool_not().reshape([batch, 1, 1, keys])
}
