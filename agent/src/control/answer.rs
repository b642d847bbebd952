//! The answers of the control API, as [`crate::api`] has them.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body;
use serde::Serialize;

use super::Control;
use super::viewer::Viewer;
use crate::api::{self, SCHEMA};
use crate::executors::Listed;
use crate::peer::Peer;

/// What the path of one query begins with.
const QUERY: &str = "/v1/queries/";
/// The path of all leases, and what that of one begins with.
const LEASES: &str = "/v1/leases";
const LEASE: &str = "/v1/leases/";

/// Why a body could not be read.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) type Answer = Response<Full<Bytes>>;

/// A request that is not answered as it was meant: with what status, and why.
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

impl Control {
    /// Answers a request of a peer.
    pub(super) async fn answer<B>(&self, viewer: Viewer, peer: &Peer, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        // Before anything is done for it.
        let takes = methods(path);
        if !takes.contains(&head.method) {
            return not_allowed(&head.method, takes, path);
        }
        let answered = match (path, &head.method) {
            (LEASES, &Method::POST) => self.lease(peer, body).await,
            (_, &Method::DELETE) => self.delete(viewer, path).await,
            _ => self.get(viewer, path).await,
        };
        answered.unwrap_or_else(|Refused(status, error)| {
            json(status, &api::Failure { schema: SCHEMA, error })
        })
    }

    async fn delete(&self, viewer: Viewer, path: &str) -> Result<Answer, Refused> {
        Ok(match path.strip_prefix(QUERY) {
            Some(id) => json(StatusCode::OK, &self.cancel(viewer, id).await?),
            None => json(StatusCode::OK, &self.release(viewer, path.trim_start_matches(LEASE))?),
        })
    }

    async fn get(&self, viewer: Viewer, path: &str) -> Result<Answer, Refused> {
        let ok = StatusCode::OK;
        if let Some(id) = path.strip_prefix(LEASE) {
            return Ok(json(ok, &self.one_lease(viewer, id)?));
        }
        Ok(match path {
            "/v1/version" => json(ok, &version()),
            "/v1/status" => json(ok, &self.status(viewer).await),
            "/v1/gpus" => json(ok, &self.gpus().await?),
            "/v1/executors" => json(ok, &self.executors(viewer).await),
            "/v1/attachments" => json(ok, &self.attachments(viewer).await),
            LEASES => json(ok, &self.all_leases(viewer)),
            "/v1/queries" => json(ok, &self.queries(viewer).await),
            _ => {
                let reason = format!("there is no {path}; see docs/agent.md for what there is");
                return Err(Refused(StatusCode::NOT_FOUND, reason));
            }
        })
    }

    async fn status(&self, viewer: Viewer) -> api::Status {
        let listed = self.listed(viewer).await;
        let count = |of: fn(&Listed) -> usize| listed.iter().map(of).sum::<usize>() as u64;
        let (gpus, gpu_error) = match self.gpus.known().await {
            Ok(gpus) => (gpus.len() as u64, self.gpus.error()),
            Err(error) => (0, Some(error.to_string())),
        };
        api::Status {
            schema: SCHEMA,
            agent: api::AgentStatus {
                version: version().version,
                pid: std::process::id(),
                uptime_s: self.started.elapsed().as_secs(),
                ready: self.ready.load(Ordering::Relaxed),
                gpu_error,
                snapshot_error: self.gpus.snapshot_error(),
                lease_error: self.leases.problem(),
            },
            gpus,
            executors: listed.iter().filter(|listed| listed.executor.pid.is_some()).count() as u64,
            attachments: count(|listed| listed.attachments.len()),
            leases: self.all_leases(viewer).leases.len() as u64,
            queries: count(|listed| listed.queries.len()),
        }
    }

