//! The rules of the section `[data]`.

use kiln_core::complaint::{Checked, Complaint, at_least, not_empty, two_ways};

use crate::config::{
    Buckets, DataFormat, DataSection, DocumentEnd, Documents, Errors, PaddingStrategy, RunConfig, Sampler, Task,
    Validation,
};

pub(super) fn check(data: &DataSection) -> Checked {
    data.check_ranges()?;
    match (&data.dataset_name, &data.dataset_config_name) {
        (Some(_), _) if !data.train.is_empty() => {
            let help = "files, or a dataset of the Hub; data.validation may name files beside either";
            return Err(two_ways("data.dataset_name", "data.train", help));
        }
        (None, Some(_)) => {
            return Err(Complaint::new("data.dataset_config_name", "has no effect without data.dataset_name")
                .help("name the dataset, such as dataset_name = \"nyu-mll/glue\""));
        }
        _ => {}
    }
    if data.train.is_empty() && data.dataset_name.is_none() {
        return Err(Complaint::new("data.train", "required: the files to train on, got none"));
    }
    if !matches!(data.format, DataFormat::Arrow | DataFormat::Squad) && data.is_saved_dataset() {
        let message = format!("`datasets.save_to_disk` has written data.dataset_name as arrow, not as {}", data.format);
        return Err(Complaint::new("data.format", message).help("remove the key, or set data.format = \"arrow\""));
    }
    if let Some(Validation::First(percent)) = &data.validation {
        let has_rows = data.format.is_table() || data.documents != Documents::File;
        if !has_rows || data.has_instructions() {
            let message = format!("\"train[:{percent}%]\" are the first rows of a table or the first lines of a text");
            let share = match has_rows {
                true => "rows that the seed draws",
                false => "the last blocks of one text file, or of several files those that the seed draws",
            };
            return Err(Complaint::new("data.validation", message)
                .help(format!("set data.validation = \"{percent}%\", {share}, or name files")));
        }
    }
    if data.block_size == Some(1) && data.task == Task::Clm {
        return Err(Complaint::new(
            "data.block_size",
            "expected 2 or more, got 1: a single token has nothing to predict",
        ));
    }
    if data.documents != Documents::File && data.format != DataFormat::Text {
        let message = format!("has no effect with format = \"{}\"", data.format);
        return Err(Complaint::new("data.documents", message).help("remove it; a row of a table is a document"));
    }
    let has_documents = data.format == DataFormat::Text || data.format.is_table();
    let is_packed = has_documents && data.task.is_language_model();
    if data.document_end != DocumentEnd::Auto && !is_packed {
        let message = format!("has no effect with task = \"{}\" and format = \"{}\"", data.task, data.format);
        return Err(Complaint::new("data.document_end", message)
            .help("remove it; it belongs to text and tables whose rows are joined for a language model"));
    }
    let is_text = matches!(data.format, DataFormat::Text | DataFormat::Csv | DataFormat::Tsv | DataFormat::Jsonl);
    if data.errors != Errors::Strict && !is_text {
        let message = format!("has no effect with format = \"{}\"", data.format);
        return Err(Complaint::new("data.errors", message).help("it belongs to `text`, `csv`, `tsv` and `jsonl`"));
    }
    masking(data)?;
    squad(data)?;
    if data.format == DataFormat::Text && !data.task.is_language_model() {
        return Err(Complaint::new("data.format", format!("`text` holds no labels for the task {}", data.task))
            .help("use `csv`, `tsv`, `jsonl` or `parquet` with a label column, `squad`, or `tokenized`"));
    }
    table(data)
}

