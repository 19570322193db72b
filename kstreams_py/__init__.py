"""Exactly-once stream processing on Kafka in plain Python functions, read by Spark."""

from kstreams_py.config import Settings
from kstreams_py.delivery import Durability, Guarantee
from kstreams_py.engine.supervisor import run
from kstreams_py.errors import KStreamsError, Stop
from kstreams_py.record import Out, Step
from kstreams_py.serde import Avro, Bytes, Json, String
from kstreams_py.topology import Graph, Topic

__all__ = [
    "Avro",
    "Bytes",
    "Durability",
    "Graph",
    "Guarantee",
    "Json",
    "KStreamsError",
    "Out",
    "Settings",
    "Step",
    "Stop",
    "String",
    "Topic",
    "run",
]
