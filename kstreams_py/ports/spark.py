"""Spark reads topics: session(), view() and stream() of committed records as columns, options() for other jobs.

What was measured on Spark 4.0.0 (its Kafka client is 3.9.0) with Kafka 4.3.1, and decided by it:

- Ranges where nothing is visible (markers, aborted records) do not wait: `poll` returns as soon as its position moves.
  What does wait `kafkaConsumer.pollTimeoutMs`, 120 s by default, is a broker that is silent and a range that ends after
  the last stable offset; both then fail the query. A limit of 1 ms failed every query, one of 10 ms none. (Clients up
  to that of Spark 3.3 do wait, at each invisible end: KAFKA-12980.) So: time for a request to be lost to a broker that
  hangs and to be asked again of its successor, twice `request_timeout_ms` (30 s).
- After each poll Spark asks for the partition's ends, and that waits behind the next fetch: half a second per partition
  and batch with the default `fetch.max.wait.ms` of 500. With 50, a batch of 400,000 records in four partitions took
  2 to 3.5 s instead of 4 to 6 s (on two busy cores).
- `failOnDataLoss=true` never takes a gap for a loss, in batches or streams: only records that were deleted, or that are
  not there (yet), fail the query. With `false`, what was deleted is left out silently.
- Without `kafka.isolation.level`, aborted and open transactions are read. With it, a range ends at the last stable
  offset of each partition, looked up anew by each action: partitions end at different moments, so a transaction over
  several partitions can be in one and not yet in another. Offsets as `end` make a view that stays the same.

Spark does not show secrets in its logs, but `explain()` of a *stream* prints all options, `sasl.jaas.config` included.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from kstreams_py.config import Settings
from kstreams_py.errors import MissingSoftware, SchemaError, SettingsError
from kstreams_py.record import HASH_HEADER
from kstreams_py.serde import Avro, Json, Registry, String, content_id, unreadable
from kstreams_py.topology import Topic

try:
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.streaming.readwriter import DataStreamReader
except ImportError:
    _HAS_PYSPARK = False
else:
    _HAS_PYSPARK = True

META: Final = ("key", "partition", "offset", "timestamp", "headers", "delivery_hash")
"""Columns beside the value's: key by its serde, Kafka's own, and the header `ks-hash` (null where there is none)."""

Bound = str | Mapping[int, int] | datetime
"""Where a view starts or ends: 'earliest' or 'latest'; the offset of every partition (-2 earliest, -1 latest; an end is
the first offset that is not read); or a time with a zone, which stands for the first record of each partition that is
not older. Times are the producers': where they are out of order, so are the records on either side of the bound; but
two views that meet at a time share no record and leave none out between them, if each partition has one past it."""


def session(
    app: str = "kstreams_py", *, jars: Sequence[Path] | None = None, java: Path | None = None, **conf: str
) -> SparkSession:
    """A SparkSession that can read Kafka and Avro; the running one, if there is one.

    Two local threads where no master is set, in `conf` or by spark-submit. `jars` are the Kafka and Avro jars of the
    installed Spark (`ports.jars.spark_jars()`): by default those that `kstreams jars` left in the cache (4 s to start,
    1 s less than by `spark.jars.packages`), else Spark fetches them into the cache. `java` is used where JAVA_HOME is
    not set. `conf` is more of Spark's configuration, as in `session(**{"spark.driver.memory": "4g"})`.

    Raises MissingSoftware without PySpark or a Java that it runs on.
    """
    _require_pyspark()
    if java is not None:
        os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    ours = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore[.]key",
        **_packages(jars),
    }
    if not _has_master(conf):
        here = "127.0.0.1"
        ours |= {"spark.master": "local[2]", "spark.driver.host": here, "spark.driver.bindAddress": here}
    if "spark.jars" in conf and "spark.jars" in ours:
        conf["spark.jars"] += "," + ours["spark.jars"]
    builder = SparkSession.builder.appName(app)
    for name, value in (ours | conf).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        _check_java(error)
        raise


def view(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | None = None,
    end: Bound | None = None,
    flatten: bool = True,
) -> DataFrame:
    """The committed records of a topic, decoded; each action reads them anew.

    Columns are the value's fields (`value` alone if it is not an Avro record, or not to be flattened), then META. Avro
    is read by its writers' schemas, those that `registry` has under `<topic>-value` (without one: the topic's own), as
    the topic's; JSON and text are strings, all else is binary. A tombstone is null in every field.

    A record that does not decode fails the query that reads it, naming topic, partition, offset and remedy. Raises
    SchemaError for a field that is called like a column of META, SettingsError for a bound that is none, and
    MissingSoftware for a session without Kafka.
    """
    found = options(topic.name, settings, start=start, end=end)
    return _columns(_load(lambda: spark.read, found), topic, registry, flatten=flatten)


def stream(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | None = None,
    max_offsets_per_trigger: int | None = None,
    flatten: bool = True,
) -> DataFrame:
    """As `view`, as a stream: from `start` (by default the earliest) on, or from its checkpoint if there is one.

    A batch ends at the last stable offset or after `max_offsets_per_trigger` offsets, markers and aborted records
    included; it can be empty. A schema registered after the start is unknown to the query until it is started again.
    """
    found = options(topic.name, settings, start=start, streaming=True, max_offsets_per_trigger=max_offsets_per_trigger)
    return _columns(_load(lambda: spark.readStream, found), topic, registry, flatten=flatten)


# Options of the reader.

_JAVA_NAMES: Final = {
    **{
        name: name
        for name in (
            "client.dns.lookup", "client.rack", "connections.max.idle.ms", "metadata.max.age.ms",
            "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
            "sasl.mechanism", "security.protocol", "socket.connection.setup.timeout.ms", "ssl.cipher.suites",
            "ssl.endpoint.identification.algorithm", "ssl.key.password", "ssl.keystore.location",
            "ssl.keystore.password",
        )
    },
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.key.pem": "ssl.keystore.key",
}  # fmt: skip
"""How to reach the brokers: librdkafka's settings and Java's. Others are not carried over; `_client_options` does
sasl.username and sasl.password."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

