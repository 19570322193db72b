"""The Registry contract, on files and over HTTP, and the failures that only one of the two has."""

from __future__ import annotations

import base64
import json
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from kstreams_py.errors import DecodeError, KStreamsError, MissingSoftware, SchemaError, SettingsError, Unavailable
from kstreams_py.formats import registries
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registries import FileRegistry, SchemaRegistry, open_registry
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schemas import canonical, content_id
from kstreams_py.formats.writers import UNKNOWN_MAX, UNKNOWN_SECONDS, Writers

USER = "alice:p@ss,w/rd"
AT_ONCE = {"max.retries": 0, "timeout": 60}
SUBJECT = "departures of to-day/EWR-value"


def flight(**fields: Any) -> str:
    """The text of a record schema; each field is its type, or a tuple of type and default."""
    declared = [
        {"name": n, "type": f[0], "default": f[1]} if isinstance(f, tuple) else {"name": n, "type": f}
        for n, f in fields.items()
    ]
    return canonical({"type": "record", "name": "Flight", "fields": declared})


V1, V2 = flight(number="int"), flight(number="long", gate=("string", "?"))
INCOMPATIBLE = flight(number="int", gate="string")
OTHER = flight(number="string")


class RestServer(ThreadingHTTPServer):
    """A small schema registry for the requests that the client sends, with the status and error codes of the API."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.schemas: list[dict[str, Any]] = []
        self.versions: dict[str, list[int]] = {}
        self.users: set[str] = set()
        self.broken: tuple[int, str] | None = None
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def answer(self, method: str, path: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            match method, path:
                case "POST", ["subjects", subject, "versions"]:
                    return self._register(subject, body)
                case "GET", ["schemas", "ids", schema_id]:
                    if int(schema_id) >= 2**31:  # as a server of Confluent, whose ids are ints of Java
                        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
                    if not 1 <= int(schema_id) <= len(self.schemas):
                        return 404, {"error_code": 40403, "message": "Schema not found"}
                    return 200, self.schemas[int(schema_id) - 1]
                case "GET", ["subjects", subject, "versions"]:
                    if subject not in self.versions:
                        return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                    return 200, list(range(1, len(self.versions[subject]) + 1))
                case "GET", ["subjects", subject, "versions", version] if subject in self.versions:
                    number = self.versions[subject][int(version) - 1]
                    found = {"subject": subject, "version": int(version), "id": number}
                    return 200, found | self.schemas[number - 1]
                case "GET", ["subjects", _, "versions", _]:
                    return 404, {"error_code": 40401, "message": "Subject not found."}
                case _:
                    return 404, "<html>no such page</html>"

    def _register(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            older = [self.schemas[each - 1]["schema"] for each in self.versions.get(subject, [])]
            problems = [unreadable(json.loads(body["schema"]), json.loads(each)) for each in older]
        except SchemaError as error:
            return 422, {"error_code": 42201, "message": str(error)}
        if any(problems):
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
        if body not in self.schemas:
            self.schemas.append(body)
        schema_id = self.schemas.index(body) + 1
        if schema_id not in self.versions.setdefault(subject, []):
            self.versions[subject].append(schema_id)
        return 200, {"id": schema_id}


class _Requests(BaseHTTPRequestHandler):
    server: RestServer

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.server.requests.append(f"{method} {'/'.join(path)}")
        credentials = self.headers.get("Authorization", "").removeprefix("Basic ")
        answer: Any
        if self.server.broken is not None:
            status, answer = self.server.broken
        elif self.server.users and base64.b64decode(credentials).decode() not in self.server.users:
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, answer = self.server.answer(method, path, json.loads(body) if body else {})
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def server() -> Iterator[RestServer]:
    with RestServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def url(server: RestServer, user: str = "") -> str:
    return f"http://{user}127.0.0.1:{server.server_port}"


@pytest.fixture(params=["files", "http"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Registry]:
    """Opens another client of the same registry, as another process does."""
    if request.param == "files":
        return lambda: FileRegistry(tmp_path / "schemas")
    server = request.getfixturevalue("server")
    return lambda: SchemaRegistry(url(server), **AT_ONCE)


def raised_message(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    """Calls a function that must raise exactly `kind`, and returns the message."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)


