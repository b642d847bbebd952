//! SQL text: where it is read from, and where one statement ends and the next begins.

use std::io::Read;
use std::iter::Peekable;
use std::str::CharIndices;

use super::Source;
use crate::error::Error;

/// Reads the statements of a source; at least one.
pub(super) fn read(source: &Source) -> Result<Vec<String>, Error> {
    let text = match (&source.command, &source.file) {
        (Some(command), _) => command.clone(),
        (None, Some(file)) if file.as_os_str() != "-" => std::fs::read_to_string(file)
            .map_err(|source| Error::Input { name: file.display().to_string(), source })?,
        _ => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|source| Error::Input { name: "standard input".into(), source })?;
            text
        }
    };
    // The byte order mark that some editors put before a text.
    let statements = split(text.strip_prefix('\u{feff}').unwrap_or(&text));
    if statements.is_empty() {
        return Err(Error::Usage("there is no SQL statement to run".into()));
    }
    Ok(statements.into_iter().map(str::to_owned).collect())
}

/// The statement that sets a setting for a session.
pub(super) fn set(name: &str, value: &str) -> Result<String, Error> {
    let name = name.strip_prefix("creel.").unwrap_or(name);
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte)) {
        return Err(Error::Usage(format!("{name:?} is no name of a setting")));
    }
    Ok(format!("SET creel.{name} = '{}'", value.replace('\'', "''")))
}

/// The statement that shows the plan of a statement.
pub(super) fn explained(statement: &str, analyze: bool) -> String {
    let first = statement.split_whitespace().next().unwrap_or_default();
    match (first.eq_ignore_ascii_case("explain"), analyze) {
        (true, _) => statement.to_owned(),
        (false, true) => format!("EXPLAIN ANALYZE {statement}"),
        (false, false) => format!("EXPLAIN {statement}"),
    }
}

/// Splits SQL at the `;` that stand in no string, quoted name or comment. What holds nothing but
/// space and comments is no statement.
fn split(sql: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let mut chars = sql.char_indices().peekable();
    let (mut start, mut empty) = (0, true);
    let mut before = ' ';
    while let Some((position, char)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        match (char, next) {
            (';', _) => {
                if !empty {
                    statements.push(sql[start..position].trim());
                }
                (start, empty) = (position + 1, true);
            }
            ('-', Some('-')) => skip_until(&mut chars, |char| char == '\n'),
            ('/', Some('*')) => skip_comment(&mut chars),
            ('\'' | '"' | '`', _) => {
                empty = false;
                let escapes = char == '\'' && matches!(before, 'e' | 'E');
                skip_quoted(&mut chars, char, escapes);
            }
            ('$', _) => {
                empty = false;
                if let Some(tag) = dollar_tag(&sql[position..])
                    && !before.is_alphanumeric()
                {
                    let body = position + tag.len();
                    let end = sql[body..].find(tag).map_or(sql.len(), |end| body + end + tag.len());
                    while chars.next_if(|(at, _)| *at < end).is_some() {}
                }
            }
            (char, _) if char.is_whitespace() => {}
            _ => empty = false,
        }
        before = char;
    }
    if !empty {
        statements.push(sql[start..].trim());
    }
    statements
}

type Chars<'a> = Peekable<CharIndices<'a>>;

fn skip_until(chars: &mut Chars<'_>, end: impl Fn(char) -> bool) {
    chars.find(|(_, char)| end(*char));
}

/// To the end of a comment; comments nest.
fn skip_comment(chars: &mut Chars<'_>) {
    let mut depth = 1;
    chars.next();
    while depth > 0
        && let Some((_, char)) = chars.next()
    {
        let next = chars.peek().map(|(_, next)| *next);
        match (char, next) {
            ('*', Some('/')) => depth -= 1,
            ('/', Some('*')) => depth += 1,
            _ => continue,
        }
        chars.next();
    }
}

