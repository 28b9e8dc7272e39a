//! Keys and values of the tokens that a language model has seen, for generation.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::ops::attention::plain::{causal_mask, local_mask};

/// Keys and values of the tokens seen so far: one pair `[batch, heads, capacity, head_dim]` a
/// layer, of which the first [`len`](Self::len) places are taken. A token is written into its
/// place; when no place is left, the capacity is doubled, so that `n` tokens are copied fewer than
/// `2 n` times in all. Reference: `transformers.StaticCache`, which has one capacity.
#[derive(Debug, Default)]
pub struct KvCache {
    /// None while the layer's pair is being written.
    layers: Vec<Option<(Tensor<4>, Tensor<4>)>>,
    /// Tokens that all layers have.
    len: usize,
    /// The tokens of padding before each sequence; empty where nothing is padded.
    padding: Vec<usize>,
}

/// The fewest places of a cache.
const FEWEST: usize = 64;

impl KvCache {
    /// A cache for a batch whose sequences have different lengths: sequence `i` begins with
    /// `padding[i]` tokens that are none of its own, no query sees them, and its positions are
    /// counted from its first token.
    pub fn left_padded(padding: Vec<usize>) -> Self {
        let padding = if padding.iter().any(|tokens| *tokens > 0) { padding } else { Vec::new() };
        Self { padding, ..Self::default() }
    }

    /// How many tokens the cache holds, those of padding included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many tokens the cache has places for.
    pub fn capacity(&self) -> usize {
        self.layers.first().and_then(Option::as_ref).map_or(0, |(key, _)| key.dims()[2])
    }

    /// True where one of `seq` tokens that follow must not see a key of all: `[batch or 1, 1, seq,
    /// len + seq]`; none where each sees all.
    pub(crate) fn hidden(&self, seq: usize, device: &Device) -> Option<Tensor<4, Bool>> {
        let keys = self.len + seq;
        let later = (seq > 1).then(|| causal_mask(seq, self.len, device));
        if self.padding.is_empty() {
            return later;
        }
        let batch = self.padding.len();
        let of_padding = Tensor::<1, Int>::arange(0..keys as i64, device)
            .reshape([1, 1, 1, keys])
            .expand([batch, 1, seq, keys])
            .lower(self.paddings(device).reshape([batch, 1, 1, 1]).expand([batch, 1, seq, keys]));
        Some(match later {
            Some(later) => later.expand([batch, 1, seq, keys]).bool_or(of_padding),
            None => of_padding,
        })
    }

    /// [`hidden`](Self::hidden), and the same for layers that attend to the last `window` tokens
    /// alone, where there are such layers.
    pub(crate) fn hidden_within(
        &self,
        seq: usize,
        window: Option<usize>,
        device: &Device,
    ) -> [Option<Tensor<4, Bool>>; 2] {
        let hidden = self.hidden(seq, device);
        let local = window.map(|window| {
            let local = local_mask(seq, self.len, window, device);
            match &hidden {
                Some(hidden) => hidden.clone().bool_or(local.expand(hidden.dims())),
                None => local,
            }
        });
        [hidden, local]
    }

    /// The positions of `seq` tokens that follow, `[batch * seq]`, of a model that has `most`; none
    /// where they are `len..len + seq` in every sequence. A token of padding has the first, and one
    /// beyond the model's the last: nothing is read from either.
    pub(crate) fn positions(&self, seq: usize, most: usize, device: &Device) -> Option<Tensor<1, Int>> {
        if self.padding.is_empty() {
            return None;
        }
        let of = |padding: &usize| {
            let padding = *padding;
            (self.len..self.len + seq).map(move |column| column.saturating_sub(padding).min(most - 1) as i32)
        };
        let positions = self.padding.iter().flat_map(of).collect::<Vec<_>>();
        let count = positions.len();
        Some(Tensor::from_data(TensorData::new(positions, [count]), device))
    }

    fn paddings(&self, device: &Device) -> Tensor<1, Int> {
        let counts = self.padding.iter().map(|tokens| *tokens as i32).collect::<Vec<_>>();
        let batch = counts.len();
        Tensor::from_data(TensorData::new(counts, [batch]), device)
    }

    /// Writes the keys and values of layer `index`, `[batch, heads, seq, head_dim]` each, behind
    /// those that are there, and returns all of that layer's. They count as seen after
    /// [`advance`](Self::advance).
    pub(crate) fn append(&mut self, index: usize, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (past, seq) = (self.len, key.dims()[2]);
        if self.layers.len() <= index {
            self.layers.resize_with(index + 1, || None);
        }
        // The cache gives its tensors away, so that they have one owner and are written in place.
        let pair = self.layers[index].take();
        let (keys, values) = match pair {
            Some((keys, values)) => (placed(keys, key, past), placed(values, value, past)),
            None => (placed(room(&key, FEWEST), key, 0), placed(room(&value, FEWEST), value, 0)),
        };
        let all = (seen(&keys, past + seq), seen(&values, past + seq));
        self.layers[index] = Some((keys, values));
        all
    }

    /// Counts `seq` tokens as seen, which all layers have.
    pub(crate) fn advance(&mut self, seq: usize) {
        self.len += seq;
    }
}

/// Zeros with `capacity` places, and the other sizes of `like`.
fn room(like: &Tensor<4>, capacity: usize) -> Tensor<4> {
    let [batch, heads, _, head_dim] = like.dims();
    Tensor::zeros([batch, heads, capacity, head_dim], (&like.device(), like.dtype()))
}

/// The first `past + seq` places of `all`, which is left as it is.
fn seen(all: &Tensor<4>, count: usize) -> Tensor<4> {
    all.clone().slice_dim(2, 0..count)
}

/// `all` with `new` behind its first `past` places.
fn placed(all: Tensor<4>, new: Tensor<4>, past: usize) -> Tensor<4> {
    let ([batch, heads, capacity, head_dim], seq) = (all.dims(), new.dims()[2]);
    let all = if past + seq > capacity {
        let larger = room(&new, (2 * capacity).max(past + seq));
        let kept = all.slice_dim(2, 0..past);
        larger.slice_assign([0..batch, 0..heads, 0..past, 0..head_dim], kept)
    } else {
        all
    };
    all.slice_assign([0..batch, 0..heads, past..past + seq, 0..head_dim], new)
}
