//! Running a child process that may never end.
//!
//! A process with a thread in an uninterruptible call can't be killed, doesn't end, and keeps its
//! descriptors open. So the child gets pipes of its own, which nobody but this process reads, and
//! nobody waits for the child's end past the deadline; init reaps it whenever it ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::Error;

/// Runs a command to its end, or gives up on it at the deadline. Its output is complete or none.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Output, Error> {
    run_or(command, deadline, kill)
}

/// As [`run`], but a command that isn't done at the deadline goes on, and nobody reads its output.
pub fn run_on(command: &mut Command, deadline: Duration) -> Result<Output, Error> {
    run_or(command, deadline, |_| ())
}

fn run_or(command: &mut Command, deadline: Duration, late: fn(Pid)) -> Result<Output, Error> {
    let child = spawn(command, Stdio::null())?;
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(deadline) else {
        late(pid);
        return Err(Error::Hung { deadline });
    };
    let output = output.map_err(Error::Spawn)?;
    if output.status.code().is_none() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Crashed { status: output.status, stderr });
    }
    Ok(output)
}

/// Runs a command until it ends, this process's standard input does, or nobody reads its standard
/// output any more; passes its lines on. Returns its exit code, 0 if it was ended.
pub fn relay(command: &mut Command) -> Result<i32, Error> {
    let mut child = spawn(command, Stdio::null())?;
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    let piped = || io::Error::from(io::ErrorKind::BrokenPipe);
    let stdout = child.stdout.take().ok_or_else(piped)?;
    let stderr = child.stderr.take().ok_or_else(piped)?;
    let (output_ended, input_ended) = (sender.clone(), sender);
    let errors = thread::spawn(move || pass_lines(stderr, io::stderr()));
    thread::spawn(move || {
        let broken = pass_lines(stdout, io::stdout()).is_err();
        output_ended.send(if broken { End::Stopped } else { End::ByItself })
    });
    thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        input_ended.send(End::Stopped)
    });
    match receiver.recv() {
        Ok(End::ByItself) => {
            errors.join().ok();
            let status = child.wait().map_err(Error::Spawn)?;
            status.code().ok_or(Error::Crashed { status, stderr: String::new() })
        }
        Ok(End::Stopped) | Err(_) => {
            kill(pid);
            Ok(0)
        }
    }
}

enum End {
    ByItself,
    Stopped,
}

/// In the child: end when the parent does, however it ends.
pub fn end_with_parent() {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
    // It may have ended before this was set.
    if rustix::process::getppid() != parent {
        std::process::exit(1);
    }
}

/// This program, as a command, even if its file has been replaced.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(env!("CARGO_PKG_NAME"));
    command
}

fn spawn(command: &mut Command, stdin: Stdio) -> Result<Child, Error> {
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Error::Spawn)
}

fn kill(pid: Pid) {
    // It is gone, or can't be killed: nothing is left to do either way.
    rustix::process::kill_process(pid, Signal::KILL).ok();
}

fn pass_lines(from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_complete() {
        let script =
            "i=0; while [ $i -lt 20000 ]; do echo 123456789; i=$((i+1)); done; echo no >&2";
        let output = run(&mut shell(script), Duration::from_mins(1)).unwrap();
        assert_eq!(output.stdout.len(), 200_000);
        assert_eq!(output.stderr, b"no\n");
    }

    #[test]
    fn a_child_that_hangs_is_left_behind() {
        let deadline = Duration::from_millis(100);
        let error = run(&mut shell("echo half; exec sleep 600"), deadline).unwrap_err();
        assert!(matches!(error, Error::Hung { .. }), "{error}");
    }

    #[test]
    fn a_crash_is_an_error() {
        let script = "echo oops >&2; kill -SEGV $$";
        let error = run(&mut shell(script), Duration::from_mins(1)).unwrap_err();
        assert!(error.to_string().contains("oops"), "{error}");
    }
}
