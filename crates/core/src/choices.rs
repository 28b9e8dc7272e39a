//! Settings that are one name out of a few: an enum with its spelling in a file, the list of all
//! spellings and an error with the nearest one.

use crate::error::{Error, nearest};

/// Declares an enum whose values are names in a config file: `ALL`, `as_str`, `Display`, `FromStr`,
/// serde, and a [`Schema`](crate::schema::Schema), all from one list. Other spellings of a name
/// stand behind it, after `|`. The optional function sees names that are not in the list, and
/// refuses those that it has a reason for.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident ($what:literal $(, $special:path)?) {
        $($(#[$($value_meta:tt)*])* $value:ident = $text:literal $(| $spelling:literal)*),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$($value_meta)*])* $value),+ }

        impl $name {
            /// Every value, in the order in which messages list them.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The name as a config file writes it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::error::Error;

            fn from_str(given: &str) -> $crate::error::Result<Self> {
                match given {
                    $($text $(| $spelling)* => return Ok(Self::$value),)+
                    _ => {}
                }
                $(if let Some(refused) = $special(given) {
                    return Err(refused);
                })?
                Err($crate::choices::unknown_name($what, given, Self::ALL.iter().map(|value| value.as_str())))
            }
        }

        impl $crate::schema::Schema for $name {
            fn schema() -> $crate::schema::Value {
                let names = [$(($text, concat!($($crate::about!($($value_meta)*)),*))),+];
                $crate::schema::choice(&names, &[$($($spelling,)*)+])
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
/// The error for a name that is not among `known`: lists them and suggests the nearest.
pub fn unknown_name<'a>(what: &str, given: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    let near = nearest(given, known.iter().copied());
    unknown_name_near(what, given, &known, near)
}

/// [`unknown_name`] where the name `near` is suggested.
pub fn unknown_name_near(what: &str, given: &str, known: &[&str], near: Option<&str>) -> Error {
    let error = Error::config(format!("unknown {what} `{given}`: expected one of {}", known.join(", ")));
    match near {
        Some(name) => error.help(format!("did you mean `{name}`?")),
        None => error,
    }
}
