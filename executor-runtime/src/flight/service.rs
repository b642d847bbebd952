//! Flight SQL: statements, prepared statements, metadata, cancellation, session options.

use std::collections::HashMap;
use std::pin::Pin;

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any, Command,
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, CommandPreparedStatementQuery,
    CommandPreparedStatementUpdate, CommandStatementQuery, CommandStatementUpdate,
    DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightData,
    FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage,
    SchemaAsIpc, Ticket,
};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use datafusion::common::{ParamValues, ScalarValue};
use futures::{Stream, TryStreamExt, stream};
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Request, Response, Status, Streaming};

use super::metadata::{self, FOREIGN_KEYS, PRIMARY_KEYS, TABLE_TYPES};
use super::options::{
    CloseSessionResult, CloseSessionStatus, GetSessionOptionsResult, SessionOptionValue,
    SetSessionOptionError, SetSessionOptionErrorValue, SetSessionOptionsRequest,
    SetSessionOptionsResult,
};
use super::server::own_actions;
use super::sql_info::SQL_INFO;
use super::type_info::TYPE_INFO;
use crate::engine::query::Batches;
use crate::engine::session::{Planned, Prepared, Session};
use crate::error::ExecutorError;

type Answer<T> = Result<Response<T>, Status>;
type DoGet = <Service as FlightService>::DoGetStream;
type DoAction = <Service as FlightService>::DoActionStream;

/// `ActionCancelQueryResult.CancelResult` of FlightSql.proto, which `arrow_flight` keeps private.
const CANCEL_RESULT_CANCELLED: i32 = 1;
const CANCEL_RESULT_NOT_CANCELLABLE: i32 = 3;

/// Flight SQL for one session.
pub struct Service {
    session: Session,
}

impl Service {
    /// For that session.
    pub fn new(session: Session) -> Self {
        Self { session }
    }

    async fn plan(&self, sql: &str, values: Option<ParamValues>) -> Result<Planned, Status> {
        Ok(self.session.plan(sql, values).await?)
    }

    /// The schema of what a command gives, without running it.
    pub async fn schema(&self, command: Command) -> Result<Option<SchemaRef>, Status> {
        let planned = match command {
            Command::CommandStatementQuery(command) => self.plan(&command.query, None).await?,
            Command::CommandPreparedStatementQuery(command) => {
                let handle = Self::handle(&command.prepared_statement_handle)?;
                let prepared = self.session.prepared(handle)?;
                self.plan(&prepared.sql, prepared.values).await?
            }
            _ => return Ok(None),
        };
        Ok(Some(planned.schema().schema()))
    }

    /// The answer to a statement that is planned: its schema, and the ticket that fetches it.
    /// One that is no query runs now: not every client fetches a result without columns.
    async fn planned_info(
        &self,
        planned: Planned,
        descriptor: FlightDescriptor,
    ) -> Result<FlightInfo, Status> {
        let planned = self.session.run_command(planned).await?;
        let schema = planned.schema().schema();
        let id = planned.query().id().to_owned();
        let handle = self.session.keep(planned);
        let ticket = TicketStatementQuery { statement_handle: handle.into() };
        Ok(info(&schema, ticket.as_any().encode_to_vec(), descriptor)?.with_app_metadata(id))
    }

    async fn fetch(&self, planned: Planned) -> Answer<DoGet> {
        let (schema, batches) = self.session.execute(planned).await?;
        Ok(Response::new(match batches {
            Some(batches) => encode_query(schema.schema(), batches),
            None => encode(schema.schema(), stream::empty()),
        }))
    }

    async fn update(&self, planned: Planned) -> Result<i64, Status> {
        let (_, batches) = self.session.execute(planned).await?;
        // A query that is sent as an update runs, and its rows are of no interest.
        if let Some(batches) = batches {
            batches.try_for_each(async |_| Ok(())).await?;
        }
        // Nothing that is allowed changes rows; −1 is "unknown" in Flight SQL.
        Ok(-1)
    }

    fn handle(handle: &Bytes) -> Result<&str, Status> {
        std::str::from_utf8(handle)
            .map_err(|_| Status::invalid_argument("the handle is none that this server gave"))
    }

