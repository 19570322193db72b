"""Settings: from arguments, KSTREAMS_* variables or a TOML file; contradictions are refused at construction.

Precedence: arguments, then the environment, then the file, then the defaults below. Any librdkafka setting passes
through (`[kafka]` in the file, `KSTREAMS_KAFKA__SOCKET_TIMEOUT_MS=2000` in the environment), except those in `OWNED`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from kstreams_py.errors import SettingsError, did_you_mean
from kstreams_py.secrets import SecretUrl, mask, redact

OWNED: Final[Mapping[str, str]] = {
    "bootstrap.servers": "use --bootstrap-servers or KSTREAMS_BOOTSTRAP_SERVERS",
    "metadata.broker.list": "use --bootstrap-servers or KSTREAMS_BOOTSTRAP_SERVERS",
    "group.id": "it is the graph's name and the processor's",
    "group.instance.id": "it names the slot",
    "group.protocol": "a slot keeps its partitions by static membership with range assignment",
    "transactional.id": "it names graph, processor and slot, so that a restart fences the worker that it replaces",
    "transaction.timeout.ms": "use transaction_timeout_ms",
    "session.timeout.ms": "use session_timeout_ms",
    "isolation.level": "inputs are always read_committed",
    "enable.auto.commit": "offsets are committed with the outputs",
    "enable.auto.offset.store": "offsets are committed with the outputs",
    "auto.offset.reset": "use auto_offset_reset; after an offset out of range no record is skipped silently",
    "partition.assignment.strategy": "range keeps the partitions of joined inputs together",
    "enable.idempotence": "it follows from the guarantee",
    "acks": "it follows from the durability",
    "request.required.acks": "it follows from the durability",
    "retries": "it follows from the guarantee",
    "message.send.max.retries": "it follows from the guarantee",
    "max.in.flight": "a batch waits for the one before it: a leader that moves would lose or double it (#4953)",
    "max.in.flight.requests.per.connection": "see max.in.flight: a batch waits for the one before it",
    "message.timeout.ms": "no queued record expires; a transaction ends by transaction_timeout_ms",
    "delivery.timeout.ms": "no queued record expires; a transaction ends by transaction_timeout_ms",
    "enable.gapless.guarantee": "it follows from the guarantee",
    "enable.partition.eof": "the framework detects the ends of partitions by it",
    "partitioner": "keys must land where Java's clients put them",
    "delivery.report.only.error": "the framework counts failed deliveries by it",
    "client.id": "it is the transactional id, so that the broker's log names graph, processor and slot",
    "log.connection.close": "the framework detects lost connections in the client's log",
    "log.level": "the framework detects time-outs of transactional requests in the client's log",
    "log.queue": "the framework detects time-outs of transactional requests in the client's log",
}
"""librdkafka settings that the framework sets itself, each with the reason or the setting to use."""

OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "KSTREAMS_LOG_LEVEL": "the level of the command's log",
    "KSTREAMS_LOG_FORMAT": "the format of the command's log: text or json",
    "KSTREAMS_SLOT": "the slot of `--slot auto`",
    "KSTREAMS_MAVEN_REPOSITORY": "the URL of the Maven repository that has the broker's and Spark's jars",
    "KSTREAMS_DEMO_DIRECTORY": "the directory of the tables of a demo",
    "KSTREAMS_REPORT_FD": "set by a supervisor for its workers",
    "KSTREAMS_OUTPUT_FDS": "set by a supervisor for its workers",
    "KSTREAMS_TEST_BOOTSTRAP": "of the project's tests",
    "KSTREAMS_TEST_WAIT": "of the project's tests",
    "KSTREAMS_SIMULATION_SEED": "of the project's tests",
}
"""All KSTREAMS_* variables that are not settings. Any other is refused, so that a misspelled one is not ignored."""

_OF_A_SERVICE: Final = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)")
"""Variables that Kubernetes sets in each pod for a Service whose name begins with kstreams."""


def _client_variable(table: str, name: str) -> str:
    """Returns the environment variable of a client's setting."""
    return f"KSTREAMS_{table}__{name.upper().replace('.', '_')}"


