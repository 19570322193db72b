"""The bytes of entries, heartbeats and replicas in the topics of a cluster, as JSON that people can read."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.cluster.commands import COMMANDS, NAMES, Command, Entry, PeerId
from kstreams_py.jobs.cluster.state import Replica

COMMAND_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {
    name: TypeAdapter(command) for name, command in COMMANDS.items()
}

REPLICA_ADAPTER: Final = TypeAdapter(Replica)

RECORD_MAX: Final = 1_000_000
"""The longest command, in bytes: a topic takes no longer record by default."""


def encode_entry(entry: Entry) -> bytes:
    """Returns the value of an entry's record."""
    name = NAMES[type(entry.command)]
    fields = COMMAND_ADAPTERS[name].dump_python(entry.command, mode="json")
    record = {"command": name, "author": entry.author, "sequence": entry.sequence, **fields}
    return json.dumps(record, separators=(",", ":")).encode()


def decode_entry(data: bytes | None) -> Entry:
    """Returns the entry of a record's value. Raises DecodeError for anything else."""
    try:
        record = json.loads((data or b"").decode())
        name, author, sequence = record.pop("command"), record.pop("author"), record.pop("sequence")
        command: Command = COMMAND_ADAPTERS[name].validate_python(record)
        if not (isinstance(author, str) and type(sequence) is int and sequence > 0):
            raise ValueError("author or sequence")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise DecodeError(f"a record that is not a command of a cluster: {type(error).__name__}") from error
    return Entry(author, sequence, command)


class Beat(NamedTuple):
    """A heartbeat of a peer: its number, and the digest of the peer's replica at an offset of the log.

    - `turns`: how many turns the peer's main loop has had; 0 if the peer does not report them.
    - `unreachable`: the members that the peer cannot reach.
    """

    peer: PeerId
    number: int
    offset: int
    digest: str
    turns: int = 0
    unreachable: tuple[PeerId, ...] = ()


BEAT_ADAPTER: Final = TypeAdapter(Beat)


def encode_beat(beat: Beat) -> bytes:
    """Returns the value of a heartbeat's record."""
    return json.dumps(beat._asdict(), separators=(",", ":")).encode()


def decode_beat(data: bytes | None) -> Beat:
    """Returns the heartbeat of a record's value. Raises DecodeError for anything else."""
    try:
        return BEAT_ADAPTER.validate_json(data or b"")
    except ValidationError as error:
        raise DecodeError("a record that is not a heartbeat of a cluster") from error


def encode_replica(replica: Replica) -> bytes:
    """Returns a replica as JSON: the same bytes for each peer that applied the same entries."""
    return REPLICA_ADAPTER.dump_json(replica)


def decode_replica(data: bytes | None) -> Replica:
    """Returns the replica that `encode_replica` encoded. Raises DecodeError for anything else."""
    try:
        return REPLICA_ADAPTER.validate_json(data or b"")
    except ValidationError as error:
        raise DecodeError("a record that is not a replica of a cluster") from error


def named_version(data: bytes | None, cluster: str) -> int:
    """Returns the version that a replica of this cluster names, whatever version wrote it; 0 for anything else."""
    try:
        record = json.loads((data or b"").decode())
    except (ValueError, RecursionError):
        return 0
    if not isinstance(record, dict) or record.get("cluster") != cluster:
        return 0
    version = record.get("version")
    return version if type(version) is int else 0


def digest(replica: Replica) -> str:
    """Returns a hash of a replica: peers whose digests at the same offset differ do not agree."""
    return blake2b(encode_replica(replica), digest_size=8).hexdigest()
