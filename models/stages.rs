//! A model cut into the stages that follow one another: embeddings, blocks, head. [`Model::forward`] is all of them in a
//! row; who wants to do something between them (seed each, or keep only what passes from one to the next and compute a
//! block again in the backward pass) calls them one by one, then [`Model::head`].

use burn::tensor::Tensor;

use crate::heads::{Body, Model, ModelInput};
use crate::ops::attention::Mask;
use crate::ops::embedding::embedding;
use crate::unread::FirstTokens;

impl Model {
    /// How many blocks the model has.
    pub fn num_blocks(&self) -> usize {
        match self.body() {
            Body::Gpt2(model) => model.h.len(),
            Body::Bert(model) => model.num_blocks(),
        }
    }

    /// What the first block reads: `[batch * seq, width]`, or without the rows of padding where nobody reads them (a BERT that
    /// classifies, fused, on the CPU).
    pub fn embed(&self, input: &ModelInput, train: bool) -> Tensor<2> {
        let ids = input.input_ids.clone();
        let x = match self.body() {
            Body::Gpt2(model) => model.embed(ids, 0, train),
            Body::Bert(model) => model.embed(ids, input.token_type_ids.clone(), train),
        };
        match self.unpadded(input) {
            Some(rows) => embedding(x, rows.tokens, None, self.ops()),
            None => x,
        }
    }

    /// Which keys the tokens of `input` see, for all blocks, and which tokens the last one computes.
    pub fn mask(&self, input: &ModelInput) -> Mask {
        let (seq, device) = (input.input_ids.dims()[1], input.input_ids.device());
        let attention_mask = input.attention_mask.clone();
        if let (Some(rows), Some(mask)) = (self.unpadded(input), &attention_mask) {
            return Mask::unpadded(mask.clone()).asking(rows.first);
        }
        let mask = match self.body() {
            Body::Gpt2(model) => model.mask(seq, attention_mask, &device),
            Body::Bert(model) => model.mask(seq, attention_mask, &device),
        };
        if self.asks_first_tokens() { mask.asking(FirstTokens::EVENLY) } else { mask }
    }

    /// Block `index` of [`num_blocks`](Self::num_blocks): rows as [`embed`](Self::embed) gives them -> the same, or of the last
    /// block `[batch, width]`, the first tokens, where nobody reads the others (a BERT that classifies, fused).
    ///
    /// # Panics
    /// For a block that the model does not have.
    pub fn block(&self, index: usize, x: Tensor<2>, batch: usize, mask: &Mask, train: bool) -> Tensor<2> {
        match self.body() {
            Body::Gpt2(model) => model.block(index, x, batch, mask, train),
            Body::Bert(model) => model.block(index, x, batch, mask, train),
        }
    }
}
