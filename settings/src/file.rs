//! `creel.toml`: a table for each group of settings.
//!
//! ```toml
//! [executor]
//! memory = "4 GiB"
//! threads = 8
//! ```
//!
//! Dotted keys are the same (`executor.memory = "4 GiB"`), and names of more parts are nested
//! tables (`[gpu.memory]`).

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::declaration::{SETTINGS, Setting, Settings, find, nearest};
use crate::error::Error;
use crate::load::Origin;

/// Sets what the text of a settings file sets, and says what that was and on which line.
///
/// The errors are all there are, in the order of their lines; what they don't name is set.
/// `path` is for the messages.
pub fn apply(
    text: &str,
    path: &Path,
    settings: &mut Settings,
) -> (Vec<(&'static Setting, Origin)>, Vec<Error>) {
    let (table, syntax) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, path, settings, set: Vec::new(), errors: Vec::new() };
    let mut last = Origin::Default;
    for error in syntax {
        let span = error.span().unwrap_or_default();
        let at = reader.origin(&span);
        // What follows a mistake in its line is mostly its consequence.
        if at != last {
            last = at.clone();
            let error = Error::Syntax { at, reason: error.message().to_owned() };
            reader.errors.push((span.start, error));
        }
    }
    // After a mistake in the syntax, which key is in which table is a guess.
    if reader.errors.is_empty() {
        reader.table("", table.get_ref());
    }
    reader.errors.sort_by_key(|(position, _)| *position);
    (reader.set, reader.errors.into_iter().map(|(_, error)| error).collect())
}

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    settings: &'a mut Settings,
    set: Vec<(&'static Setting, Origin)>,
    /// With their positions.
    errors: Vec<(usize, Error)>,
}

impl Reader<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            let span = key.span();
            match (find(&name), value.get_ref()) {
                (Some(setting), value) => self.value(setting, value, &span),
                (None, DeValue::Table(inner)) => {
                    let prefix = format!("{name}.");
                    let known = SETTINGS.iter().any(|setting| setting.name.starts_with(&prefix));
                    if inner.is_empty() && !known {
                        self.unknown(name, &span);
                    }
                    self.table(&prefix, inner);
                }
                (None, _) => self.unknown(name, &span),
            }
        }
    }

    fn value(&mut self, setting: &'static Setting, value: &DeValue<'_>, span: &Range<usize>) {
        let at = self.origin(span);
        let text = match value {
            DeValue::String(text) => text.clone().into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| number.to_string(), |number| number.to_string()),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(truth) => truth.to_string(),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                let error = Error::Value {
                    at: Some(at),
                    name: setting.name,
                    text: format!("({})", value.type_str()),
                    expected: setting.kind,
                };
                self.errors.push((span.start, error));
                return;
            }
        };
        match self.settings.set_from(Some(at.clone()), setting.name, &text) {
            Ok(setting) => self.set.push((setting, at)),
            Err(error) => self.errors.push((span.start, error)),
        }
    }

    fn unknown(&mut self, name: String, span: &Range<usize>) {
        let nearest = nearest(&name);
        let error = Error::Unknown { at: Some(self.origin(span)), name, nearest };
        self.errors.push((span.start, error));
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = 1 + before.matches('\n').count();
        Origin::File { path: self.path.to_owned(), line }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::Memory;
    use crate::size::Size;

    fn read(text: &str) -> (Settings, Vec<String>) {
        let mut settings = Settings::default();
        let (_, errors) = apply(text, Path::new("creel.toml"), &mut settings);
        (settings, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn tables_dotted_keys_and_plain_numbers() {
        let (settings, errors) = read(
            "# comment\nsql.batch_size = 0x400\n\n[executor]\nmemory = \"4 GiB\"\nspill_max_bytes = 1_000\n\
             [executor.idle_timeout]\n",
        );
        assert_eq!(settings.sql_batch_size, 1024);
        assert_eq!(settings.executor_memory, Memory::Bytes(Size(4 << 30)));
        assert_eq!(settings.executor_spill_max_bytes, Size(1000));
        assert_eq!(
            errors,
            [
                "creel.toml:7: executor.idle_timeout can't be \"(table)\": expected a duration such as \
              \"500ms\", \"30s\" or \"1h 30m\""
            ]
        );
    }

    #[test]
    fn all_mistakes_are_reported_by_line_and_the_rest_is_set() {
        let (settings, errors) = read(
            "[sql]\nbatch_size = 0\n[executor]\nmemroy = 1\nthreads = [1]\nidle_timeout = \"1m\"\n[nosuch]\n\
             [gup]\nunleased = \"allow\"\n",
        );
        assert_eq!(
            errors,
            [
                "creel.toml:2: sql.batch_size can't be \"0\": expected a number of rows from 1 to 1048576",
                "creel.toml:4: unknown setting \"executor.memroy\"; did you mean \"executor.memory\"?",
                "creel.toml:5: executor.threads can't be \"(array)\": expected a number of threads from 0 \
                 to 4096",
                "creel.toml:7: unknown setting \"nosuch\"; `creel config list` names them all",
                "creel.toml:9: unknown setting \"gup.unleased\"; did you mean \"gpu.unleased\"?",
            ]
        );
        assert_eq!(settings.executor_idle_timeout, Duration::from_mins(1));
    }

    #[test]
    fn all_mistakes_of_syntax_are_reported() {
        let (_, errors) = read("[executor\nmemory = \"1g\"\nthreads = = 2\n\nsql.batch_size = 5\n");
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].starts_with("creel.toml:1: not valid TOML: "), "{errors:?}");
        assert!(errors[1].starts_with("creel.toml:3: not valid TOML: "), "{errors:?}");
        let (_, errors) = read("[sql]\nbatch_size = 1\nbatch_size = 2\n");
        assert!(errors[0].starts_with("creel.toml:3: not valid TOML: duplicate key"), "{errors:?}");
    }

    #[test]
    fn known_tables_may_be_empty() {
        assert_eq!(read("[executor]\n[gpu]\n"), (Settings::default(), vec![]));
    }

    /// Text that is nearly a settings file.
    fn nearly() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            prop::sample::select(SETTINGS).prop_map(|setting| setting.name.to_owned()),
            "[a-z.\"_]{0,12}",
        ];
        let value = prop_oneof![
            prop::sample::select(SETTINGS).prop_map(|setting| format!("{:?}", setting.default)),
            "[0-9]{1,4}",
            "\"[0-9]{1,21} ?[%a-zA-Z]{0,3}\"",
            "[\\[\\]{}=,\"'#0-9a-z. \u{e9}\r\n]{0,12}",
        ];
        let line = (name, value).prop_map(|(name, value)| format!("{name} = {value}\n"));
        prop::collection::vec(
            prop_oneof![4 => line, 1 => "\\[[a-z.]{0,8}\\]\n", 1 => ".{0,10}\n"],
            0..12,
        )
        .prop_map(|lines| lines.concat())
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "(?s).{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn what_is_accepted_round_trips(text in nearly()) {
            let (settings, errors) = read(&text);
            let lines = text.lines().count();
            for error in errors {
                let line = error.strip_prefix("creel.toml:").and_then(|rest| rest.split_once(':'));
                let line: usize = line.expect("a place").0.parse().unwrap();
                prop_assert!((1..=lines + 1).contains(&line), "{}", error);
            }
            let line = |(name, text): (&String, &String)| {
                format!("{name} = {}", find(name).unwrap().kind.toml(text))
            };
            let written = settings.to_map().iter().map(line).collect::<Vec<_>>().join("\n");
            prop_assert_eq!(read(&written), (settings, vec![]));
        }
    }
}