# The contract.


def test_registry_registered_schema_is_found_by_its_id_in_another_client(open_again: Callable[[], Registry]) -> None:
    schema_id = open_again().register(SUBJECT, V1)
    assert 0 <= schema_id < 2**31
    assert json.loads(open_again().schema(schema_id)) == json.loads(V1)


def test_registry_same_schema_registered_again_keeps_its_id(open_again: Callable[[], Registry]) -> None:
    registry = open_again()
    ids = [registry.register(SUBJECT, V1), registry.register(SUBJECT, V1), open_again().register(SUBJECT, V1)]
    assert (ids, registry.ids(SUBJECT)) == ([ids[0]] * 3, [ids[0]])


def test_registry_same_schema_has_one_id_in_all_subjects(open_again: Callable[[], Registry]) -> None:
    registry = open_again()
    ids = {registry.register(subject, V1) for subject in ("a-value", "a-key", "b-value")}
    assert [registry.ids(subject) for subject in ("a-value", "a-key", "b-value")] == [list(ids)] * 3


def test_registry_subject_has_all_writers_schemas(open_again: Callable[[], Registry]) -> None:
    registry = open_again()
    ids = [registry.register(SUBJECT, V1), registry.register(SUBJECT, V2)]
    registry.register("other-value", INCOMPATIBLE)
    assert open_again().ids(SUBJECT) == sorted(ids)


def test_registry_unknown_subject_has_no_schemas(open_again: Callable[[], Registry]) -> None:
    assert open_again().ids("unknown-value") == []


def test_registry_unknown_id_is_a_lookup_error_that_names_the_registry(open_again: Callable[[], Registry]) -> None:
    registry = open_again()
    registry.register(SUBJECT, V1)
    assert raised_message(LookupError, registry.schema, 4711).startswith("id 4711 is not in ")


def test_registry_schema_that_cannot_read_older_ones_is_refused_and_not_kept(
    open_again: Callable[[], Registry],
) -> None:
    registry = open_again()
    schema_id = registry.register(SUBJECT, V1)
    found = raised_message(SchemaError, registry.register, SUBJECT, INCOMPATIBLE)
    assert found.startswith(f"a schema that does not fit subject {SUBJECT!r}: ")
    assert found.endswith("; give each new field a default and only widen types, or write to a new topic")
    assert open_again().ids(SUBJECT) == [schema_id]


def test_registry_schema_that_cannot_read_the_oldest_is_refused(open_again: Callable[[], Registry]) -> None:
    registry = open_again()
    for gate in ("gate", "door", "stand", "belt"):  # so that the ids of old and new are in either order
        number, subject = f"{gate}_number", f"{gate}-value"
        registry.register(subject, flight(**{number: "int"}))
        registry.register(subject, flight(**{number: "int", gate: ("string", "?")}))
        raised_message(SchemaError, registry.register, subject, flight(**{number: "int", gate: "string"}))


def test_registry_serves_a_serde_whose_schema_evolves(open_again: Callable[[], Registry]) -> None:
    old, new = (Avro(json.loads(text)).bind(open_again(), SUBJECT) for text in (V1, V2))
    data = [old.serialize({"number": 1}), new.serialize({"number": 2**40, "gate": "A1"})]
    assert [new.deserialize(each) for each in data if each] == [
        {"number": 1, "gate": "?"},
        {"number": 2**40, "gate": "A1"},
    ]


def test_registry_threads_that_register_at_once_agree(open_again: Callable[[], Registry]) -> None:
    barrier, found = threading.Barrier(8), list[int]()

    def register() -> None:
        registry = open_again()
        barrier.wait(60)
        found.append(registry.register(SUBJECT, V1))

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [found[0]] * 8
    assert open_again().ids(SUBJECT) == [found[0]]


# Files.


