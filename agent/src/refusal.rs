//! The answer to connections that no executor takes, in the client's own language.
//!
//! A client of `creel.sock` speaks gRPC. Closing its connection would tell it nothing, so the
//! agent answers each of its calls with the status and the reason, as a response of trailers
//! only (gRPC over HTTP/2, "Responses"), until the client goes or the time is up.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tonic::{Code, Status};
use tracing::debug;

use crate::connections::Connections;

/// How long a refused client may stay.
const STAY: Duration = Duration::from_secs(30);
/// Refused connections of one user that are answered at one time; more are closed.
const OF_ONE: usize = 64;
/// And of all users.
const TOGETHER: usize = 512;

/// Answers refused connections.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    open: Connections,
}

impl Refusals {
    /// Answers a user's connection with that status from now on.
    pub fn answer(&self, stream: UnixStream, uid: u32, code: Code, reason: String) {
        debug!(uid, "refused a connection: {reason}");
        let Some(place) = self.open.enter(uid, OF_ONE, TOGETHER) else { return };
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(|_| {
                let response = Status::new(code, reason.clone()).into_http::<Empty<Bytes>>();
                async { Ok::<_, Infallible>(response) }
            });
            let serving = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(16)
                .serve_connection(TokioIo::new(stream), answer);
            // What a client that is turned away does wrong is of no interest.
            let _ = tokio::time::timeout(STAY, serving).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use hyper::client::conn::http2 as client;

    use super::*;

    async fn call(stream: UnixStream) -> http::Response<hyper::body::Incoming> {
        let (mut sender, connection) =
            client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://localhost/service/Method")
            .body(http_body_util::Full::new(Bytes::from_static(b"\0\0\0\0\0")))
            .unwrap();
        sender.send_request(request).await.unwrap()
    }

    #[tokio::test]
    async fn a_call_gets_the_status_and_the_reason() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reason = "für niemand\n100 %".to_owned();
        Refusals::default().answer(ours, 7, Code::PermissionDenied, reason);
        let response = call(theirs).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "für niemand\n100 %");
    }

    #[tokio::test]
    async fn one_user_is_answered_on_so_many_connections_only() {
        let refusals = Refusals::default();
        let refuse = |uid| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            refusals.answer(ours, uid, Code::Unavailable, "why".into());
            theirs
        };
        let _open: Vec<_> = (0..OF_ONE).map(|_| refuse(1)).collect();
        let closed = refuse(1);
        closed.readable().await.unwrap();
        assert_eq!(closed.try_read(&mut [0]).unwrap(), 0);
        assert_eq!(call(refuse(2)).await.status(), 200);
    }
}
