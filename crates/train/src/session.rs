//! A run that can begin: its arguments, the facts about what is open, and the plan that follows
//! from them.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use kiln_core::dataset::padding::survey;
use kiln_core::dataset::subset::Subset;
use kiln_core::dataset::{Dataset, Fingerprint, Sampler};
use kiln_core::error::{Error, Result};
use kiln_core::random::seed_for;
use kiln_models::weights::LoadReport;

use crate::arguments::{CheckedArguments, Feature, TrainingArguments};
use crate::description::{Description, Outcome, Planned, Weights};
use crate::engine::compiler::decision::Decision;
use crate::engine::{device, handover};
use crate::evaluation::EvaluationSession;
use crate::optim::{LambdaLr, OwnOptimizer, UpdateRule};
use crate::plan::{BatchPlan, DataFacts, SplitFacts, TrainFacts, TrainPlan};
use crate::task::{TrainingTask, model_facts};

/// A run that can begin: its plan, its device, its task and its open datasets.
pub struct Session<T: TrainingTask> {
    /// The plan of the run. Nothing changes it: other arguments or other facts make another
    /// session.
    plan: TrainPlan,
    /// Where it runs.
    pub device: Device,
    /// The model, its loss and its metrics.
    pub task: T,
    /// Training data.
    train: Arc<dyn Dataset<T::Example>>,
    /// Validation data, if any.
    validation: Option<Arc<dyn Dataset<T::Example>>>,
    /// The arguments and the facts that the plan is derived from.
    arguments: CheckedArguments,
    facts: TrainFacts,
    weights: Weights,
}

impl<T: TrainingTask> Clone for Session<T> {
    fn clone(&self) -> Self {
        Self {
            plan: self.plan.clone(),
            device: self.device.clone(),
            task: self.task.clone(),
            train: self.train.clone(),
            validation: self.validation.clone(),
            arguments: self.arguments.clone(),
            facts: self.facts.clone(),
            weights: self.weights.clone(),
        }
    }
}

impl<T: TrainingTask> Session<T> {
    /// The run that trains `task` on `train`; [`with_validation`](Self::with_validation) adds
    /// examples to evaluate on.
    ///
    /// # Errors
    /// Arguments that contradict one another, the task or the data, and a model that cannot be
    /// made.
    pub fn new(arguments: TrainingArguments, task: T, train: impl Dataset<T::Example>) -> Result<Self> {
        arguments.check_without(|feature| match feature {
            Feature::Command => true,
            Feature::Padding => !T::PADS_BY_PLAN,
            Feature::Samples => !T::WRITES_SAMPLES,
            Feature::Loss => false, // the task tells
        })?;
        let arguments = arguments.checked()?;
        let batch = BatchPlan::of(&arguments, None)?;
        if arguments.sampler == Sampler::GroupByLength && train.max_len() == 0 {
            let message = "data.sampler = \"group_by_length\": the training data tells no lengths";
            return Err(
                Error::config(message).help("let the dataset tell them (Dataset::len_of), or take another order")
            );
        }
        handover::settle(arguments.compiler.as_ref(), arguments.device.kind)?;
        let found = device::select(arguments.device.kind, arguments.device.index)?;
        let is_cut = arguments.overfit_one_batch || arguments.fast_dev_run;
        let train = limited("training", train, is_cut.then_some(batch.global))?;
        let facts = TrainFacts {
            model: model_facts(&task)?,
            data: DataFacts::new(&*train, None, batch.drawn(&arguments)),
            device: found.facts(),
            batch: None,
            decision: None,
            loss: task.loss_options(&arguments)?,
        };
        Self::opened(arguments, facts, task, found.device, train, None)
    }

    /// The session that evaluates on the examples `validation`.
    ///
    /// # Errors
    /// Data without an example, and arguments that contradict them.
    pub fn with_validation(&self, validation: impl Dataset<T::Example>) -> Result<Self> {
        let batch = self.arguments.per_device_eval_batch_size;
        let validation = limited("validation", validation, self.arguments.fast_dev_run.then_some(batch))?;
        let session = self.derive(|_, facts| {
            facts.data.validation = Some(SplitFacts::of(&*validation));
            Ok(())
        })?;
        Ok(Self { validation: Some(validation), ..session })
    }

