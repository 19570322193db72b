"""Makes the outputs of a step: the records for its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from kstreams_py.errors import DecodeError, EncodeError, GraphError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import Bytes, Json, Serde, String, bind
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.functions import show_type
from kstreams_py.kafka.contracts import HEADERS, TIMESTAMP, Output
from kstreams_py.records import HASH_HEADER, KEEP, NO_TIMESTAMP, PLACE_HEADER, Headers, Inputs, Message, Out
from kstreams_py.steps.rows import Rows, size_of

OWN_HEADERS: Final = frozenset({HASH_HEADER, PLACE_HEADER, "ks-type", "ks-proc", "ks-error", "ks-attempts"})
"""Headers that describe the step that wrote the record; they are not passed through."""

_VALUE: Final = itemgetter(1)

_KEEPS_ALL: Final = Out(None)
"""Stands for a plain value."""

OUTPUTS_MAX: Final = 10_000
OUTPUT_BYTES: Final = 16 << 20
"""At this many outputs, or bytes of their values, the outputs are written before the next step of an intake is run."""


class Outputs:
    """Makes the outputs of one processor's steps; for a sink with a target, its rows (rows.py).

    `emit` makes one output from one record and its result, if the result is a plain value. It is None for processors
    that do not have exactly one output topic.
    """

    def __init__(
        self, processor: Processor, registry: Registry, place: Callable[[Inputs], bytes] | None = None
    ) -> None:
        """`place` returns the place of a step, which its outputs name in a header; None if they name none."""
        self._processor = processor
        self._place = place
        self._topics = [topic.name for topic in processor.outputs]
        self._encode = {t.name: encoder(t.value, registry, f"{t.name}-value") for t in processor.outputs}
        self._encode_key = {t.name: encoder(t.key, registry, f"{t.name}-key") for t in processor.outputs}
        self._rows = Rows(processor.id, processor.target.columns) if processor.target is not None else None
        self.emit: Callable[[Message, Any, bytes], Output] | None = None
        if len(self._topics) == 1:
            topic = self._topics[0]
            identity = isinstance(processor.outputs[0].value, Bytes)
            self.emit = _emitter(topic, self._encode[topic], identity=identity, hashed=processor.hash_header)

    def of(self, result: Any, inputs: Inputs, digest: bytes) -> list[Output]:
        """Returns all outputs of the step with the delivery hash `digest`; raises if one of them cannot be made."""
        results = result if self._processor.generator else (result,)
        if self._rows is not None:
            return self._rows.of(results, digest)
        if (emit := self.emit) is not None and len(inputs) == 1:
            (m,), (topic,) = inputs, self._topics
            return [
                self._output(topic, each, inputs, digest) if type(each) is Out else emit(m, each, digest)
                for each in results
                if each is not None
            ]
        return [
            self._output(topic, value, inputs, digest)
            for each in results
            if each is not None
            for topic, value in self._addressed(each)
            if value is not None
        ]

    def _addressed(self, result: Any) -> Iterable[tuple[str, Any]]:
        """Returns (topic, value) pairs of a result, which names the topics if the processor has several outputs."""
        if len(self._topics) == 1:
            return ((self._topics[0], result),)
        processor = self._processor.id
        if not isinstance(result, Mapping):
            raise GraphError(
                f"processor {processor!r} has several outputs and returned {show_type(result)}: "
                f"return a dict of topic to value, for {', '.join(self._topics)}"
            )
        named = {str(getattr(topic, "name", topic)): value for topic, value in result.items()}
        if unknown := [topic for topic in named if topic not in self._encode]:
            raise GraphError(
                f"processor {processor!r} returned a value for {unknown[0]!r}: its to= has {', '.join(self._topics)}: "
                "name one of these, or add the topic there"
            )
        return named.items()

    def _output(self, topic: str, value: Any, inputs: Inputs, digest: bytes) -> Output:
        """Returns one output: key and headers of the first input, the newest timestamp, unless an `Out` sets them."""
        lead, out = inputs[0], _KEEPS_ALL
        if isinstance(value, Out):
            out, value = value, value.value
        data = None if value is None else self._encode[topic](value)
        key = lead.key() if out.key is KEEP else None if out.key is None else self._encode_own_key(topic, out.key)
        headers = _carry((lead.headers() or []) if out.headers is KEEP else checked_headers(out.headers))
        if self._processor.hash_header:
            headers.append((HASH_HEADER, digest))
            if self._place is not None:
                headers.append((PLACE_HEADER, self._place(inputs)))
        if out.timestamp is not KEEP:
            timestamp = checked_timestamp(out.timestamp)
        elif (timestamp := max([m.timestamp()[1] for m in inputs])) <= 0:  # hardly ever: a maximum by key is slow
            timestamp = _past(*max((m.timestamp() for m in inputs), key=itemgetter(1)))
        return (topic, data, key, -1, None, None, timestamp, headers)

    def _encode_own_key(self, topic: str, key: Any) -> bytes | None:
        try:
            return self._encode_key[topic](key)
        except EncodeError as error:
            raise EncodeError(f"its key: {error}") from error


def _emitter(
    topic: str, encode: Callable[[Any], bytes | None], *, identity: bool, hashed: bool
) -> Callable[[Message, Any, bytes], Output]:
    """Returns the function that makes the output of one record; it is called for each record, so it looks nothing up.

    With `identity`, encoding bytes changes nothing.
    """

    def emit(m: Message, result: Any, digest: bytes) -> Output:
        headers: Headers | None
        if (carried := m.headers()) is None:
            headers = [(HASH_HEADER, digest)] if hashed else None
        else:
            headers = _carry(carried)
            if hashed:
                headers.append((HASH_HEADER, digest))
        kind, at = m.timestamp()
        data = result if identity and type(result) is bytes else encode(result)
        return (topic, data, m.key(), -1, None, None, at if at > 0 else _past(kind, at), headers)

    return emit


def encoder(serde: Serde, registry: Registry, subject: str) -> Callable[[Any], bytes | None]:
    """Returns the function that encodes values; it checks the bytes of a user's own serde."""
    serialize = bind(serde, registry, subject).serialize
    if isinstance(serde, Bytes | String | Json | Avro):
        return serialize

    def checked(value: Any) -> bytes | None:
        data = serialize(value)
        if data is not None and not isinstance(data, bytes):
            raise TypeError(f"{type(serde).__name__}.serialize returned {show_type(data)}: return bytes or None")
        return data

    return checked