    async fn gpus(&self) -> Result<api::Gpus, Refused> {
        let (gpus, pools) = tokio::join!(self.gpus.fresh(), self.executors.pools());
        let mut gpus =
            gpus.map_err(|error| Refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        let lease_on = |uuid: Option<&String>| Some(self.leases.on(uuid?)?.id());
        let pool_on = |uuid: Option<&String>| pools.get(uuid?).cloned();
        for gpu in &mut gpus {
            gpu.lease = lease_on(gpu.uuid.as_ref());
            gpu.pool = pool_on(gpu.uuid.as_ref());
            for slice in &mut gpu.mig.slices {
                slice.lease = lease_on(slice.uuid.as_ref());
                slice.pool = pool_on(slice.uuid.as_ref());
            }
        }
        Ok(api::Gpus { schema: SCHEMA, gpus })
    }

    async fn executors(&self, viewer: Viewer) -> api::Executors {
        let executors = self.listed(viewer).await.into_iter().map(|listed| listed.executor);
        api::Executors { schema: SCHEMA, executors: executors.collect() }
    }

    async fn attachments(&self, viewer: Viewer) -> api::Attachments {
        let listed = self.listed(viewer).await;
        let mut attachments: Vec<_> =
            listed.into_iter().flat_map(|listed| listed.attachments).collect();
        attachments.sort_by_key(|attachment| attachment.id);
        api::Attachments { schema: SCHEMA, attachments }
    }

    async fn queries(&self, viewer: Viewer) -> api::Queries {
        let listed = self.listed(viewer).await;
        let mut queries: Vec<_> = listed.into_iter().flat_map(|listed| listed.queries).collect();
        queries.sort_by_key(|query| std::cmp::Reverse(query.report.elapsed_ms));
        api::Queries { schema: SCHEMA, queries }
    }

    async fn cancel(&self, viewer: Viewer, id: &str) -> Result<api::Cancelled, Refused> {
        let unknown = || Refused(StatusCode::NOT_FOUND, format!("there is no query {id}"));
        let listed = self.executors.list(|_| true).await;
        let query = listed
            .into_iter()
            .flat_map(|listed| listed.queries)
            .find(|query| query.report.id == id)
            .ok_or_else(unknown)?;
        if !viewer.sees(query.uid) {
            let reason = format!(
                "query {id} is not yours: only its user, root and the group of agent.group may \
                 cancel it"
            );
            return Err(Refused(StatusCode::FORBIDDEN, reason));
        }
        let reason = format!("cancelled by user {}", viewer.uid());
        if self.executors.cancel(&query.executor, id, &reason).await {
            Ok(api::Cancelled { schema: SCHEMA, id: id.to_owned() })
        } else {
            Err(unknown())
        }
    }

    async fn listed(&self, viewer: Viewer) -> Vec<Listed> {
        self.executors.list(|uid| viewer.sees(uid)).await
    }
}

fn version() -> api::Version {
    api::Version { schema: SCHEMA, version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// The methods that a path takes.
fn methods(path: &str) -> &'static [Method] {
    if path.starts_with(QUERY) {
        &[Method::DELETE]
    } else if path.starts_with(LEASE) {
        &[Method::GET, Method::DELETE]
    } else if path == LEASES {
        &[Method::GET, Method::POST]
    } else {
        &[Method::GET]
    }
}

/// RFC 9110, 15.5.6.
fn not_allowed(method: &Method, takes: &[Method], path: &str) -> Answer {
    let takes: Vec<_> = takes.iter().map(Method::as_str).collect();
    let error = format!("{path} takes {}, not {method}", takes.join(" and "));
    let failure = api::Failure { schema: SCHEMA, error };
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &failure);
    let takes = http::HeaderValue::from_str(&takes.join(", "));
    response.headers_mut().extend(takes.ok().map(|takes| (ALLOW, takes)));
    response
}

pub(super) fn json(status: StatusCode, answer: &impl Serialize) -> Answer {
    let (status, body) = match serde_json::to_vec(answer) {
        Ok(body) => (status, body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
