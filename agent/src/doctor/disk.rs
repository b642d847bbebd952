//! Whether there is room to spill.

use std::io::ErrorKind;
use std::path::Path;

use creel_settings::{Settings, Size};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::{Finding, Node};

const CHECK: &str = "disk";

/// With less, the first query that spills fails.
const LEAST: u64 = 1 << 30;

/// A place for spilling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    available: u64,
    read_only: bool,
    writable: bool,
}

pub(super) fn check(node: &Node, settings: &Settings) -> Finding {
    let directory = match settings.executor_spill_dir.as_path() {
        empty if empty.as_os_str().is_empty() => &node.spill_dir,
        directory => directory,
    };
    match room(directory) {
        Ok(room) => judge(directory, room, settings.executor_spill_max_bytes),
        Err(error) => Finding::error(
            CHECK,
            format!("{} can't be looked at: {error}", directory.display()),
            "name another directory with executor.spill_dir",
        ),
    }
}

/// Looks at the directory, or at the one above it where it will be made.
fn room(directory: &Path) -> Result<Room, std::io::Error> {
    let mut error = std::io::Error::from(ErrorKind::NotFound);
    for directory in directory.ancestors() {
        match directory.metadata() {
            Ok(file) if !file.is_dir() => return Err(ErrorKind::NotADirectory.into()),
            Ok(_) => {
                let disk = statvfs(directory)?;
                return Ok(Room {
                    available: disk.f_bavail.saturating_mul(disk.f_frsize),
                    read_only: disk.f_flag.contains(StatVfsMountFlags::RDONLY),
                    writable: access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
                });
            }
            Err(missing) if missing.kind() == ErrorKind::NotFound => error = missing,
            Err(other) => return Err(other),
        }
    }
    Err(error)
}

fn judge(directory: &Path, room: Room, max: Size) -> Finding {
    let directory = directory.display();
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let available = gib(room.available);
    if room.read_only {
        return Finding::error(
            CHECK,
            format!("the file system of {directory} is read-only"),
            "mount it for writing, or name another directory with executor.spill_dir",
        );
    }
    if room.available < LEAST.min(max.0) {
        return Finding::error(
            CHECK,
            format!(
                "{directory} has {available} left: queries that need more than their memory fail"
            ),
            "free space there, or name another directory with executor.spill_dir",
        );
    }
    if !room.writable {
        return Finding::warning(
            CHECK,
            format!("this user can't write to {directory}; an agent of root can"),
            "run an agent of your own with executor.spill_dir set to a directory of yours",
        );
    }
    if room.available < max.0 {
        return Finding::warning(
            CHECK,
            format!(
                "{directory} has {available} left, less than the {max} that executors may spill (executor.spill_max_bytes)"
            ),
            "free space there, or lower executor.spill_max_bytes",
        );
    }
    Finding::ok(CHECK, format!("{directory} has {available} left for spilling"))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{node, write};
    use super::*;

    #[test]
    fn each_lack_is_found() {
        let well = Room { available: 200 << 30, read_only: false, writable: true };
        let max = Size(100 << 30);
        for (room, state, word) in [
            (well, State::Ok, "200.0 GiB left"),
            (Room { available: 50 << 30, ..well }, State::Warning, "less than the 100 GiB"),
            (Room { writable: false, ..well }, State::Warning, "can't write"),
            (Room { available: 5, ..well }, State::Error, "fail"),
            (Room { read_only: true, ..well }, State::Error, "read-only"),
        ] {
            let finding = judge(Path::new("/spill"), room, max);
            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.what.contains(word), "{finding:?}");
        }
    }

    #[test]
    fn a_directory_that_is_yet_to_be_made_is_judged_by_the_one_above() {
        let directory = tempfile::tempdir().unwrap();
        let here = room(directory.path()).unwrap();
        assert!(here.writable);
        assert!(room(&directory.path().join("a/b")).unwrap().writable);
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        write(directory.path(), "cache", "");
        let finding = check(&node, &Settings::default());
        assert_eq!(finding.state, State::Error, "{finding:?}");
        let settings = Settings { executor_spill_dir: "/proc".into(), ..Settings::default() };
        let finding = check(&node, &settings);
        assert_eq!(finding.state, State::Error, "/proc holds nothing: {finding:?}");
    }
}
