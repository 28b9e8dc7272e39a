//! The settings of data that are one name out of a few.

use kiln_core::choices;
pub use kiln_core::dataset::{Buckets, PaddingRule, PaddingStrategy, Sampler};

choices! {
    /// How the data files are written.
    DataFormat("data format") {
        /// Plain UTF-8 text, tokenized here.
        Text = "text",
        /// Comma-separated columns; the first row names them, fields may stand in double quotes.
        Csv = "csv",
        /// Tab-separated columns; the first row names them, quotes mean nothing.
        Tsv = "tsv",
        /// A JSON object a line.
        Jsonl = "jsonl",
        /// Parquet files.
        Parquet = "parquet",
        /// The folders that `datasets.save_to_disk` writes, and their files.
        Arrow = "arrow",
        /// SQuAD's JSON, version 1.1 or 2.0, for question answering.
        Squad = "squad",
        /// JSON or JSONL rows of `input_ids`, `attention_mask`, `token_type_ids`, `labels`; -100 is
        /// the ignored label.
        Tokenized = "tokenized",
    }
}

impl DataFormat {
    /// The endings of the names of files in this format, in lower case: a folder of data stands for
    /// these files.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Text => &["txt", "text", "raw", "tokens"],
            Self::Csv => &["csv"],
            Self::Tsv => &["tsv"],
            Self::Jsonl | Self::Tokenized => &["jsonl", "ndjson", "json"],
            Self::Parquet => &["parquet"],
            Self::Arrow => &["arrow"],
            Self::Squad => &["json", "jsonl", "ndjson", "parquet", "arrow"],
        }
    }

    /// The format of a table whose file's name has this ending, in lower case; none for another
    /// ending.
    pub fn of_table(ending: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.is_table() && format.endings().contains(&ending))
    }

    /// Whether the files are tables, whose columns the config names.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Jsonl | Self::Parquet | Self::Arrow)
    }
}

choices! {
    /// The token that follows a document of a text, in front of the next one.
    DocumentEnd("end of a document") {
        /// `eos` after files and lines, `none` after rows of a table.
        Auto = "auto",
        /// The tokenizer's end-of-text, once where the tokenizer puts it after every text already.
        Eos = "eos",
        /// Nothing but what the tokenizer puts around every text, as `run_clm.py` and `run_mlm.py`
        /// of `transformers` join rows.
        None = "none",
    }
}

choices! {
    /// The treatment of bytes that are not UTF-8, as `errors` of Python's `open`.
    Errors("treatment of bytes that are not UTF-8") {
        /// They are an error.
        Strict = "strict",
        /// Each sequence of them is read as U+FFFD.
        Replace = "replace",
    }
}

choices! {
    /// The unit of a text that is one document.
    Documents("kind of document") {
        /// A whole file.
        File = "file",
        /// A line; blank lines are none.
        Line = "line",
        /// A line, blank ones too, without its end, as `load_dataset("text")` reads rows for
        /// `run_mlm.py` of `transformers`.
        Row = "row",
        /// A line with its end, blank ones too, as `run_clm.py` of `transformers` keeps line
        /// breaks.
        RowWithBreak = "row_with_break",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_core::error::Error;

    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        assert_eq!("tokenized".parse::<DataFormat>().unwrap(), DataFormat::Tokenized);
        assert_eq!("line".parse::<Documents>().unwrap(), Documents::Line);
        assert_eq!("max_length".parse::<PaddingStrategy>().unwrap(), PaddingStrategy::MaxLength);
        assert_eq!("sequential".parse::<Sampler>().unwrap(), Sampler::Sequential);
    }

    #[test]
    fn names_refused_with_a_reason_or_a_suggestion() {
        let refused = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
        refused("tokenised".parse::<DataFormat>().unwrap_err(), "did you mean `tokenized`?");
        refused("do_not_pad".parse::<PaddingStrategy>().unwrap_err(), "`longest` pads least");
        refused("group_by_len".parse::<Sampler>().unwrap_err(), "did you mean `group_by_length`?");
    }
}