    async fn parameters(
        prepared: &Prepared,
        request: PeekableFlightDataStream,
    ) -> Result<ParamValues, Status> {
        let batches: Vec<RecordBatch> =
            arrow_flight::decode::FlightRecordBatchStream::new_from_flight_data(
                request.map_err(|status| FlightError::Tonic(Box::new(status))),
            )
            .try_collect()
            .await?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let Some(batch) = batches.iter().find(|batch| batch.num_rows() > 0) else {
            return Err(Status::invalid_argument("the parameters have no row"));
        };
        if rows > 1 {
            return Err(Status::invalid_argument(format!(
                "the parameters have {rows} rows; a statement runs for one row of them at a time"
            )));
        }
        let expected = prepared.parameters.len();
        if batch.num_columns() != expected {
            return Err(Status::invalid_argument(format!(
                "the statement has {expected} parameters, and {} values were sent",
                batch.num_columns()
            )));
        }
        let values: Result<Vec<ScalarValue>, _> =
            batch.columns().iter().map(|column| ScalarValue::try_from_array(column, 0)).collect();
        Ok(ParamValues::from(values.map_err(ExecutorError::from)?))
    }

    fn set_options(&self, body: &[u8]) -> Result<SetSessionOptionsResult, Status> {
        let request = SetSessionOptionsRequest::decode(body)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut errors = HashMap::new();
        for (name, value) in request.session_options {
            let value = value.text();
            if let Err(error) = self.session.set(&name, value.as_deref()) {
                tracing::info!(name, %error, "a session option was not set");
                let value = if self.session.options().contains_key(bare(&name)) {
                    SetSessionOptionErrorValue::InvalidValue
                } else {
                    SetSessionOptionErrorValue::InvalidName
                };
                errors.insert(name, SetSessionOptionError { value: value as i32 });
            }
        }
        Ok(SetSessionOptionsResult { errors })
    }

    fn get_options(&self) -> GetSessionOptionsResult {
        let options = self.session.options().into_iter();
        let options = options.map(|(name, text)| (name.to_owned(), SessionOptionValue::of(text)));
        GetSessionOptionsResult { session_options: options.collect() }
    }
}

fn bare(name: &str) -> &str {
    name.strip_prefix("creel.").unwrap_or(name)
}

fn info(
    schema: &Schema,
    ticket: Vec<u8>,
    descriptor: FlightDescriptor,
) -> Result<FlightInfo, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket));
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(ExecutorError::from)?
        .with_endpoint(endpoint)
        .with_descriptor(descriptor);
    Ok(info)
}

/// The answer to a metadata command, whose ticket is the command itself.
fn command_info<C: ProstMessageExt>(
    command: &C,
    schema: &Schema,
    request: Request<FlightDescriptor>,
) -> Answer<FlightInfo> {
    let ticket = command.as_any().encode_to_vec();
    Ok(Response::new(info(schema, ticket, request.into_inner())?))
}

/// The query that a statement's answer is of.
fn query_of(info: &FlightInfo) -> Option<String> {
    String::from_utf8(info.app_metadata.to_vec()).ok().filter(|id| !id.is_empty())
}

fn encode(
    schema: SchemaRef,
    batches: impl Stream<Item = crate::Result<RecordBatch>> + Send + 'static,
) -> DoGet {
    let batches = batches.map_err(|error| FlightError::Tonic(Box::new(error.into())));
    let data = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
    Box::pin(data.map_err(Status::from))
}

fn encode_query(schema: SchemaRef, batches: Batches) -> DoGet {
    let query = std::sync::Arc::clone(batches.query());
    let data = encode(schema, batches);
    Box::pin(data.inspect_ok(move |data: &FlightData| {
        query.count_sent((data.data_header.len() + data.data_body.len()) as u64);
    }))
}

fn one(batch: RecordBatch) -> Response<DoGet> {
    Response::new(encode(batch.schema(), stream::iter([Ok(batch)])))
}

fn none(schema: &SchemaRef) -> Response<DoGet> {
    Response::new(encode(SchemaRef::clone(schema), stream::empty()))
}