_SECRET: Final = re.compile(r"jaas|password|keystore\.key")


class Options(dict[str, str]):
    """Options of Spark's Kafka reader, by name; secrets do not show in `repr`."""

    def __repr__(self) -> str:
        return repr(self.masked())

    __str__ = __repr__

    def masked(self) -> dict[str, str]:
        """The options with *** for secrets."""
        return {name: "***" if _SECRET.search(name) else value for name, value in self.items()}

    def lines(self, *, secrets: bool = False) -> str:
        """`.option("name", "value")` on a line each, sorted, which is both Python and Scala; *** for secrets or not."""
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
) -> Options:
    """What `view` (or, if `streaming`, `stream`) gives to Spark's reader of the format `kafka`.

    Raises SettingsError for a bound that is none, and for a setting with no counterpart in Java's client.
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
        **{f"kafka.{name}": value for name, value in _client_options(settings.kafka).items()},
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
    return Options(found)


def _bound(which: str, bound: Bound, topic_name: str) -> dict[str, str]:
    """`which` is start or end."""
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise SettingsError(f"{which}={bound!r} has no time zone: add one, such as tzinfo=timezone.utc")
        found = {f"{which}ingTimestamp": str(round(bound.timestamp() * 1000))}
        # Otherwise a time after the last record is an error; as an end it means the latest anyway.
        return found if which == "end" else found | {"startingOffsetsByTimestampStrategy": "latest"}
    if isinstance(bound, Mapping):
        partitions = {str(partition): offset for partition, offset in sorted(bound.items())}
        return {f"{which}ingOffsets": json.dumps({topic_name: partitions})}
    if bound in ("earliest", "latest"):
        return {f"{which}ingOffsets": bound}
    raise SettingsError(f"{which}={bound!r}: give 'earliest', 'latest', an offset for each partition, or a datetime")


def _client_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """Java's settings for librdkafka's, as far as they say how to reach the brokers."""
    found = {_JAVA_NAMES[name]: _value(name, value) for name, value in kafka.items() if name in _JAVA_NAMES}
    if found.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in found:
        found["ssl.keystore.type"] = "PEM"
    elif "ssl.keystore.location" in found:
        found["ssl.keystore.type"] = "PKCS12"
    if found.get("security.protocol", "").startswith("SASL"):
        mechanism = found.setdefault("sasl.mechanism", "GSSAPI")
        if mechanism not in _LOGIN_MODULES:
            raise SettingsError(
                f"sasl.mechanism {mechanism} has other settings in Java than in librdkafka: read the topic without "
                "view() and stream(), by the options of spark.options(...) and kafka.sasl.* of your own"
            )
        user, password = (_quoted(kafka.get(f"sasl.{name}", "")) for name in ("username", "password"))
        found["sasl.jaas.config"] = f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"
    return found


def _value(name: str, value: str) -> str:
    if name == "security.protocol":
        return value.upper()
    if name == "ssl.endpoint.identification.algorithm":
        return "" if value == "none" else value
    if name in ("ssl.certificate.location", "ssl.key.location"):
        try:
            return Path(value).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise SettingsError(f"{name}: {value} is not a PEM file that can be read: {error}") from None
    return value


def _quoted(text: str) -> str:
    """A string of JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Columns.

