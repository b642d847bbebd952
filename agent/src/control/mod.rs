//! The control API on `agent.sock`: HTTP/1.1 and JSON, for whoever may connect.
//!
//! - `viewer`: who asks, and what they may see.
//! - `answer`: what they are told. `leases`: of leases.

mod answer;
mod leases;
mod viewer;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use creel_settings::Settings;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::SendFlags;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use self::viewer::Viewer;
use crate::api;
use crate::connections::Connections;
use crate::executors::Executors;
use crate::gpus::Gpus;
use crate::leases::Leases;
use crate::peer::{Looks, Peer, Proc};
use crate::socket::Socket;

/// Connections of one user at one time; as many more are turned away, and others closed.
const OF_ONE: usize = 128;
/// And of all users.
const TOGETHER: usize = 1024;
/// What a client may take to send a request's head, or to send the next request.
const REQUEST: Duration = Duration::from_secs(10);
/// What who is turned away may take to send a request.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// How long a connection may stay.
const STAY: Duration = Duration::from_mins(5);
/// What a request's head may have.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// What the control API speaks of.
#[derive(Debug)]
pub struct Control {
    /// Whether the agent takes connections.
    pub ready: AtomicBool,
    started: Instant,
    settings: watch::Receiver<Arc<Settings>>,
    executors: Arc<Executors>,
    gpus: Gpus,
    leases: Leases,
}

impl Control {
    /// Of an agent that is not ready yet.
    pub fn new(
        settings: watch::Receiver<Arc<Settings>>,
        executors: Arc<Executors>,
        gpus: Gpus,
        leases: Leases,
    ) -> Self {
        Self {
            ready: AtomicBool::new(false),
            started: Instant::now(),
            settings,
            executors,
            gpus,
            leases,
        }
    }
}

/// Accepts connections and answers their requests, for ever.
pub async fn serve(socket: Socket, control: Arc<Control>, looks: Looks) {
    let (connections, turned_away) = (Connections::default(), Connections::default());
    loop {
        let stream = socket.accept().await;
        let Ok(credentials) = stream.peer_cred() else { continue };
        let uid = credentials.uid();
        let Some(place) = connections.enter(uid, OF_ONE, TOGETHER) else {
            let reason = format!(
                "too many connections: one user may have {OF_ONE}; close some, or try again"
            );
            if let Some(place) = turned_away.enter(uid, OF_ONE, TOGETHER) {
                tokio::spawn(async move {
                    let _place = place;
                    turn_away(stream, reason).await;
                });
            }
            continue;
        };
        let (control, looks) = (Arc::clone(&control), looks.clone());
        tokio::spawn(async move {
            let _place = place;
            let _ = tokio::time::timeout(STAY, converse(stream, &control, &looks)).await;
        });
    }
}

/// Answers whatever is asked, as far as the socket takes it at once. Not before it is asked: most
/// clients take that for a broken connection.
async fn turn_away(mut stream: UnixStream, error: String) {
    debug!("a control connection is turned away: {error}");
    let mut request = vec![0; MAX_HEAD_BYTES];
    let _ = tokio::time::timeout(LAST_REQUEST, stream.read(&mut request)).await;
    let failure = api::Failure { schema: api::SCHEMA, error };
    let body = serde_json::to_string(&failure).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::send(&stream, answer.as_bytes(), flags);
}

async fn converse(stream: UnixStream, control: &Control, looks: &Looks) {
    let peer = match Peer::of(&stream, &Proc::default(), looks).await {
        Ok(peer) => peer,
        Err(error) => {
            let reason =
                format!("the agent can't see which process this connection is from: {error}");
            return turn_away(stream, reason).await;
        }
    };
    let group = control.settings.borrow().agent_group.clone();
    let viewer = Viewer::of(&peer, group).await;
    let (viewer, peer) = (&viewer, &peer);
    let service = service_fn(|request| async move {
        Ok::<_, Infallible>(control.answer(*viewer, peer, request).await)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!("a control connection ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn who_is_turned_away_is_told_why() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let turning_away = tokio::spawn(turn_away(ours, "why".to_owned()));
        tokio::task::yield_now().await;
        assert!(theirs.try_read(&mut [0]).is_err(), "nothing has been asked");
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        turning_away.await.unwrap();
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let failure: api::Failure = serde_json::from_str(body).unwrap();
        assert_eq!(failure.error, "why");
    }
}
