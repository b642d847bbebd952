//! The audit log: a line of JSON for each grant and each end, in the state directory.
//!
//! ```json
//! {"time":1700000000.25,"uptime":81.5,"event":"grant","id":"lease-7","lease":{…}}
//! {"time":1700000003.5,"uptime":84.75,"event":"end","id":"lease-7","reason":"…","lease":{…}}
//! ```
//!
//! `time` is in seconds since the Unix epoch, and may jump with the clock; `uptime` is in seconds
//! since boot, and does not. A `lease` is as the store has it.
//!
//! It is the second witness of who holds what: a lease that was granted here and has not ended
//! here is one, whatever became of the store. So a new file begins with the leases that are
//! held, as grants that say `"again":true`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::lease::Lease;
use crate::peer::Proc;

/// The log's file in the state directory; older ones are `audit.log.1` and so on.
const FILE: &str = "audit.log";
/// A longer file is closed, and a new one begun.
const MAX_BYTES: u64 = 4 << 20;
/// Files that are kept besides the one that is written.
const KEPT: u32 = 4;
/// A longer line is none of ours.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    time: f64,
    uptime: f64,
    event: Event,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
    lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Grant,
    End,
}

/// The log of a state directory, open to be written.
#[derive(Debug)]
pub(super) struct Audit {
    path: PathBuf,
    max_bytes: u64,
    open: Option<File>,
}

impl Audit {
    pub(super) fn new(dir: &Path) -> Self {
        Self { path: dir.join(FILE), max_bytes: MAX_BYTES, open: None }
    }

    /// The leases that were granted and have not ended, as far as the log says. What can't be
    /// read says nothing.
    pub(super) fn unended(&self) -> BTreeMap<u64, Lease> {
        let mut unended = BTreeMap::new();
        // All that was held when the newest file was begun is in it, unless the agent ended right
        // then.
        for path in [numbered(&self.path, 1), self.path.clone()] {
            let Ok(file) = File::open(path) else { continue };
            for line in lines(BufReader::new(file)) {
                match line.event {
                    Event::Grant => unended.insert(line.lease.number, line.lease),
                    Event::End => unended.remove(&line.lease.number),
                };
            }
        }
        unended
    }

    /// Writes of a grant.
    pub(super) fn grant(&mut self, lease: &Lease, held: &[Lease]) -> io::Result<()> {
        self.write(&line(Event::Grant, lease, None), held)
    }

    /// Writes of an end.
    pub(super) fn end(&mut self, lease: &Lease, reason: &str, held: &[Lease]) -> io::Result<()> {
        self.write(&line(Event::End, lease, Some(reason.to_owned())), held)
    }

    fn write(&mut self, line: &Line, held: &[Lease]) -> io::Result<()> {
        let file = match &mut self.open {
            Some(file) => file,
            open => open.insert(append(&self.path)?),
        };
        let written = put(file, line);
        if written.is_err() {
            self.open = None;
        } else if file.metadata()?.len() > self.max_bytes {
            self.rotate(held)?;
        }
        written
    }

    fn rotate(&mut self, held: &[Lease]) -> io::Result<()> {
        self.open = None;
        let _ = fs::remove_file(numbered(&self.path, KEPT));
        for number in (1..KEPT).rev() {
            let _ = fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1));
        }
        fs::rename(&self.path, numbered(&self.path, 1))?;
        let file = self.open.insert(append(&self.path)?);
        held.iter().try_for_each(|lease| {
            put(file, &Line { again: true, ..line(Event::Grant, lease, None) })
        })
    }
}

/// A line is written at once, so that no other stands in its midst; one that was cut short, as
/// when the disk was full, is closed first.
fn put(file: &mut File, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    file.write_all(text.as_bytes())
}

fn append(path: &Path) -> io::Result<File> {
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o640).open(path)?;
    if !ends_a_line(&file)? {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

fn ends_a_line(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("log.{number}"))
}

fn line(event: Event, lease: &Lease, reason: Option<String>) -> Line {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Line {
        time: time.map_or(0.0, |time| time.as_secs_f64()),
        uptime: Proc::default().uptime().unwrap_or_default(),
        event,
        id: lease.id(),
        reason,
        again: false,
        lease: lease.clone(),
    }
}

/// The lines that can be understood.
fn lines(mut from: impl BufRead) -> impl Iterator<Item = Line> {
    let mut line = Vec::new();
    std::iter::from_fn(move || {
        loop {
            line.clear();
            if from.read_until(b'\n', &mut line).ok()? == 0 {
                return None;
            }
            if line.len() <= MAX_LINE_BYTES
                && let Ok(line) = serde_json::from_slice(&line)
            {
                return Some(line);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::holder::tests::this_process;
    use super::super::lease::Source;
    use super::*;

    fn lease(number: u64) -> Lease {
        Lease {
            number,
            holder: this_process(),
            devices: Vec::new(),
            since: 1,
            source: Source::Default,
        }
    }

    fn numbers(audit: &Audit) -> Vec<u64> {
        audit.unended().into_keys().collect()
    }

    #[test]
    fn what_was_granted_and_has_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::new(dir.path());
        assert!(audit.unended().is_empty());
        for number in 1..=3 {
            audit.grant(&lease(number), &[]).unwrap();
        }
        audit.end(&lease(2), "because", &[]).unwrap();
        assert_eq!(numbers(&Audit::new(dir.path())), [1, 3]);
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&last["event"], &last["id"]), (&"end".into(), &"lease-2".into()));
        assert_eq!(last["reason"], "because");
        assert!(last["uptime"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn a_line_cut_short_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::new(dir.path());
        audit.grant(&lease(1), &[]).unwrap();
        audit.grant(&lease(2), &[]).unwrap();
        let path = dir.path().join(FILE);
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 7]).unwrap();
        let mut audit = Audit::new(dir.path());
        assert_eq!(numbers(&audit), [1]);
        audit.grant(&lease(3), &[]).unwrap();
        assert_eq!(numbers(&audit), [1, 3]);
    }

    #[test]
    fn a_new_file_begins_with_what_is_held_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::new(dir.path());
        audit.max_bytes = 2000;
        audit.grant(&lease(1), &[]).unwrap();
        for number in 2..200 {
            let held = [lease(1), lease(number)];
            audit.grant(&lease(number), &held).unwrap();
            audit.end(&lease(number), "because", &held[..1]).unwrap();
        }
        assert_eq!(numbers(&audit), [1]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1 + KEPT as usize);
        let size = fs::metadata(dir.path().join(FILE)).unwrap().len();
        assert!(size < 4000, "{size}");
    }
}
