//! Asking the node's agent which GPUs are this process's own.
//!
//! In a YARN container without cgroups every GPU is visible, and which one is the container's
//! only the agent knows: it assigns them. So what Spark is told in a container is its lease, and
//! without the agent's word it is told nothing: a guess would put two containers on one GPU.
//! Outside of containers, and on a node that never had an agent, it is told what there is.
//!
//! - [`socket`]: where the agent is.
//! - [`http`]: one exchange with it.
//! - [`spark_conf`]: how many GPUs the job asks for.

pub mod http;
pub mod socket;
pub mod spark_conf;

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::http::Answer;
use self::socket::Socket;

/// How long to wait before an agent that is not there is asked again: it may just start anew.
const AGAIN: Duration = Duration::from_millis(200);

/// How much longer than the wait an answer may take: the agent looks at the GPUs first
/// (`discovery.deadline`).
const GRACE: Duration = Duration::from_secs(20);

/// The longest wait that the agent takes at once.
const MAX_WAIT: Duration = Duration::from_mins(3);

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The lease of this process's container.
    Lease(Lease),
    /// This process is in no container, or the node has no agent: any GPU may be used.
    Nothing,
}

/// What a container holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Lease {
    /// UUIDs.
    pub devices: Vec<String>,
    /// Addresses in here, in the same order.
    pub addresses: Vec<String>,
}

/// What this process knows of itself; the agent believes it where nobody else says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hints {
    /// The variable `CREEL_GPUS`.
    pub creel_gpus: Option<u32>,
    /// How many Spark's configuration asks for.
    pub spark_gpus: Option<u32>,
    /// UUIDs of the devices that are visible, in order.
    pub visible: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Request<'a> {
    in_container: bool,
    wait_ms: u64,
    hints: &'a Hints,
}

/// Asks for the lease of this process's container, for as long as `wait` where the node is full or
/// the agent is not there. `container` is the variable `CONTAINER_ID`.
///
/// # Errors
/// In words: why there is no lease, and who holds what.
pub fn ask(
    sockets: &[Socket],
    container: Option<&str>,
    hints: impl FnOnce() -> Hints,
    wait: Duration,
) -> Result<Said, String> {
    let deadline = Instant::now() + wait;
    // Only a node that has an agent has its directory.
    let Some(socket) = sockets.iter().find(|socket| socket.is_claimed()) else {
        return Ok(Said::Nothing);
    };
    let hints = hints();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let may_wait = left.min(MAX_WAIT);
        let request = Request {
            in_container: true,
            wait_ms: u64::try_from(may_wait.as_millis()).unwrap_or(u64::MAX),
            hints: &hints,
        };
        let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        let answer = http::post(&socket.path, "/v1/leases", body, may_wait + GRACE);
        let retry = match understand(answer, container, socket) {
            Ok(said) => return Ok(said),
            Err(Failure::Final(reason)) => return Err(reason),
            Err(Failure::Passing(reason)) => reason,
        };
        if Instant::now() + AGAIN >= deadline {
            return Err(retry);
        }
        thread::sleep(AGAIN);
    }
}

/// Why there is no lease, and whether that may pass.
enum Failure {
    Passing(String),
    Final(String),
}

