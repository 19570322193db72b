"""Exactly-once stream processing on Kafka in plain Python functions, read by Spark.

Modules outside the packages:

errors       rule     every exception, drawn as a tree
records      rule     values that cross packages: TopicPartition, Positions, Message, Out, Step
metrics      rule     the counters and timers of a processor, and the states of a worker
hosts        rule     decides by its host name whether an HTTP request is for this server
printable    rule     makes text from outside safe to print: nothing in it moves a cursor or begins a line
log_fields   rule     fields of log records, by which the command's log folds records of the same kind
secrets      adapter  hides passwords, and the user and password of URLs
forks        adapter  keeps a child of os.fork from ending the parent's clients and databases
settings     adapter  settings from arguments, the environment and TOML; contradictions are refused
__main__     acts     `python -m kstreams_py`
"""

import typing

from kstreams_py.errors import (
    BrokerUnavailable,
    ClientError,
    DecodeError,
    DrainTimeout,
    EncodeError,
    EventFault,
    FunctionExited,
    GraphError,
    HistoryError,
    InputEndsWorkers,
    InputLost,
    KStreamsError,
    MissingSoftware,
    NotAuthorized,
    PipelineFailed,
    RecordRefused,
    RecordTooLarge,
    RecoveryUndecidable,
    Replaced,
    RowRefused,
    SchemaError,
    SettingsError,
    SinkUnavailable,
    SourceUnavailable,
    StaleWriter,
    Stop,
    StoreUnavailable,
    TopicError,
    Unavailable,
    UserMistake,
    WorkersFailed,
    WorkerStuck,
)
from kstreams_py.errors import did_you_mean as _did_you_mean
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.serdes import Bytes, Json, Serde, String
from kstreams_py.graph.declarations import Journal, KeyedStore, State, Topic, dead_letters
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.topology import Graph
from kstreams_py.records import Out, Step
from kstreams_py.running.start import Running, run, start
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet, PostgreSQL

__version__ = "0.1.0"

__all__ = [
    "Avro",
    "BrokerUnavailable",
    "Bytes",
    "ClientError",
    "DecodeError",
    "Delta",
    "DrainTimeout",
    "Durability",
    "EncodeError",
    "EventFault",
    "FunctionExited",
    "Graph",
    "GraphError",
    "Guarantee",
    "HistoryError",
    "InputEndsWorkers",
    "InputLost",
    "Journal",
    "Json",
    "KStreamsError",
    "KeyedStore",
    "MissingSoftware",
    "NotAuthorized",
    "Out",
    "Parquet",
    "PipelineFailed",
    "PostgreSQL",
    "RecordRefused",
    "RecordTooLarge",
    "RecoveryUndecidable",
    "Replaced",
    "Retry",
    "RowRefused",
    "Running",
    "SchemaError",
    "Serde",
    "Settings",
    "SettingsError",
    "SinkUnavailable",
    "SourceUnavailable",
    "StaleWriter",
    "State",
    "Step",
    "Stop",
    "StoreUnavailable",
    "String",
    "Topic",
    "TopicError",
    "Unavailable",
    "UserMistake",
    "WorkerStuck",
    "WorkersFailed",
    "dead_letters",
    "run",
    "start",
]

if not typing.TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> object:
        of_sinks = name in ("Redis", "SQLite")  # the targets that Spark does not write
        close = f"it is kstreams_py.sinks.{name}" if of_sinks else _did_you_mean(name, __all__)
        raise AttributeError(f"module 'kstreams_py' has no attribute {name!r}" + (f": {close}" if close else ""))
