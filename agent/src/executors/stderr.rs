//! What an executor writes on standard error: it goes to the agent's log, and its end is kept to
//! tell why the executor ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;
use tracing::{Level, debug, error, info, trace, warn};

/// Lines that are kept.
const LINES: usize = 20;
/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 4096;

/// The standard error of a running executor.
#[derive(Debug)]
pub(super) struct Stderr {
    kept: Arc<Mutex<Kept>>,
    reading: JoinHandle<()>,
}

impl Stderr {
    /// Reads until the executor closes it.
    pub(super) fn read(executor: String, stderr: ChildStderr) -> Self {
        let kept = Arc::<Mutex<Kept>>::default();
        let keeping = Arc::clone(&kept);
        let reading = tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr);
            while let Some(line) = next_line(&mut stderr).await {
                pass_on(&executor, &line);
                keeping.lock().unwrap_or_else(PoisonError::into_inner).keep(line);
            }
        });
        Self { kept, reading }
    }

    /// The line that says most about an executor that has ended.
    pub(super) async fn last_words(mut self) -> Option<String> {
        // What it wrote before its end is in the pipe; a child that it left may keep that open.
        if tokio::time::timeout(Duration::from_millis(200), &mut self.reading).await.is_err() {
            self.reading.abort();
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last_words().map(str::to_owned)
    }
}

/// What is kept of the lines.
#[derive(Debug, Default)]
struct Kept {
    /// The last ones.
    lines: VecDeque<String>,
    /// The message of the first panic since the executor logged: the backtrace and the panics that
    /// follow from it come after it.
    panic: Option<String>,
    /// The next line is the message of a panic.
    panics: bool,
    /// The first line with which Rust's runtime ends a process.
    fatal: Option<String>,
}