def test_files_id_is_made_of_the_schema_however_it_is_written(tmp_path: Path) -> None:
    spread = json.dumps(json.loads(V1), indent=4, sort_keys=False)
    assert FileRegistry(tmp_path / "a").register(SUBJECT, spread) == content_id(V1)
    assert FileRegistry(tmp_path / "b").register("else-value", V1) == content_id(V1)


def test_files_are_one_per_schema_and_one_mark_per_subject(tmp_path: Path) -> None:
    FileRegistry(tmp_path).register("flights-value", V1)
    files = {str(each.relative_to(tmp_path)): each.read_text() for each in tmp_path.rglob("*") if each.is_file()}
    schema_id = content_id(V1)
    assert files == {".lock": "", f"{schema_id}.avsc": V1, f"subjects/flights-value/{schema_id}": ""}


def test_files_of_a_subject_with_any_name_stay_in_the_directory(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / "schemas")
    assert registry.ids("../../up-value") == []
    schema_id = registry.register("../../up-value", V1)
    assert registry.ids("../../up-value") == [schema_id]
    assert [each.name for each in tmp_path.iterdir()] == ["schemas"]
    assert [each.name for each in (tmp_path / "schemas" / "subjects").iterdir()] == ["..%2F..%2Fup-value"]


def test_files_incompatible_schema_is_named_by_field(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    schema_id = registry.register("flights-value", V1)
    assert raised_message(SchemaError, registry.register, "flights-value", INCOMPATIBLE) == (
        f"a schema that does not fit subject 'flights-value': it cannot read what schema {schema_id} wrote, "
        "as Flight.gate is new and has no default; "
        "give each new field a default and only widen types, or write to a new topic"
    )


def _register_in_process(directory: Path, start: Any, answers: Any, text: str) -> None:
    start.wait(30)
    try:
        answers.put(FileRegistry(directory).register("flights-value", text))
    except KStreamsError as error:
        answers.put(type(error).__name__)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([V1, V1], [[content_id(V1), content_id(V1)]]),
        ([V1, OTHER], [["SchemaError", content_id(V1)], ["SchemaError", content_id(OTHER)]]),
    ],
    ids=["the same schema", "schemas that cannot read one another"],
)
def test_files_two_processes_that_register_at_once_agree(
    texts: list[str], expected: list[list[Any]], tmp_path: Path
) -> None:
    forks = multiprocessing.get_context("forkserver")  # of a process without the threads of this one
    forks.set_forkserver_preload([__name__])
    start, answers = forks.Barrier(2), forks.Queue()
    processes = [forks.Process(target=_register_in_process, args=(tmp_path, start, answers, text)) for text in texts]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert sorted(found, key=str) in [sorted(each, key=str) for each in expected]
    assert FileRegistry(tmp_path).ids("flights-value") == sorted({each for each in found if isinstance(each, int)})


def test_files_schema_is_registered_again_after_a_crash_before_its_mark(tmp_path: Path) -> None:
    schema_id = FileRegistry(tmp_path).register("flights-value", V1)
    (tmp_path / "subjects" / "flights-value" / str(schema_id)).unlink()
    (tmp_path / f"{schema_id}.avsc.new").write_text("half a sche")
    registry = FileRegistry(tmp_path)
    assert registry.ids("flights-value") == []
    assert registry.register("flights-value", V1) == schema_id
    assert registry.ids("flights-value") == [schema_id]


def test_files_unknown_id_says_which_directory_to_share(tmp_path: Path) -> None:
    expected = f"id 7 is not in {tmp_path}: share that directory with the writer, or set schema_registry_url"
    assert raised_message(LookupError, FileRegistry(tmp_path).schema, 7) == expected


