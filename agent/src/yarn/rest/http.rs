//! One question to a daemon: HTTP/1.1 over TCP, within bounds.

use std::time::Duration;

use ::http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, LOCATION};
use ::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use super::{Address, Trouble};

/// The longest answer that is read: one of all nodes of a cluster of 10 000 has half of it.
const MAX_BYTES: usize = 32 << 20;
/// The longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Redirects that are followed for one question.
const MAX_HOPS: usize = 4;
/// Characters of a daemon's own words in an error.
const MAX_WORDS: usize = 200;

/// `GET path` as JSON; `None` where the daemon knows nothing of that name (404).
///
/// `path` is percent-encoded, and begins with `/ws/`. Redirects are followed, as a
/// ResourceManager on standby leads to the active one. All of it takes no longer than `deadline`.
pub(super) async fn get<T: DeserializeOwned>(
    address: &Address,
    path: &str,
    deadline: Duration,
) -> Result<Option<T>, Trouble> {
    let answer = tokio::time::timeout(deadline, follow(address.clone(), path.to_owned()));
    let Some(body) = answer.await.unwrap_or(Err(Trouble::Slow(deadline)))? else {
        return Ok(None);
    };
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(|error| Trouble::Answer(format!("{error}; it begins with {:?}", words(&body, 40))))
}

/// What an answer comes to.
enum Outcome {
    Body(Bytes),
    Unknown,
    Elsewhere(Address, String),
}

async fn follow(mut address: Address, mut path: String) -> Result<Option<Bytes>, Trouble> {
    for _ in 0..MAX_HOPS {
        match exchange(&address, &path).await? {
            Outcome::Body(body) => return Ok(Some(body)),
            Outcome::Unknown => return Ok(None),
            Outcome::Elsewhere(other, at) => (address, path) = (other, at),
        }
    }
    Err(Trouble::Redirects)
}

async fn exchange(address: &Address, path: &str) -> Result<Outcome, Trouble> {
    let unreachable = |error: &dyn std::error::Error| Trouble::Unreachable(error.to_string());
    let stream = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .map_err(|error| unreachable(&error))?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    // It ends with the sender.
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(HOST, address.authority())
        .header(ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Trouble::Answer(format!("{path:?} is no path: {error}")))?;
    let response = sender.send_request(request).await.map_err(|error| {
        if error.is_parse() {
            Trouble::Answer("it is no HTTP".to_owned())
        } else {
            unreachable(&error)
        }
    })?;
    let (head, body) = response.into_parts();
    if head.status.is_redirection() || head.headers.contains_key("refresh") {
        return elsewhere(&head.headers, address);
    }
    let body = Limited::new(body, MAX_BYTES).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Trouble::TooLong(MAX_BYTES)
        } else {
            unreachable(error.as_ref())
        }
    })?;
    let body = body.to_bytes();
    match head.status {
        StatusCode::UNAUTHORIZED => Err(Trouble::Authentication),
        // Only a web service says so in this form: any other program may answer 404 too.
        StatusCode::NOT_FOUND if exception(&body).is_some() => Ok(Outcome::Unknown),
        status if status.is_success() => {
            let json = head.headers.get(CONTENT_TYPE).is_none_or(|kind| {
                kind.to_str().is_ok_and(|kind| kind.to_ascii_lowercase().contains("json"))
            });
            if json {
                return Ok(Outcome::Body(body));
            }
            Err(Trouble::Answer(format!("it is no JSON: {:?}", words(&body, 40))))
        }
        status => {
            let text = exception(&body).unwrap_or_else(|| words(&body, MAX_WORDS));
            Err(Trouble::Status { status: status.as_u16(), text })
        }
    }
}

/// Where a redirect leads (`RMWebAppFilter`: `Location`, or `Refresh` to itself where no
/// ResourceManager is active).
fn elsewhere(headers: &HeaderMap, from: &Address) -> Result<Outcome, Trouble> {
    let Some(location) = headers.get(LOCATION) else { return Err(Trouble::Standby) };
    let odd = || Trouble::Answer(format!("it leads to {location:?}, which is no web service"));
    let uri: Uri = location.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(odd)?;
    let path =
        uri.path_and_query().map(ToString::to_string).filter(|path| path.starts_with("/ws/"));
    match (uri.scheme_str(), uri.authority()) {
        (Some("https"), _) => Err(Trouble::Https),
        (Some("http"), Some(authority)) => {
            let address = authority.as_str().parse().map_err(|_| odd())?;
            Ok(Outcome::Elsewhere(address, path.ok_or_else(odd)?))
        }
        (None, None) => Ok(Outcome::Elsewhere(from.clone(), path.ok_or_else(odd)?)),
        _ => Err(odd()),
    }
}

/// The words of YARN's own errors (`GenericExceptionHandler`).
fn exception(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Failure {
        remote_exception: Exception,
    }
    #[derive(Deserialize)]
    struct Exception {
        exception: String,
        #[serde(default)]
        message: Option<String>,
    }
    let Failure { remote_exception } = serde_json::from_slice(body).ok()?;
    let text = remote_exception.message.unwrap_or(remote_exception.exception);
    Some(words(text.as_bytes(), MAX_WORDS))
}

/// The first characters of what may be any bytes, on one line.
fn words(body: &[u8], chars: usize) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * chars)]);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(chars).collect()
}
