//! Which questions are answered here.

use std::ffi::OsString;

use super::csv::{self, Query};

/// A question that is answered here.
#[derive(Debug)]
pub(super) enum Question {
    /// `-q -x`: YARN (Hadoop, `NvidiaBinaryHelper`).
    Xml,
    /// `-L`: NVIDIA's MIG plugin for YARN.
    List,
    /// `--query-gpu=FIELDS --format=csv`: YARN's device framework, Spark's script.
    Query(Query),
}

/// The question that the arguments are, exactly; absent: they are something else.
pub(super) fn parse(arguments: &[OsString]) -> Option<Question> {
    let arguments: Vec<_> = arguments.iter().map(|each| each.to_str()).collect::<Option<_>>()?;
    match arguments[..] {
        ["-L" | "--list-gpus"] => Some(Question::List),
        ["-x" | "--xml-format", "-q" | "--query"] | ["-q" | "--query", "-x" | "--xml-format"] => {
            Some(Question::Xml)
        }
        [one, other] => {
            let (fields, format) = query(one, other).or_else(|| query(other, one))?;
            csv::parse(fields, format).map(Question::Query)
        }
        _ => None,
    }
}

fn query<'a>(fields: &'a str, format: &'a str) -> Option<(&'a str, &'a str)> {
    Some((fields.strip_prefix("--query-gpu=")?, format.strip_prefix("--format=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> String {
        let arguments: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        match parse(&arguments) {
            Some(Question::Xml) => "xml",
            Some(Question::List) => "list",
            Some(Question::Query(_)) => "query",
            None => "other",
        }
        .to_owned()
    }

    #[test]
    fn what_is_asked_word_by_word_is_answered_and_nothing_else() {
        for (line, question) in [
            ("-x -q", "xml"),
            ("-q -x", "xml"),
            ("--query --xml-format", "xml"),
            ("-L", "list"),
            ("--list-gpus", "list"),
            ("--query-gpu=index --format=csv,noheader", "query"),
            ("--format=csv --query-gpu=index,pci.bus_id", "query"),
            ("", "other"),
            ("-q", "other"),
            ("-x", "other"),
            ("-x -x", "other"),
            ("-q -x -i 0", "other"),
            ("-L -i 0", "other"),
            ("mig -lgip", "other"),
            ("--query-gpu=index", "other"),
            ("--query-gpu=index --format=xml", "other"),
            ("--query-gpu=clocks.sm --format=csv", "other"),
            ("--query-gpu=index --format=csv -l", "other"),
        ] {
            assert_eq!(parsed(line), question, "{line}");
        }
    }

    #[test]
    fn what_is_no_text_is_for_the_other() {
        use std::os::unix::ffi::OsStringExt;
        assert!(parse(&[OsString::from_vec(vec![0xff])]).is_none());
    }
}
