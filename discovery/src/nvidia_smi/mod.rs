//! Being nvidia-smi: what `creel-discovery` does when that is its file's name.
//!
//! ```text
//!  YARN, Spark, people ──▶ nvidia-smi
//!                            │ arguments: is it a question that is answered here?
//!                            ├── no ──▶ real: becomes the driver's own nvidia-smi (exec)
//!                            ▼ yes
//!                    the snapshot that the agent keeps, else the last one that there was
//!                            │ none ever: ask: a child asks the driver, and is left behind at
//!                            │            the deadline
//!                            ▼ view: the node's GPUs, or those of the container that asks
//!                    xml, csv or list, to standard output, all at once
//! ```
//!
//! YARN's NodeManager runs `nvidia-smi -x -q` at its start and every 3 s: it doesn't start if the
//! answer is none, and stands still while it waits for one (Hadoop, `GpuDiscoverer`,
//! `NodeResourceMonitorImpl`). So this one reads a regular file and asks nobody.

pub mod csv;
pub mod list;
pub mod xml;

mod arguments;
mod ask;
mod real;
mod view;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use self::arguments::Question;
pub use self::ask::keep;
pub use self::view::{Seen, View};
use crate::snapshot;

/// The name.
pub const NAME: &str = "nvidia-smi";

/// Exit code where a query found nothing (nvidia-smi(1), "Return Value").
const NOTHING_FOUND: i32 = 6;
/// Exit code where the driver gives no answer (nvidia-smi(1): "driver is not loaded").
const NO_DRIVER: i32 = 9;

/// Whether a program that was started by that name is to be nvidia-smi.
pub fn is_meant(name: &OsStr) -> bool {
    Path::new(name).file_name() == Some(OsStr::new(NAME))
}

/// Answers, and returns the exit code: 0 answered, 1 standard output can't be written, 6 there is
/// no GPU, 9 the driver gives no answer and there is no snapshot, 127 the arguments are for the
/// driver's own nvidia-smi and there is none.
pub fn run(arguments: &[OsString]) -> i32 {
    let Some(question) = arguments::parse(arguments) else {
        return complain(&real::become_it(arguments), 127);
    };
    let now = now();
    let places = snapshot::places();
    let kept = snapshot::best(&places, now, |error| {
        complain(&error, 0);
    });
    let container = std::env::var("CONTAINER_ID").ok();
    let ask = || ask::driver(&places, container.is_some());
    let snapshot = match kept.map_or_else(ask, Ok) {
        Ok(snapshot) if snapshot.is_current(now) => snapshot,
        Ok(old) => old.lasting(),
        Err(error) => return complain(&error, NO_DRIVER),
    };
    answer(&question, &View::of(&snapshot, container.as_deref(), view::is_denied))
}

fn answer(question: &Question, view: &View<'_>) -> i32 {
    let text = match question {
        Question::Xml => xml::text(view),
        _ if view.gpus.is_empty() => return complain(&"No devices were found", NOTHING_FOUND),
        Question::List => list::text(view),
        Question::Query(query) => csv::text(view, query),
    };
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => 0,
        Err(error) => complain(&error, 1),
    }
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Says what is wrong where YARN doesn't parse it, and returns the code.
fn complain(what: &dyn std::fmt::Display, code: i32) -> i32 {
    writeln!(io::stderr(), "{NAME} (Creel): {what}").ok();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_meant_by_the_name_of_the_file() {
        for (name, meant) in [
            ("nvidia-smi", true),
            ("/usr/libexec/creel/yarn/nvidia-smi", true),
            ("./nvidia-smi", true),
            ("creel-discovery", false),
            ("/nvidia-smi/creel-discovery", false),
            ("", false),
        ] {
            assert_eq!(is_meant(OsStr::new(name)), meant, "{name}");
        }
    }
}
