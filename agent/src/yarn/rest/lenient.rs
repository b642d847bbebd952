//! Reading values that versions of YARN write in different ways.
//!
//! Jersey 1 (Hadoop up to 3.4) writes a list of one as its element, an empty one as `null` or an
//! empty object, and some numbers and booleans as text; Jersey 2 (3.5) writes them as they are. A
//! value of another kind is taken as unknown.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A list: as one, as its only element, or nothing. Elements of another form are left out.
pub(super) fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let elements = match Value::deserialize(deserializer)? {
        Value::Array(elements) => elements,
        // Nothing.
        Value::Object(element) if element.is_empty() => Vec::new(),
        element => vec![element],
    };
    Ok(elements.into_iter().filter_map(|element| serde_json::from_value(element).ok()).collect())
}

/// An object; anything else is its default.
pub(super) fn object<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// A whole number from 0, or its digits.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(as_number(&Value::deserialize(deserializer)?))
}

/// A number as of a device; -1 and others that can be none are unknown.
pub(super) fn index<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = as_number(&Value::deserialize(deserializer)?);
    Ok(number.and_then(|number| number.try_into().ok()))
}

pub(super) fn as_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// `true` or `false`, or the word.
pub(super) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(flag) => Some(flag),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    })
}

/// Text that is not empty.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Read {
        #[serde(deserialize_with = "list")]
        list: Vec<Element>,
        #[serde(deserialize_with = "number")]
        number: Option<u64>,
        #[serde(deserialize_with = "index")]
        index: Option<u32>,
        #[serde(deserialize_with = "flag")]
        flag: Option<bool>,
        #[serde(deserialize_with = "text")]
        text: Option<String>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Element {
        name: String,
    }

    fn read(json: &str) -> Read {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn both_ways_of_writing_are_read_alike() {
        let one =
            read(r#"{"list":{"name":"a"},"number":"7","index":"0","flag":"true","text":"x"}"#);
        let other = read(r#"{"list":[{"name":"a"}],"number":7,"index":0,"flag":true,"text":"x"}"#);
        assert_eq!(one, other);
        assert_eq!((one.list.len(), one.number, one.index), (1, Some(7), Some(0)));
        assert_eq!((one.flag, one.text.as_deref()), (Some(true), Some("x")));
    }

    #[test]
    fn what_is_absent_or_of_another_kind_is_unknown() {
        for json in [
            "{}",
            r#"{"list":null,"number":null,"index":null,"flag":null,"text":null}"#,
            r#"{"list":{},"number":-1,"index":-1,"flag":"maybe","text":""}"#,
            r#"{"list":"","number":1.5,"index":4294967296,"flag":1,"text":{}}"#,
            r#"{"list":[{"nom":"a"}],"number":"1 GiB","index":[],"flag":[],"text":1}"#,
        ] {
            assert_eq!(read(json), Read::default(), "{json}");
        }
    }
}
