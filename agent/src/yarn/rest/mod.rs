//! Clients of the web services of YARN's daemons, `/ws/v1` (Hadoop, "ResourceManager REST API's"
//! and "NodeManager REST API's").
//!
//! ```text
//!   ResourceManager ──┐ the active one of several          address: where they are
//!                     ├──▶ http: one question, within bounds ──▶ TCP
//!   NodeManager ──────┘                                    lenient: versions differ
//! ```
//!
//! A daemon of another version, one that is overloaded, or a program that merely has its port:
//! each question has a deadline, an answer has a longest length, and a field that is absent or of
//! another kind than expected is unknown rather than a failure. HTTP without authentication is
//! all that is spoken: where a daemon wants Kerberos or HTTPS, the error says so.

mod address;
mod http;
mod lenient;
mod node_manager;
mod resource_manager;

pub use self::address::{Address, Addresses};
pub use self::node_manager::{
    AssignedGpu, Container, ContainerState, Gpu, GpuDevice, GpuResource, NodeInfo, NodeManager,
};
pub use self::resource_manager::{
    AllocatedContainer, ClusterInfo, Node, NodeAttribute, NodeLabel, ResourceManager, Resources,
};

/// The name of GPUs among YARN's resources.
pub const GPU: &str = "yarn.io/gpu";

/// What is wrong with a daemon's answer, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Nobody listens, the name has no address, or the connection broke.
    #[error("can't be reached: {0}; is the daemon running, and is this its web address?")]
    Unreachable(String),
    /// No whole answer came in time.
    #[error("gave no whole answer within {:.1} s: it is overloaded, or hangs", .0.as_secs_f32())]
    Slow(std::time::Duration),
    /// The longest answer was not enough.
    #[error("gave an answer of more than {0} bytes, which is not read")]
    TooLong(usize),
    /// It wants HTTPS.
    #[error("wants HTTPS (yarn.http.policy), which creel does not speak")]
    Https,
    /// It wants Kerberos.
    #[error(
        "wants authentication (hadoop.http.authentication.type, Kerberos), which creel does not \
         speak"
    )]
    Authentication,
    /// It is a ResourceManager that is not the active one, and names none that is.
    #[error("is on standby, and there is no active ResourceManager")]
    Standby,
    /// Redirects that don't end.
    #[error("leads from one address to another without end")]
    Redirects,
    /// A status that means failure.
    #[error("answers {status}: {text}")]
    Status {
        /// The status, as 500.
        status: u16,
        /// The daemon's words.
        text: String,
    },
    /// No JSON of the form that was expected.
    #[error("gave an answer that can't be read: {0}")]
    Answer(String),
}
