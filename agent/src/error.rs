//! What can fail in the agent and its command line.

use std::io;
use std::path::PathBuf;

use crate::yarn::rest::Trouble;

/// What failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing names a run directory.
    #[error(
        "there is no run directory: give one with --run-dir DIR or CREEL_RUN_DIR, or set \
         XDG_RUNTIME_DIR"
    )]
    NoRunDir,
    /// A socket's path would not fit into a socket address.
    #[error(
        "the socket path {} has {bytes} bytes, and the kernel takes {max}: choose a shorter run \
         directory with --run-dir DIR or CREEL_RUN_DIR",
        path.display()
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The run directory can't be made or used.
    #[error("cannot use the run directory {}: {source}", path.display())]
    RunDir {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nothing names a state directory.
    #[error(
        "there is no state directory: set agent.state_dir, or the environment variable \
         XDG_STATE_HOME or HOME"
    )]
    NoStateDir,
    /// The state directory can't be made or used.
    #[error(
        "cannot use the state directory {}: {source}; choose another one with agent.state_dir",
        path.display()
    )]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another agent has the run directory.
    #[error(
        "the run directory {} belongs to another agent, {holder}: stop that one, or choose \
         another directory with --run-dir DIR",
        path.display()
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// The other agent.
        holder: String,
    },
    /// A socket can't be listened on.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The log can't be written, or what is to be logged is not understood.
    #[error("cannot log: {0}")]
    Log(String),
    /// The operating system refuses what every process needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A daemon of YARN does not answer as it should.
    #[error("the {daemon} at {url} {trouble}")]
    YarnDaemon {
        /// `ResourceManager` or `NodeManager`.
        daemon: &'static str,
        /// Its web address.
        url: String,
        /// What is wrong.
        trouble: Trouble,
    },
    /// Nobody says where a daemon of YARN is.
    #[error(
        "nobody says where the {daemon} is: set {setting}, or see that yarn-site.xml has {key} and \
         that yarn.conf_dir is its directory"
    )]
    YarnAddressUnknown {
        /// `ResourceManager` or `NodeManager`.
        daemon: &'static str,
        /// The setting that can say it.
        setting: &'static str,
        /// The property of the Hadoop configuration that says it.
        key: &'static str,
    },
    /// What should be the address of a daemon of YARN is none.
    #[error("{text:?} is no web address as http://host:port: {reason}")]
    YarnAddress {
        /// What stands there.
        text: String,
        /// Why it is none.
        reason: String,
    },
    /// A daemon of YARN has its web services on HTTPS alone.
    #[error(
        "{0} leads to HTTPS, which creel does not speak: it needs a web address with http:// \
         (yarn.http.policy HTTP_ONLY or HTTP_AND_HTTPS)"
    )]
    YarnHttps(String),
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] creel_settings::Error),
    /// YARN's files are not as they have to be.
    #[error(transparent)]
    Yarn(#[from] creel_yarn::Error),

    /// Nobody answers on the agent's socket.
    #[error(
        "cannot reach the agent at {}: {reason}; start it (systemctl start creeld), or say where \
         it runs with --run-dir DIR or CREEL_RUN_DIR",
        socket.display()
    )]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The agent's answer can't be read: the two are of different versions, or it is another
    /// program's socket.
    #[error("the answer from {} can't be read: {reason}", socket.display())]
    Answer {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The agent, an executor or the kernel says that this user may not.
    #[error("{0}")]
    NotAllowed(String),
    /// There is nothing of that name.
    #[error("{0}")]
    NotFound(String),
    /// As things stand, it can't be done.
    #[error("{0}")]
    Refused(String),
    /// The agent has too much to do just now; again in a moment.
    #[error("{0}")]
    Busy(String),
    /// It was tried, and failed.
    #[error("{0}")]
    Failed(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A program that was to be run can't be.
    #[error("cannot run {}: {source}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file with SQL can't be read.
    #[error("cannot read SQL from {name}: {source}")]
    Input {
        /// The file.
        name: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Standard output can't be written.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    /// A result can't be written in the format that was asked for.
    #[error("cannot write the result as {format}: {source}")]
    Format {
        /// The format.
        format: &'static str,
        /// Why not.
        source: arrow::error::ArrowError,
    },
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}
