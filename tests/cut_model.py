"""What is inside a cut, record by record: the model of the expression that Spark evaluates."""

from __future__ import annotations

from kstreams_py.graph.hashes import hash_prefix
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Message
from kstreams_py.spark import Cut


def is_inside(cut: Cut, m: Message) -> bool:
    """Whether a committed record is inside the cut."""
    spans = cut.topics[m.topic()].partitions
    if m.partition() >= len(spans) or m.offset() >= spans[m.partition()].end:
        return False
    if m.offset() < spans[m.partition()].settled:
        return True
    committed = {
        hash_prefix(f"{cut.graph}.{writer.processor}", each.topic, each.topic_id, number): offset
        for writer in cut.writers
        if m.topic() in writer.outputs
        for each in writer.inputs
        for number, offset in enumerate(each.offsets)
    }
    headers = dict(m.headers() or ())
    for place in (headers.get(HASH_HEADER), headers.get(PLACE_HEADER)):
        if place is not None and place[:8] in committed:
            return int.from_bytes(place[8:], "big") < committed[place[:8]]
    return True
