"""For users' tests: a graph without a broker, a log in memory whose every request can fail."""

from kstreams_py.errors import HistoryError
from kstreams_py.testing.checker import check, explain
from kstreams_py.testing.driver import CrashPoint, MemoryRegistry, Record, TestDriver
from kstreams_py.testing.evidence import Anomaly, Expected, Kind
from kstreams_py.testing.history import History, Isolation, Outcome
from kstreams_py.testing.memory_log import ManualClock, MemoryLog

__all__ = [
    "Anomaly",
    "CrashPoint",
    "Expected",
    "History",
    "HistoryError",
    "Isolation",
    "Kind",
    "ManualClock",
    "MemoryLog",
    "MemoryRegistry",
    "Outcome",
    "Record",
    "TestDriver",
    "check",
    "explain",
]
