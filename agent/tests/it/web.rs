//! A small web server in this process, which behaves as badly as it is told.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How the server answers a request.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// These bytes, and the end of the connection.
    Raw(Vec<u8>),
    /// Nothing, for as long as the client stays.
    Hang,
    /// A head, then bytes without end.
    Endless,
    /// A head, then a byte at a time.
    Drip,
}

/// A server on a port of its own; it ends with the process.
#[derive(Debug)]
pub(crate) struct Web {
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Web {
    /// Answers each request by what `answer` says of its path.
    pub(crate) fn start(answer: impl Fn(&str) -> Behaviour + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    let path = request(&stream);
                    seen.lock().unwrap().push(path.clone());
                    // The client may have had enough.
                    let _ = behave(stream, &answer(&path));
                });
            }
        });
        Self { address, requests }
    }

    /// Answers every request so.
    pub(crate) fn that(behaviour: Behaviour) -> Self {
        Self::start(move |_| behaviour.clone())
    }

    /// The paths that were asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// An answer of that status, with further header lines, and its body.
pub(crate) fn response(status: &str, headers: &str, body: &str) -> Behaviour {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
    Behaviour::Raw([head.as_bytes(), body.as_bytes()].concat())
}

/// JSON that is there.
pub(crate) fn json(body: &str) -> Behaviour {
    response("200 OK", "Content-Type: application/json;charset=utf-8\r\n", body)
}

/// What a real daemon said when it was asked.
pub(crate) fn recorded(version: &str, name: &str) -> String {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let path = PathBuf::from(root).join("tests/fixtures/yarn").join(version).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while reader.read_line(&mut line).unwrap() > 0 && !line.ends_with("\r\n\r\n") {}
    path
}

fn behave(mut stream: TcpStream, behaviour: &Behaviour) -> std::io::Result<()> {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[";
    match behaviour {
        Behaviour::Raw(bytes) => stream.write_all(bytes),
        Behaviour::Hang => {
            let mut rest = String::new();
            BufReader::new(stream).read_line(&mut rest).map(drop)
        }
        Behaviour::Endless => {
            stream.write_all(HEAD)?;
            loop {
                stream.write_all(&[b' '; 1 << 14])?;
            }
        }
        Behaviour::Drip => {
            stream.write_all(HEAD)?;
            loop {
                stream.write_all(b" ")?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
