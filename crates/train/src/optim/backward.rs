//! Forward and backward pass of one micro-batch: its loss and the gradients of every parameter.
//!
//! The random numbers of every stage (embeddings, each block, head) come from a seed of its own, so
//! that a block that is computed a second time for its gradients drops what it dropped the first
//! time, and a run draws the same masks whether it keeps activations or computes them again. With
//! [`ActivationCheckpointing::Blocks`] (Chen et al. 2016, with a segment a block) the gradients are
//! the same, on the CPU to the last bit.

use std::fmt::Display;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use kiln_core::choices;
use kiln_core::error::{Error, Result};
use kiln_core::random::seed_for;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::{Compute, Copies, Pass};

choices! {
    /// The results that the backward pass computes again instead of keeping them from the forward
    /// pass. Gradients are the same, up to rounding.
    ActivationCheckpointing("activation checkpointing") {
        /// Nothing: everything is kept.
        None = "none",
        /// Element-wise operations, which cost little to compute and much to keep. Results of
        /// matrix products, sums and lookups are kept.
        Balanced = "balanced",
        /// Whole layers: between forward and backward pass only what passes from one to the next is
        /// kept.
        Blocks = "blocks",
    }
}

/// How the loss and the gradients of a micro-batch are computed.
#[derive(Debug, Clone, Copy)]
pub struct GradientPass<'a> {
    /// The source of dropout's random numbers.
    pub rng: DropoutRng<'a>,
    /// The device's generator is seeded anew with a number derived from this one before every stage
    /// of the model, where dropout draws from that.
    pub seed: u64,
    /// The part of the forward pass that is computed again. `Balanced` is a property of the device
    /// that the model and the batch are on, so here it is as `None`.
    pub checkpointing: ActivationCheckpointing,
    /// The form of the operators and the type of matrix products.
    pub compute: Compute,
    /// Where the model and the batch are, with autodiff.
    pub device: &'a Device,
    /// Where narrow copies of the weights are kept
    /// ([`Optimizer::copies`](super::Optimizer::copies)); none to cast a weight for every product.
    pub copies: Option<&'a Copies>,
}

/// The loss of a batch in stages, of which a backward pass computes the blocks again
/// ([`GradientPass::by_blocks`]). Between stages flow hidden states, `[rows, width]`.
pub trait Stages<M> {
    /// How many blocks there are.
    fn num_blocks(&self, model: &M) -> usize;

