//! The rows of a batch that the layers of a model compute, and the keys that each of them attends
//! to.
//!
//! A classification head on BERT reads the first token of each sequence and nothing else. In the
//! fused form the last layer therefore computes the first tokens alone: keys and values are those
//! of all tokens, while the query, the projection after the attention and the feed-forward block
//! have one row a sequence. No token attends to padding, so on the CPU the rows of padding are
//! dropped after the embeddings, and the layers see the tokens of all sequences one after the
//! other. On a GPU these rows stay, because a shape that differs from batch to batch would be
//! compiled and recorded each time.
//!
//! Dropping padding is the idea of "effective transformers" (ByteDance, 2020) and of
//! FlashAttention's variable lengths (Dao 2023).

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::ops::attention::{Mask, Unseen};
use crate::ops::compute::Pass;
use crate::ops::device::DeviceKernels;
use crate::ops::dropout::DropoutRng;
use crate::ops::dropout::masks::{Numbered, RowNumbers};
use crate::ops::embedding::embedding;
use crate::ops::rotary::Angles;
use crate::ops::{Form, Operator, Ops};

/// See the top of this file. Made once for a batch by [`Model::rows`](crate::Model::rows) and
/// handed to every layer.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Number of sequences.
    pub batch: usize,
    /// Which keys each row attends to.
    pub mask: Mask,
    /// The mask of the local layers; none where no layer is local.
    pub(crate) local_mask: Option<Mask>,
    /// The places of the rows that are computed among all `batch * seq`, in order: `[tokens]`; none
    /// where all are computed.
    pub(crate) tokens: Option<Tensor<1, Int>>,
    /// The rows that the last layer computes; none where it computes all.
    pub(crate) last_layer: Option<FirstTokens>,
    /// The numbers that the rows have for dropout; none where each has that of its place.
    pub(crate) numbers: Option<LayerNumbers>,
    /// The angles by which the positions of the rows turn query and key; none in a model with
    /// positions of another kind.
    pub(crate) angles: Option<Angles>,
}

/// The numbers of the rows for dropout where the plain form computes rows that the fused form does
/// not, or in other places.
#[derive(Debug, Clone)]
pub(crate) struct LayerNumbers {
    layers: RowNumbers,
    last_layer: RowNumbers,
}

/// Where the first token of each sequence is among the rows: `[batch]`; none where all sequences
/// have as many rows.
#[derive(Debug, Clone)]
pub(crate) struct FirstTokens(Option<Tensor<1, Int>>);

impl Rows {
    /// All rows of `batch` sequences of `seq` tokens: with `causal` no token attends to a later
    /// one; `attention_mask [batch, seq]` (true = attend) hides padding.
    pub fn all(
        [batch, seq]: [usize; 2],
        causal: bool,
        attention_mask: Option<Tensor<2, Bool>>,
        device: &Device,
        ops: Ops,
    ) -> Self {
        let mask = Mask::new(seq, causal, attention_mask, device, ops);
        Self { batch, mask, local_mask: None, tokens: None, last_layer: None, numbers: None, angles: None }
    }

    /// All rows of sequences that are several documents: `position_ids [batch, seq]` are the
    /// positions of tokens in their documents, each of which begins at 0, or with its row. A token
    /// attends to those before it in its document. The fused attention on the CPU computes each
    /// document as a sequence of its own, so that nothing masked is computed; elsewhere a mask
    /// hides the other documents. So it does where a document is longer than the `window` of local
    /// layers, and where `attention_mask [batch, seq]` (true = attend) hides a part of a document
    /// or a whole row; `unseen` is what a query attends to that sees no key.
    pub(crate) fn documents(
        position_ids: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        window: Option<usize>,
        unseen: Unseen,
        pass: Pass<'_>,
    ) -> Self {
        let ([batch, seq], device) = (position_ids.dims(), position_ids.device());
        let is_fused = pass.ops().form(Operator::Attention) == Form::Fused;
        let is_on_host = DeviceKernels::on(&device).are_on_host;
        // Read, which is no transfer on the CPU.
        let mut lens = Vec::<usize>::new();
        let mut hides_a_part = false;
        if is_on_host {
            let shown = attention_mask.clone().map(|mask| mask.into_data().iter::<bool>().collect::<Vec<_>>());
            let shown = |place: usize| shown.as_ref().is_none_or(|shown| shown[place]);
            // In a row that is hidden whole, `unseen` says what a token attends to.
            hides_a_part = (0..batch).any(|row| (0..seq).all(|token| !shown(row * seq + token)));
            for (place, position) in position_ids.clone().into_data().iter::<i64>().enumerate() {
                match lens.last_mut() {
                    Some(len) if position != 0 && place % seq != 0 => {
                        *len += 1;
                        hides_a_part |= shown(place) != shown(place - 1);
                    }
                    _ => lens.push(1),
                }
            }
        }
        let longest = lens.iter().copied().max().unwrap_or(1);
        let by_document = is_on_host && !hides_a_part && window.is_none_or(|window| longest <= window);
        if !(is_fused && by_document) {
            let numbers = (by_document && pass.drops()).then(|| LayerNumbers::evenly(RowNumbers::new(lens, |_| true)));
            let documents = position_ids.equal_scalar(0).int().cumsum(1);
            let mask = Mask::of_documents(documents.clone(), attention_mask.clone(), None, unseen);
            let local_mask = window.map(|window| Mask::of_documents(documents, attention_mask, Some(window), unseen));
            return Self { batch, mask, local_mask, tokens: None, last_layer: None, numbers, angles: None };
        }
        let shown = lens.iter().flat_map(|len| (0..longest).map(move |place| place < *len)).collect::<Vec<_>>();
        let shown = Tensor::from_data(TensorData::new(shown, [lens.len(), longest]), &device);
        let mask = Mask::unpadded(shown, true);
        let local_mask = window.map(|_| mask.clone());
        Self { batch: lens.len(), mask, local_mask, tokens: None, last_layer: None, numbers: None, angles: None }
    }

