//! Keys and values of the config.
use super::Do::{Args, Env, Run, Set, Unset, Write};
use super::{ANSWERS, CLASSES, Do, TEXT, TRAIN, all, case, joined};
use crate::common::messages::messages;

#[test]
fn keys_of_the_config() {
    all(
        messages!(),
        &[
            case(
                TEXT,
                &[Set("trainer.learnig_rate", "1e-3")],
                &[Unset("trainer.learnig_rate"), Set("trainer.learning_rate", "1e-3")],
            ),
            case(TEXT, &[Set("trainr.seed", "1")], &[Unset("trainr"), Set("trainer.seed", "1")]),
            case(TEXT, &[Unset("data.task")], &[Set("data.task", "\"clm\"")]),
            case(
                TEXT,
                &[Args(&["plan", "config.toml", "--set", "learning_rate=1e-3"])],
                &[Args(&["plan", "config.toml", "--set", "trainer.learning_rate=1e-3"])],
            ),
            case(
                TEXT,
                &[Args(&["plan", "config.toml", "--set", "precision.kind=f32"])],
                &[Args(&["plan", "config.toml", "--set", "precision=f32"])],
            ),
            case(TEXT, &[Set("trainer.warmup_steps", "20")], &[Set("trainer.warmup_steps", "0.5")]),
            case(TEXT, &[Set("learning_rate.scaling", "\"linear\"")], &[Set("learning_rate.reference_batch", "32")]),
            case(TEXT, &[Set("batch.global_batch_size", "6")], &[Set("trainer.per_device_train_batch_size", "3")]),
            case(TEXT, &[Set("batch.global_batch_size", "6")], &[Set("batch.global_batch_size", "8")]),
            case(
                TEXT,
                &[Set("batch.global_batch_size", "8"), Set("trainer.gradient_accumulation_steps", "3")],
                &[Unset("trainer.gradient_accumulation_steps")],
            ),
            case(
                CLASSES,
                &[
                    Set("data.validation", "\"40%\""),
                    Set("trainer.eval_strategy", "\"epoch\""),
                    Set("trainer.save_strategy", "\"steps\""),
                    Set("trainer.load_best_model_at_end", "true"),
                ],
                &[Set("trainer.save_strategy", "\"best\"")],
            ),
            case(
                CLASSES,
                &[Set("trainer.early_stopping_threshold", "0.1")],
                &[Unset("trainer.early_stopping_threshold")],
            ),
            case(CLASSES, &[Set("trainer.eval_strategy", "\"epoch\"")], &[Set("data.validation", "\"20%\"")]),
            case(
                CLASSES,
                &[
                    Set("trainer.metric_for_best_model", "\"acuracy\""),
                    Set("data.validation", "\"20%\""),
                    Set("trainer.eval_strategy", "\"epoch\""),
                ],
                &[Set("trainer.metric_for_best_model", "\"accuracy\"")],
            ),
            case(TEXT, &[Set("trainer.optim", "\"adamw_bnb_8bit\"")], &[Set("trainer.optim", "\"adamw_torch\"")]),
            case(
                TEXT,
                &[Set("trainer.lr_scheduler_type", "\"reduce_lr_on_plateau\"")],
                &[Set("trainer.lr_scheduler_type", "\"cosine\"")],
            ),
            case(
                TEXT,
                &[Set("trainer.lr_scheduler_type", "\"cosine_with_min_lr\"")],
                &[Set("trainer.lr_scheduler_kwargs", "{ min_lr_rate = 0.1 }")],
            ),
            case(
                TEXT,
                &[Set("trainer.lr_scheduler_type", "\"reduce_lr_on_plateau\"")],
                &[
                    Set("trainer.lr_scheduler_type", "\"warmup_stable_decay\""),
                    Set("trainer.lr_scheduler_kwargs", "{ num_decay_steps = 1 }"),
                ],
            ),
            case(
                TEXT,
                &[Set("trainer.optim", "\"sgd\""), Set("trainer.optim_args", "{ nesterov = true }")],
                &[Set("trainer.optim_args", "{ momentum = 0.9, nesterov = true }")],
            ),
            case(TEXT, &[Set("trainer.report_to", "\"wandb\"")], &[Set("trainer.report_to", "\"tensorboard\"")]),
            case(TEXT, &[Set("precision", "\"fp8\"")], &[Set("precision", "\"bf16\"")]),
            case(
                TEXT,
                &[Set("trainer.freeze", "[\"nothing.*\"]")],
                &[Set("trainer.freeze", "[\"transformer.h.0.*\"]")],
            ),
            case(
                TEXT,
                &[
                    Set("generation.prompt", "\"the\""),
                    Set("data.task", "\"mlm\""),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                    Set(
                        "model",
                        "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 }",
                    ),
                ],
                &[Unset("generation")],
            ),
            case(
                CLASSES,
                &[Set("trainer.class_weights", "{ praise = 2.0 }")],
                &[Set("trainer.class_weights", "{ praise = 2.0, blame = 1.0 }")],
            ),
            case(CLASSES, &[Set("trainer.do_predict", "true")], &[Set("data.test", "\"rows.csv\"")]),
            case(
                CLASSES,
                &[Set("data.train", "[\"${KILN_NO_SUCH}/rows.csv\"]")],
                &[Set("data.train", "[\"${KILN_NO_SUCH:-.}/rows.csv\"]")],
            ),
            case(CLASSES, &[Set("lora.r", "4")], &[Unset("lora")]),
        ],
    );
}

