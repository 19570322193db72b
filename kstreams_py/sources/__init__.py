"""Sources of jobs: inputs that Kafka does not keep, which a worker claims, and acknowledges once they are done.

In reading order:

suspects  rule     which inputs are read again together, after deaths of their workers
claims    adapter  claims in a SQLite file: which inputs are under way, by whom, and which are done
sqlite    adapter  the rows of a table in SQLite
"""

from kstreams_py.graph.source import Claim, Source, SourceConnection
from kstreams_py.sources.sqlite import SQLite

__all__ = ["Claim", "SQLite", "Source", "SourceConnection"]