def test_files_schema_changed_by_hand_is_refused(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    schema_id = registry.register("flights-value", V1)
    file = tmp_path / f"{schema_id}.avsc"
    file.write_text(V2)
    expected = f"schema file {file} was changed: restore it: its id is the hash of its text"
    assert raised_message(SchemaError, registry.schema, schema_id) == expected
    assert raised_message(SchemaError, registry.register, "flights-value", V1) == expected
    assert raised_message(SchemaError, registry.register, "flights-value", V2) == expected


def test_files_schema_deleted_by_hand_is_reported(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    schema_id = registry.register("flights-value", V1)
    (tmp_path / f"{schema_id}.avsc").unlink()
    assert raised_message(SchemaError, registry.register, "flights-value", V2) == (
        f"no schema can be added to subject 'flights-value': id {schema_id} is not in {tmp_path}: "
        "share that directory with the writer, or set schema_registry_url"
    )


def test_files_second_schema_with_the_same_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "content_id", lambda text: 7)
    registry = FileRegistry(tmp_path)
    assert registry.register("flights-value", V1) == 7
    for subject in ("flights-value", "other-value"):
        assert raised_message(SchemaError, registry.register, subject, V2) == (
            f"id 7 is that of another schema in {tmp_path}: change any doc in the new one"
        )


def test_files_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "schemas"
    registry = FileRegistry(directory)
    assert raised_message(Unavailable, registry.register, SUBJECT, V1).startswith(
        f"schema directory {directory} cannot be written: [Errno 20] Not a directory"
    )
    assert raised_message(Unavailable, registry.schema, 7).startswith(
        f"schema file {directory}/7.avsc cannot be read: "
    )
    assert raised_message(Unavailable, registry.ids, SUBJECT).startswith(
        f"schema directory {directory} cannot be read: "
    )


def test_files_directory_that_another_process_keeps_locked_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_LOCK_SECONDS_MAX", 0.05)
    registry = FileRegistry(tmp_path)
    registry.register("other-value", V1)
    with registry._locked():
        assert raised_message(Unavailable, registry.register, "flights-value", V1) == (
            f"schema directory {tmp_path} cannot be written: another process has held {tmp_path}/.lock for too long"
        )
        assert registry.register("other-value", V1) == content_id(V1)
    assert registry.register("flights-value", V1) == content_id(V1)


# HTTP.


def test_http_schema_is_requested_once(server: RestServer) -> None:
    serde = Avro(json.loads(V1)).bind(SchemaRegistry(url(server), **AT_ONCE), "flights-value")
    data = [serde.serialize({"number": n}) for n in range(3)]
    reader = Avro(json.loads(V1)).bind(SchemaRegistry(url(server), **AT_ONCE), "flights-value")
    assert [reader.deserialize(each) for each in data if each] == [{"number": n} for n in range(3)]
    assert server.requests == ["POST subjects/flights-value/versions", "GET schemas/ids/1"]


def test_http_user_in_the_address_is_sent_and_never_shown(server: RestServer) -> None:
    server.users = {USER}
    address = url(server, "alice:p%40ss%2Cw%2Frd@")
    registry = SchemaRegistry(address, **AT_ONCE)
    assert registry.register("flights-value", V1) == 1
    server.users = {"bob:other"}
    found = [
        raised_message(Unavailable, SchemaRegistry(address, **AT_ONCE).schema, 1),
        repr(registry),
        str(vars(registry)),
    ]
    assert found[0] == f"the schema registry at {url(server)} refuses the credentials (401): correct them"
    assert [each for each in found if "alice" in each or "p@ss" in each or "p%40" in each] == []


def test_http_user_in_the_settings_is_sent(server: RestServer) -> None:
    server.users = {"key:secret"}
    registry = SchemaRegistry(url(server), **AT_ONCE, **{"basic.auth.user.info": "key:secret"})
    assert registry.register("flights-value", V1) == 1


def test_http_user_without_a_password_is_sent(server: RestServer) -> None:
    server.users = {"token:"}
    assert SchemaRegistry(url(server, "token@"), **AT_ONCE).register("flights-value", V1) == 1


def test_http_second_address_is_used_when_the_first_does_not_answer(server: RestServer) -> None:
    server.users = {USER}
    user = "alice:p%40ss%2Cw%2Frd@"
    registry = SchemaRegistry(f"http://{user}127.0.0.1:9,{url(server, user)}", **AT_ONCE)
    assert registry.register("flights-value", V1) == 1


def test_http_registry_that_does_not_answer_is_unavailable_without_its_password() -> None:
    registry = SchemaRegistry("http://alice:secret@127.0.0.1:9", **AT_ONCE)
    for call, argument in ((registry.schema, 1), (registry.ids, SUBJECT)):
        found = raised_message(Unavailable, call, argument)
        assert found.startswith(
            "no answer from the schema registry at http://127.0.0.1:9: start it, or correct schema_registry_url ("
        )
        assert "secret" not in found


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (404, "<html>", "answers with status 404: Unknown Schema Registry Error: b'<html>'"),
        (404, '{"message": "HTTP 404 Not Found", "error_code": 404}', "answers with status 404: HTTP 404 Not Found"),
        (403, '{"message": "no", "error_code": 40301}', "refuses the credentials (403): correct them"),
        (500, '{"message": "out of order", "error_code": 50001}', "answers with status 500: out of order"),
    ],
)
def test_http_error_status_is_unavailable_and_not_an_unknown_schema(
    server: RestServer, status: int, answer: str, expected: str
) -> None:
    server.broken = (status, answer)
    registry = SchemaRegistry(url(server), **AT_ONCE)
    assert raised_message(Unavailable, registry.schema, 1) == f"the schema registry at {url(server)} {expected}"
    assert raised_message(Unavailable, registry.ids, SUBJECT) == f"the schema registry at {url(server)} {expected}"


