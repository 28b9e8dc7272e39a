//! Tables as training and validation data: columns, labels and lengths are settled with the model, then rows are encoded.

use std::ops::ControlFlow;
use std::sync::Arc;

use kiln_models::ModelConfig;
use kiln_models::config::Labels;

use crate::base::error::{Error, Result};
use crate::cache;
use crate::config::Task;
use crate::config::{DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, RunConfig, Validation};
use crate::data::Dataset;
use crate::data::labels::{LabelNames, LabelRule};
use crate::data::rows::{RowStore, Scan};
use crate::data::store::Progress;
use crate::data::subset::Subset;
use crate::data::table::{Columns, Table};
use crate::data::tokenizer::{RowEncoder, Tokenizer};

/// Encoded tables.
pub(super) struct TableData {
    /// Training rows.
    pub train: Arc<dyn Dataset>,
    /// Validation rows, if any.
    pub validation: Option<Arc<dyn Dataset>>,
    /// Tokens that rows were cut to.
    pub max_length: usize,
}

impl TableData {
    /// Opens the tables that `config` names and writes their labels into `model`.
    pub(super) fn open(
        config: &RunConfig,
        model: &mut ModelConfig,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let data = &config.data;
        let max_length = super::max_length(config, model, RowEncoder::DEFAULT_MAX_LENGTH)?;
        let pairs = data.text_pair_column.is_some();
        let encoder = tokenizer.row_encoder(max_length, pairs, pairs && model.type_vocab_size().is_some())?;
        let named = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.into());
        let columns = Columns {
            text: named(&data.text_column, DEFAULT_TEXT_COLUMN),
            text_pair: data.text_pair_column.clone(),
            label: Some(named(&data.label_column, DEFAULT_LABEL_COLUMN)),
        };
        let classes = data.task == Task::SequenceClassification;
        let open = |key: &str, patterns: &[String]| {
            let table = Table::open(patterns, data.format, columns.clone()).map_err(|error| error.at(key))?;
            let scan = Scan::new(&table, classes).map_err(|error| error.at(key))?;
            Ok::<_, Error>((table, scan))
        };
        let (table, scan) = open("data.train", &data.train)?;
        let rule = settle_labels(config, model, &scan)?;
        // Both are read once before either is encoded: what is wrong with the second shows at once.
        let validation = match &data.validation {
            Some(Validation::Files(patterns)) => Some(open("data.validation", patterns)?),
            _ => None,
        };
        let folder = cache::folder_of(cache::ROWS)?;
        let mut encode = |(table, scan): (Table, Scan), key: &str| -> Result<Arc<dyn Dataset>> {
            let store = RowStore::build_or_open(&folder, &table, &scan, &encoder, &rule, progress);
            Ok(Arc::new(store.map_err(|error| error.at(key))?))
        };
        let train = encode((table, scan), "data.train")?;
        let (train, validation) = match (&data.validation, validation) {
            (Some(Validation::Share(share)), _) => {
                let (train, validation) = Subset::split(train, *share, config.trainer.seed)?;
                (Arc::new(train) as Arc<dyn Dataset>, Some(Arc::new(validation) as Arc<dyn Dataset>))
            }
            (_, Some(opened)) => (train, Some(encode(opened, "data.validation")?)),
            _ => (train, None),
        };
        Ok(Self { train, validation, max_length })
    }
}

/// Labels come from the config, else from the model, else from the training data.
fn settle_labels(config: &RunConfig, model: &mut ModelConfig, scan: &Scan) -> Result<LabelRule> {
    if config.data.task == Task::Regression {
        *model.labels_mut() = Labels { problem_type: Some("regression".into()), ..Labels::numbered(1) };
        return Ok(LabelRule::Values);
    }
    let stated = model.labels().num_labels.filter(|_| config.model.fields.contains_key("num_labels"));
    let names = match &config.data.label_names {
        Some(names) => LabelNames::new(names.clone()).map_err(|error| error.at("data.label_names"))?,
        None => match LabelNames::of_model(model.labels())? {
            Some(names) => names,
            None => scan.labels.names().map_err(|error| error.at("data.train"))?,
        },
    };
    if let Some(stated) = stated.filter(|stated| *stated != names.names().len()) {
        return Err(Error::config(format!(
            "model.num_labels = {stated}, but there are {} labels: {:?}",
            names.names().len(),
            names.names()
        ))
        .help("leave model.num_labels out, or give every label in data.label_names"));
    }
    *model.labels_mut() = names.to_model();
    Ok(LabelRule::Classes(names))
}
