"""Kafka Streams, from its jars: the class is compiled once, its settings are a file per process."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from bench.contestants.job import COMMIT_MS, FETCH_BYTES, Job
from kstreams_py.errors import MissingSoftware
from kstreams_py.ports import jars

SOURCE: Final = Path(__file__).parent.parent / "streams" / "PassThrough.java"
WANTED: Final = (
    jars.Artifact("org.apache.kafka", "kafka-streams", jars.KAFKA_VERSION),
    jars.Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def classpath() -> str:
    """Jars and compiled class; fetches and compiles what is not cached. Raises MissingSoftware."""
    found = jars.resolve(WANTED, set(), None)  # into the same cache as the broker's jars
    joined = os.pathsep.join(map(str, found))
    made = jars.cache_directory() / "bench" / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as work:
            _compile(joined, Path(work, "classes"))
            Path(work, "classes").rename(made)
    return f"{made}{os.pathsep}{joined}"


def _compile(against: str, into: Path) -> None:
    """With the compiler that PySpark brings along (Janino): a Java runtime has none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingSoftware("PySpark is not installed, and the compiler in it is needed: run scripts/setup")
    compiler = os.pathsep.join(
        str(jar)
        for name in ("janino", "commons-compiler")
        for jar in Path(spec.origin).parent.glob(f"jars/{name}-*.jar")
    )
    into.mkdir()
    command = [str(jars.find_java()), "-cp", compiler, "org.codehaus.commons.compiler.samples.CompilerDemo"]
    done = subprocess.run(
        [*command, "-d", str(into), "-classpath", against, str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode or not (into / "PassThrough.class").exists():
        raise MissingSoftware(f"{SOURCE.name} does not compile: {done.stderr or done.stdout}")


def settings(job: Job) -> dict[str, str]:
    """Kafka Streams' own settings; without `tuned`, its defaults but for the guarantee."""
    chosen = {
        "bootstrap.servers": job.bootstrap,
        "application.id": job.group,
        "client.id": f"{job.group}.{job.slot}",
        "state.dir": str(Path(job.directory, f"streams-{job.slot}")),
        "processing.guarantee": "exactly_once_v2" if job.guarantee == "exactly_once" else "at_least_once",
        "num.stream.threads": "1",
        "auto.offset.reset": "earliest",
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$ByteArraySerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$ByteArraySerde",
    }
    if job.tuned:
        chosen |= {
            "commit.interval.ms": str(COMMIT_MS),
            "max.partition.fetch.bytes": str(FETCH_BYTES),
            "max.poll.records": "10000",
            "producer.batch.size": "1000000",  # what the others have by default; with its own, a tenth to a third less
        }
    if job.session_ms:
        chosen["session.timeout.ms"] = str(job.session_ms)
    return chosen


def command(job: Job) -> list[str]:
    """The command line of one instance."""
    file = Path(job.directory, f"streams-{job.slot}.properties")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings(job).items()))
    return [str(jars.find_java()), "-cp", classpath(), "PassThrough", str(file), job.output, ",".join(job.inputs)]