fn understand(
    answer: Result<Answer, String>,
    container: Option<&str>,
    socket: &Socket,
) -> Result<Said, Failure> {
    #[derive(Deserialize)]
    struct Granted {
        lease: Lease,
    }
    #[derive(Deserialize)]
    struct Refused {
        error: String,
    }
    let at = socket.path.display();
    let answer = match answer {
        Ok(answer) => answer,
        Err(_) if container.is_none() => return Ok(Said::Nothing),
        Err(error) => {
            return Err(Failure::Passing(format!(
                "the agent of this node does not answer ({at}: {error}), and only it knows which \
                 GPU is this container's: start it (systemctl start creeld)"
            )));
        }
    };
    if answer.status == 200 {
        let granted: Granted = serde_json::from_slice(&answer.body).map_err(|error| {
            Failure::Final(format!("the answer from {at} is no lease: {error}"))
        })?;
        return Ok(Said::Lease(granted.lease));
    }
    let reason = serde_json::from_slice::<Refused>(&answer.body).map_or_else(
        |_| format!("{at} answered with status {}: no agent of this version", answer.status),
        |refused| refused.error,
    );
    match (answer.status, container) {
        (404, None) => Ok(Said::Nothing),
        (404, Some(container)) => {
            Err(Failure::Final(format!("CONTAINER_ID is {container}, but {reason}")))
        }
        (409 | 503, _) => Err(Failure::Passing(reason)),
        _ => Err(Failure::Final(reason)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;

    const CONTAINER: &str = "container_1410901177871_0001_01_000011";

    /// Answers requests in turn.
    fn agent(run_dir: &Path, answers: &'static [(u16, &'static str)]) {
        let listener = UnixListener::bind(run_dir.join("agent.sock")).unwrap();
        thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
    }

    fn asked(
        answers: &'static [(u16, &'static str)],
        container: Option<&str>,
        wait: Duration,
    ) -> Result<Said, String> {
        let dir = tempfile::tempdir().unwrap();
        if !answers.is_empty() {
            agent(dir.path(), answers);
        }
        ask(&[Socket::named(dir.path())], container, Hints::default, wait)
    }

    const LONG: Duration = Duration::from_mins(1);
    const GRANTED: (u16, &str) =
        (200, r#"{"schema":1,"lease":{"id":"lease-1","devices":["GPU-1"],"addresses":["0"]}}"#);
    const FULL: (u16, &str) = (409, r#"{"schema":1,"error":"held by container_x"}"#);

    #[test]
    fn a_lease_is_what_it_says() {
        let lease = Lease { devices: vec!["GPU-1".to_owned()], addresses: vec!["0".to_owned()] };
        assert_eq!(asked(&[GRANTED], Some(CONTAINER), LONG), Ok(Said::Lease(lease.clone())));
        // Also without CONTAINER_ID: the agent knows better.
        assert_eq!(asked(&[GRANTED], None, LONG), Ok(Said::Lease(lease.clone())));
        // And after what passes.
        let answers = &[(503, r#"{"error":"starting"}"#), FULL, GRANTED];
        assert_eq!(asked(answers, Some(CONTAINER), LONG), Ok(Said::Lease(lease)));
    }

    #[test]
    fn who_is_in_no_container_may_use_any() {
        let none = &[(404, r#"{"error":"in no container"}"#)];
        assert_eq!(asked(none, None, LONG), Ok(Said::Nothing));
        let error = asked(none, Some(CONTAINER), LONG).unwrap_err();
        assert!(error.contains(CONTAINER) && error.contains("in no container"), "{error}");
        // Nobody there.
        assert_eq!(asked(&[], None, LONG), Ok(Said::Nothing));
        assert_eq!(ask(&[], Some(CONTAINER), Hints::default, LONG), Ok(Said::Nothing));
    }

    #[test]
    fn in_a_container_no_answer_is_no_gpu() {
        let short = Duration::from_millis(300);
        let error = asked(&[], Some(CONTAINER), short).unwrap_err();
        assert!(error.contains("systemctl start creeld"), "{error}");
        let error = asked(&[FULL], Some(CONTAINER), Duration::ZERO).unwrap_err();
        assert_eq!(error, "held by container_x");
        let denied = &[(403, r#"{"error":"not yours"}"#)];
        assert_eq!(asked(denied, Some(CONTAINER), LONG), Err("not yours".to_owned()));
        let error = asked(&[(405, "<html>")], Some(CONTAINER), LONG).unwrap_err();
        assert!(error.contains("status 405"), "{error}");
        let error = asked(&[(200, "{}")], Some(CONTAINER), LONG).unwrap_err();
        assert!(error.contains("no lease"), "{error}");
    }
}