def test_http_answer_that_is_not_json_is_unavailable(server: RestServer) -> None:
    server.broken = (200, "<html>welcome</html>")
    found = raised_message(Unavailable, SchemaRegistry(url(server), **AT_ONCE).schema, 1)
    assert found.startswith(f"no answer from the schema registry at {url(server)}: ")


def test_http_schema_that_the_registry_refuses_is_a_schema_error(server: RestServer) -> None:
    server.broken = (422, '{"message": "Invalid schema", "error_code": 42201}')
    found = raised_message(SchemaError, SchemaRegistry(url(server), **AT_ONCE).register, "flights-value", V1)
    assert (
        found == f"the schema registry at {url(server)} refuses the schema of subject 'flights-value': Invalid schema"
    )


def test_http_schema_of_another_kind_is_a_lookup_error(server: RestServer) -> None:
    server.schemas.append({"schema": "message Flight {}", "schemaType": "PROTOBUF"})
    found = raised_message(LookupError, SchemaRegistry(url(server), **AT_ONCE).schema, 1)
    assert found == f"id 1 in the schema registry at {url(server)} is PROTOBUF, not Avro"


def test_http_references_of_a_schema_are_resolved(server: RestServer) -> None:
    gate = {"type": "enum", "name": "Gate", "symbols": ["A1", "B2"]}
    plane = {"type": "record", "name": "Plane", "namespace": "air", "fields": [{"name": "number", "type": "int"}]}
    fleet = {
        "type": "record",
        "name": "air.Fleet",
        "fields": [{"name": "planes", "type": {"type": "map", "values": "Plane"}}],
    }
    fields = [("fleet", "Fleet"), ("spare", ["null", "Plane"]), ("gate", {"type": "Gate"}), ("at", "air.Plane")]
    flight = {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    gate["namespace"] = "air"
    of_plane = {"name": "air.Plane", "subject": "plane", "version": 1}
    server.schemas = [
        {"schema": json.dumps(gate)},
        {"schema": json.dumps(plane)},
        {"schema": json.dumps(fleet), "references": [of_plane]},
        {
            "schema": json.dumps(flight),
            "references": [
                {"name": "air.Gate", "subject": "gate", "version": 1},
                {"name": "air.Fleet", "subject": "fleet", "version": 1},
                of_plane,
            ],
        },
        {"schema": json.dumps(flight), "references": [{"name": "air.Gate", "subject": "lost", "version": 1}]},
        {"schema": "[[", "references": [of_plane]},
    ]
    server.versions = {"gate": [1], "plane": [2], "fleet": [3], "flight-value": [4, 5, 6]}
    registry = SchemaRegistry(url(server), **AT_ONCE)
    whole = {
        **flight,
        "fields": [
            {
                "name": "fleet",
                "type": {**fleet, "fields": [{"name": "planes", "type": {"type": "map", "values": plane}}]},
            },
            {"name": "spare", "type": ["null", "air.Plane"]},
            {"name": "gate", "type": gate},
            {"name": "at", "type": "air.Plane"},
        ],
    }
    value = {"fleet": {"planes": {"a": {"number": 1}}}, "spare": None, "gate": "B2", "at": {"number": 2}}
    reader = Avro(whole).bind(registry, "flight-value")
    body = b"\x02\x02a\x02\x00\x00\x02\x04"
    assert reader.deserialize(b"\0\0\0\0\4" + body) == value
    assert raised_message(DecodeError, reader.deserialize, b"\0\0\0\0\5" + body) == (
        f"written with an unknown schema: subject lost is not in the schema registry at {url(server)}"
    )
    assert "is not an Avro schema" in raised_message(DecodeError, reader.deserialize, b"\0\0\0\0\6" + body)


def test_http_id_that_is_unknown_or_of_another_topic_is_asked_for_once_a_second(server: RestServer) -> None:
    server.schemas = [{"schema": V1}]
    now = [0.0]
    writers = Writers(SchemaRegistry(url(server), **AT_ONCE), "flights-value", ("Flight", V2), lambda: now[0])
    for _ in range(300):
        assert "id 7 is not in" in raised_message(DecodeError, writers.find, 7)
        assert "not under subject flights-value" in raised_message(DecodeError, writers.find, 1)
    asked = ["GET schemas/ids/7", "GET schemas/ids/1"]
    asked += [f"GET subjects/{each}/versions" for each in ("flights-value", "flights-Flight", "Flight")]
    assert server.requests == asked
    server.versions["flights-value"] = [1]
    now[0] = UNKNOWN_SECONDS
    assert writers.find(1) == json.loads(V1)
    for number in range(UNKNOWN_MAX + 1):
        raised_message(DecodeError, writers.find, 1000 + number)
    assert len(writers._refused) <= UNKNOWN_MAX


def test_http_id_that_the_registry_fails_at_is_a_decode_error_of_its_record(server: RestServer) -> None:
    reader = Avro(json.loads(V1)).bind(SchemaRegistry(url(server), **AT_ONCE), "flights-value")
    found = raised_message(DecodeError, reader.deserialize, b"\0\xff\xff\xff\xff\2")
    assert found.startswith("written with schema 4294967295, which is not under subject flights-value")
    server.broken = (500, "{}")
    raised_message(Unavailable, reader.deserialize, b"\0\0\0\0\1\2")


@pytest.mark.parametrize(
    "address",
    [
        "localhost:8081",
        "ftp://localhost",
        "http://",
        "http://alice:pa/ss@localhost:8081",
        "http://alice:pa,ss@localhost:8081",
        "http://alice:pa#ss@localhost:8081",
        "http://alice:pass@[localhost:8081",
        "",
    ],
)
def test_http_malformed_address_is_refused_and_not_shown(address: str) -> None:
    assert raised_message(SettingsError, SchemaRegistry, address) == (
        "schema_registry_url needs a URL such as http://user:password@host:port: in the user and password, write / ? # "
        ", @ as %2F %3F %23 %2C %40; elsewhere, write @ as %40"
    )


def test_http_setting_that_is_wrong_is_named() -> None:
    with pytest.raises(SettingsError) as caught:
        SchemaRegistry("http://127.0.0.1:9", **{"no.such": 1})
    assert str(caught.value) == "schema registry at http://127.0.0.1:9: Unrecognized properties: no.such"


def test_http_without_the_extra_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    assert raised_message(MissingSoftware, SchemaRegistry, "http://127.0.0.1:9") == (
        "schema_registry_url needs the package 'confluent_kafka.schema_registry': pip install 'kstreams_py[registry]'"
    )


def test_open_registry_uses_the_address_if_given_else_the_directory(tmp_path: Path) -> None:
    found = [open_registry(None, tmp_path, {}), open_registry("http://127.0.0.1:9", tmp_path, {"timeout": "2.5"})]
    assert [type(each) for each in found] == [FileRegistry, SchemaRegistry]
