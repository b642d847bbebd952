//! `creel sql` and `creel explain`: statements over Arrow Flight SQL, results to standard output.
//!
//! All statements of one call go over one connection, so that they are one session: a table that
//! one creates, the next one reads. Results are written as they come, and never held as a whole.
//!
//! - [`statements`]: where SQL comes from, and where one statement ends.
//! - [`flight`]: the connection, and what its errors mean.
//! - [`format`](mod@format): how results are written.
//! - [`progress`]: what a long query shows meanwhile.

mod arrow_stream;
mod csv;
mod flight;
mod format;
mod json;
mod plan;
mod printable;
mod progress;
mod statements;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow_flight::decode::DecodedPayload;
use clap::Args;
use futures::TryStreamExt;

use super::stdout;
use crate::error::Error;
use crate::run_dir::RunDir;
use flight::Session;
use format::{Encoder, Format};
use progress::Progress;

/// How long the first answer is waited for: an executor may take 30 s to start
/// (`executor.start_timeout`).
const FIRST_ANSWER: Duration = Duration::from_secs(45);

/// How long the work may take to end when the user has stopped it.
const LEAVING: Duration = Duration::from_millis(200);

/// Where SQL comes from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The SQL; several statements are separated by `;`
    #[arg(short, value_name = "SQL")]
    command: Option<String>,
    /// A file with the SQL
    #[arg(short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read the SQL from standard input
    #[arg(value_name = "-", value_parser = ["-"])]
    stdin: Option<String>,
}

/// What the session of the statements is to be.
#[derive(Debug, Args)]
struct SessionSettings {
    /// Change a setting for these statements, as `sql.batch_size=1024` (see `creel config list`)
    #[arg(long, value_name = "NAME=VALUE", value_parser = creel_settings::assignment)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    session: SessionSettings,
    /// How to write the results [default: table; json with --json]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    session: SessionSettings,
    /// Run the statement, and show what each part of its plan did
    #[arg(long)]
    analyze: bool,
    /// How to write the plan [default: as text; json with --json]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// Runs all statements and writes their results.
pub(crate) async fn run(arguments: &Arguments, run_dir: &RunDir, json: bool) -> Result<(), Error> {
    let statements = statements::read(&arguments.source)?;
    let format = arguments.format.unwrap_or(if json { Format::Json } else { Format::Table });
    execute(statements, arguments.session.set.clone(), format, run_dir).await
}

/// Runs all statements but the last, and writes the plan of that one.
pub(crate) async fn explain(
    arguments: &ExplainArguments,
    run_dir: &RunDir,
    json: bool,
) -> Result<(), Error> {
    let mut statements = statements::read(&arguments.source)?;
    if let Some(last) = statements.last_mut() {
        *last = statements::explained(last, arguments.analyze);
    }
    let format = arguments.format.unwrap_or(if json { Format::Json } else { Format::Plan });
    execute(statements, arguments.session.set.clone(), format, run_dir).await
}

async fn execute(
    statements: Vec<String>,
    settings: Vec<(String, String)>,
    format: Format,
    run_dir: &RunDir,
) -> Result<(), Error> {
    if format == Format::Arrow && std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "an Arrow stream is not for a terminal: send it to a file or a pipe".into(),
        ));
    }
    let session = Session::connect(run_dir).await?;
    let canceller = session.canceller();
    // On a thread of its own: while it waits for the reader of standard output, Ctrl-C works.
    let mut work = tokio::spawn(async move {
        session.ready(FIRST_ANSWER).await?;
        for (name, value) in settings {
            let statement = statements::set(&name, &value)?;
            write_results(&session, &statement, format).await?;
        }
        for statement in statements {
            write_results(&session, &statement, format).await?;
        }
        Ok(())
    });
    tokio::select! {
        result = &mut work => result.map_err(|error| Error::Failed(error.to_string()))?,
        _ = tokio::signal::ctrl_c() => {
            canceller.cancel().await;
            // It takes the progress from the terminal; a write that is stuck is left alone.
            work.abort();
            let _ = tokio::time::timeout(LEAVING, work).await;
            Err(Error::Interrupted)
        }
    }
}

/// Runs a statement and writes what it answers.
async fn write_results(session: &Session, statement: &str, format: Format) -> Result<(), Error> {
    let progress = Progress::start(session.agent());
    let info = match session.plan(statement).await {
        Ok(info) => info,
        Err(error) => return Err(session.explain(error).await),
    };
    progress.watch(session.query_id());
    let mut writer = ResultWriter { encoder: format.encoder(), format, begun: None, progress };
    for endpoint in &info.endpoint {
        let Some(ticket) = endpoint.ticket.clone() else { continue };
        let received = async {
            let mut messages = session.results(ticket).await?;
            while let Some(message) = messages.try_next().await? {
                let bytes = message.inner.data_header.len() + message.inner.data_body.len();
                match message.payload {
                    DecodedPayload::Schema(schema) => writer.schema(&schema)?,
                    DecodedPayload::RecordBatch(batch) => {
                        writer.progress.received(batch.num_rows(), bytes);
                        writer.batch(&batch)?;
                    }
                    DecodedPayload::None => {}
                }
            }
            Ok(())
        };
        match received.await {
            Ok(()) => {}
            Err(Broken::Flight(error)) => return Err(session.explain(error).await),
            Err(Broken::Writing(error)) => {
                session.canceller().cancel().await;
                return Err(error);
            }
        }
    }
    if writer.begun.is_none()
        && let Ok(schema) = info.try_decode_schema()
    {
        writer.schema(&schema.into())?;
    }
    writer.end()
}

/// Why a result was not received to its end.
enum Broken {
    /// The server or the connection.
    Flight(arrow_flight::error::FlightError),
    /// Our own output.
    Writing(Error),
}

impl From<arrow_flight::error::FlightError> for Broken {
    fn from(error: arrow_flight::error::FlightError) -> Self {
        Self::Flight(error)
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Writing(error)
    }
}

/// Writes the result of one statement. One without columns (of DDL, `SET`) is no result.
struct ResultWriter {
    encoder: Box<dyn Encoder>,
    format: Format,
    begun: Option<SchemaRef>,
    progress: Progress,
}

impl ResultWriter {
    /// The first schema counts: further endpoints carry the same.
    fn schema(&mut self, schema: &SchemaRef) -> Result<(), Error> {
        if self.begun.is_some() {
            return Ok(());
        }
        self.begun = Some(schema.clone());
        if schema.fields().is_empty() {
            return Ok(());
        }
        let bytes = self.encoder.begin(schema);
        self.write(bytes)
    }

    fn batch(&mut self, batch: &arrow::array::RecordBatch) -> Result<(), Error> {
        if batch.num_columns() == 0 {
            return Ok(());
        }
        let bytes = self.encoder.batch(batch);
        self.write(bytes)
    }

    fn end(mut self) -> Result<(), Error> {
        self.progress.stop();
        if self.begun.as_ref().is_none_or(|schema| schema.fields().is_empty()) {
            return Ok(());
        }
        let bytes = self.encoder.end();
        self.write(bytes)
    }

    fn write(&self, bytes: Result<Vec<u8>, arrow::error::ArrowError>) -> Result<(), Error> {
        let bytes = bytes.map_err(|source| Error::Format { format: self.format.name(), source })?;
        if bytes.is_empty() {
            return Ok(());
        }
        if std::io::stdout().is_terminal() {
            // The rows take over the terminal.
            self.progress.stop();
        }
        tokio::task::block_in_place(|| stdout::write(&bytes))
    }
}
