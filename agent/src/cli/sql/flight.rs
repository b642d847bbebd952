//! A session of Arrow Flight SQL over the data socket, and what its errors mean.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_flight::decode::FlightDataDecoder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{CancelFlightInfoRequest, Empty, FlightClient, FlightInfo, Ticket};
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

/// How long the agent is asked whether the executor still starts.
const ASKING_DEADLINE: Duration = Duration::from_secs(5);

/// How long a cancelled query's server is waited for.
const CANCEL_DEADLINE: Duration = Duration::from_secs(2);

/// One connection, which is one session of the server.
#[derive(Debug)]
pub(super) struct Session {
    socket: PathBuf,
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
            .map_err(|error| Error::Unreachable {
                socket: socket.clone(),
                reason: error.to_string(),
            })?;
        let flight = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self {
            socket,
            flight: FlightSqlServiceClient::new_from_inner(flight),
            agent: Client::new(run_dir),
            running: Arc::default(),
        })
    }

    /// Waits for the first answer. A connection to an agent or executor that is stopped is made by
    /// the kernel, and nothing else ever comes. An executor that starts gets the time that
    /// `executor.start_timeout` gives it, if that is longer.
    pub(super) async fn ready(&self, patience: Duration) -> Result<(), Error> {
        let mut flight = self.flight.inner().clone();
        let mut answer = std::pin::pin!(flight.list_actions(Empty {}));
        loop {
            match tokio::time::timeout(patience, &mut answer).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(status)) => return Err(self.explain(status.into()).await),
                Err(_) if self.executor_starts().await => {}
                Err(_) => {
                    return Err(Error::Unreachable {
                        socket: self.socket.clone(),
                        reason: format!(
                            "no answer within {} s; if the agent runs, this user's executor is \
                             stopped or stuck (`creel executors` has its process: end that one)",
                            patience.as_secs()
                        ),
                    });
                }
            }
        }
    }

    /// Whether the agent says that this user's executor starts.
    async fn executor_starts(&self) -> bool {
        let uid = rustix::process::geteuid().as_raw();
        let executors = tokio::time::timeout(ASKING_DEADLINE, self.executors()).await;
        executors.ok().flatten().is_some_and(|executors| starts(&executors, uid))
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
            if let Some(reason) = why_ended(self.executors().await?, uid) {
                return Some(reason);
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    /// The executors that this user may see, if the agent answers.
    async fn executors(&self) -> Option<api::Executors> {
        self.agent.get("/v1/executors").await.ok()?.parse().ok()
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

fn starts(executors: &api::Executors, uid: u32) -> bool {
    executors
        .executors
        .iter()
        .any(|executor| executor.uid == uid && executor.state == api::ExecutorState::Starting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_is_no_answer() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path().to_owned())).unwrap();
        // The kernel takes the connections of a listener that accepts none.
        let _silent = std::os::unix::net::UnixListener::bind(run_dir.data_socket()).unwrap();
        let session = Session::connect(&run_dir).await.unwrap();
        let error = session.ready(Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("creel executors"), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_no_silence() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path().to_owned())).unwrap();
        let listener = tokio::net::UnixListener::bind(run_dir.data_socket()).unwrap();
        tokio::spawn(async move { drop(listener.accept().await) });
        let session = Session::connect(&run_dir).await.unwrap();
        let error = session.ready(Duration::from_mins(10)).await.unwrap_err();
        assert!(matches!(&error, Error::Failed(_)), "{error}");
    }

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
            gpu_unusable: None,
            id: String::new(),
            device: "cpu".into(),
            uid,
            pid: None,
            state,
            since,
            restarts: 0,
            last_error: Some(error.into()),
            memory: None,
            gpu: None,
        };
        let executors = vec![
            executor(1, Failed, 5, "older"),
            executor(1, BackingOff, 6, "killed by signal 9"),
            executor(1, Running, 7, "long ago"),
            executor(2, Failed, 8, "another user's"),
        ];
        let executors = api::Executors { schema: 1, executors };
        assert_eq!(why_ended(executors.clone(), 1).as_deref(), Some("killed by signal 9"));
        assert_eq!(why_ended(executors.clone(), 3), None);
        assert!(!starts(&executors, 1));
        let starting = executor(1, api::ExecutorState::Starting, 9, "");
        let executors = api::Executors { schema: 1, executors: vec![starting] };
        assert!(starts(&executors, 1) && !starts(&executors, 2));
    }
}