class ClientSettings(Mapping[str, str]):
    """librdkafka settings by their dotted names; `repr`, `str` and tracebacks do not show secrets.

    Raises SettingsError for a value that is not a string, number, boolean or path.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = {name.lower().replace("_", "."): _client_text(name, value) for name, value in _flat(values)}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(mask(self._values))


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields settings by their dotted names: TOML reads `sasl.password = ...` as a table in a table."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _client_text(name: str, value: object) -> str:
    if isinstance(value, str | int | float | Path):
        return _text(value)
    if callable(value):  # its text would name nothing that another process can import
        raise SettingsError(f"{name} is a function: oauth_cb alone can be one, by its name 'package.module:function'")
    raise SettingsError(f"{name} is a {type(value).__name__}: write a string, a number, true or false")


def _table(value: object, what: str) -> ClientSettings:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a table of {what}")
    return value if isinstance(value, ClientSettings) else ClientSettings(value)


def _client_settings(value: object) -> ClientSettings:
    settings = _table(value, "librdkafka settings")
    for name in settings:
        if name in OWNED:
            raise ValueError(f"{name} belongs to the framework: {OWNED[name]}")
    return settings


def _registry_settings(value: object) -> ClientSettings:
    settings = _table(value, "settings of the schema registry's client")
    if "url" in settings:
        raise ValueError("url belongs to the framework: use schema_registry_url")
    return settings


def _address(value: str) -> str:
    for part in value.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{part.strip()!r} is not host:port")
    return value


def _http_address(value: str) -> str:
    """Checks host:port of this machine; the port may be 0."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{value!r} is not host:port, as in 127.0.0.1:8080")
    return value


Milliseconds = Annotated[int, Field(gt=0)]

STUCK_TIMEOUT_MIN_MS: Final = 1_000
"""The interval at which a process checks whether its workers run turns."""


LIVEZ_TIMEOUT_MIN_MS: Final = 3_000
"""Workers report once a second: with a shorter time-out, workers that make progress would count as not alive."""


Client = Annotated[Mapping[str, Any], PlainValidator(_client_settings), PlainSerializer(repr, return_type=str)]

RegistryClient = Annotated[
    Mapping[str, Any], PlainValidator(_registry_settings), PlainSerializer(repr, return_type=str)
]

_CLUSTER: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


def _cluster_name(name: str) -> str:
    if not _CLUSTER.fullmatch(name):
        raise ValueError("a cluster's name has a-z, 0-9 and single _ between them")
    return name