impl Kept {
    fn keep(&mut self, line: String) {
        if std::mem::take(&mut self.panics) {
            self.panic.get_or_insert_with(|| line.clone());
        } else if is_panic(&line) {
            self.panics = true;
        } else if logged(&line).is_some() {
            // It lived on: that panic ended a query.
            self.panic = None;
        } else if ends_process(&line) || (is_fatal(&line) && self.panic.is_none()) {
            self.fatal.get_or_insert_with(|| line.clone());
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The line that says why it crashed, else the last that is not blank and that speaks of no
    /// good (the log at the level info and below).
    fn last_words(&self) -> Option<&str> {
        let says_something = |line: &&String| match logged(line) {
            Some((level, _)) => level <= Level::WARN,
            None => !line.trim().is_empty(),
        };
        let crash = self.fatal.as_ref().or(self.panic.as_ref());
        crash.or_else(|| self.lines.iter().rfind(says_something)).map(String::as_str)
    }
}

/// The line before a panic's message: `thread 'main' (17) panicked at src/main.rs:7:5:`.
fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains(" panicked at ")
}

/// The line of an end that no panic is the reason of.
fn ends_process(line: &str) -> bool {
    (line.starts_with("memory allocation of ") && line.ends_with(" bytes failed"))
        || (line.starts_with("thread '") && line.ends_with(" has overflowed its stack"))
}

/// The line of any other end by Rust's runtime, perhaps amid a panic.
fn is_fatal(line: &str) -> bool {
    line.starts_with("fatal runtime error: ")
}

/// Logs a line as what the executor logged it as, if that is what it is.
fn pass_on(executor: &str, line: &str) {
    match logged(line) {
        Some((Level::ERROR, text)) => error!(executor, "{text}"),
        Some((Level::WARN, text)) => warn!(executor, "{text}"),
        Some((Level::INFO, text)) => info!(executor, "{text}"),
        Some((Level::DEBUG, text)) => debug!(executor, "{text}"),
        Some((_, text)) => trace!(executor, "{text}"),
        None => info!(executor, "{line}"),
    }
}

/// The level and the rest of a line of the executor's log.
fn logged(line: &str) -> Option<(Level, &str)> {
    let (level, text) = line.trim_start().split_once(' ')?;
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    levels.into_iter().find(|known| known.as_str() == level).map(|level| (level, text))
}

/// The next line without its end, cut to [`MAX_LINE_BYTES`].
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = Vec::new();
    let mut any = false;
    loop {
        let chunk = from.fill_buf().await.ok()?;
        if chunk.is_empty() {
            break;
        }
        any = true;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let text = &chunk[..end.unwrap_or(chunk.len())];
        line.extend_from_slice(&text[..text.len().min(MAX_LINE_BYTES - line.len())]);
        let used = end.map_or(chunk.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() {
            break;
        }
    }
    any.then(|| String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_and_none_is_lost() {
        let text = format!("one\n\n{}\nlast", "x".repeat(3 * MAX_LINE_BYTES));
        let mut reader = BufReader::new(text.as_bytes());
        assert_eq!(next_line(&mut reader).await.as_deref(), Some("one"));
        assert_eq!(next_line(&mut reader).await.as_deref(), Some(""));
        assert_eq!(next_line(&mut reader).await.unwrap().len(), MAX_LINE_BYTES);
        assert_eq!(next_line(&mut reader).await.as_deref(), Some("last"));
        assert_eq!(next_line(&mut reader).await, None);
    }

    fn last_words(text: &str) -> Option<String> {
        let mut kept = Kept::default();
        for line in text.lines() {
            kept.keep(line.to_owned());
        }
        kept.last_words().map(str::to_owned)
    }

    /// A backtrace that is longer than what is kept.
    fn backtrace() -> String {
        let frames = "   0: std::panicking::begin_panic::<&str>\n             at \
                      /rustc/59807616e1fa/library/std/src/panicking.rs:761:5\n"
            .repeat(LINES);
        format!(
            "stack backtrace:\n{frames}note: Some details are omitted, run with \
             `RUST_BACKTRACE=full` for a verbose backtrace.\n"
        )
    }

    const HINT: &str =
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";

    #[test]
    fn the_line_that_says_most() {
        for (text, expected) in [
            ("a\nb\n ", Some("b")),
            ("", None),
            ("a\n INFO module: ready", Some("a")),
            (" INFO module: ready", None),
            (" WARN full\n INFO b", Some(" WARN full")),
            ("terminate called\n  what():  std::bad_alloc", Some("  what():  std::bad_alloc")),
        ] {
            assert_eq!(last_words(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_crash_is_told_by_its_first_line() {
        for after in [HINT, &backtrace()] {
            let panic = format!(
                "\nthread 'io-0' (22481) panicked at src/main.rs:3:74:\nno such thing:\n  \
                 second line\n{after}"
            );
            assert_eq!(last_words(&panic).as_deref(), Some("no such thing:"));

            let allocation = format!("memory allocation of 137438953472 bytes failed\n{after}");
            let expected = Some("memory allocation of 137438953472 bytes failed");
            assert_eq!(last_words(&allocation).as_deref(), expected);
            // A panic that it lived through, without a word of it.
            assert_eq!(last_words(&format!("{panic}{allocation}")).as_deref(), expected);

            let twice = format!(
                "\nthread 'main' (22512) panicked at src/main.rs:6:80:\nfirst\n{after}\n\
                 thread 'main' (22512) panicked at src/main.rs:6:51:\nsecond\n{after}\n\
                 thread 'main' (22512) panicked at library/core/src/panicking.rs:229:5:\n\
                 panic in a destructor during cleanup\n{after}\
                 thread caused non-unwinding panic. aborting.\n"
            );
            assert_eq!(last_words(&twice).as_deref(), Some("first"));

            let payload = format!(
                "{panic}fatal runtime error: drop of the panic payload panicked, aborting\n"
            );
            assert_eq!(last_words(&payload).as_deref(), Some("no such thing:"));
        }
        let stack = "\nthread 'main' (22500) has overflowed its stack\n\
                     fatal runtime error: stack overflow, aborting\n";
        let expected = Some("thread 'main' (22500) has overflowed its stack");
        assert_eq!(last_words(stack).as_deref(), expected);
        let fatal = "fatal runtime error: Rust cannot catch foreign exceptions, aborting";
        assert_eq!(last_words(fatal).as_deref(), Some(fatal));
        let cut = "thread 'main' (17) panicked at src/main.rs:7:5:";
        assert_eq!(last_words(cut).as_deref(), Some(cut));
    }

    #[test]
    fn a_panic_that_it_lived_through_is_no_reason() {
        let text = format!(
            "thread 'main' (17) panicked at src/main.rs:7:5:\nodd\n{HINT}\
             ERROR module: query q1 panicked\nkilled"
        );
        assert_eq!(last_words(&text).as_deref(), Some("killed"));
    }

    #[test]
    fn lines_of_the_log_have_their_level() {
        assert_eq!(logged(" WARN module: slow"), Some((Level::WARN, "module: slow")));
        assert_eq!(logged("WARNING: slow"), None);
        assert_eq!(logged("terminate called"), None);
        assert_eq!(logged("ERROR"), None);
    }
}
