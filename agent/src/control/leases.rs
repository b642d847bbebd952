//! Leases in the control API.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use tokio::time::timeout;

use super::answer::{Answer, BoxError, Refused, json};
use super::viewer::Viewer;
use super::{Control, REQUEST};
use crate::api::{self, SCHEMA};
use crate::leases::{Lease, Refusal, Request, lease};
use crate::peer::Peer;

/// What the body of a request may have.
const MAX_BODY_BYTES: usize = 64 << 10;

/// What stands in a path for what is in doubt.
const DOUBT: &str = "doubt";

impl Control {
    /// Gives a peer its lease.
    pub(super) async fn lease<B>(&self, peer: &Peer, body: B) -> Result<Answer, Refused>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let api::LeaseRequest { gpus, wait_ms, in_container, hints } = read(body).await?;
        let request = Request { gpus, wait: Duration::from_millis(wait_ms), in_container, hints };
        let lease = self.leases.ask(peer, request).await.map_err(refused)?;
        Ok(json(StatusCode::OK, &granted(&lease)))
    }

    pub(super) fn all_leases(&self, viewer: Viewer) -> api::Leases {
        let leases = self.leases.all();
        let seen = leases.iter().filter(|lease| viewer.sees(lease.holder.uid));
        api::Leases { schema: SCHEMA, leases: seen.map(Lease::view).collect() }
    }

    pub(super) fn one_lease(&self, viewer: Viewer, id: &str) -> Result<api::Granted, Refused> {
        let lease = self.found(id)?;
        if viewer.sees(lease.holder.uid) {
            return Ok(granted(&lease));
        }
        let reason = format!(
            "{id} is not yours: only its user, root and the group of agent.group may see it"
        );
        Err(Refused(StatusCode::FORBIDDEN, reason))
    }

    /// Ends a lease. That of a container is its container's as long as it runs, so only who
    /// manages the node ends it.
    pub(super) fn release(&self, viewer: Viewer, id: &str) -> Result<api::Released, Refused> {
        let released = || Ok(api::Released { schema: SCHEMA, id: id.to_owned() });
        let forbidden = |reason| Err(Refused(StatusCode::FORBIDDEN, reason));
        let by = format!("released by user {}", viewer.uid());
        if id == DOUBT {
            if !viewer.manages() {
                return forbidden(format!(
                    "what is in {id} is released by root and the group of agent.group only"
                ));
            }
            return if self.leases.release_doubt(&by) { released() } else { Err(unknown(id)) };
        }
        let lease = self.found(id)?;
        let is_own = lease.holder.container.is_none() && viewer.sees(lease.holder.uid);
        if !is_own && !viewer.manages() {
            return forbidden(format!(
                "{id} is released by root and the group of agent.group only{}",
                if lease.holder.container.is_some() {
                    ": a container's lease ends with its container"
                } else {
                    ", and by its user"
                }
            ));
        }
        if self.leases.release(lease.number, &by) { released() } else { Err(unknown(id)) }
    }

    fn found(&self, id: &str) -> Result<Lease, Refused> {
        let lease = lease::number(id).and_then(|number| self.leases.get(number));
        lease.ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> Refused {
    Refused(StatusCode::NOT_FOUND, format!("there is no lease {id}; `creel leases` lists them"))
}

fn granted(lease: &Lease) -> api::Granted {
    api::Granted { schema: SCHEMA, lease: lease.view() }
}

/// A refusal in the API's terms.
fn refused(refusal: Refusal) -> Refused {
    let (status, reason) = match refusal {
        Refusal::NoContainer => (
            StatusCode::NOT_FOUND,
            "this process is in no YARN container that the agent can see: it is not below a \
             NodeManager, nor in a container's control group"
                .to_owned(),
        ),
        Refusal::Identity(reason) => (StatusCode::FORBIDDEN, reason),
        Refusal::TooMany(reason) | Refusal::Full(reason) => (StatusCode::CONFLICT, reason),
        Refusal::Unable(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    };
    Refused(status, reason)
}

/// Reads a request's body; none is a request for nothing in particular.
async fn read<B>(body: B) -> Result<api::LeaseRequest, Refused>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bad = |reason: String| Refused(StatusCode::BAD_REQUEST, reason);
    let body = timeout(REQUEST, Limited::new(Box::pin(body), MAX_BODY_BYTES).collect())
        .await
        .map_err(|_| bad(format!("the body did not come within {REQUEST:?}")))?
        .map_err(|error| bad(format!("the body, of {MAX_BODY_BYTES} bytes at the most: {error}")))?
        .to_bytes();
    if body.is_empty() {
        return Ok(api::LeaseRequest::default());
    }
    let mut json = serde_json::Deserializer::from_slice(&body);
    let request = api::object(&mut json).and_then(|request| json.end().map(|()| request));
    request.map_err(|error| bad(format!("the body is no request for a lease: {error}")))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    async fn parsed(body: impl Into<Bytes>) -> Result<api::LeaseRequest, String> {
        read(Full::new(body.into())).await.map_err(|Refused(status, reason)| {
            assert_eq!(status, StatusCode::BAD_REQUEST);
            reason
        })
    }

    #[tokio::test]
    async fn bodies() {
        assert_eq!(parsed("").await.unwrap(), api::LeaseRequest::default());
        let request = parsed(r#"{"gpus":2,"wait_ms":500,"hints":{"spark_gpus":1},"new":0}"#).await;
        let hints = api::Hints { spark_gpus: Some(1), ..api::Hints::default() };
        let expected =
            api::LeaseRequest { gpus: Some(2), wait_ms: 500, hints, ..Default::default() };
        assert_eq!(request.unwrap(), expected);
        for body in [
            "[",
            "[]",
            "null",
            "{} {}",
            r#"{"hints":[]}"#,
            r#"{"gpus":-1}"#,
            r#"{"gpus":5000000000}"#,
        ] {
            assert!(parsed(body).await.unwrap_err().contains("no request"), "{body}");
        }
        let long = " ".repeat(MAX_BODY_BYTES + 1);
        assert!(parsed(long).await.unwrap_err().contains("at the most"));
    }
}
