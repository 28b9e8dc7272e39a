//! Tokenizers, models, and the commands that read them.
use super::Do::{Args, Env, Remove, Run, Set, Unset, Write};
use super::{CLASSES, Do, REVIEWS, TEXT, all, case, joined, later};
use crate::common::messages::messages;

#[test]
fn tokenizers_models_and_weights() {
    let with = |more: &[Do]| joined(&[Run(&["train", "config.toml", "--set", "run.output_dir=base"])], more);
    all(
        messages!(),
        &[
            case(
                TEXT,
                &[
                    Set("data.task", "\"mlm\""),
                    Set(
                        "model",
                        "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 }",
                    ),
                ],
                &[Unset("tokenizer.train_vocab_size"), Set("tokenizer.from", "\"words\"")],
            ),
            case(CLASSES, &[Unset("tokenizer.from")], &[Set("tokenizer.from", "\"words\"")]),
            case(
                TEXT,
                &[
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"bpe\""),
                    Write("bpe/vocab.json", "{\"a\": 0, \"b\": 1}"),
                ],
                &[Write("bpe/merges.txt", "#version: 0.2\n"), Set("data.document_end", "\"none\"")],
            ),
            case(
                TEXT,
                &[
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"bpe\""),
                    Write("bpe/vocab.json", "{\"a\": 0, \"b\": 1}"),
                    Write("bpe/merges.txt", "#version: 0.2\n"),
                ],
                &[Set("data.document_end", "\"none\"")],
            ),
            case(
                CLASSES,
                with(&[Set("model", "{ kind = \"gpt2\", from = \"base/model\" }")]),
                &[Set("model.kind", "\"bert\"")],
            ),
            case(
                CLASSES,
                with(&[Set("model", "{ from = \"base/model/config.json\" }")]),
                &[Set("model", "{ from = \"base/model\" }")],
            ),
            case(
                CLASSES,
                with(&[
                    Set("model", "{ from = \"base/model\" }"),
                    Set("lora.r", "2"),
                    Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                    Unset("lora"),
                    Set("model", "{ from = \"half\" }"),
                    Write("half/adapter_config.json", "{\"peft_type\": \"LORA\"}"),
                ]),
                &[Set("model", "{ from = \"tuned/model\" }")],
            ),
            case(
                CLASSES,
                with(&[Set("model", "{ from = \"base/modle\" }")]),
                &[Set("model", "{ from = \"base/model\" }")],
            ),
            later(
                CLASSES,
                with(&[Set("model", "{ from = \"base/modle\" }")]),
                &[Set("model", "{ from = \"base/modle@main\" }")],
            ),
            // What the Hub has, on a machine without a network.
            case(
                CLASSES,
                with(&[
                    Set("model", "{ from = \"someone/bert\" }"),
                    Set("data.label_names", "[\"blame\", \"praise\"]"),
                ]),
                &[Set("model", "{ from = \"base/model\" }")],
            ),
            later(
                CLASSES,
                &[
                    Set("model", "{ from = \"someone/bert\" }"),
                    Env("HF_HUB_OFFLINE", ""),
                    Env("HF_ENDPOINT", "hub.local"),
                ],
                &[Env("HF_ENDPOINT", "http://127.0.0.1:9")],
            ),
            case(
                CLASSES,
                with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "regression"])]),
                &[Args(&["predict", "base", "--input", "rows.csv", "--task", "sequence-classification"])],
            ),
            case(
                CLASSES,
                with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "question-answering"])]),
                &[Args(&["predict", "base", "--input", "rows.csv"])],
            ),
            case(
                CLASSES,
                with(&[
                    Set("model", "{ from = \"base/model\" }"),
                    Write(
                        "base/model/config.json",
                        r#"{"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}"#,
                    ),
                ]),
                &[Write(
                    "base/model/config.json",
                    r#"{"model_type": "bert", "vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}"#,
                )],
            ),
            case(
                CLASSES,
                with(&[
                    Write("rows.data", REVIEWS),
                    Remove("base/plan.toml"),
                    Args(&["predict", "base", "--input", "rows.data"]),
                ]),
                &[Args(&["predict", "base", "--input", "rows.data", "--format", "csv"])],
            ),
            case(
                CLASSES,
                with(&[Write("base/plan.toml", "[data]\n"), Args(&["predict", "base", "--input", "rows.csv"])]),
                &[Remove("base/plan.toml")],
            ),
            case(
                CLASSES,
                with(&[Write("new.csv", "review\na film\n"), Args(&["predict", "base", "--input", "new.csv"])]),
                &[Args(&["predict", "base", "--input", "new.csv", "--text-column", "review"])],
            ),
            case(
                CLASSES,
                with(&[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "17"])]),
                &[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "16"])],
            ),
            case(
                CLASSES,
                &[Args(&["eval", "config.toml", "--set", "data.validation=40%"])],
                &[Run(&["train", "config.toml"])],
            ),
            case(CLASSES, with(&[Args(&["eval", "base"])]), &[Args(&["eval", "base", "--set", "data.validation=40%"])]),
            case(
                CLASSES,
                with(&[Args(&["eval", "words"])]),
                &[Args(&["eval", "config.toml", "--model", "base/model", "--set", "data.validation=40%"])],
            ),
            case(
                CLASSES,
                with(&[Args(&["merge", "base", "--out", "words"])]),
                &[
                    Set("model", "{ from = \"base/model\" }"),
                    Set("lora.r", "2"),
                    Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                    Args(&["merge", "tuned", "--out", "merged"]),
                ],
            ),
            case(
                CLASSES,
                with(&[Args(&["export", ".", "--tar", "model.tar.gz"])]),
                &[Args(&["export", "base", "--tar", "model.tar.gz"])],
            ),
            case(
                CLASSES,
                with(&[Args(&["export", "base", "--tar", "base/model/model.tar.gz"])]),
                &[Args(&["export", "base", "--tar", "base/model.tar.gz"])],
            ),
        ],
    );
}
