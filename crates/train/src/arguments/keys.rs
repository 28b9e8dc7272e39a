//! One entry for each argument of the Trainer: its documentation, its type, its default, what a
//! resumed run may do with it, and its range.

/// The freedom that a resumed run has with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It must stay.
    Bound,
    /// It may change, since no weight depends on it.
    Free,
    /// It is compared by what it comes to in the plan, so that a ratio equals the steps that it
    /// stands for.
    Derived,
}

/// A key of a config file that sets an argument of the Trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The name with its section, or a whole section.
    pub name: &'static str,
    /// The type of the argument, as its entry writes it.
    pub kind: &'static str,
    /// The freedom that a resumed run has with it.
    pub resume: Resume,
    /// Whether its name in `[trainer]` is an argument of Hugging Face's `TrainingArguments`.
    pub is_hugging_face: bool,
}

impl Key {
    /// Whether `key`, such as `batch.scaling`, is this key or stands in its section or table.
    pub fn has(&self, key: &str) -> bool {
        key.strip_prefix(self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Declares the arguments of the Trainer. An entry is
///
/// ```text
/// /// Documentation, from which the page of the config reference is made.
/// #[serde(...)]
/// name: Type = default, Resume, range;
/// ```
///
/// where `Resume` is one of [`Resume`]'s values, with `hf` behind it for a name of Hugging Face's
/// `TrainingArguments`. The range may be absent; it is a function of [`ranges`](super::ranges). An
/// entry is the key `trainer.name` of a config file, unless `@ "section.key"` names another place;
/// one without `Resume` is no key.
///
/// The struct has a `Default`, the list [`KEYS`](super::TrainingArguments::KEYS) and
/// `check_ranges`.
macro_rules! keys {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr
            $(, $resume:ident $($hf:ident)? $(@ $place:literal)? $(, $range:expr)?)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl $name {
            /// The keys of a config file that set an argument.
            pub const KEYS: &'static [Key] = &[
                $($(Key {
                    name: keys!(@name $field $($place)?),
                    kind: stringify!($type),
                    resume: Resume::$resume,
                    is_hugging_face: keys!(@is $($hf)?),
                },)?)+
            ];

            /// Whether every argument has a value in its range.
            fn check_ranges(&self) -> kiln_core::complaint::Checked {
                $($(keys!(@range keys!(@name $field $($place)?), self.$field $(, $range)?);)?)+
                Ok(())
            }
        }
    };
    (@name $field:ident) => { concat!("trainer.", stringify!($field)) };
    (@name $field:ident $place:literal) => { $place };
    (@range $name:expr, $value:expr) => {};
    (@range $name:expr, $value:expr, $range:expr) => { $range($name, &$value)? };
    (@is) => { false };
    (@is hf) => { true };
}

pub(super) use keys;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::arguments::{OnExisting, Resume, TrainingArguments};

    /// A program may have them in a file of its own.
    #[test]
    fn arguments_are_read_by_the_names_of_their_fields_and_no_others() {
        let read = toml::from_str::<TrainingArguments>;
        let given = read("output_dir = \"runs/a\"\non_existing = \"resume\"\nmax_steps = 3").unwrap();
        let on_existing = OnExisting::Resume;
        let expected = TrainingArguments { on_existing, max_steps: Some(3), ..TrainingArguments::new("runs/a") };
        assert_eq!(given, expected);
        let error = read("max_stepz = 3").unwrap_err();
        assert!(error.message().starts_with("unknown field `max_stepz`, expected one of `max_steps`"), "{error}");
        for table in
            ["batch", "learning_rate_scaling", "distributed", "device", "compiler", "optim_args", "lr_scheduler_kwargs"]
        {
            let error = toml::from_str::<TrainingArguments>(&format!("[{table}]\nno_such_name = 1")).unwrap_err();
            assert!(error.message().starts_with("unknown field `no_such_name`"), "{table}: {error}");
        }
    }

    #[test]
    fn a_setting_has_the_entry_of_its_key_its_table_or_its_section() {
        for (setting, name, resume) in [
            ("trainer.optim", "trainer.optim", Resume::Bound),
            ("trainer.optim_args.momentum", "trainer.optim_args", Resume::Bound),
            ("trainer.warmup_steps", "trainer.warmup_steps", Resume::Derived),
            ("run.name", "run.name", Resume::Free),
            ("device.kind", "device", Resume::Derived),
            ("learning_rate.scope", "learning_rate", Resume::Derived),
            ("generation.top_p", "generation", Resume::Free),
        ] {
            let found = TrainingArguments::KEYS.iter().filter(|key| key.has(setting)).collect::<Vec<_>>();
            assert_eq!(found.len(), 1, "{setting}: {found:?}");
            assert_eq!((found[0].name, found[0].resume), (name, resume));
        }
        assert!(!TrainingArguments::KEYS.iter().any(|key| key.has("data.train") || key.has("model.n_layer")));
    }
}