#[test]
fn settings_that_need_one_another() {
    let with = |more: &[Do]| joined(&[Run(&["train", "config.toml", "--set", "run.output_dir=base"])], more);
    let tokenized: &[Do] = &[
        Unset("tokenizer.train_vocab_size"),
        Write("rows.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [3, 2]}\n"),
        Set("data.train", "[\"rows.jsonl\"]"),
        Set("data.format", "\"tokenized\""),
        Unset("data.block_size"),
        Set("model.vocab_size", "16"),
    ];
    let of_tokens = |more: &[Do]| joined(tokenized, more);
    all(
        messages!(),
        &[
            case(
                CLASSES,
                &[
                    Write("rows.csv", "text,label\na film,praise\n"),
                    Set("data.label_names", "[\"praise\", \"blame\"]"),
                    Set("data.validation", "0.5"),
                ],
                &[Set("data.validation", "[\"rows.csv\"]")],
            ),
            case(ANSWERS, &[Set("data.validation", "0.5")], &[Set("data.validation", "[\"squad.json\"]")]),
            case(
                CLASSES,
                &[
                    Set("trainer.do_train", "false"),
                    Set("trainer.do_predict", "true"),
                    Set("data.test", "\"rows.csv\""),
                    TRAIN,
                ],
                &[Run(&["train", "config.toml", "--set", "trainer.do_train=true"])],
            ),
            case(
                CLASSES,
                &[
                    Set("data.task", "\"regression\""),
                    Write("rows.csv", "text,label\na,1.5\nthe,2\n"),
                    Set("trainer.label_smoothing_factor", "0.1"),
                ],
                &[Unset("trainer.label_smoothing_factor")],
            ),
            case(TEXT, of_tokens(&[Set("generation.prompt", "\"the\"")]), &[Set("tokenizer.from", "\"words\"")]),
            case(
                CLASSES,
                &[
                    Set("data.validation", "\"40%\""),
                    Set(
                        "trainer",
                        "{ max_steps = 6, per_device_train_batch_size = 2, eval_strategy = \"steps\", eval_steps = 2, save_strategy = \"steps\", save_steps = 3, load_best_model_at_end = true }",
                    ),
                ],
                &[Set("trainer.save_steps", "4")],
            ),
            case(
                CLASSES,
                &[Set("trainer.dataloader_drop_last", "true"), Set("trainer.per_device_train_batch_size", "64")],
                &[Set("trainer.per_device_train_batch_size", "4")],
            ),
            case(
                CLASSES,
                &[Set("trainer.dataloader_drop_last", "true"), Set("trainer.per_device_train_batch_size", "64")],
                &[Set("trainer.dataloader_drop_last", "false")],
            ),
            case(CLASSES, &[Set("trainer.freeze_layers", "9")], &[Set("trainer.freeze_layers", "1")]),
            case(CLASSES, &[Set("trainer.freeze", "[\"*\"]")], &[Set("trainer.freeze", "[\"bert.*\"]")]),
            case(
                CLASSES,
                &[
                    Set("data.streaming", "true"),
                    Set("data.label_names", "[\"praise\", \"blame\"]"),
                    Set("data.sampler", "\"group_by_length\""),
                ],
                &[Set("data.sampler", "\"random\"")],
            ),
            case(
                CLASSES,
                &[
                    Set("data.streaming", "true"),
                    Set("data.label_names", "[\"praise\", \"blame\"]"),
                    Set("data.padding", "\"buckets\""),
                ],
                &[Set("data.padding", "\"max_length\"")],
            ),
            case(
                CLASSES,
                &[Set("data.shuffle_buffer_size", "7")],
                &[Unset("data.shuffle_buffer_size"), Set("data.sampler", "\"random\"")],
            ),
            case(
                CLASSES,
                &[Set("precision", "\"f16\""), Set("trainer.optim", "\"adafactor\""), TRAIN],
                &[Set("trainer.optim", "\"adamw_torch\"")],
            ),
            case(
                CLASSES,
                &[Set("precision", "\"f16\""), Set("trainer.optim", "\"adafactor\""), TRAIN],
                &[Set("precision", "\"bf16\"")],
            ),
            case(
                CLASSES,
                with(&[
                    Set("model", "{ from = \"base/model\" }"),
                    Set("lora.r", "2"),
                    Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                    Set("model", "{ from = \"tuned/model\" }"),
                    TRAIN,
                ]),
                &[Unset("lora")],
            ),
            case(
                CLASSES,
                with(&[
                    Set("model", "{ from = \"base/model\" }"),
                    Set("lora.r", "2"),
                    Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                    Set("model", "{ from = \"tuned/model\" }"),
                    TRAIN,
                ]),
                &[Run(&["merge", "tuned", "--out", "merged"]), Set("model", "{ from = \"merged\" }")],
            ),
            case(
                CLASSES,
                with(&[Args(&["generate", "base", "--prompt", "a"])]),
                &[Args(&["predict", "base", "--input", "rows.csv", "--task", "sequence-classification"])],
            ),
            case(CLASSES, &[Env("KILN_CACHE", "rows.csv/cache")], &[Env("KILN_CACHE", "cache")]),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--hf-args", "args.json"])],
                &[Write("args.json", "{\"learning_rate\": 1e-4, \"num_train_epochs\": 1}")],
            ),
            case(
                TEXT,
                &[
                    Set("data.messages_column", "\"messages\""),
                    Set("data.format", "\"csv\""),
                    Set("data.train", "[\"rows.csv\"]"),
                    Unset("data.block_size"),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                ],
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"chat.jsonl\"]"),
                    Set("trainer.per_device_train_batch_size", "1"),
                    Write(
                        "chat.jsonl",
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"where\"}, {\"role\": \"assistant\", \"content\": \"box\"}]}\n",
                    ),
                    Write("chat.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}"),
                    Set("data.chat_template_path", "\"chat.jinja\""),
                ],
            ),
        ],
    );
}
