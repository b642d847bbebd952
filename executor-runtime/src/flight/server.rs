//! What of Flight goes beyond Flight SQL: the schema of a command without running it.

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::{Any, Command};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, PollInfo, SchemaResult, Ticket,
};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::service::Service;

/// The service, with the calls that `arrow_flight`'s Flight SQL leaves out.
pub struct Server(Service);

impl Server {
    /// Around that service.
    pub fn new(service: Service) -> Self {
        Self(service)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl FlightService for Server {
    type HandshakeStream = <Service as FlightService>::HandshakeStream;
    type ListFlightsStream = <Service as FlightService>::ListFlightsStream;
    type DoGetStream = <Service as FlightService>::DoGetStream;
    type DoPutStream = <Service as FlightService>::DoPutStream;
    type DoActionStream = <Service as FlightService>::DoActionStream;
    type ListActionsStream = <Service as FlightService>::ListActionsStream;
    type DoExchangeStream = <Service as FlightService>::DoExchangeStream;

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        let command = Any::decode(&*request.get_ref().cmd)
            .ok()
            .and_then(|command| Command::try_from(command).ok())
            .ok_or_else(|| Status::invalid_argument("the descriptor has no Flight SQL command"))?;
        let schema = match self.0.schema(command).await? {
            Some(schema) => super::service::schema_bytes(&schema)?,
            None => FlightService::get_flight_info(&self.0, request).await?.into_inner().schema,
        };
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        FlightService::handshake(&self.0, request).await
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        FlightService::list_flights(&self.0, request).await
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        FlightService::get_flight_info(&self.0, request).await
    }

    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<PollInfo> {
        FlightService::poll_flight_info(&self.0, request).await
    }

    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        FlightService::do_get(&self.0, request).await
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        FlightService::do_put(&self.0, request).await
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        FlightService::do_action(&self.0, request).await
    }

    async fn list_actions(&self, request: Request<Empty>) -> Answer<Self::ListActionsStream> {
        FlightService::list_actions(&self.0, request).await
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        FlightService::do_exchange(&self.0, request).await
    }
}

/// The actions beyond those of Flight SQL, for `ListActions`.
pub fn own_actions() -> Vec<Result<ActionType, Status>> {
    let action = |name: &str, description: &str| {
        Ok(ActionType { r#type: name.to_owned(), description: description.to_owned() })
    };
    vec![
        action("CancelFlightInfo", "Ends a query: CancelFlightInfoRequest, CancelFlightInfoResult"),
        action("SetSessionOptions", "Sets session options"),
        action("GetSessionOptions", "Tells session options"),
        action("CloseSession", "Says that a session can't be closed but with its connection"),
    ]
}