    /// All rows of `batch` sequences of `seq` tokens without causal mask, of which the last layer
    /// computes the first token of each sequence; on the CPU the rows of padding, which
    /// `attention_mask [batch, seq]` (true = attend) hides, are left out. A sequence whose first
    /// token is masked is read all the same, so a batch with one keeps all rows. `ops` has the
    /// fused attention.
    pub fn first_tokens(shape: [usize; 2], attention_mask: Option<Tensor<2, Bool>>, device: &Device, ops: Ops) -> Self {
        if let Some(mask) = &attention_mask
            && DeviceKernels::on(device).are_on_host
            && let Some(rows) = Self::unpadded(mask)
        {
            return rows;
        }
        Self { last_layer: Some(FirstTokens::EVENLY), ..Self::all(shape, false, attention_mask, device, ops) }
    }

    /// The rows that `mask [batch, seq]` shows; none where it shows all of them, or hides a first
    /// token.
    fn unpadded(mask: &Tensor<2, Bool>) -> Option<Self> {
        let [batch, seq] = mask.dims();
        let device = mask.device();
        let shown = shown_places(mask).filter(|shown| shown.contains(&false))?;
        let (mut tokens, mut first) = (Vec::new(), Vec::new());
        for (place, shown) in shown.iter().enumerate() {
            if place % seq == 0 {
                first.push(tokens.len() as i64);
            }
            if *shown {
                tokens.push(place as i64);
            }
        }
        let ids = |ids: Vec<i64>| {
            let len = ids.len();
            Tensor::from_data(TensorData::new(ids, [len]), &device)
        };
        let last_layer = Some(FirstTokens(Some(ids(first))));
        Some(Self {
            batch,
            mask: Mask::unpadded(mask.clone(), false),
            local_mask: None,
            tokens: Some(ids(tokens)),
            last_layer,
            numbers: None,
            angles: None,
        })
    }

    /// These rows of a batch `[batch, seq]`, which are all rows, with the numbers that they have
    /// for dropout in [`first_tokens`](Self::first_tokens) on the CPU; as they are elsewhere.
    pub(crate) fn numbered_as_first_tokens(
        self,
        [batch, seq]: [usize; 2],
        attention_mask: Option<Tensor<2, Bool>>,
        device: &Device,
    ) -> Self {
        if !DeviceKernels::on(device).are_on_host {
            return self;
        }
        let shown = attention_mask.and_then(|mask| shown_places(&mask)).unwrap_or_else(|| vec![true; batch * seq]);
        let of = |is_computed: &dyn Fn(usize) -> bool| RowNumbers::new(vec![seq; batch], is_computed);
        let numbers = LayerNumbers { layers: of(&|place| shown[place]), last_layer: of(&|place| place % seq == 0) };
        Self { numbers: Some(numbers), ..self }
    }

    /// `pass` for a layer, with the numbers that the rows have in it for dropout.
    pub(crate) fn pass<'a>(&'a self, pass: Pass<'a>, is_last: bool) -> Pass<'a> {
        match (&self.numbers, pass.rng) {
            (Some(LayerNumbers { layers, last_layer }), DropoutRng::Device | DropoutRng::Numbered(_)) => {
                let rows = if is_last { last_layer } else { layers };
                Pass { rng: DropoutRng::Numbered(Numbered { rows, keys: layers }), ..pass }
            }
            _ => pass,
        }
    }

    /// The rows that are computed of all of a batch: `[batch * seq, width] -> [rows, width]`
    pub(crate) fn of(&self, x: Tensor<2>, ops: Ops) -> Tensor<2> {
        match &self.tokens {
            Some(tokens) => embedding(x, tokens.clone(), None, ops),
            None => x,
        }
    }
}

/// Whether `mask [batch, seq]` shows the token of each place; none where it hides a first token,
/// beside which all rows are computed. The mask is read, which is no transfer on the CPU.
fn shown_places(mask: &Tensor<2, Bool>) -> Option<Vec<bool>> {
    let shown = mask.clone().into_data().iter::<bool>().collect::<Vec<_>>();
    shown.iter().step_by(mask.dims()[1]).all(|first| *first).then_some(shown)
}

impl LayerNumbers {
    /// These numbers in every layer.
    fn evenly(rows: RowNumbers) -> Self {
        Self { layers: rows.clone(), last_layer: rows }
    }
}

impl FirstTokens {
    /// First tokens of sequences that have equally many rows.
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
