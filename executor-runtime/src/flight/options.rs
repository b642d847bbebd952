//! Session options: messages of Flight.proto that `arrow_flight` doesn't generate.

use std::collections::HashMap;

use prost::{Enumeration, Message, Oneof};

/// A value of an option.
#[derive(Clone, PartialEq, Message)]
pub struct SessionOptionValue {
    /// The value; absent to unset the option.
    #[prost(oneof = "OptionValue", tags = "1, 2, 3, 4, 5")]
    pub option_value: Option<OptionValue>,
}

/// The kinds of values.
#[derive(Clone, PartialEq, Oneof)]
pub enum OptionValue {
    /// Text.
    #[prost(string, tag = "1")]
    String(String),
    /// Yes or no.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// A whole number.
    #[prost(sfixed64, tag = "3")]
    Int64(i64),
    /// A number.
    #[prost(double, tag = "4")]
    Double(f64),
    /// Texts.
    #[prost(message, tag = "5")]
    StringList(StringList),
}

/// Texts.
#[derive(Clone, PartialEq, Message)]
pub struct StringList {
    /// The texts.
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

impl SessionOptionValue {
    /// As text, the form that settings take; `None` to unset.
    pub fn text(&self) -> Option<String> {
        Some(match self.option_value.as_ref()? {
            OptionValue::String(text) => text.clone(),
            OptionValue::Bool(value) => value.to_string(),
            OptionValue::Int64(value) => value.to_string(),
            OptionValue::Double(value) => value.to_string(),
            OptionValue::StringList(list) => list.values.join(","),
        })
    }

    /// Of text.
    pub fn of(text: String) -> Self {
        Self { option_value: Some(OptionValue::String(text)) }
    }
}

/// Asks to set options.
#[derive(Clone, PartialEq, Message)]
pub struct SetSessionOptionsRequest {
    /// By name.
    #[prost(map = "string, message", tag = "1")]
    pub session_options: HashMap<String, SessionOptionValue>,
}

/// What came of it.
#[derive(Clone, PartialEq, Message)]
pub struct SetSessionOptionsResult {
    /// The options that were not set, by name.
    #[prost(map = "string, message", tag = "1")]
    pub errors: HashMap<String, SetSessionOptionError>,
}

/// Why an option was not set.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SetSessionOptionError {
    /// The kind of error.
    #[prost(enumeration = "SetSessionOptionErrorValue", tag = "1")]
    pub value: i32,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SetSessionOptionErrorValue {
    /// Not said.
    Unspecified = 0,
    /// There is no such option, or a client may not set it.
    InvalidName = 1,
    /// It can't have that value.
    InvalidValue = 2,
    /// Something else.
    Error = 3,
}

/// The options as they are.
#[derive(Clone, PartialEq, Message)]
pub struct GetSessionOptionsResult {
    /// By name.
    #[prost(map = "string, message", tag = "1")]
    pub session_options: HashMap<String, SessionOptionValue>,
}

/// What came of closing a session.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CloseSessionResult {
    /// Where it stands.
    #[prost(enumeration = "CloseSessionStatus", tag = "1")]
    pub status: i32,
}

/// Where the closing of a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CloseSessionStatus {
    /// Not said.
    Unspecified = 0,
    /// It is closed.
    Closed = 1,
    /// It closes.
    Closing = 2,
    /// It can't be closed.
    NotCloseable = 3,
}
