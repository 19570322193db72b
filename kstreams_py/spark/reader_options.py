"""The options of Spark's Kafka reader: where it starts and ends, and how it connects to the brokers.

The choices follow measurements on Spark 4.0.0 (its Kafka client is 3.9.0) with Kafka 4.3.1:

- `kafkaConsumer.pollTimeoutMs` is twice `request_timeout_ms`, by default 30 s: a request that a hanging broker does not
  answer can be sent again to its successor. Spark's default is 120 s. Only two cases wait that long, and then fail the
  query: a broker that does not answer, and a range that ends after the last stable offset. With a limit of 1 ms every
  query failed, with 10 ms none. Ranges without visible records (markers, aborted records) do not wait: `poll` returns
  as soon as its position moves. (Up to Spark 3.3, clients wait at each end without visible records: KAFKA-12980.)
- `fetch.max.wait.ms` is 50. After each poll Spark asks for the partition's ends, and that request waits for the next
  fetch: half a second per partition and batch with the default of 500. With 50, a batch of 400,000 records in four
  partitions took 2 to 3.5 s instead of 4 to 6 s (on two busy cores).
- `failOnDataLoss` is true. It never mistakes a gap for a loss, in batches or streams: only records that were deleted,
  or do not exist yet, make the query fail. With `false`, deleted records are skipped silently.
- `kafka.isolation.level` is read_committed; without it, aborted and open transactions are read. A range then ends at
  the last stable offset of each partition, which each action looks up again. Partitions end at different moments, so a
  transaction over several partitions can be visible in one and not yet in another. A view with offsets as `end` does
  not change.

Spark does not show secrets in its logs, but `explain()` of a *stream* prints all options, `sasl.jaas.config` included.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime

from kstreams_py.errors import SettingsError
from kstreams_py.kafka.credentials.java import of_java
from kstreams_py.secrets import mask
from kstreams_py.settings import Settings

Bound = str | Mapping[int, int] | datetime
"""Where a view starts or ends.

- 'earliest' or 'latest'.
- The offset of every partition: -2 for earliest, -1 for latest. An end is the first offset that is not read.
- A datetime with a time zone: the first record of each partition with this timestamp or a later one.

Timestamps are the producers'. If they are out of order, a record and its time may be on different sides of the bound.
Two views that meet at a time still share no record and omit none, if each partition has a record after that time.
"""


class ReaderOptions(dict[str, str]):
    """Options of Spark's Kafka reader, by name; `repr` masks secrets."""

    def __repr__(self) -> str:
        return repr(self.masked())

    __str__ = __repr__

    def masked(self) -> dict[str, str]:
        """Returns the options, with *** in place of secrets."""
        return mask(self)

    def lines(self, *, secrets: bool = False) -> str:
        """Returns a line `.option("name", "value")` for each option, sorted; the lines are valid in Python and Scala.

        - `secrets`: False shows secrets as ***.
        """
        shown = dict(self) if secrets else self.masked()
        return "\n".join(f".option({json.dumps(name)}, {json.dumps(shown[name])})" for name in sorted(shown))


def options(
    topic_name: str,
    settings: Settings | None = None,
    *,
    start: Bound | None = None,
    end: Bound | None = None,
    streaming: bool = False,
    max_offsets_per_trigger: int | None = None,
) -> ReaderOptions:
    """Returns the options that `view` (or `stream`, with `streaming`) gives to Spark's reader of the format `kafka`.

    - `settings`: Settings.load() by default.
    - `start`: 'earliest' by default.
    - `end`: 'latest' by default; a stream has none.
    - `max_offsets_per_trigger`: the limit of a batch of a stream; None for no limit.

    Raises SettingsError for an invalid bound, and for a setting without a counterpart in Java's client.
    """
    settings = settings or Settings.load()
    limit = settings.request_timeout_ms
    found = {
        "subscribe": topic_name,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(2 * limit),
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "50",
        "kafka.request.timeout.ms": str(limit),
        "kafka.default.api.timeout.ms": str(2 * limit),
        **{f"kafka.{name}": value for name, value in of_java(settings.kafka).items()},
        **_bound("start", start or "earliest", topic_name),
    }
    if start == "latest" and not streaming:
        raise SettingsError("start='latest': a view would be empty; leave it out, or use stream()")
    if streaming and end is not None:
        raise SettingsError(f"end={end!r}: a stream has no end; leave it out, or use view()")
    if end == "earliest":
        raise SettingsError("end='earliest': a view would be empty; leave it out")
    if isinstance(start, datetime) and isinstance(end, datetime) and end < start:
        raise SettingsError(f"the view's end ({end}) is before its start ({start}): exchange them")
    if not streaming:
        found |= _bound("end", end or "latest", topic_name)
    if max_offsets_per_trigger is not None:
        found["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    return ReaderOptions(found)


def assigned(found: ReaderOptions, topic_name: str, partitions: Collection[int]) -> ReaderOptions:
    """Returns the options for only these partitions: Spark refuses offsets if a topic has gained partitions."""
    others = {name: value for name, value in found.items() if name != "subscribe"}
    return ReaderOptions({**others, "assign": json.dumps({topic_name: sorted(partitions)})})


def _bound(which: str, bound: Bound, topic_name: str) -> dict[str, str]:
    """Returns the options for a bound; `which`: start or end."""
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise SettingsError(f"{which}={bound!r} has no time zone: add one, such as tzinfo=timezone.utc")
        found = {f"{which}ingTimestamp": str(round(bound.timestamp() * 1000))}
        # otherwise a time after the last record is an error; as an end it means the latest by default
        return found if which == "end" else found | {"startingOffsetsByTimestampStrategy": "latest"}
    if isinstance(bound, Mapping):
        partitions = {str(partition): offset for partition, offset in sorted(bound.items())}
        return {f"{which}ingOffsets": json.dumps({topic_name: partitions})}
    if bound in ("earliest", "latest"):
        return {f"{which}ingOffsets": bound}
    raise SettingsError(f"{which}={bound!r}: give 'earliest', 'latest', an offset for each partition, or a datetime")
