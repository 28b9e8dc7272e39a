//! A run that only trains, made from any run: what measurements, proofs and rehearsals begin with.

use std::path::PathBuf;

use super::{
    DataSection, EvalStrategy, LoggingStrategy, OnExisting, RunConfig, RunSection, SaveStrategy, TrainerSection,
    TrainingCompilerConfig, Verify,
};

impl RunConfig {
    /// The training of this run in the folder `output_dir` (new: [`OnExisting::Fail`]) and nothing
    /// else: no evaluation or prediction, checkpoint, limit of time, sample of text, report to
    /// other programs or check of the compiler, and a log row every `logging_steps` steps. Every
    /// weight of every step is what it was. A caller that needs one of these sets it again.
    #[must_use]
    pub fn training_only(&self, output_dir: impl Into<PathBuf>, logging_steps: usize) -> Self {
        let given = self.clone();
        let compiler = |given| TrainingCompilerConfig { verify: Some(Verify::Off), ..given };
        Self {
            precision: given.precision,
            run: RunSection {
                output_dir: output_dir.into(),
                on_existing: OnExisting::Fail,
                name: given.run.name,
                resume_from_checkpoint: None,
            },
            model: given.model,
            lora: given.lora,
            // The validation data stay: a part of the training data may be held out for them.
            data: DataSection { test: None, ..given.data },
            tokenizer: given.tokenizer,
            trainer: given.trainer.training_only(logging_steps),
            batch: given.batch,
            learning_rate: given.learning_rate,
            device: given.device,
            distributed: given.distributed,
            compiler: given.compiler.map(compiler),
            generation: None,
            devices: given.devices,
            no_effect: Vec::new(),
        }
    }
}

impl TrainerSection {
    /// See [`RunConfig::training_only`]. Every field is named, so that whoever adds a key decides
    /// about it here.
    fn training_only(self, logging_steps: usize) -> Self {
        Self {
            max_minutes: None,
            logging_strategy: LoggingStrategy::Steps,
            logging_steps: Some(logging_steps.into()),
            report_to: Vec::new(),
            eval_strategy: EvalStrategy::No,
            eval_steps: None,
            eval_delay: 0.0,
            eval_on_start: false,
            save_strategy: SaveStrategy::No,
            save_only_model: false,
            save_total_limit: None,
            load_best_model_at_end: false,
            metric_for_best_model: None,
            greater_is_better: None,
            early_stopping_patience: None,
            early_stopping_threshold: 0.0,
            do_train: true,
            do_eval: false,
            do_predict: false,
            // All below is of the training itself.
            max_steps: self.max_steps,
            num_train_epochs: self.num_train_epochs,
            max_tokens: self.max_tokens,
            per_device_train_batch_size: self.per_device_train_batch_size,
            per_device_eval_batch_size: self.per_device_eval_batch_size,
            gradient_accumulation_steps: self.gradient_accumulation_steps,
            accumulation: self.accumulation,
            learning_rate: self.learning_rate,
            lr_scheduler_type: self.lr_scheduler_type,
            warmup_steps: self.warmup_steps,
            weight_decay: self.weight_decay,
            adam_beta1: self.adam_beta1,
            adam_beta2: self.adam_beta2,
            adam_epsilon: self.adam_epsilon,
            freeze: self.freeze,
            freeze_layers: self.freeze_layers,
            layer_wise_lr_decay: self.layer_wise_lr_decay,
            max_grad_norm: self.max_grad_norm,
            skip_update_lossz: self.skip_update_lossz,
            skip_update_gradz: self.skip_update_gradz,
            label_smoothing_factor: self.label_smoothing_factor,
            class_weights: self.class_weights,
            optim: self.optim,
            optim_args: self.optim_args,
            logging_first_step: self.logging_first_step,
            log_level: self.log_level,
            save_steps: self.save_steps,
            activation_checkpointing: self.activation_checkpointing,
            seed: self.seed,
            data_seed: self.data_seed,
            full_determinism: self.full_determinism,
            dataloader_drop_last: self.dataloader_drop_last,
            overfit_one_batch: self.overfit_one_batch,
            fast_dev_run: self.fast_dev_run,
            lr_scheduler_kwargs: self.lr_scheduler_kwargs,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_that_only_trains_can_be_read_and_keeps_its_training() {
        let text = r#"
            run = { output_dir = "a", name = "n" }
            model.kind = "gpt2"
            data = { task = "clm", train = "t", validation = 0.1 }
            tokenizer.from = "gpt2"
            compiler.verify = "start"
            generation.prompt = "x"
            [trainer]
            max_steps = 9
            learning_rate = 2e-3
            eval_strategy = "epoch"
            do_eval = true
            eval_delay = 1
            save_strategy = "epoch"
            load_best_model_at_end = true
            metric_for_best_model = "loss"
            early_stopping_patience = 2
            max_minutes = 5.0
            report_to = "tensorboard"
        "#;
        let given = RunConfig::parse(text, "test").unwrap();
        let only = given.training_only("b", 1);
        only.validate().unwrap();
        assert_eq!(RunConfig::parse(&only.to_toml().unwrap(), "again").unwrap(), only);
        assert!(!only.trainer.evaluates() && only.generation.is_none() && only.trainer.report_to.is_empty());
        assert_eq!((only.trainer.save_strategy, only.trainer.max_minutes), (SaveStrategy::No, None));
        assert_eq!(only.compiler.as_ref().unwrap().verify, Some(Verify::Off));
        let mut expected = RunConfig { run: only.run.clone(), ..given };
        expected.trainer = TrainerSection {
            max_steps: Some(9),
            learning_rate: 2e-3,
            logging_steps: Some(1.into()),
            save_strategy: SaveStrategy::No,
            ..TrainerSection::default()
        };
        (expected.compiler, expected.generation) = (only.compiler.clone(), None);
        assert_eq!(only, expected);
    }
}