    /// The run of `arguments` on what is open.
    ///
    /// # Errors
    /// Arguments that contradict the facts.
    pub fn opened(
        arguments: CheckedArguments,
        facts: TrainFacts,
        task: T,
        device: Device,
        train: Arc<dyn Dataset<T::Example>>,
        validation: Option<Arc<dyn Dataset<T::Example>>>,
    ) -> Result<Self> {
        let plan = TrainPlan::derive(&arguments, &facts)?;
        let (task, weights) = (task.planned(&plan), Weights::default());
        Ok(Self { task, plan, device, train, validation, arguments, facts, weights })
    }

    /// The plan of the run.
    pub fn plan(&self) -> &TrainPlan {
        &self.plan
    }

    /// Training data.
    pub fn train(&self) -> &Arc<dyn Dataset<T::Example>> {
        &self.train
    }

    /// Validation data, if any.
    pub fn validation(&self) -> Option<&Arc<dyn Dataset<T::Example>>> {
        self.validation.as_ref()
    }

    /// An evaluation on `data`, as this run evaluates.
    pub fn evaluation(&self, data: Arc<dyn Dataset<T::Example>>) -> EvaluationSession<T> {
        EvaluationSession {
            device: self.device.clone(),
            compute: self.plan.engine.compute(),
            task: self.task.clone(),
            validation: data,
            batch_size: self.plan.evaluation.batch_size,
        }
    }

    /// The arguments that the plan is derived from.
    pub fn arguments(&self) -> &TrainingArguments {
        &self.arguments
    }

    /// The facts about the inputs that the plan is derived from, besides the arguments.
    pub fn facts(&self) -> &TrainFacts {
        &self.facts
    }

    /// The description that the run keeps in its folder of itself.
    ///
    /// # Errors
    /// A value that cannot be written.
    pub fn description(&self) -> Result<Description> {
        self.task.description(Planned { arguments: &self.arguments, facts: &self.facts, plan: &self.plan })
    }

    /// The model card of the run, which has ended as `outcome` says; none for a task without one.
    ///
    /// # Errors
    /// A value that cannot be written.
    pub fn card(&self, outcome: &Outcome<'_>) -> Result<Option<String>> {
        let run = Planned { arguments: &self.arguments, facts: &self.facts, plan: &self.plan };
        self.task.card(run, outcome)
    }

    /// The session of other arguments on what is open: `change` is made to this one's, the batches
    /// that it draws are looked at again, and a plan is derived. Model, device and the choice of
    /// examples stay.
    ///
    /// # Errors
    /// Arguments that contradict one another or the facts.
    pub fn with(&self, change: impl FnOnce(&mut TrainingArguments)) -> Result<Self> {
        let (mut arguments, mut facts) = (TrainingArguments::clone(&self.arguments), self.facts.clone());
        change(&mut arguments);
        let arguments = arguments.checked()?;
        let batch = BatchPlan::of(&arguments, facts.batch.as_ref())?;
        facts.data.batches = survey(&*self.train, batch.drawn(&arguments));
        self.planned(arguments, facts)
    }

    /// The session of the same run with another cut of its steps, `batch`.
    ///
    /// # Errors
    /// A batch of another size.
    pub fn with_batch(&self, batch: &BatchPlan) -> Result<Self> {
        self.with(|arguments| {
            arguments.per_device_train_batch_size = batch.micro.into();
            arguments.gradient_accumulation_steps = batch.accumulation;
        })
    }

