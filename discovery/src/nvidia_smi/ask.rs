//! Asking the driver where there is no snapshot yet.
//!
//! A child asks. At the deadline it is left behind, and goes on: a driver that needs a minute on a
//! node with many GPUs has answered when YARN tries again, for the child keeps the answer. One
//! child asks at a time: of one that hangs for good there is one.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation};

use super::now;
use crate::snapshot::{self, Place, Snapshot};
use crate::{Error, Inventory, deadline, nvml};

/// YARN's is 10 s, and counts the start of the process.
const DEADLINE: Duration = Duration::from_secs(8);
/// How often to look for the answer that another process waits for.
const LOOK: Duration = Duration::from_millis(50);
/// Exit code of a child that leaves the question to another one.
const ASKED_ALREADY: i32 = 75;

/// A snapshot from the driver itself. In a container it is not kept: a control group may hide GPUs
/// that others see.
pub(super) fn driver(places: &[Place], in_container: bool) -> Result<Snapshot, Error> {
    let started = Instant::now();
    let mut command = deadline::this_program();
    command.args(["--in-process", "--format", "json"]);
    let place = if in_container { None } else { keeping(places) };
    let Some(place) = place else {
        return read(&Answer::from(deadline::run(&mut command, DEADLINE)?));
    };
    command.arg("--keep").arg(place);
    let answer = Answer::from(deadline::run_on(&mut command, DEADLINE)?);
    if answer.code != Some(ASKED_ALREADY) {
        return read(&answer);
    }
    while started.elapsed() < DEADLINE {
        if let Some(snapshot) = snapshot::best(places, now(), |_| ()) {
            return Ok(snapshot);
        }
        thread::sleep(LOOK);
    }
    Err(Error::Hung { deadline: DEADLINE })
}

/// What a child said.
struct Answer {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl From<std::process::Output> for Answer {
    fn from(output: std::process::Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }
}

fn read(answer: &Answer) -> Result<Snapshot, Error> {
    if answer.code != Some(0) {
        return Err(Error::Child(answer.stderr.trim().to_owned()));
    }
    let inventory = Inventory::from_json(&String::from_utf8_lossy(&answer.stdout))?;
    Ok(Snapshot { current_for: DEADLINE.as_secs(), ..Snapshot::new(inventory, now()) })
}

/// Where to keep a snapshot: the first directory that is there and takes one, else the last, which
/// is made.
fn keeping(places: &[Place]) -> Option<&Path> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let is_writable = |path: &&Path| rustix::fs::access(*path, access).is_ok();
    let mut paths = places.iter().map(|place| place.path.as_path());
    paths.clone().find(is_writable).or_else(|| {
        let last = paths.next_back()?;
        fs::create_dir_all(last).ok().map(|()| last)
    })
}

/// In the child: reads the GPUs, keeps them in that directory if there are any, and passes them to
/// `print`. Returns the exit code.
///
/// # Errors
/// Those of [`nvml::read`] and of `print`. A snapshot that can't be written is none.
pub fn keep(
    directory: &Path,
    print: impl FnOnce(&Inventory) -> Result<i32, Error>,
) -> Result<i32, Error> {
    // Nobody's signals reach it, and it has no terminal.
    rustix::process::setsid().ok();
    let lock = File::open(directory);
    let locked =
        lock.as_ref().map(|lock| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive));
    if matches!(locked, Ok(Err(rustix::io::Errno::WOULDBLOCK))) {
        return Ok(ASKED_ALREADY);
    }
    let inventory = nvml::read()?;
    let snapshot = Snapshot::new(inventory, now());
    if snapshot.has_units() {
        snapshot.write(directory).ok();
    }
    print(&snapshot.inventory)
}