/// Data that are read as they are needed: their number, their lengths and their labels are not
/// known before.
pub(super) fn streaming(config: &RunConfig) -> Checked {
    let (data, trainer) = (&config.data, &config.trainer);
    if !data.streaming {
        return match data.first_given(&["shuffle_buffer_size"]) {
            None => Ok(()),
            Some(key) => Err(Complaint::new(key, "has no effect without data.streaming = true")
                .help("without streaming, `sampler = \"random\"` shuffles all examples")),
        };
    }
    let refuse = |message: &str, help: &str| Err(Complaint::new("data.streaming", message).help(help));
    let has_lengths = matches!(trainer.buckets, Some(Buckets::Lengths(_)));
    match data {
        _ if trainer.max_steps.is_none() => refuse(
            "how many examples there are is not known before they are read, so the length of the run must be given in steps",
            "set trainer.max_steps",
        ),
        DataSection { format: DataFormat::Squad | DataFormat::Tokenized, .. } => refuse(
            &format!("format = \"{}\" is not read as a stream", data.format),
            "use `text` or a table, or leave data.streaming out",
        ),
        DataSection { validation: Some(Validation::Share(_) | Validation::First(_)), .. } => refuse(
            "a share of data that are not read before cannot be split off for validation",
            "set data.validation to files",
        ),
        DataSection { packing: true, .. } => {
            refuse("data.packing fits rows together by the lengths of all of them", "leave one of the two out")
        }
        _ if trainer.sampler == Sampler::GroupByLength => refuse(
            "data.sampler = \"group_by_length\" needs the lengths of all examples",
            "set data.sampler = \"random\"",
        ),
        _ if trainer.padding == PaddingStrategy::Buckets && !has_lengths => refuse(
            "data.padding = \"buckets\" chooses lengths from those of all examples",
            "set data.buckets to a list of lengths, or data.padding = \"longest\" or \"max_length\"",
        ),
        DataSection { max_train_samples: Some(_), .. } => {
            refuse("data.max_train_samples chooses among all examples", "trainer.max_steps limits what is read")
        }
        _ => Ok(()),
    }
}

/// The keys of question answering on SQuAD's files.
fn squad(data: &DataSection) -> Checked {
    let squad = data.format == DataFormat::Squad;
    let fields =
        ["doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold", "version_2_with_negative"];
    if let Some(key) = data.first_given(&fields).filter(|_| !squad) {
        return Err(Complaint::new(key, format!("has no effect with format = \"{}\"", data.format))
            .help("it belongs to `squad`"));
    }
    if squad && data.task != Task::QuestionAnswering {
        return Err(Complaint::new("data.format", format!("`squad` is not available for the task {}", data.task))
            .help("set data.task = \"question-answering\""));
    }
    if squad && data.block_size.is_some() {
        return Err(Complaint::new("data.block_size", "has no effect with format = \"squad\"")
            .help("data.max_length is the length of a window of the context"));
    }
    Ok(())
}

/// The keys of masked language modelling.
fn masking(data: &DataSection) -> Checked {
    let Some(key) = data.first_given(&["mlm_probability", "whole_word_mask"]) else { return Ok(()) };
    if data.task != Task::Mlm {
        return Err(Complaint::new(key, format!("has no effect with the task {}", data.task)).help("remove it"));
    }
    if data.format == DataFormat::Tokenized {
        return Err(Complaint::new(key, "has no effect with format = \"tokenized\": the rows carry their own labels")
            .help("remove it"));
    }
    Ok(())
}

/// The keys of tables.
fn table(data: &DataSection) -> Checked {
    choices(data)?;
    instructions(data)?;
    if data.skip_unlabeled && (!data.format.is_table() || data.task.is_language_model()) {
        let message = format!("has no effect with task = \"{}\" and format = \"{}\"", data.task, data.format);
        return Err(Complaint::new("data.skip_unlabeled", message).help("it belongs to labels in tables"));
    }
    if !data.format.is_table() {
        let fields = ["text_column", "text_pair_column", "label_column", "label_names", "max_length"];
        let squad = data.format == DataFormat::Squad;
        return data.first_given(&fields[..if squad { 4 } else { 5 }]).map_or(Ok(()), |key| {
            Err(Complaint::new(key, format!("has no effect with format = \"{}\"", data.format))
                .help("it belongs to tables: `csv`, `tsv`, `jsonl` or `parquet`"))
        });
    }
    if data.task == Task::QuestionAnswering {
        let message = format!("`{}` is not available for the task {}", data.format, data.task);
        return Err(Complaint::new("data.format", message).help(
            "use `squad`, which also reads rows with id, question, context and answers in .parquet and .jsonl, or `tokenized`",
        ));
    }
    if data.task.is_language_model() {
        if let Some(key) = data.first_given(&["text_pair_column", "label_column", "label_names"]) {
            return Err(Complaint::new(key, format!("has no effect with the task {}", data.task))
                .help("a language model reads data.text_column alone"));
        }
        if data.has_instructions() {
            if let Some(key) = data.first_given(&["text_column", "block_size"]) {
                return Err(Complaint::new(key, "has no effect on conversations, prompts and completions")
                    .help("data.max_length cuts long rows, and is the length of samples with data.packing"));
            }
            return at_least("data.max_length", data.max_length.unwrap_or(2), 2);
        }
        if data.max_length.is_some() {
            return Err(Complaint::new("data.max_length", format!("has no effect with the task {}", data.task))
                .help("rows run on in blocks of data.block_size tokens"));
        }
        return Ok(());
    }
    if data.block_size.is_some() {
        return Err(Complaint::new("data.block_size", "rows of a table are not packed into blocks")
            .help("data.max_length cuts long rows"));
    }
    if let Some(length) = data.max_length {
        at_least("data.max_length", length, 1)?;
    }
    if data.task == Task::TokenClassification && data.text_pair_column.is_some() {
        return Err(Complaint::new(
            "data.text_pair_column",
            "the task token-classification has one text, a list of words",
        )
        .help("remove it"));
    }
    let Some(names) = &data.label_names else { return Ok(()) };
    if !data.task.has_label_names() {
        return Err(Complaint::new("data.label_names", format!("the task {} has numbers, not names", data.task)));
    }
    kiln_data::labels::check_label_names(names).map_err(|error| Complaint::of("data.label_names", error))
}

