//! A session of Arrow Flight SQL over the data socket, and what its errors mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_flight::decode::FlightDataDecoder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{CancelFlightInfoRequest, FlightClient, FlightInfo, Ticket};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::api;
use crate::client::{self, Client};
use crate::error::Error;
use crate::run_dir::RunDir;

/// Flow control windows: large, as the other side is on this machine.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// How long a cancelled query's server is waited for.
const CANCEL_DEADLINE: Duration = Duration::from_secs(2);

/// One connection, which is one session of the server.
#[derive(Debug)]
pub(super) struct Session {
    flight: FlightSqlServiceClient<Channel>,
    agent: Client,
    /// The query that was planned last.
    running: Arc<Mutex<Option<FlightInfo>>>,
}

/// Ends the session's running query.
#[derive(Debug)]
pub(super) struct Canceller {
    flight: FlightServiceClient<Channel>,
    running: Arc<Mutex<Option<FlightInfo>>>,
}

impl Session {
    /// Connects to the data socket of a run directory.
    pub(super) async fn connect(run_dir: &RunDir) -> Result<Self, Error> {
        let socket = run_dir.data_socket();
        let stream = Mutex::new(Some(client::connect(&socket).await?));
        // A second connection would be another session, without what this one created.
        let connector = tower::service_fn(move |_| {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            async {
                stream
                    .map(TokioIo::new)
                    .ok_or_else(|| std::io::Error::other("the session has ended"))
            }
        });
        let channel = Endpoint::from_static("http://localhost")
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_with_connector(connector)
            .await
            .map_err(|error| Error::Unreachable { socket, reason: error.to_string() })?;
        let flight = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self {
            flight: FlightSqlServiceClient::new_from_inner(flight),
            agent: Client::new(run_dir),
            running: Arc::default(),
        })
    }

    /// The agent beside the data socket.
    pub(super) fn agent(&self) -> Client {
        self.agent.clone()
    }

    /// What ends the running query.
    pub(super) fn canceller(&self) -> Canceller {
        Canceller { flight: self.flight.inner().clone(), running: Arc::clone(&self.running) }
    }

    /// Has a statement planned.
    pub(super) async fn plan(&self, statement: &str) -> Result<FlightInfo, FlightError> {
        *lock(&self.running) = None;
        let info = self.flight.clone().execute(statement.to_owned(), None).await?;
        *lock(&self.running) = Some(info.clone());
        Ok(info)
    }

    /// The id of the query that was planned last.
    pub(super) fn query_id(&self) -> Option<String> {
        let metadata = lock(&self.running).as_ref()?.app_metadata.clone();
        String::from_utf8(metadata.into()).ok().filter(|id| !id.is_empty())
    }

    /// The results behind a ticket.
    pub(super) async fn results(&self, ticket: Ticket) -> Result<FlightDataDecoder, FlightError> {
        Ok(self.flight.clone().do_get(ticket).await?.into_inner())
    }

    /// What an error of the server or the connection means; an executor that ended has its reason
    /// with the agent.
    pub(super) async fn explain(&self, error: FlightError) -> Error {
        let FlightError::Tonic(status) = error else {
            return Error::Failed(format!("the executor's answer can't be read: {error}"));
        };
        // The server never sent a status that has a cause here: the connection broke.
        let broken = std::error::Error::source(&*status).is_some();
        if !broken && status.code() != Code::Unavailable {
            return of_status(&status);
        }
        let what = if broken {
            format!("the connection to the executor broke: {}", status.message())
        } else {
            status.message().to_owned()
        };
        match self.why_executor_ended().await {
            Some(reason) if !what.contains(&reason) => {
                Error::Failed(format!("{what}; the executor ended: {reason}"))
            }
            _ => Error::Failed(what),
        }
    }

    /// What the agent says of this user's executor that ended unasked, if there is one. The agent
    /// may learn of it a moment later than we do.
    async fn why_executor_ended(&self) -> Option<String> {
        const TRIES: u32 = 5;
        const PAUSE: Duration = Duration::from_millis(100);
        let uid = rustix::process::geteuid().as_raw();
        for _ in 0..TRIES {
            let executors: api::Executors =
                self.agent.get("/v1/executors").await.ok()?.parse().ok()?;
            if let Some(reason) = why_ended(executors, uid) {
                return Some(reason);
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }
}

impl Canceller {
    /// Asks the server to end the running query, and waits a moment for its answer.
    pub(super) async fn cancel(&self) {
        let Some(info) = lock(&self.running).clone() else { return };
        let mut client = FlightClient::new_from_inner(self.flight.clone());
        let cancelling = client.cancel_flight_info(CancelFlightInfoRequest::new(info));
        // If that fails, the end of the connection ends the query.
        let _ = tokio::time::timeout(CANCEL_DEADLINE, cancelling).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_status(status: &Status) -> Error {
    let text = match status.message() {
        "" => format!("the executor refused without a reason ({:?})", status.code()),
        text => text.to_owned(),
    };
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Error::NotAllowed(text),
        _ => Error::Failed(text),
    }
}

fn why_ended(executors: api::Executors, uid: u32) -> Option<String> {
    executors
        .executors
        .into_iter()
        .filter(|executor| executor.uid == uid)
        .filter(|executor| {
            matches!(executor.state, api::ExecutorState::Failed | api::ExecutorState::BackingOff)
        })
        .max_by_key(|executor| executor.since)?
        .last_error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_the_servers_words() {
        let error = of_status(&Status::invalid_argument("no column \"x\" in 'a.parquet'"));
        assert!(matches!(&error, Error::Failed(text) if text == "no column \"x\" in 'a.parquet'"));
        let error = of_status(&Status::permission_denied("COPY TO is refused"));
        assert!(matches!(error, Error::NotAllowed(_)));
        let error = of_status(&Status::internal(""));
        assert!(error.to_string().contains("Internal"), "{error}");
    }

    #[test]
    fn only_an_own_executor_that_ended_is_a_reason() {
        use api::ExecutorState::{BackingOff, Failed, Running};

        let executor = |uid, state, since, error: &str| api::Executor {
            id: String::new(),
            device: "cpu".into(),
            uid,
            pid: None,
            state,
            since,
            restarts: 0,
            last_error: Some(error.into()),
            memory: None,
        };
        let executors = vec![
            executor(1, Failed, 5, "older"),
            executor(1, BackingOff, 6, "killed by signal 9"),
            executor(1, Running, 7, "long ago"),
            executor(2, Failed, 8, "another user's"),
        ];
        let executors = api::Executors { schema: 1, executors };
        assert_eq!(why_ended(executors.clone(), 1).as_deref(), Some("killed by signal 9"));
        assert_eq!(why_ended(executors, 3), None);
    }
}
