//! Padding that nobody reads is not computed. A BERT that classifies reads the first token of each sequence, and no token
//! attends to padding: so on the CPU the fused form drops the rows of padding after the embeddings, and the layers see the
//! tokens of all sequences one after the other. Elsewhere rows stay: a shape that differs from batch to batch would be compiled
//! and recorded each time. The idea is that of "effective transformers" (ByteDance, 2020) and of FlashAttention's variable
//! lengths (Dao 2023).

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::heads::{Model, ModelInput};
use crate::ops::embedding::embedding;
use crate::ops::{Form, Operator};

/// The rows that are computed.
pub(crate) struct Unpadded {
    /// Their places among all rows, in order: `[tokens]`.
    attended: Tensor<1, Int>,
    /// The places of the first tokens among them, `[batch]`.
    first: Tensor<1, Int>,
}

impl Model {
    /// The rows of `input` that are computed where that is not all of them. A sequence whose first token is masked is read all
    /// the same, so a batch with one keeps all rows.
    pub(crate) fn unpadded(&self, input: &ModelInput) -> Option<Unpadded> {
        let mask = input.attention_mask.as_ref()?;
        let device = mask.device();
        let can = self.reads_first_tokens()
            && self.ops().form(Operator::Attention) == Form::Fused
            && device.clone().without_autodiff() == Device::flex();
        if !can {
            return None;
        }
        let [_, seq] = mask.dims();
        let shown = mask.clone().into_data().iter::<bool>().collect::<Vec<_>>();
        let (mut attended, mut first) = (Vec::new(), Vec::new());
        for (place, shown) in shown.iter().enumerate() {
            if place % seq == 0 {
                first.push(attended.len() as i64);
            }
            if *shown {
                attended.push(place as i64);
            } else if place % seq == 0 {
                return None;
            }
        }
        let ids = |ids: Vec<i64>| {
            let len = ids.len();
            Tensor::from_data(TensorData::new(ids, [len]), &device)
        };
        (attended.len() < shown.len()).then(|| Unpadded { attended: ids(attended), first: ids(first) })
    }
}

impl Unpadded {
    /// The rows of tokens out of all rows: `[batch * seq, width] -> [tokens, width]`.
    pub(crate) fn tokens(self, model: &Model, x: Tensor<2>) -> Tensor<2> {
        embedding(x, self.attended, None, model.ops())
    }

    /// The first token of each sequence: `[tokens, width] -> [batch, width]`.
    pub(crate) fn first(self, model: &Model, x: Tensor<2>) -> Tensor<2> {
        assert_eq!(x.dims()[0], self.attended.dims()[0], "rows of the last block, of `embed` of the same input");
        embedding(x, self.first, None, model.ops())
    }
}
