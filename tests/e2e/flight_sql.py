"""Flight SQL over pyarrow.flight, which has Flight alone: the messages of FlightSql.proto are
written here field by field."""

import pyarrow
from pyarrow import flight

TYPE = "type.googleapis.com/arrow.flight.protocol.sql."
TIMEOUT_S = 60


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, value) -> bytes:
    """A field of a Protocol Buffers message: text, bytes or a message, a whole number, a list."""
    if value is None:
        return b""
    if isinstance(value, list):
        return b"".join(field(number, item) for item in value)
    if isinstance(value, (bool, int)):
        return varint(number << 3) + varint(int(value))
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message: bytes) -> dict[int, list]:
    """The fields of a message, by number."""
    found, at = {}, 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            value = number()
        elif key & 7 == 1:
            value, at = message[at : at + 8], at + 8
        else:
            size = number()
            value, at = message[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def any_of(name: str, *values) -> bytes:
    """A `google.protobuf.Any` with the message of that name and its fields from 1 on."""
    message = b"".join(field(i, value) for i, value in enumerate(values, 1))
    return field(1, TYPE + name) + field(2, message)


class Client:
    """A connection to `creel.sock`."""

    def __init__(self, socket):
        self.client = flight.FlightClient(
            f"grpc+unix://{socket}",
            generic_options=[
                # Over a Unix socket gRPC sends the socket's path as the authority otherwise.
                ("grpc.default_authority", "localhost"),
                # No two clients share a connection.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
            ],
        )
        self.options = flight.FlightCallOptions(timeout=TIMEOUT_S)

    def info(self, name: str, *values) -> flight.FlightInfo:
        descriptor = flight.FlightDescriptor.for_command(any_of(name, *values))
        return self.client.get_flight_info(descriptor, self.options)

    def read(self, info: flight.FlightInfo) -> pyarrow.Table:
        streams = [self.client.do_get(endpoint.ticket, self.options) for endpoint in info.endpoints]
        # Not read_all: it takes the server's CANCELLED for a Ctrl-C of its own process.
        batches = [chunk.data for stream in streams for chunk in stream]
        return pyarrow.Table.from_batches(batches, streams[0].schema)

    def get(self, name: str, *values) -> pyarrow.Table:
        return self.read(self.info(name, *values))

    def sql(self, statement) -> pyarrow.Table:
        return self.get("CommandStatementQuery", statement)

    def rows(self, statement) -> list[tuple]:
        return [tuple(row.values()) for row in self.sql(statement).to_pylist()]

    def action(self, kind: str, body: bytes) -> list[bytes]:
        results = self.client.do_action(flight.Action(kind, body), self.options)
        return [result.body.to_pybytes() for result in results]

    def prepare(self, statement: str) -> tuple[bytes, pyarrow.Schema, pyarrow.Schema]:
        """The handle, the schema of the result and that of the parameters."""
        body = any_of("ActionCreatePreparedStatementRequest", statement)
        (result,) = self.action("CreatePreparedStatement", body)
        found = fields(fields(result)[2][0])
        schema = lambda i: pyarrow.ipc.read_schema(pyarrow.py_buffer(found[i][0]))  # noqa: E731
        return found[1][0], schema(2), schema(3)

    def bind(self, handle: bytes, parameters: pyarrow.RecordBatch) -> bytes:
        """Gives a prepared statement its parameters, and its handle from now on."""
        command = any_of("CommandPreparedStatementQuery", handle)
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self.client.do_put(descriptor, parameters.schema, self.options)
        writer.write_batch(parameters)
        writer.done_writing()
        answer = reader.read()
        writer.close()
        return fields(answer.to_pybytes()).get(1, [handle])[0] if answer else handle

    def cancel(self, info: flight.FlightInfo) -> int:
        """Cancels a query; 1 is cancelled, 2 is cancelling, 3 is not to be cancelled."""
        (result,) = self.action("CancelFlightInfo", field(1, info.serialize()))
        return fields(result)[1][0]

    def set_options(self, **options: str) -> dict[str, int]:
        """Sets session options; the errors by name: 1 is an invalid name, 2 an invalid value."""
        body = b"".join(
            field(1, field(1, name) + field(2, field(1, value))) for name, value in options.items()
        )
        (result,) = self.action("SetSessionOptions", body)
        errors = [fields(entry) for entry in fields(result).get(1, [])]
        return {entry[1][0].decode(): fields(entry[2][0])[1][0] for entry in errors}

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()