/// The keys of instructions.
fn instructions(data: &DataSection) -> Checked {
    let fields = [
        "messages_column",
        "prompt_column",
        "completion_column",
        "chat_template_path",
        "completion_only_loss",
        "assistant_only_loss",
        "packing",
    ];
    let Some(key) = data.first_given(&fields) else { return Ok(()) };
    if data.task != Task::Clm || !data.format.is_table() {
        let message = format!("has no effect with task = \"{}\" and format = \"{}\"", data.task, data.format);
        return Err(Complaint::new(key, message).help("it belongs to `clm` on `jsonl`, `parquet`, `csv` or `tsv`"));
    }
    if !data.has_instructions() {
        return Err(Complaint::new(key, "needs data.messages_column or data.completion_column")
            .help("name the column with the conversations, or that with the completions"));
    }
    if data.messages_column.is_some() && (data.completion_column.is_some() || data.prompt_column.is_some()) {
        return Err(two_ways(
            "data.completion_column",
            "data.messages_column",
            "a row is a conversation, or a prompt with its completion",
        ));
    }
    if data.messages_column.is_some() && matches!(data.format, DataFormat::Csv | DataFormat::Tsv) {
        return Err(Complaint::new("data.messages_column", format!("`{}` has no lists of messages", data.format))
            .help("use `jsonl` or `parquet`"));
    }
    if data.messages_column.is_some() && data.completion_only_loss.is_some() {
        return Err(Complaint::new("data.completion_only_loss", "conversations have no completions")
            .help("data.assistant_only_loss = true counts the words of the assistant"));
    }
    if data.completion_column.is_some() && data.assistant_only_loss {
        return Err(Complaint::new("data.assistant_only_loss", "has no effect on prompts with completions")
            .help("it belongs to data.messages_column; data.completion_only_loss = true is the default here"));
    }
    Ok(())
}

/// The columns of a multiple choice.
fn choices(data: &DataSection) -> Checked {
    let needs = data.task == Task::MultipleChoice && data.format.is_table();
    match &data.choice_columns {
        Some(_) if !needs => {
            let message = format!("has no effect with task = \"{}\" and format = \"{}\"", data.task, data.format);
            Err(Complaint::new("data.choice_columns", message).help("it belongs to `multiple-choice` on tables"))
        }
        Some(columns) if columns.len() < 2 => {
            Err(Complaint::new("data.choice_columns", format!("expected at least two columns, got {columns:?}"))
                .help("one choice leaves nothing to choose"))
        }
        None if needs => {
            Err(Complaint::new("data.choice_columns", "the task multiple-choice needs it, and there is none")
                .help("as in choice_columns = [\"ending0\", \"ending1\", \"ending2\", \"ending3\"]"))
        }
        _ => columns_are_named("data.choice_columns", data.choice_columns.as_deref().unwrap_or_default()),
    }
}

fn columns_are_named(key: &'static str, columns: &[String]) -> Checked {
    columns.iter().try_for_each(|column| not_empty(key, Some(column)))
}
