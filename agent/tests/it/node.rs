//! A node to test on: the real `creeld`, with stand-ins for what it starts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until that is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether this process may become other users; says so if not.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: it needs root");
    }
    root
}

/// A directory with all that an agent needs.
pub(crate) struct Node {
    dir: TempDir,
    mode: &'static str,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with_executor("")
    }

    /// With an executor that misbehaves in that way; see `executor.py`.
    pub(crate) fn with_executor(mode: &'static str) -> Self {
        let dir = tempfile::Builder::new().prefix("creel").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let node = Self { dir, mode };
        let double = Path::new(&manifest_dir()).join("tests/it/executor.py");
        let python = python();
        node.program(
            "executor",
            &format!("MODE={mode} exec {} {} \"$@\"", python.display(), double.display()),
        );
        node.gpus(0);
        node
    }

    /// Makes it a node of so many healthy GPUs: `GPU-0`, `GPU-1`, …
    pub(crate) fn gpus(&self, count: u32) {
        self.gpus_but(count, |_| {});
    }

    /// Makes devices of NVIDIA's major number, which the stand-in for discovery tries in a control
    /// group.
    pub(crate) fn devices(&self, count: u32) {
        for minor in 0..count {
            let path = self.path(&format!("nvidia{minor}"));
            let made =
                Command::new("mknod").arg(path).args(["c", "195", &minor.to_string()]).status();
            assert!(made.unwrap().success());
        }
    }

    /// Makes it a node of so many GPUs, each changed so.
    pub(crate) fn gpus_but(&self, count: u32, change: impl Fn(&mut creel_discovery::Gpu)) {
        let driver = creel_discovery::inventory::Driver {
            library: "libnvidia-ml.so.1".to_owned(),
            version: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
            nvml: None,
            problems: Vec::new(),
        };
        let gpu = |index| {
            let mut gpu = creel_discovery::Gpu {
                index,
                uuid: Some(format!("GPU-{index}")),
                minor: Some(index),
                ..creel_discovery::Gpu::default()
            };
            change(&mut gpu);
            gpu
        };
        let inventory = creel_discovery::Inventory {
            driver: (count > 0).then_some(driver),
            gpus: (0..count).map(gpu).collect(),
            ..creel_discovery::Inventory::empty()
        };
        let json = serde_json::to_string(&inventory).unwrap();
        let denied = format!(
            "echo 0 > \"$2\"; for minor in $(echo \"$4\" | tr , ' '); do \
             dd if={}/nvidia$minor 2>&1 | grep -q 'not permitted' && denied=$denied,$minor; done; \
             echo \"[${{denied#,}}]\"",
            self.dir.path().display()
        );
        let script =
            format!("case $1 in --watch) ;; --denied-in) {denied} ;; *) echo '{json}' ;; esac");
        self.program("discovery", &script);
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `creeld` with what it needs to run here, not started yet.
    pub(crate) fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_creeld")))
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .arg("--run-dir")
            .arg(self.path("run"))
            .args(["--log-level", "info,creel_agent=debug", "--set"])
            .arg(format!("executor.spill_dir={}", self.path("spill").display()))
            .arg("--set")
            .arg(format!("agent.state_dir={}", self.path("state").display()))
            .env("CREEL_EXECUTOR", self.path("executor"))
            .env("CREEL_DISCOVERY", self.path("discovery"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self) -> Agent<'_> {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, arguments: &[&str]) -> Agent<'_> {
        let mut command = self.command();
        command.args(arguments);
        self.start_command(command)
    }

    /// Starts an agent as another user.
    pub(crate) fn start_as(&self, uid: u32) -> Agent<'_> {
        // Where it was built, others may not enter.
        let program = self.path("creeld");
        // By another process: a fork of another test would hold it open for writing, and then it
        // can't be started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_creeld")).arg(&program).status();
        assert!(copied.unwrap().success());
        let uid = uid.to_string();
        for name in ["run", "state"] {
            let directory = self.path(name);
            fs::create_dir(&directory).unwrap();
            std::os::unix::fs::chown(&directory, uid.parse().ok(), None).unwrap();
        }
        let plain = self.command_of(&program);
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]);
        command.arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.start_command(command)
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Agent<'_> {
        let log = self.path("log");
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let agent = Agent { node: self, child };
        eventually("the agent listens", || agent.log().contains("listens in"));
        agent
    }
}

/// The interpreter itself, not a wrapper of it that needs an environment.
pub(crate) fn python() -> PathBuf {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    PathBuf::from(String::from_utf8(output.unwrap().stdout).unwrap().trim())
}

