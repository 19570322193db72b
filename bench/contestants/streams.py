"""Kafka Streams, from its jars: compiles the class once, and writes a file of settings for each process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from bench.contestants.job import COMMIT_MS, FETCH_BYTES, Job
from kstreams_py.embedded import jars
from kstreams_py.embedded.downloads import Artifact
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import MissingSoftware

SOURCE: Final = Path(__file__).parent.parent / "streams" / "Contestant.java"
WANTED: Final = (
    Artifact("org.apache.kafka", "kafka-streams", jars.KAFKA_VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def classpath() -> str:
    """Returns jars and compiled class; fetches and compiles what is not cached. Raises MissingSoftware."""
    found = jars.resolve(WANTED, set(), None)  # into the same cache as the broker's jars
    joined = os.pathsep.join(map(str, found))
    classes = jars.cache_directory() / "bench" / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as work:
            _compile(joined, Path(work, "classes"))
            Path(work, "classes").rename(classes)
    return f"{classes}{os.pathsep}{joined}"


def _compile(against: str, into: Path) -> None:
    """Compiles with the Janino that ships with PySpark: a Java runtime has no compiler. Raises MissingSoftware."""
    found = (jar for name in ("janino", "commons-compiler") for jar in jars.pyspark_jars().glob(f"{name}-*.jar"))
    compiler = os.pathsep.join(map(str, found))
    into.mkdir()
    command = [str(find_java()), "-cp", compiler, "org.codehaus.commons.compiler.samples.CompilerDemo"]
    done = subprocess.run(
        [*command, "-d", str(into), "-classpath", against, str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode or not (into / "Contestant.class").exists():
        raise MissingSoftware(f"{SOURCE.name} does not compile: {done.stderr or done.stdout}")


def settings(job: Job) -> dict[str, str]:
    """Returns the settings of Kafka Streams; without `tuned`, its defaults except the guarantee."""
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
            "statestore.cache.max.bytes": str(64 << 20),  # all keys of the workload `count`
            "producer.batch.size": "1000000",  # the others' default; its own costs a tenth to a third of throughput
        }
    if job.session_ms:
        chosen["session.timeout.ms"] = str(job.session_ms)
    return chosen


def command(job: Job) -> list[str]:
    """Writes the file of settings, and returns the command line of one instance."""
    file = Path(job.directory, f"streams-{job.slot}.properties")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings(job).items()))
    arguments = [str(file), job.output, ",".join(job.inputs), job.workload]
    return [str(find_java()), "-cp", classpath(), "Contestant", *arguments]