fn result(message: &impl Message) -> Response<DoAction> {
    let result = arrow_flight::Result { body: message.encode_to_vec().into() };
    Response::new(Box::pin(stream::iter([Ok(result)])))
}

/// A schema as Flight's messages carry it.
pub(super) fn schema_bytes(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let message: IpcMessage =
        SchemaAsIpc::new(schema, &options).try_into().map_err(ExecutorError::from)?;
    Ok(message.0)
}

#[tonic::async_trait]
impl FlightSqlService for Service {
    type FlightService = Self;

    /// Whoever is at the other end is known from the socket; names and passwords mean nothing.
    async fn do_handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>> {
        let welcome = HandshakeResponse { protocol_version: 0, payload: Bytes::new() };
        Ok(Response::new(Box::pin(stream::iter([Ok(welcome)]))))
    }

    async fn get_flight_info_statement(
        &self,
        command: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let planned = self.plan(&command.query, None).await?;
        Ok(Response::new(self.planned_info(planned, request.into_inner()).await?))
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        let planned = self.session.take(Self::handle(&ticket.statement_handle)?)?;
        self.fetch(planned).await
    }

    async fn do_put_statement_update(
        &self,
        command: CommandStatementUpdate,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let planned = self.plan(&command.query, None).await?;
        self.update(planned).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        command: ActionCreatePreparedStatementRequest,
        _request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let prepared = self.session.prepare(&command.query).await?;
        let dataset_schema = schema_bytes(&prepared.schema.schema())?;
        let parameter_schema = schema_bytes(&Schema::new(prepared.parameters.clone()))?;
        let handle = self.session.keep_prepared(prepared)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle.into(),
            dataset_schema,
            parameter_schema,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        command: ActionClosePreparedStatementRequest,
        _request: Request<Action>,
    ) -> Result<(), Status> {
        self.session.close_prepared(Self::handle(&command.prepared_statement_handle)?);
        Ok(())
    }

    async fn do_put_prepared_statement_query(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let handle = Self::handle(&command.prepared_statement_handle)?;
        let prepared = self.session.prepared(handle)?;
        let values = Self::parameters(&prepared, request.into_inner()).await?;
        self.session.bind(handle, values)?;
        let prepared_statement_handle = Some(command.prepared_statement_handle);
        Ok(DoPutPreparedStatementResult { prepared_statement_handle })
    }

    async fn do_put_prepared_statement_update(
        &self,
        command: CommandPreparedStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let prepared = self.session.prepared(Self::handle(&command.prepared_statement_handle)?)?;
        let values = if prepared.parameters.is_empty() {
            None
        } else {
            Some(Self::parameters(&prepared, request.into_inner()).await?)
        };
        let planned = self.plan(&prepared.sql, values).await?;
        self.update(planned).await
    }

