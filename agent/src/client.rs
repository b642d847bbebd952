//! A client of the control API: HTTP/1.1 over `agent.sock`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::api;
use crate::error::Error;
use crate::run_dir::RunDir;

/// How long the agent may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Asks one agent; each question has a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// An answer of the API, as it came.
#[derive(Debug)]
pub struct Answer {
    socket: PathBuf,
    /// One JSON object.
    pub body: Bytes,
}

impl Answer {
    /// The answer as its type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| Error::Answer {
            socket: self.socket.clone(),
            reason: error.to_string(),
        })
    }
}

impl Client {
    /// A client of the agent of that run directory.
    pub fn new(run_dir: &RunDir) -> Self {
        Self { socket: run_dir.agent_socket() }
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Result<Answer, Error> {
        self.send(Method::GET, path, Bytes::new(), Duration::ZERO).await
    }

    /// `DELETE path`.
    pub async fn delete(&self, path: &str) -> Result<Answer, Error> {
        self.send(Method::DELETE, path, Bytes::new(), Duration::ZERO).await
    }

    /// `POST path` with JSON; the agent may take that much longer to answer.
    pub async fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        longer: Duration,
    ) -> Result<Answer, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Failed(error.to_string()))?;
        self.send(Method::POST, path, body.into(), longer).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        longer: Duration,
    ) -> Result<Answer, Error> {
        let deadline = DEADLINE + longer;
        let exchange = self.exchange(method, path, body);
        tokio::time::timeout(deadline, exchange).await.unwrap_or_else(|_| {
            Err(self.unreachable(format!("no answer within {} s", deadline.as_secs())))
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Error> {
        let stream = connect(&self.socket).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        // It ends with the sender.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, "localhost")
            .body(Full::new(body))
            .map_err(|error| Error::Usage(format!("{path:?} is no path of the API: {error}")))?;
        let response = sender.send_request(request).await.map_err(|error| self.cut(&error))?;
        let status = response.status();
        let is_busy = response.headers().contains_key(RETRY_AFTER);
        let body =
            response.into_body().collect().await.map_err(|error| self.cut(&error))?.to_bytes();
        if status.is_success() {
            return Ok(Answer { socket: self.socket.clone(), body });
        }
        let failure: api::Failure = Answer { socket: self.socket.clone(), body }.parse()?;
        Err(match status {
            StatusCode::FORBIDDEN => Error::NotAllowed(failure.error),
            StatusCode::NOT_FOUND => Error::NotFound(failure.error),
            StatusCode::SERVICE_UNAVAILABLE if is_busy => Error::Busy(failure.error),
            StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE => Error::Refused(failure.error),
            _ => Error::Failed(failure.error),
        })
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { socket: self.socket.clone(), reason }
    }

    /// The connection was made, and then broke.
    fn cut(&self, error: &hyper::Error) -> Error {
        if error.is_parse() {
            Error::Answer { socket: self.socket.clone(), reason: error.to_string() }
        } else {
            self.unreachable(error.to_string())
        }
    }
}

/// Connects to a socket of the run directory.
pub async fn connect(socket: &std::path::Path) -> Result<UnixStream, Error> {
    UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Error::NotAllowed(format!(
            "{} may not be opened by this user: {error}; its directory must let users enter (0755), \
             and the socket be open to them (0666)",
            socket.display()
        )),
        ErrorKind::NotFound => Error::Unreachable {
            socket: socket.to_owned(),
            reason: "there is no such socket".into(),
        },
        ErrorKind::ConnectionRefused => {
            Error::Unreachable { socket: socket.to_owned(), reason: "nobody listens on it".into() }
        }
        _ => Error::Unreachable { socket: socket.to_owned(), reason: error.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// A client of a socket whose other side answers that to any request.
    fn answering(answer: &'static [u8]) -> (tempfile::TempDir, Client) {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path().to_owned())).unwrap();
        let listener = UnixListener::bind(run_dir.agent_socket()).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let read = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(read > 0);
            stream.write_all(answer).await.unwrap();
        });
        (directory, Client::new(&run_dir))
    }

    fn response(status: &str, body: &str) -> &'static [u8] {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").leak().as_bytes()
    }

    #[tokio::test]
    async fn an_answer_is_parsed() {
        let (_directory, client) = answering(response("200 OK", r#"{"schema":1,"version":"7"}"#));
        let version: api::Version = client.get("/v1/version").await.unwrap().parse().unwrap();
        assert_eq!(version.version, "7");
    }

    #[tokio::test]
    async fn a_failure_is_told_by_its_status() {
        for (status, check) in [
            (
                "403 Forbidden",
                (|error| matches!(error, Error::NotAllowed(_))) as fn(&Error) -> bool,
            ),
            ("404 Not Found", |error| matches!(error, Error::NotFound(_))),
            ("409 Conflict", |error| matches!(error, Error::Refused(_))),
            ("503 Service Unavailable", |error| matches!(error, Error::Refused(_))),
            ("503 Service Unavailable\r\nretry-after: 1", |error| matches!(error, Error::Busy(_))),
            ("500 Internal Server Error", |error| matches!(error, Error::Failed(_))),
        ] {
            let (_directory, client) = answering(response(status, r#"{"schema":1,"error":"why"}"#));
            let error = client.get("/v1/status").await.unwrap_err();
            assert!(check(&error), "{status}: {error:?}");
            assert_eq!(error.to_string(), "why");
        }
    }

    #[tokio::test]
    async fn what_is_no_http_or_no_json_is_said_so() {
        let (_directory, client) = answering(b"220 smtp ready\r\n\r\n");
        let error = client.get("/v1/status").await.unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{error:?}");
        let (_directory, client) = answering(response("500 Oh", "<html>"));
        let error = client.get("/v1/status").await.unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn nobody_there_is_unreachable_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path().to_owned())).unwrap();
        let client = Client::new(&run_dir);
        let error = client.get("/v1/status").await.unwrap_err();
        assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("systemctl start creeld"), "{error}");
        // A socket that its agent left behind.
        drop(std::os::unix::net::UnixListener::bind(run_dir.agent_socket()).unwrap());
        let error = client.get("/v1/status").await.unwrap_err();
        assert!(error.to_string().contains("nobody listens"), "{error}");
    }
}
