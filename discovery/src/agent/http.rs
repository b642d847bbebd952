//! One exchange of HTTP/1.1 over a Unix socket (RFC 9112), with a deadline and limits.
//!
//! A client library would be most of this program. The agent answers a request that asks for the
//! connection to be closed with a length and its body, and nothing else is understood.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// More bytes than this no answer has.
const MAX_BYTES: u64 = 1 << 20;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// All of its body.
    pub body: Vec<u8>,
}

/// Posts JSON, and waits for the answer for that long. A thread that is not done by then is left
/// behind: connecting may hang as well.
///
/// # Errors
/// In words, of the connection or of what came over it.
pub fn post(
    socket: &Path,
    path: &'static str,
    body: Vec<u8>,
    patience: Duration,
) -> Result<Answer, String> {
    let (sender, receiver) = mpsc::channel();
    let socket = PathBuf::from(socket);
    thread::spawn(move || sender.send(exchange(&socket, path, &body)));
    receiver.recv_timeout(patience).unwrap_or_else(|_| Err(format!("no answer in {patience:?}")))
}

fn exchange(socket: &Path, path: &str, body: &[u8]) -> Result<Answer, String> {
    let send = || -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let mut answer = Vec::new();
        stream.take(MAX_BYTES).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = send().map_err(|error| error.to_string())?;
    parse(&answer).ok_or_else(|| "what it answers is no HTTP, or is not complete".to_owned())
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let mut status = lines.next()?.splitn(3, ' ');
    let version = status.next()?;
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    let status = status.next()?.parse().ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let body = &answer[end + 4..];
    (length?.ok()? == body.len()).then(|| Answer { status, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn answers() {
        let whole = b"HTTP/1.1 409 Conflict\r\ncontent-LENGTH: 3\r\nx: y\r\n\r\nfor";
        let answer = Answer { status: 409, body: b"for".to_vec() };
        assert_eq!(parse(whole), Some(answer));
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length}");
        }
        for other in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/2 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 OK\r\ncontent-length: 0\r\n\r\n",
            b"220 smtp ready\r\n\r\n",
            b"\xff\xff\r\n\r\n",
        ] {
            assert_eq!(parse(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_request_comes_whole_and_nobody_waits_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        assert!(post(&socket, "/p", vec![], Duration::from_secs(9)).is_err());
        let listener = UnixListener::bind(&socket).unwrap();
        let error = post(&socket, "/p", vec![], Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("no answer"), "{error}");
        let serving = thread::spawn(move || {
            let _ = listener.accept().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let answer = post(&socket, "/p", b"{}".to_vec(), Duration::from_mins(1)).unwrap();
        assert_eq!(answer, Answer { status: 200, body: b"ok".to_vec() });
        let request = serving.join().unwrap();
        assert!(request.starts_with("POST /p HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("Content-Length: 2\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n{}"), "{request}");
    }
}