def decoder(serde: Serde) -> Callable[[bytes], Any] | None:
    """Returns the function that decodes bytes; None if decoding changes nothing, so that the loops need no call.

    The function refuses bytes that decode to None, if the serde says that such bytes exist: None would become a
    tombstone.
    """
    deserialize = serde.deserialize
    if getattr(serde, "identity", False):
        return None
    if not getattr(serde, "has_null", False):
        return deserialize

    def decode(data: bytes) -> Any:
        value = deserialize(data)
        if value is None:
            raise DecodeError(f"the bytes {data[:60]!r} decode to None, as if there were none: read them as Bytes()")
        return value

    return decode


def are_many(outputs: Sequence[Output], size: int) -> bool:
    """Returns whether these outputs, with `size` bytes of values, must be written before more steps are run."""
    return size >= OUTPUT_BYTES or len(outputs) >= OUTPUTS_MAX


def value_bytes(outputs: Sequence[Output]) -> int:
    """Returns the bytes of the values of outputs."""
    try:
        return sum(map(len, map(_VALUE, outputs)))
    except TypeError:  # a tombstone has no value, and a row has no length
        return sum(map(size_of, map(_VALUE, outputs)))


def delivery_hash_of(output: Output) -> bytes | None:
    """Returns the delivery hash in the headers of an output; None if it has none."""
    return dict(output[HEADERS] or ()).get(HASH_HEADER)


def is_same(one: Output, other: Output) -> bool:
    """Returns whether two outputs are the same record; a client sets partition and timestamp in the one it returns."""
    at, other_at = one[TIMESTAMP], other[TIMESTAMP]
    return (
        one[:3] == other[:3]
        and list(one[HEADERS] or ()) == list(other[HEADERS] or ())
        and (at == other_at or not (at and other_at))
    )


def _carry(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Returns the input's headers for the output, without the headers that describe the step that wrote the input."""
    return [header for header in headers if header[0] not in OWN_HEADERS]


def checked_headers(headers: Any) -> Headers:
    """Returns the headers that a function set. Raises TypeError or ValueError unless they are names with bytes."""
    if isinstance(headers, Mapping):
        raise TypeError("headers are a dict: give pairs of a name and bytes, such as [('trace', b'1')]")
    pairs = [(name, value) for name, value in headers]
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(
                f"header ({name!r}, {value!r}) is not a name and bytes: give pairs of str and bytes or None"
            )
        check_header_name(name)
    return pairs


def check_header_name(name: str) -> None:
    """Raises ValueError for a name that the client does not write whole.

    The client cuts a name at a zero character. A name that is not valid UTF-8 ends the process (SIGSEGV;
    confluent-kafka 2.16).
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"header {name!r}: a name has no half of a surrogate pair: UTF-8 has none") from None
    if "\0" in name:
        raise ValueError(f"header {name!r}: a name has no zero character")


def _past(kind: int, timestamp: int) -> int:
    """Returns an output's timestamp: 0 (the current time) if its input has none, the input's own if it is before 1970.

    Raises ValueError for the timestamp 0, for which librdkafka writes the current time (rd_kafka_msg_new0).
    """
    if kind == NO_TIMESTAMP:
        return 0
    if timestamp:
        return timestamp
    raise ValueError(
        "the timestamp is 0 (1970-01-01T00:00:00Z), which the client replaces with the current time: return "
        "ks.Out(value, timestamp=...) with another"
    )


def checked_timestamp(timestamp: Any) -> int:
    """Returns the timestamp that a function set. Raises ValueError if it is not milliseconds since 1970."""
    if not isinstance(timestamp, int) or not 0 < timestamp < 1 << 63:
        raise ValueError(
            f"timestamp {timestamp!r} is not a whole number of milliseconds after 1970: give an int, "
            "such as int(time.time() * 1000)"
        )
    return timestamp
