//! Tokenizers, models, and the commands that read them.
use super::Do::{Args, Env, Remove, Run, Set, Unset, Write};
use super::{CLASSES, Case, Do, REVIEWS, TEXT, all, case, joined};

#[test]
fn tokenizers_models_and_weights() {
    let with = |more: &[Do]| joined(&[Run(&["train", "config.toml", "--set", "run.output_dir=base"])], more);
    all(&[
        case(
            TEXT,
            &[
                Set("data.task", "\"mlm\""),
                Set(
                    "model",
                    "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 }",
                ),
            ],
            &["use the tokenizer of a masked language model, such as BERT's"],
            &[Unset("tokenizer.train_vocab_size"), Set("tokenizer.from", "\"words\"")],
        ),
        case(
            CLASSES,
            &[Unset("tokenizer.from")],
            &["expected `from` or (with the format `text`) `train_vocab_size`, got neither"],
            &[Set("tokenizer.from", "\"words\"")],
        ),
        case(
            TEXT,
            &[
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"bpe\""),
                Write("bpe/vocab.json", "{\"a\": 0, \"b\": 1}"),
            ],
            &["nor vocab.json + merges.txt", "a tokenizer folder holds tokenizer.json or vocab.json + merges.txt"],
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
            &["set data.document_end = \"none\", so that documents run on"],
            &[Set("data.document_end", "\"none\"")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ kind = \"gpt2\", from = \"base/model\" }")]),
            &["set model.kind = \"bert\" or leave it out"],
            &[Set("model.kind", "\"bert\"")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"base/model/config.json\" }")]),
            &["give the folder that holds the file"],
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
            &[
                "the folder half has no adapter_model.safetensors",
                "an adapter folder holds adapter_config.json and adapter_model",
            ],
            &[Set("model", "{ from = \"tuned/model\" }")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"base/modle\" }")]),
            &["write base/modle@main"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        Case {
            base: CLASSES,
            mistake: with(&[Set("model", "{ from = \"base/modle\" }")]),
            says: &["to load it from the Hub, write base/modle@main"],
            advice: &[Set("model", "{ from = \"base/modle@main\" }")],
            then: "HF_HUB_OFFLINE forbids the network",
        },
        // What the Hub has, on a machine without a network.
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"someone/bert\" }"), Set("data.label_names", "[\"blame\", \"praise\"]")]),
            &["run `hf download someone/bert --local-dir FOLDER`, copy FOLDER here and give"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        Case {
            base: CLASSES,
            mistake: &[
                Set("model", "{ from = \"someone/bert\" }"),
                Env("HF_HUB_OFFLINE", ""),
                Env("HF_ENDPOINT", "hub.local"),
            ],
            says: &["for example HF_ENDPOINT=https://huggingface.co"],
            advice: &[Env("HF_ENDPOINT", "http://127.0.0.1:9")],
            then: "at http://127.0.0.1:9",
        },
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "regression"])]),
            &["choose the task that the model was trained for"],
            &[Args(&["predict", "base", "--input", "rows.csv", "--task", "sequence-classification"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "question-answering"])]),
            &["choose the task it was trained for"],
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
            &["model_type is missing", "add \"model_type\": \"bert\" to config.json"],
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
            &["give --format csv, tsv, jsonl, parquet, arrow or squad"],
            &[Args(&["predict", "base", "--input", "rows.data", "--format", "csv"])],
        ),
        case(
            CLASSES,
            with(&[Write("base/plan.toml", "[data]\n"), Args(&["predict", "base", "--input", "rows.csv"])]),
            &["plan.toml away) rows are read by the arguments alone"],
            &[Remove("base/plan.toml")],
        ),
        case(
            CLASSES,
            with(&[Write("new.csv", "review\na film\n"), Args(&["predict", "base", "--input", "new.csv"])]),
            &["name the columns with --text-column and --text-pair-column"],
            &[Args(&["predict", "base", "--input", "new.csv", "--text-column", "review"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "17"])]),
            &["give --max-length to at most 16"],
            &[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "16"])],
        ),
        case(
            TEXT,
            with(&[Args(&["predict", "base", "--input", "rows.csv"])]),
            &["`kiln generate` continues a text"],
            &[Args(&["generate", "base", "--prompt", "the cat", "--max-new-tokens", "2"])],
        ),
        case(
            CLASSES,
            &[Args(&["eval", "config.toml", "--set", "data.validation=40%"])],
            &["train first, or name the folder: --model MODEL_DIR"],
            &[Run(&["train", "config.toml"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["eval", "base"])]),
            &["--set data.validation=10%"],
            &[Args(&["eval", "base", "--set", "data.validation=40%"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["eval", "words"])]),
            &["name the config file, and the model by --model"],
            &[Args(&["eval", "config.toml", "--model", "base/model", "--set", "data.validation=40%"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["merge", "base", "--out", "words"])]),
            &["give the name of a folder that does not exist"],
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
            &["give the model/ folder of a finished run, or the run folder itself"],
            &[Args(&["export", "base", "--tar", "model.tar.gz"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["export", "base", "--tar", "base/model/model.tar.gz"])]),
            &["write it beside the folder"],
            &[Args(&["export", "base", "--tar", "base/model.tar.gz"])],
        ),
    ]);
}
