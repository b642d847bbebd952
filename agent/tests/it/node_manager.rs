//! A stand-in for YARN's NodeManager: real processes in the tree that it makes, with its pid files.
//!
//! ```text
//!   java org.apache…NodeManager        bash under another name, running a script of that name
//!     └─ bash launch.sh                CONTAINER_ID, LOCAL_DIRS (default_container_executor.sh)
//!          └─ setsid …                 the one in the pid file
//!               └─ container.py
//! ```

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::node::{Agent, Node, eventually, manifest_dir, parse, python};

const CLASS: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";

/// Launches what its standard input says: local directory, application, container, user, command.
const NODE_MANAGER: &str = r#"
while read -r local application container user command; do
  pids=$local/nmPrivate/$application/$container
  mkdir -p "$pids"
  [ "$user" = - ] && become= || become="setpriv --reuid $user --regid $user --clear-groups"
  CONTAINER_ID=$container LOCAL_DIRS=$local/usercache/ann/appcache/$application \
    bash launch.sh "$pids/$container.pid" $become bash -c "$command" &
done
wait
"#;

/// `default_container_executor.sh`, and the session script that it runs.
const LAUNCH: &str = r#"
file=$1; shift
bash -c 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec setsid "$@"' "$file" "$@"
echo ended
"#;

/// A NodeManager, which is killed when this is dropped; its containers live on.
pub(crate) struct NodeManager {
    dir: PathBuf,
    child: Child,
}

impl NodeManager {
    /// Starts one, as that user if one is named.
    pub(crate) fn start(node: &Node, uid: Option<u32>) -> Self {
        let dir = node.path("yarn");
        if !dir.exists() {
            fs::create_dir_all(dir.join("bin")).unwrap();
            fs::create_dir_all(dir.join("local/nmPrivate")).unwrap();
            fs::write(dir.join(CLASS), NODE_MANAGER).unwrap();
            fs::write(dir.join("launch.sh"), LAUNCH).unwrap();
            for file in ["container.py", "peer.py"] {
                fs::copy(Path::new(&manifest_dir()).join("tests/it").join(file), dir.join(file))
                    .unwrap();
            }
            // By another process: see `Node::start_as`.
            let copied = Command::new("cp").arg("/bin/bash").arg(dir.join("bin/java")).status();
            assert!(copied.unwrap().success());
            fs::set_permissions(dir.join("local/nmPrivate"), fs::Permissions::from_mode(0o700))
                .unwrap();
            if let Some(uid) = uid {
                for path in ["local", "local/nmPrivate"] {
                    chown(dir.join(path), Some(uid), Some(uid)).unwrap();
                }
            }
        }
        let mut command = match uid {
            Some(uid) => {
                let mut command = Command::new("setpriv");
                let uid = uid.to_string();
                command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
                command.arg(dir.join("bin/java"));
                command
            }
            None => Command::new(dir.join("bin/java")),
        };
        command.arg(CLASS).current_dir(&dir).stdin(Stdio::piped());
        // It says when a container is killed.
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self { child: command.spawn().unwrap(), dir }
    }

    /// Launches a container: of the NodeManager's user, or as `container-executor` does, of
    /// another one.
    pub(crate) fn launch(&mut self, agent: &Agent<'_>, id: &str, uid: Option<u32>) -> Container {
        let dir = self.dir.join(id);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let local = self.dir.join("local");
        let pid_file = local.join("nmPrivate").join(application(id)).join(id);
        let line = format!(
            "{} {} {id} {} exec {} {} {} {}\n",
            local.display(),
            application(id),
            uid.map_or("-".to_owned(), |uid| uid.to_string()),
            any_users_python().display(),
            self.dir.join("container.py").display(),
            agent.socket("agent.sock").display(),
            dir.display()
        );
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let container =
            Container { id: id.to_owned(), dir, pid_file: pid_file.join(format!("{id}.pid")) };
        eventually("the container runs", || container.pid_file.exists());
        container
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for NodeManager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The system's Python, which any user may run: another one may be at home with one of them.
fn any_users_python() -> PathBuf {
    let system = PathBuf::from("/usr/bin/python3");
    if system.exists() { system } else { python() }
}

fn application(container: &str) -> String {
    let fields: Vec<_> = container.split('_').collect();
    format!("application_{}_{}", fields[1], fields[2])
}

/// A container, whose processes are killed when this is dropped.
pub(crate) struct Container {
    pub(crate) id: String,
    dir: PathBuf,
    pid_file: PathBuf,
}

impl Container {
    /// The process of its pid file.
    pub(crate) fn pid(&self) -> Pid {
        let pid = fs::read_to_string(&self.pid_file).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    }

    /// The process just below the NodeManager.
    pub(crate) fn top(&self) -> Pid {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let parent = fields.split_whitespace().nth(1).unwrap().parse().unwrap();
        Pid::from_raw(parent).unwrap()
    }

    /// Asks for its lease.
    pub(crate) fn lease(&self, request: &Value) -> (u16, Value) {
        self.lease_by(request, &json!({}))
    }

    /// Asks for its lease, by a process with properties as in `container.py`.
    pub(crate) fn lease_by(&self, request: &Value, how: &Value) -> (u16, Value) {
        let body = request.to_string();
        let text = format!(
            "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut command = how.clone();
        command["request"] = text.into();
        parse(&self.run(&command))
    }

    /// Leaves a process behind, in the container's session.
    pub(crate) fn leave(&self) -> Pid {
        Pid::from_raw(self.run(&json!({"leave": 600})).trim().parse().unwrap()).unwrap()
    }

    fn run(&self, command: &Value) -> String {
        let name = format!("{}", fs::read_dir(&self.dir).unwrap().count());
        let path = self.dir.join(&name);
        fs::write(path.with_extension("new"), command.to_string()).unwrap();
        fs::rename(path.with_extension("new"), path.with_extension("do")).unwrap();
        let done = path.with_extension("done");
        eventually("the container answers", || done.exists());
        fs::read_to_string(done).unwrap()
    }

    /// As YARN ends it: all of its session.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}