class OtherCluster(BaseModel):
    """A cluster to which processors write, besides the one that they read.

    - `bootstrap_servers`: its brokers, as host:port, with commas between them.
    - `kafka`: librdkafka's settings for it; the settings of the first cluster do not apply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    bootstrap_servers: Annotated[str, AfterValidator(_address)]
    kafka: Client = ClientSettings({})


class Settings(BaseModel):
    """All settings. Times are in milliseconds. A setting that is not passed is read from the environment.

    - `bootstrap_servers`: brokers of the cluster, as host:port, with commas between them.
    - `schema_registry_url`: a schema registry with Confluent's API; None keeps schemas in files in `schema_directory`.
    - `schema_registry`: the settings of its client by confluent-kafka's names, such as ssl.ca.location.
    - `schema_directory`: the directory of these files; all workers and readers need the same directory.
    - `state_directory`: the directory in which this machine's workers keep states with `on_disk`.
    - `auto_offset_reset`: where a processor without committed offsets begins.
    - `commit_interval_ms`: the age of uncommitted steps at which a worker commits; it commits immediately if no record
      comes.
    - `commit_records`: the number of uncommitted steps at which a worker commits.
    - `value_bytes_max`: the maximum size of a value in bytes; a record with a larger one becomes a dead letter unread.
      A worker needs memory for two values of this size, and for the largest batch in the topic, decompressed.
    - `transaction_timeout_ms`: when it has passed, the broker aborts a transaction; it must be longer than the longest
      call of a function.
    - `session_timeout_ms`: when it has passed, the group gives the partitions of a silent worker to others.
    - `request_timeout_ms`: the limit of a request to a broker, retries included.
    - `drain_timeout_ms`: the time from a stop until a worker is given up; it must be longer than the longest call of a
      function.
    - `stuck_timeout_ms`: when it has passed, a worker that runs no turn is replaced; None only warns.
    - `held_timeout_ms`: when it has passed, a warning names the event of `graph.ordered` that still waits for the one
      before it.
    - `leave_on_stop`: workers that stop leave their groups, so that their partitions move immediately. By default a
      slot keeps them for `session_timeout_ms`, so that a restart causes no rebalance.
    - `http`: the host:port at which a run serves /metrics, /livez, /readyz and /status; None for no server.
    - `http_hosts`: host names under which these may be requested, with commas between them; `*` for any. The host in
      `http`, localhost, this machine's name and any IP address are always allowed.
    - `http_errors`: /status shows the texts of exceptions, which may quote records; otherwise only their classes.
    - `livez_timeout_ms`: when it has passed, /livez names a worker that runs no turn; by default 30 s, or
      transaction_timeout_ms if that is longer.
    - `tracing`: spans for each step and commit, and `traceparent` in the headers of outputs; needs the extra `otel`.
    - `kafka`: librdkafka's settings by their names, passed to every client.
    - `clusters`: other clusters by name, each an OtherCluster; a topic with `cluster=` is in one of them.

    Raises SettingsError, which names the setting, the place where it is written, and the remedy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    bootstrap_servers: Annotated[str, AfterValidator(_address)] = "127.0.0.1:9092"
    schema_registry_url: (
        Annotated[SecretUrl, BeforeValidator(SecretUrl), PlainSerializer(redact, return_type=str)] | None
    ) = None
    schema_registry: RegistryClient = ClientSettings({})
    schema_directory: Path = user_data_path("kstreams_py") / "schemas"
    state_directory: Path = user_data_path("kstreams_py") / "state"
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    commit_interval_ms: Milliseconds = 100
    commit_records: Annotated[int, Field(gt=0)] = 100_000
    value_bytes_max: Annotated[int, Field(gt=0)] = 64 << 20
    transaction_timeout_ms: Milliseconds = 10_000
    session_timeout_ms: Milliseconds = 15_000
    request_timeout_ms: Milliseconds = 15_000
    drain_timeout_ms: Milliseconds = 10_000
    stuck_timeout_ms: Milliseconds | None = None
    held_timeout_ms: Milliseconds = 60_000
    leave_on_stop: bool = False
    http: Annotated[str, AfterValidator(_http_address)] | None = None
    http_hosts: str = ""
    http_errors: bool = True
    livez_timeout_ms: Annotated[int, Field(ge=LIVEZ_TIMEOUT_MIN_MS)] | None = None
    tracing: bool = False
    kafka: Client = ClientSettings({})
    clusters: Mapping[Annotated[str, AfterValidator(_cluster_name)], OtherCluster] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.commit_interval_ms >= self.transaction_timeout_ms:
            raise ValueError(
                f"commit_interval_ms ({self.commit_interval_ms}) must be below transaction_timeout_ms "
                f"({self.transaction_timeout_ms}), or the broker aborts each transaction before its commit"
            )
        if self.transaction_timeout_ms > self.session_timeout_ms:
            raise ValueError(
                f"transaction_timeout_ms ({self.transaction_timeout_ms}) must not exceed session_timeout_ms "
                f"({self.session_timeout_ms}), or a dead worker's transaction outlives its membership"
            )
        if self.stuck_timeout_ms is not None:
            least = max(STUCK_TIMEOUT_MIN_MS, self.commit_interval_ms)
            if self.stuck_timeout_ms < least:
                raise ValueError(
                    f"stuck_timeout_ms ({self.stuck_timeout_ms}) must be at least {STUCK_TIMEOUT_MIN_MS} and "
                    f"commit_interval_ms ({self.commit_interval_ms}), or workers that make progress count as stuck"
                )
        return self

    # Defined after `_consistent`: a wrap validator encloses the validators that are defined before it.
    @model_validator(mode="wrap")
    @classmethod
    def _from_all_sources(
        cls, arguments: dict[str, Any], construct: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Merges the arguments with the environment and with the file that `load` passes as the context."""
        sources = _sources(info.context, cls.model_fields, arguments)
        try:
            return construct(_merged(*(source.values for source in sources)))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False)
            raise SettingsError("; ".join(_refusal(each, sources, list(cls.model_fields)) for each in found)) from None

    @property
    def livez_seconds(self) -> float:
        """Seconds without a turn after which a worker counts as not alive."""
        return (self.livez_timeout_ms or max(30_000, self.transaction_timeout_ms)) / 1000

    def of_cluster(self, name: str) -> Settings:
        """Returns these settings for another cluster. Raises SettingsError if there is none of this name."""
        if name not in self.clusters:
            close = did_you_mean(name, self.clusters) or f"write [clusters.{name}] with its bootstrap_servers"
            raise SettingsError(f"clusters has no {name!r}, which a topic of the graph names: {close}")
        other = self.clusters[name]
        return self.model_copy(
            update={"bootstrap_servers": other.bootstrap_servers, "kafka": other.kafka, "clusters": {}}
        )

    def as_environment(self) -> dict[str, str]:
        """Returns these settings as the KSTREAMS_* variables of another process, secrets included."""
        plain = [name for name in type(self).model_fields if name not in _TABLES]
        values = {f"KSTREAMS_{name.upper()}": getattr(self, name) for name in plain}
        for cluster, each in self.clusters.items():
            values[f"KSTREAMS_CLUSTERS__{cluster.upper()}__BOOTSTRAP_SERVERS"] = each.bootstrap_servers
        for table, client in self._clients():
            values |= {_client_variable(table, name): value for name, value in client.items()}
        return {name: str(value) for name, value in values.items() if value is not None}

    def secret_variables(self) -> set[str]:
        """Returns the names of the variables of `as_environment` whose values are secrets."""
        found = {
            _client_variable(table, name)
            for table, client in self._clients()
            for name, value in mask(client).items()
            if value != client[name]
        }
        url = self.schema_registry_url
        return found | ({"KSTREAMS_SCHEMA_REGISTRY_URL"} if url and redact(url) != url else set())

    def _clients(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yields the settings of each client, with the name of their table."""
        yield "KAFKA", self.kafka
        yield "SCHEMA_REGISTRY", self.schema_registry
        for name, each in self.clusters.items():
            yield f"CLUSTERS__{name.upper()}__KAFKA", each.kafka

    @classmethod
    def load(cls, file: Path | None = None, **arguments: Any) -> Settings:
        """Reads the settings from arguments, the environment and a file.

        - `file`: the path of a TOML file; None for no file.
        - `arguments`: settings by name; None counts as not passed.

        Raises SettingsError, as Settings() does.
        """
        passed = {name: value for name, value in arguments.items() if value is not None}
        return cls.model_validate(passed, context=None if file is None else _File(file, _read(file)))


class ShownSetting(NamedTuple):
    """A setting as `kstreams config show` prints it: secrets are ***; `origin` says where its value is written."""

    name: str
    value: str
    origin: str


def explain(file: Path | None = None, **arguments: Any) -> list[ShownSetting]:
    """Returns each setting with its value and its origin; client settings one by one, as `kafka.<name>`.

    Takes the same parameters, and raises the same errors, as Settings.load.
    """
    passed = {name: value for name, value in arguments.items() if value is not None}
    found = None if file is None else _File(file, _read(file))  # read once: a pipe is empty afterwards
    settings = Settings.model_validate(passed, context=found)
    sources = _sources(found, Settings.model_fields, passed)
    shown = settings.model_dump(mode="json", exclude={*_TABLES})
    values = {name: "not set" if value in (None, "") else _text(value) for name, value in shown.items()}
    values |= {f"kafka.{name}": value for name, value in mask(settings.kafka).items()}
    values |= {f"schema_registry.{name}": value for name, value in mask(settings.schema_registry).items()}
    for cluster, each in settings.clusters.items():
        values[f"clusters.{cluster}.bootstrap_servers"] = each.bootstrap_servers
        values |= {f"clusters.{cluster}.kafka.{name}": value for name, value in mask(each.kafka).items()}
    return [ShownSetting(name, value, _origin(name, sources) or "default") for name, value in values.items()]


class _File(NamedTuple):
    """A settings file, as it was read."""

    path: Path
    text: str


class _Source(NamedTuple):
    """The settings of one source; `place` returns where one of them is written in it."""

    values: Mapping[str, Any]
    place: Callable[[str], str]

    def has(self, name: str) -> bool:
        """Returns whether the source has a setting, which may be `kafka.<name>` or `clusters.<cluster>.<name>`."""
        table, dot, rest = name.partition(".")
        if not dot:
            return table in self.values
        found = self.values.get(table)
        return isinstance(found, Mapping) and _canonical(rest) in ClientSettings(found)


def _sources(file: _File | None, fields: Collection[str], arguments: Mapping[str, Any]) -> list[_Source]:
    """Returns all sources; the last one that has a setting wins."""
    check_variables(fields)
    return [
        _Source({} if file is None else _parsed(*file), lambda name: "" if file is None else _place(*file, name)),
        _Source(_environment(fields), _variable),
        _Source(arguments, lambda _: "argument"),
    ]


def _origin(name: str, sources: Iterable[_Source]) -> str:
    """Returns the place where the value of a setting is written; "" for a default."""
    return next((source.place(name) for source in reversed(list(sources)) if source.has(name)), "")


def _variable(name: str) -> str:
    """Returns the environment variable of a setting."""
    table, dot, rest = name.partition(".")
    if table == "clusters" and dot:
        cluster, _, rest = rest.partition(".")
        rest = f"{cluster}__{rest.replace('kafka.', 'kafka__', 1)}"
    single = f"KSTREAMS_{table}__{rest}".upper().replace(".", "_")
    return single if dot and single in map(str.upper, os.environ) else f"KSTREAMS_{table.upper()}"


def _place(file: Path, text: str, name: str) -> str:
    """Returns the file, with the line and the table where a setting is written, if that is found."""
    wanted, table = _canonical(name), ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = header[1].strip() + "."
            if _canonical(header[1]) == wanted:
                return f"{file}, line {number}"
        elif found := re.match(r"\s*([^=#]+?)\s*=", line):
            written = _canonical(table + found[1]) + "."
            if written.startswith(f"{wanted}.") or (f"{wanted}.".startswith(written) and "{" in line):
                return f"{file}, line {number}" + (f", table [{table[:-1]}]" if table else "")
    return str(file)


def _canonical(name: str) -> str:
    """Returns a dotted name of TOML without quotes, in the form in which client settings are compared."""
    return re.sub(r"[\"'\s]", "", name).lower().replace("_", ".")


_REMEDIES: Final = {
    "int": "write an integer",
    "greater_than": "write an integer greater than {gt}",
    "literal_error": "write {expected}",
    "bool": "write true or false",
    "string_type": "write a string, in quotes",
    "path_type": "write a path, in quotes",
}
"""What to do about an error of pydantic, by its type or the first word of its type."""

_OF_CLUSTERS: Final = {
    "missing": "write it",
    "extra_forbidden": "there is no such setting: a cluster has bootstrap_servers and kafka",
    "dict_type": "write a table for each cluster, such as [clusters.west]",
    "mapping_type": "write a table for each cluster, such as [clusters.west]",
    "model_type": "write a table with bootstrap_servers",
}
"""The same for the settings of other clusters."""


def _refusal(error: ErrorDetails, sources: Sequence[_Source], fields: Sequence[str]) -> str:
    """Returns a message for an error of pydantic: the setting, its value, where it is written, and the remedy."""
    kind, text = error["type"], error["msg"].removeprefix("Value error, ")
    if not error["loc"]:  # a contradiction: its text names the settings and their values
        named = [(name, _origin(name, sources)) for name in fields if re.search(rf"\b{name}\b", text)]
        written = "; ".join(f"{name}: {origin}" for name, origin in named if origin)
        return f"{text} ({written})" if written else text
    name = str(error["loc"][0])
    if name == "clusters":
        full = ".".join(str(part) for part in error["loc"] if part != "[key]")
        return f"{full} ({_origin(full, sources) or _origin(name, sources)}): {_OF_CLUSTERS.get(kind, text)}"
    if kind == "extra_forbidden":
        of_client = any(isinstance(source.values.get(name), Mapping) for source in sources) or "." in name
        more = "; librdkafka's settings belong under [kafka]" if of_client else ""
        return (
            f"{name} ({_origin(name, sources)}): there is no such setting: "
            f"{did_you_mean(name, fields) or '`kstreams config show` lists all'}{more}"
        )
    if name in _OF_CLIENTS:
        client = text.partition(" ")[0]
        full = f"{name}.{client}" if client in {*OWNED, "url"} else name
        return f"{full} ({_origin(full, sources)}): {text}"
    remedy = _REMEDIES.get(kind) or _REMEDIES.get(kind.partition("_")[0]) or text
    value = next(source.values[name] for source in reversed(sources) if source.has(name))
    shown = f"'{redact(value)}'" if isinstance(value, str) else repr(value)
    return f"{name} = {shown} ({_origin(name, sources)}): {remedy.format(**error.get('ctx', {}))}"


def check_variables(fields: Collection[str] | None = None) -> None:
    """Raises SettingsError for the first KSTREAMS_* variable that is neither a setting nor in OTHER_VARIABLES."""
    settings = [f"KSTREAMS_{name.upper()}" for name in fields or Settings.model_fields]
    known = [*settings, *OTHER_VARIABLES]
    for variable in sorted(os.environ):
        name = variable.upper()
        if (
            name.startswith("KSTREAMS_")
            and name not in known
            and not name.startswith(("KSTREAMS_KAFKA__", "KSTREAMS_CLUSTERS__", "KSTREAMS_SCHEMA_REGISTRY__"))
            and not _OF_A_SERVICE.search(name)
        ):
            client = name.removeprefix("KSTREAMS_KAFKA_")
            close = (
                f"did you mean KSTREAMS_KAFKA__{client}?" if client != name else did_you_mean(name, known, "KSTREAMS_")
            )
            raise SettingsError(
                f"{variable} is not a setting of kstreams_py: {close or '`kstreams config show` lists all'} "
                "(correct it, or unset it)"
            )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"settings file {file} does not exist: correct --config") from None
    except OSError as error:
        raise SettingsError(f"settings file {file} cannot be read: {error.strerror}: correct --config") from None
    except ValueError as error:
        raise SettingsError(f"settings file {file} does not parse: {error}") from None


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(f"settings file {file} does not parse: {error}") from None