    /// The input of the first block.
    fn embed(&self, model: &M, pass: Pass<'_>) -> Tensor<2>;

    /// The output of block `index` for its input `x`.
    fn block(&self, model: &M, index: usize, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2>;

    /// The sum of the loss, `[1]`, from the output `x` of the last block.
    ///
    /// # Errors
    /// A batch without labels.
    fn loss(&self, model: &M, x: Tensor<2>, pass: Pass<'_>) -> Result<Tensor<1>>;
}

impl GradientPass<'_> {
    /// The sum that `loss` computes of a batch, `[1]`, without autodiff, and the gradients of
    /// `scaled` of it, which is called between forward and backward pass. The model decides which
    /// activations are recomputed by blocks ([`by_blocks`](Self::by_blocks)).
    ///
    /// # Errors
    /// The errors of `loss`.
    pub fn run<M: Module>(
        &self,
        model: &M,
        loss: impl FnOnce(Pass<'_>) -> Result<Tensor<1>>,
        scaled: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<(Tensor<1>, GradientsParams)> {
        let begin_stage = |stage: usize| self.begin_stage(stage);
        // A model that tells of no stages draws all its dropout in the first.
        begin_stage(0);
        let loss = loss(self.pass(&begin_stage))?;
        let grads = scaled(loss.clone()).backward();
        Ok((loss.inner(), self.params(grads, model)))
    }

    fn pass<'b>(&'b self, on_stage: &'b dyn Fn(usize)) -> Pass<'b> {
        Pass { compute: self.compute, rng: self.rng, copies: self.copies, on_stage: Some(on_stage), tied: None }
    }

    /// The sum of a loss in `stages`, `[1]`, without autodiff, and the gradients of `scaled` of it
    /// for the whole model.
    ///
    /// # Errors
    /// The errors of the loss.
    pub fn by_blocks<M: Module>(
        &self,
        model: &M,
        stages: &dyn Stages<M>,
        scaled: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<(Tensor<1>, GradientsParams)> {
        let mut accumulator = GradientsAccumulator::new();
        let loss = self.in_parts(model, stages, scaled, &mut |part| {
            accumulator.accumulate(model, part);
            Ok(())
        })?;
        Ok((loss, accumulator.grads()))
    }

    /// The sum of a loss in `stages`, `[1]`, without autodiff; the gradients of `scaled` of it go
    /// to `on_part` part by part: those of the loss, of each block from the last to the first, and
    /// of the embeddings. With [`ActivationCheckpointing::Blocks`] the forward pass keeps nothing
    /// but what goes into each block, which is then computed again with its gradients; otherwise it
    /// keeps what the backward pass needs.
    ///
    /// # Errors
    /// The errors of the loss, and of `on_part`.
    pub fn in_parts<M: Module>(
        &self,
        model: &M,
        stages: &dyn Stages<M>,
        scaled: impl FnOnce(Tensor<1>) -> Tensor<1>,
        on_part: &mut dyn FnMut(GradientsParams) -> Result<()>,
    ) -> Result<Tensor<1>> {
        let begin_stage = |stage: usize| self.begin_stage(stage);
        let (pass, blocks) = (self.pass(&begin_stage), stages.num_blocks(model));
        self.begin_stage(0);
        let embedded = stages.embed(model, pass);
        // On the device with autodiff although nothing is tracked: without it backends compute a
        // softmax in another way, and the block that is computed again would not be this one to the
        // last bit.
        let computes_again = self.checkpointing == ActivationCheckpointing::Blocks;
        let untracked = computes_again.then(|| model.clone().no_grad());
        // As many rows as `embed` gives each, and the output of a block that is not computed again.
        let mut kept = Vec::with_capacity(blocks);
        let mut x = embedded.clone().detach();
        for block in 0..blocks {
            self.begin_stage(1 + block);
            match &untracked {
                Some(untracked) => {
                    kept.push((x.clone(), None));
                    x = stages.block(untracked, block, x, pass);
                }
                None => {
                    let input = x.require_grad();
                    let output = stages.block(model, block, input.clone(), pass);
                    x = output.clone().detach();
                    kept.push((input, Some(output)));
                }
            }
        }
        drop(untracked);

        self.begin_stage(1 + blocks);
        let top = x.require_grad();
        let loss = batch_sum(stages.loss(model, top.clone(), pass)?, "the stages")?;
        let mut grads = scaled(loss.clone()).backward();
        let mut above = top.grad_remove(&mut grads).ok_or_else(no_gradient)?;
        on_part(self.params(grads, model))?;

        for (block, (input, output)) in kept.into_iter().enumerate().rev() {
            let (x, y) = match output {
                Some(output) => (input, output),
                None => {
                    self.begin_stage(1 + block);
                    let x = input.require_grad();
                    (x.clone(), stages.block(model, block, x, pass))
                }
            };
            let mut grads = backward_from(y, above);
            above = x.grad_remove(&mut grads).ok_or_else(no_gradient)?;
            on_part(self.params(grads, model))?;
        }
        if embedded.is_tracked() {
            on_part(self.params(backward_from(embedded, above), model))?;
        }
        Ok(loss.inner())
    }

    /// The gradients of the parameters of `model`: those of a narrow copy are the weight's.
    fn params<M: Module>(&self, mut grads: Gradients, model: &M) -> GradientsParams {
        let of_copies = self.copies.map(|copies| copies.take_gradients(&mut grads)).unwrap_or_default();
        let mut params = GradientsParams::from_grads(grads, model);
        for (id, grad) in of_copies {
            let grad = if grad.dtype() == DType::F32 { grad } else { grad.cast(FloatDType::F32) };
            let sum = match params.remove::<2>(id) {
                Some(own) => own + grad,
                None => grad,
            };
            params.register::<2>(id, sum);
        }
        params
    }

    /// Makes the random numbers those of stage `stage`: 0 the embeddings, then the blocks, then the
    /// head.
    fn begin_stage(&self, stage: usize) {
        match self.rng {
            DropoutRng::Device | DropoutRng::Numbered(_) => {
                self.device.seed(seed_for(self.seed, "stage", stage as u64, 0));
            }
            DropoutRng::Seeds(seeds) => seeds.begin_stage(stage),
            DropoutRng::Off => {}
        }
    }
}

/// The gradients of everything below `y`, where that of `y` itself is `above`: those of `sum(y *
/// above)`.
fn backward_from(y: Tensor<2>, above: Tensor<2>) -> Gradients {
    (y * Tensor::from_inner(above)).sum().backward()
}

/// `loss`, which `of` has computed, if it is `[1]`.
///
/// # Errors
/// A loss of another shape.
pub(crate) fn batch_sum(loss: Tensor<1>, of: impl Display) -> Result<Tensor<1>> {
    match loss.dims() {
        [1] => Ok(loss),
        shape => {
            Err(Error::config(format!("the loss of {of} has shape {shape:?}, expected [1]: the sum over the batch"))
                .help("end `loss` in `.sum()`; the Trainer divides the sum by the labels of the batch"))
        }
    }
}

fn no_gradient() -> Error {
    Error::device("a block's input has no gradient, although everything above it has one")
}