    /// The session of other arguments and other facts on what is open: `change` is made to this
    /// one's, and a plan is derived from them.
    ///
    /// # Errors
    /// The error of `change`, and arguments that contradict one another or the facts.
    pub fn derive(&self, change: impl FnOnce(&mut TrainingArguments, &mut TrainFacts) -> Result<()>) -> Result<Self> {
        let (mut arguments, mut facts) = (TrainingArguments::clone(&self.arguments), self.facts.clone());
        change(&mut arguments, &mut facts)?;
        self.planned(arguments.checked()?, facts)
    }

    fn planned(&self, arguments: CheckedArguments, mut facts: TrainFacts) -> Result<Self> {
        facts.loss = self.task.loss_options(&arguments)?;
        let plan = TrainPlan::derive(&arguments, &facts)?;
        Ok(Self { task: self.task.planned(&plan), plan, arguments, facts, ..self.clone() })
    }

    /// The session of the same arguments on a choice of its own examples: `train` in place of its
    /// training data and `validation`, if any, in place of its validation data. They are padded by
    /// the same rule.
    ///
    /// # Errors
    /// Arguments that so many examples contradict.
    pub fn with_examples(
        &self,
        train: Arc<dyn Dataset<T::Example>>,
        validation: Option<Arc<dyn Dataset<T::Example>>>,
    ) -> Result<Self> {
        let chosen = self.derive(|_, facts| {
            facts.data.choose(&*train, validation.as_deref());
            Ok(())
        })?;
        Ok(Self { train, validation: validation.or(chosen.validation), ..chosen })
    }

    /// The session whose weights `rule` updates.
    ///
    /// # Errors
    /// Arguments of another optimizer, and those that need one of Kiln's.
    pub fn with_optimizer(&self, rule: impl UpdateRule + 'static) -> Result<Self> {
        self.derive(|_, facts| {
            facts.model.optimizer = Some(OwnOptimizer::new(rule));
            Ok(())
        })
    }

    /// The session with the learning rates of `schedule`.
    ///
    /// # Errors
    /// Arguments of another schedule, and a function that gives no learning rate.
    pub fn with_schedule(&self, schedule: LambdaLr) -> Result<Self> {
        self.derive(|_, facts| {
            facts.model.schedule = Some(schedule);
            Ok(())
        })
    }

    /// The session in the mode that `decision` names.
    ///
    /// # Errors
    /// Arguments that contradict one another or the facts.
    pub fn decided(&self, decision: Decision) -> Result<Self> {
        self.derive(|_, facts| {
            facts.decision = Some(decision);
            Ok(())
        })
    }

    /// The session whose model begins with `weights`.
    #[must_use]
    pub fn with_weights(self, weights: Weights) -> Self {
        Self { weights, ..self }
    }

    /// The model as it is before the first step: with the weights that it begins with, and random
    /// ones, drawn from the run's seed alone, where it has none. Parameters that do not learn are
    /// frozen.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub fn model(&self, device: &Device) -> Result<(T::Model, Option<LoadReport>)> {
        let (plan, compute) = (&self.plan, self.plan.engine.compute());
        device.seed(seed_for(plan.run.seed, "init", 0, 0));
        let model = self.task.model(compute, device)?;
        let (model, report) = match &self.weights {
            Weights::Random => (model, None),
            weights => self.task.pretrained(model, weights, &plan.optimizer.groups, compute)?,
        };
        let model = plan.optimizer.groups.freeze(model);
        // Drawn now: the first forward pass draws dropout too, in another order in every mode.
        model.visit(&mut Drawn);
        Ok((model, report))
    }
}

/// The first `most` examples of `data`, where there is such a limit.
fn limited<E: Fingerprint>(name: &str, data: impl Dataset<E>, most: Option<usize>) -> Result<Arc<dyn Dataset<E>>> {
    if data.is_empty() {
        return Err(Error::data(format!("expected examples in the {name} data, got none")));
    }
    let data: Arc<dyn Dataset<E>> = Arc::new(data);
    Ok(match most {
        Some(most) => Arc::new(Subset::first(data, most)),
        None => data,
    })
}

/// Draws every weight that has not been drawn.
struct Drawn;

impl ModuleVisitor for Drawn {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}