def _environment(fields: Collection[str]) -> dict[str, Any]:
    """Returns the settings in KSTREAMS_* variables. A table has a variable for each entry, or one for all, as JSON."""
    variables = {name.lower(): value for name, value in os.environ.items()}
    found: dict[str, Any] = {field: variables[name] for field in fields if (name := f"kstreams_{field}") in variables}
    for table in found.keys() & set(_TABLES):
        try:
            found[table] = json.loads(found[table])
        except ValueError:
            raise SettingsError(
                f"KSTREAMS_{table.upper()} does not parse as JSON: correct it, or use KSTREAMS_{_TABLES[table]}"
            ) from None
    kafka: dict[str, Any] = {}
    registry: dict[str, Any] = {}
    clusters: dict[str, Any] = {}
    for name, value in variables.items():
        match name.split("__"):
            case ["kstreams_kafka", *rest] if rest:
                kafka["__".join(rest)] = value
            case ["kstreams_schema_registry", *rest] if rest:
                registry["__".join(rest)] = value
            case ["kstreams_clusters", cluster, "kafka", client]:
                clusters.setdefault(cluster, {}).setdefault("kafka", {})[client] = value
            case ["kstreams_clusters", cluster, *rest] if rest:
                clusters.setdefault(cluster, {})["__".join(rest)] = value
    tables = {"kafka": kafka, "schema_registry": registry, "clusters": clusters}
    return _merged(found, *({table: each} for table, each in tables.items() if each))


def _merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the settings of all sources: the last one that has a setting wins. Tables are merged entry by entry."""
    merged: dict[str, Any] = {}
    for source in sources:
        before = dict(merged)
        merged |= source
        for table in before.keys() & source.keys() & set(_TABLES):
            old, new = before[table], source[table]
            if not isinstance(old, Mapping) or not isinstance(new, Mapping):
                continue
            if table in _OF_CLIENTS:
                merged[table] = {**ClientSettings(old), **ClientSettings(new)}
            else:
                both = {name for name in old.keys() & new.keys() if isinstance(old[name], Mapping)}
                merged[table] = {**old, **new, **{name: _merged(old[name], new[name]) for name in both}}
    return merged


_OF_CLIENTS: Final = ("kafka", "schema_registry")
"""The tables that have the settings of a client."""

_TABLES: Final = {
    "kafka": "KAFKA__<NAME>",
    "schema_registry": "SCHEMA_REGISTRY__<NAME>",
    "clusters": "CLUSTERS__<CLUSTER>__<NAME>",
}
"""The settings that are tables, each with the variable of a single entry."""
