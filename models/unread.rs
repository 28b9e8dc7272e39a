//! What nobody reads is not computed. A BERT that classifies reads the first token of each sequence and nothing else, so in the
//! fused form the last layer asks for the first tokens alone: keys and values are those of all tokens, while the query, the
//! projection after the attention and the feed-forward block have one row a sequence. Nor does a token attend to padding: on the
//! CPU the rows of padding are dropped after the embeddings, and the layers see the tokens of all sequences one after the other.
//! Elsewhere those rows stay: a shape that differs from batch to batch would be compiled and recorded each time.
//!
//! Dropping padding is the idea of "effective transformers" (ByteDance, 2020) and of FlashAttention's variable lengths (Dao
//! 2023).

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::heads::{Model, ModelInput};
use crate::ops::embedding::embedding;
use crate::ops::{Form, Operator, Ops};

/// Where the first token of each sequence is among the rows, `[batch]`; none where all sequences are equally long.
#[derive(Debug, Clone)]
pub(crate) struct FirstTokens(Option<Tensor<1, Int>>);

impl FirstTokens {
    /// Of equally long sequences.
    pub(crate) const EVENLY: Self = Self(None);

    /// `[rows, width] -> [batch, width]`
    pub(crate) fn of(&self, x: Tensor<2>, batch: usize, ops: Ops) -> Tensor<2> {
        match &self.0 {
            Some(places) => embedding(x, places.clone(), None, ops),
            None => {
                let [rows, width] = x.dims();
                let x = x.reshape([batch, rows / batch, width]);
                x.slice([0..batch, 0..1, 0..width]).reshape([batch, width])
            }
        }
    }
}

/// The rows that are not padding.
pub(crate) struct Unpadded {
    /// Their places among all rows, in order: `[tokens]`.
    pub(crate) tokens: Tensor<1, Int>,
    /// The first tokens among them.
    pub(crate) first: FirstTokens,
}

impl Model {
    /// Whether the last layer computes the first token of each sequence and nothing else.
    pub(crate) fn asks_first_tokens(&self) -> bool {
        self.reads_first_tokens() && self.ops().form(Operator::Attention) == Form::Fused
    }

    /// The rows of `input` that the layers compute where that is not all of them. A sequence whose first token is masked is read
    /// all the same, so a batch with one keeps all rows.
    pub(crate) fn unpadded(&self, input: &ModelInput) -> Option<Unpadded> {
        let mask = input.attention_mask.as_ref().filter(|_| self.asks_first_tokens())?;
        let device = mask.device();
        if device.clone().without_autodiff() != Device::flex() {
            return None;
        }
        let [_, seq] = mask.dims();
        let shown = mask.clone().into_data().iter::<bool>().collect::<Vec<_>>();
        let (mut tokens, mut first) = (Vec::new(), Vec::new());
        for (place, shown) in shown.iter().enumerate() {
            if place % seq == 0 {
                first.push(tokens.len() as i64);
            }
            if *shown {
                tokens.push(place as i64);
            } else if place % seq == 0 {
                return None;
            }
        }
        let ids = |ids: Vec<i64>| {
            let len = ids.len();
            Tensor::from_data(TensorData::new(ids, [len]), &device)
        };
        let is_all = tokens.len() == shown.len();
        (!is_all).then(|| Unpadded { tokens: ids(tokens), first: FirstTokens(Some(ids(first))) })
    }
}