    async fn get_flight_info_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let prepared = self.session.prepared(Self::handle(&command.prepared_statement_handle)?)?;
        let planned = self.plan(&prepared.sql, prepared.values).await?;
        Ok(Response::new(self.planned_info(planned, request.into_inner()).await?))
    }

    async fn do_get_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        let prepared = self.session.prepared(Self::handle(&command.prepared_statement_handle)?)?;
        let planned = self.plan(&prepared.sql, prepared.values).await?;
        self.fetch(planned).await
    }

    async fn get_flight_info_catalogs(
        &self,
        command: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &command.into_builder().schema(), request)
    }

    async fn do_get_catalogs(
        &self,
        command: CommandGetCatalogs,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(one(metadata::get_catalogs(self.session.context(), command)?))
    }

    async fn get_flight_info_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &command.clone().into_builder().schema(), request)
    }

    async fn do_get_schemas(
        &self,
        command: CommandGetDbSchemas,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(one(metadata::get_schemas(self.session.context(), command)?))
    }

    async fn get_flight_info_tables(
        &self,
        command: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &command.clone().into_builder().schema(), request)
    }

    async fn do_get_tables(
        &self,
        command: CommandGetTables,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(one(metadata::get_tables(self.session.context(), command).await?))
    }

    async fn get_flight_info_table_types(
        &self,
        command: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &command.into_builder().schema(), request)
    }

    async fn do_get_table_types(
        &self,
        command: CommandGetTableTypes,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        let mut builder = command.into_builder();
        for name in TABLE_TYPES {
            builder.append(name);
        }
        Ok(one(builder.build()?))
    }

    async fn get_flight_info_sql_info(
        &self,
        command: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &SQL_INFO.schema(), request)
    }

    async fn do_get_sql_info(
        &self,
        command: CommandGetSqlInfo,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(one(command.into_builder(&SQL_INFO).build()?))
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &TYPE_INFO.schema(), request)
    }

    async fn do_get_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(one(command.into_builder(&TYPE_INFO).build()?))
    }

    async fn get_flight_info_primary_keys(
        &self,
        command: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &PRIMARY_KEYS, request)
    }

    async fn do_get_primary_keys(
        &self,
        _command: CommandGetPrimaryKeys,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(none(&PRIMARY_KEYS))
    }

    async fn get_flight_info_exported_keys(
        &self,
        command: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &FOREIGN_KEYS, request)
    }

    async fn do_get_exported_keys(
        &self,
        _command: CommandGetExportedKeys,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(none(&FOREIGN_KEYS))
    }

    async fn get_flight_info_imported_keys(
        &self,
        command: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &FOREIGN_KEYS, request)
    }

    async fn do_get_imported_keys(
        &self,
        _command: CommandGetImportedKeys,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(none(&FOREIGN_KEYS))
    }

    async fn get_flight_info_cross_reference(
        &self,
        command: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        command_info(&command, &FOREIGN_KEYS, request)
    }

    async fn do_get_cross_reference(
        &self,
        _command: CommandGetCrossReference,
        _request: Request<Ticket>,
    ) -> Answer<DoGet> {
        Ok(none(&FOREIGN_KEYS))
    }

    async fn do_action_cancel_query(
        &self,
        command: ActionCancelQueryRequest,
        _request: Request<Action>,
    ) -> Result<ActionCancelQueryResult, Status> {
        let info = FlightInfo::decode(command.info)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let cancelled = query_of(&info).is_some_and(|id| self.session.cancel(&id));
        let result =
            if cancelled { CANCEL_RESULT_CANCELLED } else { CANCEL_RESULT_NOT_CANCELLABLE };
        Ok(ActionCancelQueryResult { result })
    }

    async fn do_action_fallback(&self, request: Request<Action>) -> Answer<DoAction> {
        let action = request.into_inner();
        match action.r#type.as_str() {
            "CancelFlightInfo" => {
                let request = CancelFlightInfoRequest::decode(action.body)
                    .map_err(|error| Status::invalid_argument(error.to_string()))?;
                let id = request.info.as_ref().and_then(query_of);
                if !id.is_some_and(|id| self.session.cancel(&id)) {
                    return Err(Status::not_found("there is no such query on this connection"));
                }
                Ok(result(&CancelFlightInfoResult::new(CancelStatus::Cancelled)))
            }
            "SetSessionOptions" => Ok(result(&self.set_options(&action.body)?)),
            "GetSessionOptions" => Ok(result(&self.get_options())),
            "CloseSession" => {
                let status = CloseSessionStatus::NotCloseable as i32;
                Ok(result(&CloseSessionResult { status }))
            }
            other => Err(Status::unimplemented(format!("there is no action '{other}'"))),
        }
    }

    async fn list_custom_actions(&self) -> Option<Vec<Result<ActionType, Status>>> {
        Some(own_actions())
    }

    async fn get_flight_info_fallback(
        &self,
        command: Command,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let by_path = request.get_ref().r#type() == DescriptorType::Path;
        let what = if by_path { "a path" } else { command.type_url() };
        Err(ExecutorError::Unsupported(format!("the command {what}")).into())
    }

    async fn do_get_fallback(&self, _request: Request<Ticket>, message: Any) -> Answer<DoGet> {
        Err(ExecutorError::Unsupported(format!("a ticket of {}", message.type_url)).into())
    }

    async fn register_sql_info(&self, _id: i32, _info: &SqlInfo) {}
}
