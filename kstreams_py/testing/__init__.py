"""For users' tests: a graph without a broker, a log in memory whose every request can fail."""

from kstreams_py.testing.memory_log import ManualClock, MemoryLog

__all__ = ["ManualClock", "MemoryLog"]
