//! The guide to the command and the library, in chapters. `kiln help CHAPTER` prints the same
//! chapters in a terminal.
//!
//! The first half follows a user: [`first_run`], [`classifier`], [`pre_training`], [`chat`],
//! [`data_formats`], [`other_files`] and the [`config_reference`] with every key.
//! [`compiler_switch`] and [`comparing`] explain the two modes of a run and what the faster one is
//! worth; [`batch_and_learning_rate`], [`precision`], [`checkpoints_and_faults`] and [`jobs`] cover
//! the rest of a training. [`own_model`] and [`operators`] are for people who extend Kiln, and
//! [`numbers`] says how its results are checked. [`from_hugging_face`] and [`from_burn_train`]
//! translate names; [`other_tools`] tells what takes a run or a model of Kiln's. The [`glossary`]
//! explains words.

/// A chapter of the guide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chapter {
    /// The name of its module.
    module: &'static str,
    /// The chapter, in Markdown.
    pub text: &'static str,
}

impl Chapter {
    /// The name that `kiln help` takes: `first-run`.
    pub fn name(&self) -> String {
        self.module.replace('_', "-")
    }

    /// The title, which is the first line.
    pub fn title(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

/// Declares the chapters: each is a module whose documentation is the file of its name, and an
/// entry of [`CHAPTERS`]. `links.md` comes first, since the first definition of a link wins: in the
/// crate's documentation the names of chapters lead to modules, and on a page of the repository to
/// files.
macro_rules! chapters {
    ($($module:ident),+ $(,)?) => {
        $(
            #[doc = include_str!("links.md")]
            #[doc = include_str!(concat!(stringify!($module), ".md"))]
            pub mod $module {}
        )+

        /// Every chapter, in the order in which they are read.
        pub const CHAPTERS: &[Chapter] = &[
            $(Chapter { module: stringify!($module), text: include_str!(concat!(stringify!($module), ".md")) }),+
        ];
    };
}

chapters! {
    first_run,
    classifier,
    pre_training,
    chat,
    data_formats,
    other_files,
    config_reference,
    compiler_switch,
    comparing,
    batch_and_learning_rate,
    precision,
    checkpoints_and_faults,
    jobs,
    own_model,
    operators,
    numbers,
    from_hugging_face,
    from_burn_train,
    other_tools,
    glossary,
}

/// The tables of names of other programs' files, in the order of the chapter [`other_files`].
pub fn other_files_tables() -> Vec<&'static kiln_core::names::NameTable> {
    let mut tables = vec![
        &kiln_data::table::FEATURES,
        &kiln_data::hub::DATASET_CARD,
        &kiln_data::hub::CARD_CONFIG,
        &kiln_core::saved_dataset::SAVED_SPLITS,
        &kiln_core::saved_dataset::SAVED_STATE,
        &kiln_core::saved_dataset::SAVED_INFO,
        &kiln_data::instruct::rows::COLUMNS,
        &kiln_data::instruct::rows::MESSAGE,
        &crate::session::generation_config::GENERATION_CONFIG_NAMES,
        &kiln_models::ADAPTER_CONFIG_NAMES,
        &kiln_data::tokenizer::CLASSES,
        &kiln_data::tokenizer::CONFIG_NAMES,
        &kiln_data::tokenizer::SPECIAL_NAMES,
        &kiln_data::tokenizer::JSON_NAMES,
    ];
    tables.extend(kiln_core::model_config::CONFIG_NAMES);
    tables
}

/// The README's samples are tested as the guide's are.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub mod readme {}