_DECODED: Final = "ks_decoded"
"""A field with the default true, added to the reader's schema. Where bytes do not fit, from_avro gives a record of
nulls; only this field tells it from a record that is all null."""

Fail = Callable[["str | Column"], "Column"]


def _columns(df: DataFrame, topic: Topic, registry: Registry | None, *, flatten: bool) -> DataFrame:
    df, key, key_fields = _decode(df, topic, "key", registry)
    df, value, value_fields = _decode(df, topic, "value", registry)
    if flatten and value_fields:
        clashes = [field for field in value_fields if field.lower() in META]
        if clashes:
            raise SchemaError(
                f"topic {topic}: field {clashes[0]!r} of its value is called like a column that every view has: "
                "use flatten=False, which leaves the value as one column `value`"
            )
        values = [value[field].alias(field) for field in value_fields]
    else:
        values = [_without_mark(value, value_fields).alias("value")]
    hashes = sf.filter("headers", lambda header: header["key"] == HASH_HEADER)
    return df.select(
        *values,
        _without_mark(key, key_fields).alias("key"),
        *META[1:-1],
        sf.get(hashes, sf.lit(0))["value"].alias("delivery_hash"),
    )


def _without_mark(column: Column, fields: Sequence[str]) -> Column:
    return column.dropFields(_DECODED) if fields else column


def _decode(
    df: DataFrame, topic: Topic, part: str, registry: Registry | None
) -> tuple[DataFrame, Column, Sequence[str]]:
    """The frame to take the key or the value from, the column, and its fields if it is an Avro record."""
    serde, raw = getattr(topic, part), sf.col(part)

    def fail(why: str | Column) -> Column:
        place = (sf.lit(f"topic {topic}["), sf.col("partition"), sf.lit("] offset "), sf.col("offset"))
        return sf.raise_error(sf.concat(*place, sf.lit(f": its {part} "), sf.lit(why)))

    if isinstance(serde, String | Json):
        if isinstance(serde, String) and serde.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SchemaError(
                f"topic {topic}: Spark reads text in UTF-8, and its {part} is in {serde.encoding}: declare it as "
                "Bytes() for the view, and decode it there with pyspark's decode()"
            )
        text = raw.cast("string")
        checked = sf.when(sf.is_valid_utf8(text), text).otherwise(
            fail("is not text in UTF-8: read the topic as Bytes()")
        )
        return df, sf.when(raw.isNull(), None).otherwise(checked), ()
    if not isinstance(serde, Avro):
        return df, raw, ()
    reader = json.loads(serde.schema)
    fields = [field["name"] for field in reader["fields"]] if _is_record(reader) else []
    # Spark copies an expression into each filter on it: behind explode() it is evaluated once (2 to 7 times as fast).
    df = df.withColumn(part, sf.explode(sf.array(_from_wire(raw, topic, part, registry, fail))))
    if not fields:
        return df, raw, ()
    broken = fail(f"does not decode as {serde!r}: read the topic as Bytes() to see it")
    return df, sf.when(raw.isNull() | raw[_DECODED], raw).otherwise(broken), fields


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