/// A running agent.
pub(crate) struct Agent<'a> {
    pub(crate) node: &'a Node,
    child: Child,
}

impl Agent<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.node.path("log")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        // Its end is not for `drop` to bring about.
        std::mem::forget(self);
        status
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.node.path("run").join(name)
    }

    /// Connects as a client, of this process.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket("creel.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Connects and waits until an executor has the connection.
    pub(crate) fn attach(&self) -> UnixStream {
        let mut stream = self.connect();
        assert_eq!(line(&mut stream), "hello", "{}", self.log());
        stream
    }

    /// A gRPC call, and its status and message.
    pub(crate) fn call(&self) -> (u32, String) {
        self.call_at("creel.sock")
    }

    /// A gRPC call over that socket, and its status and message.
    pub(crate) fn call_at(&self, socket: &str) -> (u32, String) {
        call(UnixStream::connect(self.socket(socket)).unwrap())
    }

    /// What the control API answers.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path);
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.socket("agent.sock")).unwrap();
        stream.write_all(request(method, path).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        parse(&answer)
    }

    /// What the control API answers another user.
    pub(crate) fn request_as(&self, uid: u32, method: &str, path: &str) -> (u16, Value) {
        let mut peer = self.peer(uid, "agent.sock", "request");
        peer.child.stdin.take().unwrap().write_all(request(method, path).as_bytes()).unwrap();
        let mut answer = String::new();
        peer.stdout.read_to_string(&mut answer).unwrap();
        parse(&answer)
    }

    /// A client that is another process; see `peer.py`.
    pub(crate) fn peer(&self, uid: u32, socket: &str, action: &str) -> Peer {
        self.peer_below(&[], uid, socket, action)
    }

    /// Such a client, started by that program.
    pub(crate) fn peer_below(
        &self,
        starter: &[&str],
        uid: u32,
        socket: &str,
        action: &str,
    ) -> Peer {
        let program = Path::new(&manifest_dir()).join("tests/it/peer.py");
        let python = python();
        let arguments = starter.iter().map(OsStr::new).chain([python.as_os_str()]);
        let arguments: Vec<_> = arguments.collect();
        let mut child = Command::new(arguments[0])
            .args(&arguments[1..])
            .env("CREEL_RUN_DIR", self.node.path("run"))
            .arg(program)
            .arg(uid.to_string())
            .arg(self.socket(socket))
            .arg(action)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        Peer { child, stdout }
    }

    /// What the control API answers to a request with a body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let mut stream = UnixStream::connect(self.socket("agent.sock")).unwrap();
        let request = request("POST", path).trim_end().to_owned();
        let length = body.len();
        stream
            .write_all(format!("{request}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        parse(&answer)
    }

    pub(crate) fn leases(&self) -> Vec<Value> {
        self.get("/v1/leases")["leases"].as_array().unwrap().clone()
    }

    /// `creel`, on this agent.
    pub(crate) fn creel(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_creel"));
        command.arg("--run-dir").arg(self.node.path("run")).args(arguments);
        command
    }

    pub(crate) fn attachments(&self) -> Vec<Value> {
        self.get("/v1/attachments")["attachments"].as_array().unwrap().clone()
    }

    pub(crate) fn executors(&self) -> Vec<Value> {
        self.get("/v1/executors")["executors"].as_array().unwrap().clone()
    }

    pub(crate) fn executor_pid(&self) -> Pid {
        let pid = self.executors()[0]["pid"].as_i64().expect("an executor that runs");
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}\nexecutor: {:?}", self.log(), self.node.mode);
        }
    }
}

/// A client that is another process.
pub(crate) struct Peer {
    pub(crate) child: Child,
    pub(crate) stdout: ChildStdout,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a line.
pub(crate) fn line(from: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Reads to the end; how the connection ended does not matter.
pub(crate) fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

pub(crate) fn parse(answer: &str) -> (u16, Value) {
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn call(stream: UnixStream) -> (u32, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        stream.set_nonblocking(true).unwrap();
        let stream = TokioIo::new(tokio::net::UnixStream::from_std(stream).unwrap());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://localhost/service/Method")
            .body(http_body_util::Empty::<Bytes>::new())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = tonic::Status::from_header_map(response.headers()).unwrap();
        (status.code() as u32, status.message().to_owned())
    })
}

/// The crate's directory, asked for when the test runs: one target directory may serve several
/// clones, and what was compiled in one of them must not look into another.
pub(crate) fn manifest_dir() -> std::ffi::OsString {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests")
}
