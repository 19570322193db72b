"""quixstreams, exactly-once, in a virtual environment of its own."""

from __future__ import annotations

from quixstreams import Application, State  # type: ignore[import-not-found]
from quixstreams.models.serializers.avro import (  # type: ignore[import-not-found]
    AvroDeserializer,
    AvroSerializer,
)

from bench.contestants.job import COMMIT_MS, FETCH_BYTES, ORDER, Job, counted, priced

TUNING = {
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": FETCH_BYTES,
    "queued.min.messages": 500_000,
}


def count(value: bytes, state: State) -> bytes:
    """Counts the records of each key, in the store of quixstreams, which is RocksDB."""
    new = counted(value, state.get_bytes("value"))
    state.set_bytes("value", new)
    return new


def main() -> None:
    """Runs until SIGTERM."""
    job = Job.from_environment()
    app = Application(
        broker_address=job.bootstrap,
        consumer_group=job.group,
        auto_offset_reset="earliest",
        commit_interval=COMMIT_MS / 1000,
        processing_guarantee="exactly-once" if job.guarantee == "exactly_once" else "at-least-once",
        consumer_extra_config={
            **(TUNING if job.tuned else {}),
            **({"session.timeout.ms": job.session_ms} if job.session_ms else {}),
        },
        producer_extra_config={"linger.ms": 20, "queue.buffering.max.messages": 500_000},
        state_dir=job.directory,
        auto_create_topics=job.workload == "count on disk",  # only the changelog is missing
        loglevel="WARNING",
    )
    avro = job.workload == "avro"
    source = app.topic(
        job.inputs[0], key_deserializer="bytes", value_deserializer=AvroDeserializer(ORDER) if avro else "bytes"
    )
    output = app.topic(job.output, key_serializer="bytes", value_serializer=AvroSerializer(ORDER) if avro else "bytes")
    frame = app.dataframe(source)
    if avro:
        frame = frame.apply(priced)
    if job.workload == "count on disk":
        frame = frame.apply(count, stateful=True)
    frame.to_topic(output)
    app.run()


if __name__ == "__main__":
    main()
