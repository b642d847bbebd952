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
    lines: Arc<Mutex<VecDeque<String>>>,
    reading: JoinHandle<()>,
}

impl Stderr {
    /// Reads until the executor closes it.
    pub(super) fn read(executor: String, stderr: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let reading = tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr);
            while let Some(line) = next_line(&mut stderr).await {
                pass_on(&executor, &line);
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == LINES {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        Self { lines, reading }
    }

    /// The line that says most about an executor that has ended.
    pub(super) async fn last_words(mut self) -> Option<String> {
        // What it wrote before its end is in the pipe; a child that it left may keep that open.
        if tokio::time::timeout(Duration::from_millis(200), &mut self.reading).await.is_err() {
            self.reading.abort();
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        last_words(lines.iter().map(String::as_str)).map(str::to_owned)
    }
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

/// The message of a panic if there was one (the backtrace and hints come after it), else the
/// last line that is not blank and that speaks of no good (the log at the level info and below).
fn last_words<'a>(lines: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let panic = lines
        .clone()
        .skip_while(|line| !(line.starts_with("thread '") && line.contains("panicked at")))
        .nth(1);
    let says_something = |line: &&str| match logged(line) {
        Some((level, _)) => level <= Level::WARN,
        None => !line.trim().is_empty(),
    };
    panic.or_else(|| lines.filter(says_something).last())
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

    #[test]
    fn what_says_most() {
        let panic = [
            "starting",
            "thread 'main' (17) panicked at src/main.rs:7:5:",
            "no such thing",
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        ];
        assert_eq!(last_words(panic.into_iter()), Some("no such thing"));
        assert_eq!(last_words(["a", "b", " "].into_iter()), Some("b"));
        assert_eq!(last_words([].into_iter()), None);
        assert_eq!(last_words(["a", " INFO module: ready"].into_iter()), Some("a"));
        assert_eq!(last_words([" INFO module: ready"].into_iter()), None);
        assert_eq!(last_words([" WARN full", " INFO b"].into_iter()), Some(" WARN full"));
    }

    #[test]
    fn lines_of_the_log_have_their_level() {
        assert_eq!(logged(" WARN module: slow"), Some((Level::WARN, "module: slow")));
        assert_eq!(logged("WARNING: slow"), None);
        assert_eq!(logged("terminate called"), None);
        assert_eq!(logged("ERROR"), None);
    }
}
