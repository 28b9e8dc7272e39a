//! One entry for each key of a section of settings: its documentation, its type, its default, the
//! freedom of a resumed run, Hugging Face's name for it, and its range.

use serde_json::Value;

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

/// A key of a config file.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The name with its section, or a whole section.
    pub name: &'static str,
    /// The name of the field that has its value.
    pub field: &'static str,
    /// The type of the field, as its entry writes it.
    pub kind: &'static str,
    /// The freedom that a resumed run has with it.
    pub resume: Resume,
    /// Whether the name of the field is an argument of Hugging Face's `TrainingArguments`.
    pub is_hugging_face: bool,
    /// The JSON Schema of its values: the type's in the range of the key.
    pub schema: fn() -> Value,
}

impl Key {
    /// Whether `key`, such as `batch.scaling`, is this key or stands in its section or table.
    pub fn has(&self, key: &str) -> bool {
        key.strip_prefix(self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Declares a section of settings, whose keys stand in a config file as `section.name`. An entry is
///
/// ```text
/// /// Documentation, from which the page of the config reference is made.
/// #[serde(...)]
/// name: Type = default, Resume, range;
/// ```
///
/// where `Resume` is one of the values of [`Resume`](crate::keys::Resume), with `hf` behind it for
/// a name of Hugging Face's `TrainingArguments`. The range, a [`Range`](crate::ranges::Range), may
/// be absent. `@ "section.key"` names another place of the key; an entry without `Resume` is no
/// key.
///
/// The structs behind the first have keys that a program finds among the fields of the first, and a
/// config file in other sections. Each of their entries names its place there, and is an entry of
/// both structs; `From` takes such a struct out of the first one, and `laid_on` puts it back. A
/// field with another name in the section is renamed by serde.
///
/// The struct has a `Default`, a [`Schema`](crate::schema::Schema), the list `KEYS`, and the
/// methods `check_ranges`, `given`, `first_given` and `without`. Where it is declared, serde's
/// `Serialize` and `Deserialize` are in scope.
#[macro_export]
macro_rules! keys {
    (
        $(#[$($meta:tt)*])* pub struct $name:ident in $section:literal { $($entries:tt)+ }
        $($(#[$($part_meta:tt)*])* pub struct $part:ident in $part_section:literal {
            $($(#[$($field_meta:tt)*])* $field:ident: $type:ty = $default:expr,
                $resume:ident $($hf:ident)? @ $place:literal $(, $range:expr)?;)+
        })+
    ) => {
        $crate::keys! {
            $(#[$($meta)*])* pub struct $name in $section {
                $($entries)+
                $($(
                    #[doc = concat!("`", $place, "` of a config file; see [`", stringify!($part), "`].")]
                    #[serde(skip_serializing)]
                    $field: $type = $default, $resume $($hf)? @ $place $(, $range)?;
                )+)+
            }
        }

        $(#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        $(#[$($part_meta)*])*
        pub struct $part { $($(#[$($field_meta)*])* pub $field: $type),+ }

        impl From<&$name> for $part {
            fn from(settings: &$name) -> Self {
                Self { $($field: settings.$field.clone()),+ }
            }
        }

        impl Default for $part {
            fn default() -> Self {
                Self::from(&$name::default())
            }
        }

        impl $part {
            /// The keys.
            pub const KEYS: &'static [$crate::keys::Key] = &[
                $($crate::keys!(
                    @key $part_section, $field: $type, $resume $($hf)? @ $place $(, $range)?
                )),+
            ];

            /// `settings` with the values of this section.
            #[must_use]
            pub fn laid_on(self, settings: $name) -> $name {
                $name { $($field: self.$field,)+ ..settings }
            }
        }

        $crate::keys!(@schema $part, $part_section, [$([$($part_meta)*])*] $([$([$($field_meta)*])*] $field)+);)+
    };
    ($(#[$($meta:tt)*])* pub struct $name:ident in $section:literal {
        $($(#[$($field_meta:tt)*])* $field:ident: $type:ty = $default:expr
            $(, $resume:ident $($hf:ident)? $(@ $place:literal)? $(, $range:expr)?)?;)+
    }) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        $(#[$($meta)*])*
        pub struct $name { $($(#[$($field_meta)*])* pub $field: $type),+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl $name {
            /// The keys.
            pub const KEYS: &'static [$crate::keys::Key] = &[
                $($($crate::keys!(
                    @key $section, $field: $type, $resume $($hf)? $(@ $place)? $(, $range)?
                ),)?)+
            ];

            /// Whether every key has a value in its range.
            ///
            /// # Errors
            /// The first that has not.
            pub fn check_ranges(&self) -> $crate::complaint::Checked {
                $($($crate::keys!(
                    @range $crate::keys!(@name $section, $field $($place)?), self.$field $(, $range)?
                );)?)+
                Ok(())
            }

            /// The keys whose values are not the defaults.
            pub fn given(&self) -> impl Iterator<Item = &'static $crate::keys::Key> {
                let default = Self::default();
                let given = [$($((
                    $crate::keys!(@name $section, $field $($place)?), self.$field != default.$field
                ),)?)+];
                Self::KEYS.iter().filter(move |key| given.contains(&(key.name, true)))
            }

            /// The first of `fields` whose value is not the default, as a key.
            pub fn first_given(&self, fields: &[&str]) -> Option<&'static str> {
                let given = self.given().collect::<Vec<_>>();
                fields.iter().find_map(|field| given.iter().find(|key| key.field == *field)).map(|key| key.name)
            }

            /// The settings with the defaults of the keys for which `is_left_out` holds.
            #[must_use]
            pub fn without(mut self, is_left_out: impl Fn(&$crate::keys::Key) -> bool) -> Self {
                let default = Self::default();
                let left_out = Self::KEYS.iter().filter(|key| is_left_out(key)).map(|key| key.name).collect::<Vec<_>>();
                $($(if left_out.contains(&$crate::keys!(@name $section, $field $($place)?)) {
                    self.$field = default.$field;
                })?)+
                self
            }
        }

        $crate::keys!(@schema $name, $section, [$([$($meta)*])*] $([$([$($field_meta)*])*] $field)+);
    };
    (@key $section:literal, $field:ident: $type:ty,
        $resume:ident $($hf:ident)? $(@ $place:literal)? $(, $range:expr)?) => {
        $crate::keys::Key {
            name: $crate::keys!(@name $section, $field $($place)?),
            field: stringify!($field),
            kind: stringify!($type),
            resume: $crate::keys::Resume::$resume,
            is_hugging_face: $crate::keys!(@is $($hf)?),
            schema: || $crate::keys!(@bound $type $(, $range)?),
        }
    };
    (@schema $name:ident, $section:literal, [$([$($meta:tt)*])*] $([$([$($field_meta:tt)*])*] $field:ident)+) => {
        impl $crate::schema::Schema for $name {
            fn schema() -> $crate::schema::Value {
                let about = concat!($($crate::about!($($meta)*)),*);
                let fields = [$((stringify!($field), concat!($($crate::about!($($field_meta)*)),*))),+];
                let keys = Self::KEYS.iter().map(|key| {
                    let about = fields.iter().find(|(field, _)| *field == key.field).map_or("", |(_, about)| about);
                    (key.name, about, (key.schema)())
                });
                $crate::schema::of_section(about, $section, keys)
            }
        }
    };
    (@name $section:literal, $field:ident) => { concat!($section, ".", stringify!($field)) };
    (@name $section:literal, $field:ident $place:literal) => { $place };
    (@range $name:expr, $value:expr) => {};
    (@range $name:expr, $value:expr, $range:expr) => { $crate::ranges::Range::check(&$range, $name, &$value)? };
    (@bound $type:ty) => { <$type as $crate::schema::Schema>::schema() };
    (@bound $type:ty, $range:expr) => {
        $crate::ranges::Range::<$type>::bound(&$range, <$type as $crate::schema::Schema>::schema())
    };
    (@is) => { false };
    (@is hf) => { true };
}
