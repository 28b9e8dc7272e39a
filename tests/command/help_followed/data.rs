//! Rows, labels, texts and questions.
use super::Do::{Set, Unset, Write};
use super::{ANSWERS, CLASSES, REVIEWS, TEXT, all, case};
use crate::common::messages::messages;

#[test]
fn data_and_labels() {
    all(
        messages!(),
        &[
            case(
                CLASSES,
                &[Write("rows.csv", "review,label\na good film,praise\na bad film,blame\n")],
                &[Set("data.text_column", "\"review\"")],
            ),
            case(
                CLASSES,
                &[Write("rows.csv", "text,label\na good film,praise\na film, bad,blame\n")],
                &[Write("rows.csv", "text,label\na good film,praise\n\"a film, bad\",blame\n")],
            ),
            case(
                CLASSES,
                &[Set("data.label_names", "[\"praise\", \"scorn\"]")],
                &[Set("data.label_names", "[\"praise\", \"scorn\", \"blame\"]")],
            ),
            case(CLASSES, &[Set("model.num_labels", "3")], &[Unset("model.num_labels")]),
            case(
                CLASSES,
                &[Set("model.num_labels", "3")],
                &[Set("data.label_names", "[\"praise\", \"blame\", \"other\"]")],
            ),
            case(
                CLASSES,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"rows.jsonl\"]"),
                    Write(
                        "rows.jsonl",
                        "{\"text\": \"a film\", \"label\": 0.5}\n{\"text\": \"a play\", \"label\": 1.25}\n",
                    ),
                ],
                &[Set("data.task", "\"regression\"")],
            ),
            case(
                CLASSES,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"rows.jsonl\"]"),
                    Write(
                        "rows.jsonl",
                        "{\"text\": \"a film\", \"label\": [\"a\"]}\n{\"text\": \"a play\", \"label\": [\"a\", \"b\"]}\n",
                    ),
                ],
                &[Set("data.task", "\"multi-label-classification\"")],
            ),
            case(
                CLASSES,
                &[Set("data.task", "\"multiple-choice\"")],
                &[
                    Write("rows.csv", "text,ending0,ending1,label\na,good,bad,0\nthe,film,play,1\n"),
                    Set("data.choice_columns", "[\"ending0\", \"ending1\"]"),
                ],
            ),
            case(CLASSES, &[Set("data.max_length", "99")], &[Set("data.max_length", "16")]),
            case(
                CLASSES,
                &[Set("data.streaming", "true"), Unset("trainer.max_steps")],
                &[Set("trainer.max_steps", "2"), Set("data.label_names", "[\"praise\", \"blame\"]")],
            ),
            case(CLASSES, &[Set("data.streaming", "true")], &[Set("data.label_names", "[\"praise\", \"blame\"]")]),
            case(CLASSES, &[Set("data.format", "\"text\"")], &[Set("data.format", "\"csv\"")]),
            case(CLASSES, &[Set("data.train", "[\"*.tsv\"]")], &[Set("data.train", "[\"**/*.csv\"]")]),
            case(CLASSES, &[Set("data.train", "\"words\"")], &[Write("words/rows.csv", REVIEWS)]),
            case(TEXT, &[Set("data.block_size", "17")], &[Set("data.block_size", "16")]),
            case(TEXT, &[Set("data.block_size", "17")], &[Set("model.n_positions", "17")]),
            // The field of another family has another name.
            case(
                TEXT,
                &[
                    Set("data.task", "\"mlm\""),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                    Set(
                        "model",
                        "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16, max_position_embeddings = 16 }",
                    ),
                    Set("data.block_size", "17"),
                ],
                &[Set("model.max_position_embeddings", "17")],
            ),
            case(
                TEXT,
                &[
                    Write("text/text.txt", "the cat is"),
                    Set("data.block_size", "16"),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                ],
                &[Set("data.block_size", "3")],
            ),
            case(
                TEXT,
                &[
                    Write("text/text.txt", "the cat is"),
                    Set("data.validation", "\"20%\""),
                    Set("data.block_size", "4"),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                ],
                &[Set("data.block_size", "2")],
            ),
            case(
                TEXT,
                &[
                    Set("data.format", "\"csv\""),
                    Set("data.train", "[\"rows.csv\"]"),
                    Unset("tokenizer.train_vocab_size"),
                    Set("model.vocab_size", "32"),
                ],
                &[Set("tokenizer.from", "\"words\"")],
            ),
            case(TEXT, &[Set("tokenizer.train_vocab_size", "5000")], &[Set("tokenizer.train_vocab_size", "280")]),
            case(
                TEXT,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"chat.jsonl\"]"),
                    Unset("data.block_size"),
                    Set("data.messages_column", "\"messages\""),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                    Write("chat.jsonl", "{\"question\": \"where\", \"answer\": \"box\"}\n"),
                    Set("trainer.per_device_train_batch_size", "1"),
                ],
                &[
                    Unset("data.messages_column"),
                    Set("data.prompt_column", "\"question\""),
                    Set("data.completion_column", "\"answer\""),
                ],
            ),
            case(
                CLASSES,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"rows.json\"]"),
                    Write(
                        "rows.json",
                        r#"[{"text": "a good film", "label": {"choices": ["praise"]}}, {"text": "a bad film", "label": {"choices": ["blame"]}}]"#,
                    ),
                ],
                &[Write(
                    "rows.json",
                    r#"[{"text": "a good film", "label": "praise"}, {"text": "a bad film", "label": "blame"}]"#,
                )],
            ),
            case(
                CLASSES,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"rows.jsonl\"]"),
                    Write("rows.jsonl", "{\"text\": \"the cat\", \"label\": [[4, 7, \"ANIMAL\"]]}\n"),
                ],
                &[
                    Set("data.task", "\"token-classification\""),
                    Set("data.text_column", "\"text\""),
                    Set("data.label_column", "\"label\""),
                    Write("rows.jsonl", "{\"text\": [\"the\", \"cat\"], \"label\": [\"O\", \"ANIMAL\"]}\n"),
                    Set("trainer.per_device_train_batch_size", "1"),
                ],
            ),
            case(TEXT, &[Set("data.messages_column", "\"messages\"")], &[Unset("data.messages_column")]),
            case(
                TEXT,
                &[
                    Set("data.format", "\"jsonl\""),
                    Set("data.train", "[\"chat.jsonl\"]"),
                    Unset("data.block_size"),
                    Set("data.messages_column", "\"messages\""),
                    Unset("tokenizer.train_vocab_size"),
                    Set("tokenizer.from", "\"words\""),
                    Write(
                        "chat.jsonl",
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"where\"}, {\"role\": \"assistant\", \"content\": \"box\"}]}\n",
                    ),
                ],
                &[
                    Write("chat.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}"),
                    Set("data.chat_template_path", "\"chat.jinja\""),
                    Set("trainer.per_device_train_batch_size", "1"),
                ],
            ),
            case(
                ANSWERS,
                &[Write(
                    "squad.json",
                    r#"{"version": "1.1", "data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "a", "question": "where", "answers": []}]}]}]}"#,
                )],
                &[Write(
                    "squad.json",
                    r#"{"version": "1.1", "data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "a", "question": "where", "answers": [], "is_impossible": true}]}]}]}"#,
                )],
            ),
            case(
                ANSWERS,
                &[Set("data.doc_stride", "12"), Set("data.max_length", "12")],
                &[Set("data.doc_stride", "3")],
            ),
            case(
                ANSWERS,
                &[Set("data.max_length", "10"), Set("data.doc_stride", "4")],
                &[Set("data.max_length", "16")],
            ),
            case(ANSWERS, &[Set("data.max_length", "10"), Set("data.doc_stride", "4")], &[Set("data.doc_stride", "1")]),
        ],
    );
}
