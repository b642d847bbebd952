//! The control API on `agent.sock`: HTTP/1.1 and JSON, for whoever may connect.
//!
//! - `viewer`: who asks, and what they may see.
//! - `answer`: what they are told.

mod answer;
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
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use self::viewer::Viewer;
use crate::api;
use crate::connections::Connections;
use crate::executors::Executors;
use crate::gpus::Gpus;
use crate::peer::{Peer, Proc};
use crate::socket::Socket;

/// Connections of one user at one time; more are turned away.
const OF_ONE: usize = 128;
/// And of all users.
const TOGETHER: usize = 1024;
/// What a client may take to send a request's head, or to send the next request.
const REQUEST: Duration = Duration::from_secs(10);
/// How long a connection may stay.
const STAY: Duration = Duration::from_mins(5);
/// What a request's head may have. Bodies are not read.
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
}

impl Control {
    /// Of an agent that is not ready yet.
    pub fn new(
        settings: watch::Receiver<Arc<Settings>>,
        executors: Arc<Executors>,
        gpus: Gpus,
    ) -> Self {
        Self { ready: AtomicBool::new(false), started: Instant::now(), settings, executors, gpus }
    }
}

/// Accepts connections and answers their requests, for ever.
pub async fn serve(socket: Socket, control: Arc<Control>) {
    let connections = Connections::default();
    loop {
        let stream = socket.accept().await;
        let Ok(credentials) = stream.peer_cred() else { continue };
        let Some(place) = connections.enter(credentials.uid(), OF_ONE, TOGETHER) else {
            turn_away(&stream);
            continue;
        };
        let control = Arc::clone(&control);
        tokio::spawn(async move {
            let _place = place;
            let _ = tokio::time::timeout(STAY, converse(stream, &control)).await;
        });
    }
}

/// Answers without having read a request, as far as the socket takes it at once.
fn turn_away(stream: &UnixStream) {
    let failure = api::Failure {
        schema: api::SCHEMA,
        error: format!("too many connections: one user may have {OF_ONE}; close some"),
    };
    let body = serde_json::to_string(&failure).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::send(stream, answer.as_bytes(), flags);
}

async fn converse(stream: UnixStream, control: &Control) {
    let peer = match Peer::of(&stream, &Proc::default()).await {
        Ok(peer) => peer,
        Err(error) => return debug!("a control connection is dropped: {error}"),
    };
    let group = control.settings.borrow().agent_group.clone();
    let viewer = Viewer::of(&peer, group).await;
    let service =
        service_fn(
            |request| async move { Ok::<_, Infallible>(control.answer(viewer, &request).await) },
        );
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