/// To the closing quote. A doubled quote closes and opens again, which is the same here.
fn skip_quoted(chars: &mut Chars<'_>, quote: char, escapes: bool) {
    while let Some((_, char)) = chars.next() {
        if escapes && char == '\\' {
            chars.next();
        } else if char == quote {
            return;
        }
    }
}

/// The opening of a dollar-quoted string, as `$$` or `$tag$`.
fn dollar_tag(sql: &str) -> Option<&str> {
    let end = sql[1..].find(|char: char| !char.is_alphanumeric() && char != '_')? + 1;
    let is_tag = sql[end..].starts_with('$') && !sql[1..].starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &sql[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes() {
        for (sql, expected) in [
            ("SELECT 1", &["SELECT 1"][..]),
            (" SELECT 1 ;\n; SELECT 2;;", &["SELECT 1", "SELECT 2"]),
            ("SELECT ';', 'it''s;', \";\"; b", &["SELECT ';', 'it''s;', \";\"", "b"]),
            ("SELECT E'\\';'; b", &["SELECT E'\\';'", "b"]),
            ("SELECT '\\'; b", &["SELECT '\\'", "b"]),
            ("SELECT 1 -- a; b\n+ 2; c", &["SELECT 1 -- a; b\n+ 2", "c"]),
            ("SELECT 1 /* ; /* ; */ ; */ + 2; c", &["SELECT 1 /* ; /* ; */ ; */ + 2", "c"]),
            ("SELECT $$ ; $$, $a$ ; $$ ; $a$; c", &["SELECT $$ ; $$, $a$ ; $$ ; $a$", "c"]),
            ("SELECT $1; SELECT $2", &["SELECT $1", "SELECT $2"]),
            ("SELECT 'é;'; ü", &["SELECT 'é;'", "ü"]),
            ("SELECT 'open; b", &["SELECT 'open; b"]),
            ("SELECT $$open; b", &["SELECT $$open; b"]),
            ("-- nothing; here\n /* ; */ ;", &[]),
            ("/*", &[]),
            ("$", &["$"]),
            ("", &[]),
        ] {
            assert_eq!(split(sql), expected, "{sql}");
        }
    }

    #[test]
    fn a_setting_is_set_as_a_quoted_text() {
        assert_eq!(set("sql.batch_size", "10").unwrap(), "SET creel.sql.batch_size = '10'");
        assert_eq!(set("creel.a.b", "it's").unwrap(), "SET creel.a.b = 'it''s'");
        assert!(matches!(set("a = 1; DROP", "x"), Err(Error::Usage(_))));
    }

    #[test]
    fn explain_is_put_before_once() {
        assert_eq!(explained("SELECT 1", false), "EXPLAIN SELECT 1");
        assert_eq!(explained("SELECT 1", true), "EXPLAIN ANALYZE SELECT 1");
        assert_eq!(explained("explain verbose SELECT 1", false), "explain verbose SELECT 1");
    }

    #[test]
    fn a_file_is_read_and_named_when_it_cannot_be() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.sql");
        let source = Source { command: None, file: Some(file.clone()), stdin: None };
        let error = read(&source).unwrap_err().to_string();
        assert!(error.contains("a.sql"), "{error}");
        std::fs::write(&file, b"SELECT '\xff'").unwrap();
        let error = read(&source).unwrap_err().to_string();
        assert!(error.contains("a.sql") && error.contains("UTF-8"), "{error}");
        std::fs::write(&file, "SELECT 1;\nSELECT 2\n").unwrap();
        assert_eq!(read(&source).unwrap(), ["SELECT 1", "SELECT 2"]);
        std::fs::write(&file, "\u{feff}SELECT 1").unwrap();
        assert_eq!(read(&source).unwrap(), ["SELECT 1"]);
        std::fs::write(&file, "-- nothing\n").unwrap();
        assert!(matches!(read(&source), Err(Error::Usage(_))));
    }
}
