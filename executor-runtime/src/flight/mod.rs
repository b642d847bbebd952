//! Arrow Flight SQL over the connections that the agent hands over.
//!
//! Each connection is served on its own: HTTP/2 by hyper, gRPC by tonic, and a session that ends
//! with it.
//!
//! - [`serve`]: a connection's life.
//! - [`service`]: statements, prepared statements, cancellation.
//! - [`server`]: what of Flight goes beyond Flight SQL.
//! - [`metadata`]: catalogs, schemas, tables, types; [`sql_info`], [`type_info`]: what this
//!   server is and which types it has.
//! - [`options`]: session options.
//! - [`status`]: errors as gRPC says them.

pub mod metadata;
pub mod options;
pub mod server;
pub mod service;
pub mod sql_info;
pub mod status;
pub mod type_info;

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use creel_wire::AttachmentReport;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tracing::debug;

use self::server::Server;
use self::service::Service;
use crate::engine::session::Session;

/// The largest message that a client may send: parameters of prepared statements, mostly.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// How long a client may stay silent before its first word.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// Serves Flight SQL over a connection until the client closes it.
pub async fn serve(session: Session, connection: OwnedFd) -> AttachmentReport {
    let traffic = Arc::clone(session.traffic());
    if let Err(error) = converse(session, connection).await {
        debug!(attachment = traffic.attachment(), error, "a connection broke off");
    }
    traffic.report()
}

async fn converse(session: Session, connection: OwnedFd) -> Result<(), String> {
    let stream = std::os::unix::net::UnixStream::from(connection);
    stream.set_nonblocking(true).map_err(|error| error.to_string())?;
    let stream = UnixStream::from_std(stream).map_err(|error| error.to_string())?;
    tokio::time::timeout(FIRST_WORD, stream.readable())
        .await
        .map_err(|_| "the client said nothing".to_owned())?
        .map_err(|error| error.to_string())?;

    let mut ending = session.engine().queries().ending();
    let service = FlightServiceServer::new(Server::new(Service::new(session)))
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(usize::MAX);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).max_concurrent_streams(1000);
    let mut conversation =
        pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let done = tokio::select! {
        done = conversation.as_mut() => done,
        () = async { let _ = ending.wait_for(Option::is_some).await; } => {
            // Tells the client to come again elsewhere, and lets its running calls end.
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    done.map_err(|error| error.to_string())
}