def _from_wire(raw: Column, topic: Topic, part: str, registry: Registry | None, fail: Fail) -> Column:
    """Avro in the wire format, by the schema that each record names."""
    serde: Avro = getattr(topic, part)
    reader = json.loads(serde.schema)
    how = {"mode": "FAILFAST", "avroSchema": serde.schema}
    if _is_record(reader):
        marked = [*reader["fields"], {"name": _DECODED, "type": "boolean", "default": True}]
        how = {"mode": "PERMISSIVE", "avroSchema": json.dumps({**reader, "fields": marked})}
    head, body = sf.substring(raw, 1, 5), sf.expr(f"substring({part}, 6)")
    cases = sf.when(raw.isNull(), None)
    for schema_id, writer in _writers(serde.schema, registry, f"{topic}-{part}").items():
        problem = unreadable(reader, json.loads(writer))
        decoded = (
            fail(f"was written with schema {schema_id}, which {serde!r} cannot read: {problem}")
            if problem
            else from_avro(body, writer, how)
        )
        cases = cases.when(head == sf.lit(b"\0" + schema_id.to_bytes(4)), decoded)
    schema_id_found = sf.conv(sf.hex(sf.substring(raw, 2, 4)), 16, 10)
    remedy = (
        f", which is not under {topic}-{part}: restart the query if it is new, else give the registry of its writer"
        if registry is not None
        else f", which is not that of {serde!r}: give view() or stream() the registry of its writer"
    )
    unknown = fail(sf.concat(sf.lit("has schema id "), schema_id_found, sf.lit(remedy)))
    no_wire = fail("is not in the Avro wire format: read the topic as Bytes() to see it")
    return cases.when((sf.length(raw) < 5) | (sf.substring(raw, 1, 1) != sf.lit(b"\0")), no_wire).otherwise(unknown)


def _writers(own: str, registry: Registry | None, subject: str) -> dict[int, str]:
    """The schemas to expect in a topic, by id: the reader's own, as files have it, and all that the registry knows."""
    found = {content_id(own): own}
    if registry is not None:
        for schema_id in registry.ids(subject):
            with suppress(LookupError):  # then its records fail, and say so
                found[schema_id] = registry.schema(schema_id)
    return found


# Spark and Java.


def _load(reader: Callable[[], DataFrameReader | DataStreamReader], found: Options) -> DataFrame:
    _require_pyspark()
    try:
        return reader().format("kafka").options(**found).load()
    except AnalysisException as error:
        raise MissingSoftware(
            f"this SparkSession cannot read Kafka ({error}): make it with kstreams_py.ports.spark.session(), "
            f"or start it with --packages {_coordinates()}"
        ) from None


def _require_pyspark() -> None:
    if not _HAS_PYSPARK:
        raise MissingSoftware("PySpark is not installed: run pip install 'kstreams_py[spark]'")


def _coordinates() -> str:
    return ",".join(f"org.apache.spark:{name}:{version('pyspark')}" for name in _ARTIFACTS)


_ARTIFACTS: Final = ("spark-sql-kafka-0-10_2.13", "spark-avro_2.13")


def _packages(jars: Sequence[Path] | None) -> dict[str, str]:
    """Spark's configuration for its Kafka and Avro jars; `ports/jars.py` keeps them in a directory of this name."""
    cache = user_cache_path("kstreams_py")
    if jars is None:
        name = "+".join(f"{artifact}-{version('pyspark')}" for artifact in _ARTIFACTS)
        jars = sorted((cache / "jars" / name).glob("*.jar"))
    if jars:
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": _coordinates(), "spark.jars.ivy": str(cache / "ivy")}


def _has_master(conf: Mapping[str, str]) -> bool:
    """A master is set in `conf`, or for a JVM that spark-submit has started or is told to start."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return submitted or "spark.master" in conf or "SPARK_REMOTE" in os.environ


def _check_java(error: Exception) -> None:
    """Raises MissingSoftware if Java explains why Spark did not start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        raise MissingSoftware(
            f"Spark did not start, as {java} does not run: run scripts/setup, install Java 17 or 21 "
            "(Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME to it"
        ) from error
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    if found is not None and found[1] not in ("17", "21"):
        raise MissingSoftware(
            f"Spark {version('pyspark')} did not start on Java {found[1]} ({java}): set JAVA_HOME to a Java 17 or 21"
        ) from error
