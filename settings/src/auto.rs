//! What is worked out unless it is given: `auto`, or a value.

use crate::value::{Kind, Value};

/// The word that leaves a value to be worked out.
pub(crate) const AUTO: &str = "auto";

/// As Spark says the same of a size.
const SPARK_AUTO: &str = "-1";

/// A value, or that it is to be worked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// It is worked out.
    #[default]
    Auto,
    /// It is this.
    Given(T),
}

impl<T> Auto<T> {
    /// The value, if it was given.
    pub fn given(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Given(value) => Some(value),
        }
    }
}

impl<T: Value + 'static> Value for Auto<T> {
    const KIND: Kind = Kind::Auto(&T::KIND);

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        match text.trim() {
            AUTO | SPARK_AUTO => Some(Self::Auto),
            text => T::parse(text, &T::KIND).map(Self::Given),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Auto => AUTO.to_owned(),
            Self::Given(value) => value.text(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;

    #[test]
    fn auto_or_a_value() {
        let parse = |text| Auto::<Size>::parse(text, &Auto::<Size>::KIND);
        assert_eq!(parse("auto"), Some(Auto::Auto));
        assert_eq!(parse("-1"), Some(Auto::Auto));
        assert_eq!(parse("1g"), Some(Auto::Given(Size(1 << 30))));
        assert_eq!(parse("-2"), None);
        assert_eq!(parse(""), None);
        assert_eq!(Auto::<Size>::KIND.to_string(), r#"auto, or a size such as "64 MiB" or "10g""#);
    }
}
