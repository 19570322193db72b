"""The recovery of a task: whether the last delivery in its journal was committed, and where the task resumes.

The branches are named as in the description of the algorithm. The journal has no record (1a), or its newest record is a
snapshot (1b), the choices of an alts (1c), or an attempt that writes outputs (1d), dead letters (1e) or nothing (1f).
From an attempt the recovery goes back to its snapshot (2). The delivery was committed (3a), or is made again (3b).

The outputs, read back at the places that the attempt names, decide between 3a and 3b. The rest of their transaction
must agree: the committed offsets or, on another cluster, a record of the attempt. In that case the offsets follow in a
transaction of their own. Contradictory evidence is never decided by a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_py.errors import RecoveryUndecidable
from kstreams_py.processing.journal.records import Attempt, OutputPlace, RecordType, Snapshot, Unit
from kstreams_py.processing.tasks.choices import Choices


class OutputFound(StrEnum):
    """What is found at the place of an output."""

    SAME = "is there"
    OTHER = "is not there"
    DELETED = "may be deleted: it is below the first offset of its partition, or its topic is compacted"
    UNDECLARED = "is not looked for: the processor does not write there now"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Where a task resumes.

    - `branch`: the branches of the algorithm, in order.
    - `snapshot`: the snapshot at which the delivery is made again; None to take a new one.
    - `choices`: the choices that an alts follows, except those already delivered; None if it chooses freely.
    - `offsets`: by topic, the offset below which an input must not resume; the committed offset may be lower.
    """

    branch: str
    snapshot: Snapshot | None = None
    choices: Choices | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)


def recover(
    unit: Unit | None,
    committed: Mapping[str, int],
    topic_ids: Mapping[str, str],
    found: Mapping[OutputPlace, OutputFound],
    confirmed: bool | None = None,
) -> Recovery:
    """Decides where a task resumes. Raises RecoveryUndecidable.

    - `unit`: the newest unit in the task's journal.
    - `committed`: the committed offset of each of the task's inputs.
    - `topic_ids`: the current id of each input; "" if the broker has none.
    - `found`: what is found at the places of the attempt's outputs.
    - `confirmed`: whether the record of the attempt, which is written with outputs on another cluster, exists; None
      if the transaction of the outputs has the committed offsets, or there are no outputs.
    """
    if unit is None:
        return Recovery("1a")
    # the offsets of a topic that was created again do not apply to its old records
    committed = {topic: at for topic, at in committed.items() if topic not in _remade(unit, topic_ids)}
    if unit.attempt is None:
        branch = "1b" if unit.choices is None else "1c"
        if not _stands_at(unit.snapshot.offsets, committed):
            raise RecoveryUndecidable(
                f"the newest record is a snapshot at {show(unit.snapshot.offsets)}, and the committed offsets are "
                f"{show(committed)}"
            )
        return _again(unit, branch, topic_ids)
    branch = {RecordType.OUTPUT: "1d", RecordType.ERROR: "1e", RecordType.NIL: "1f"}[unit.attempt.type] + ", 2"
    if _is_committed(unit, unit.attempt, committed, found, confirmed):
        return Recovery(
            f"{branch}, 3a", choices=unit.choices, offsets=_same(unit.attempt, topic_ids) if confirmed else {}
        )
    return _again(unit, f"{branch}, 3b", topic_ids)


def _is_committed(
    unit: Unit,
    attempt: Attempt,
    committed: Mapping[str, int],
    found: Mapping[OutputPlace, OutputFound],
    confirmed: bool | None,
) -> bool:
    """Returns whether an attempt was committed, by its outputs and by the offsets or record committed with them."""
    before, after = unit.snapshot.offsets, attempt.offsets
    moved = all(committed[topic] >= offset for topic, offset in after.items() if topic in committed)
    stayed = _stands_at(before, committed)
    if confirmed is not None:
        # the committed offsets follow later; one input may follow alone while no worker holds the others, as when the
        # inputs of a join gain partitions
        followed = all(
            committed[name] == before.get(name) or committed[name] >= at
            for name, at in after.items()
            if name in committed
        )
        moved, stayed = confirmed and followed, stayed and not confirmed
    outputs = {found[place] for place in attempt.outputs}
    if (
        moved and stayed and outputs <= {OutputFound.SAME}
    ):  # the topics that it read were created again, or are no longer inputs
        return bool(outputs) or attempt.type is RecordType.NIL
    if moved and not stayed and outputs <= {OutputFound.SAME, OutputFound.DELETED, OutputFound.UNDECLARED}:
        return True
    if stayed and OutputFound.UNDECLARED in outputs:
        dropped = {place.topic for place in attempt.outputs if found[place] is OutputFound.UNDECLARED}
        of = f" on cluster {attempt.cluster!r}" if attempt.cluster else ""
        raise RecoveryUndecidable(
            f"a delivery from {show(unit.snapshot.offsets)} to {show(attempt.offsets)} may not be committed, and the "
            f"processor no longer writes to {_names(dropped)}{of}: start it once with the outputs that it had"
        )
    if stayed and attempt.outputs and outputs <= {OutputFound.OTHER, OutputFound.DELETED}:
        return False
    places = "; ".join(f"{place} {found[place]}" for place in attempt.outputs) or "it writes no output"
    raise RecoveryUndecidable(
        f"the newest record is an {attempt.type} from {show(unit.snapshot.offsets)} to {show(attempt.offsets)}, the "
        f"committed offsets are {show(committed)}, {_CONFIRMED[confirmed]}and of its outputs: {places}"
    )


_CONFIRMED: Final = {
    None: "",
    True: "its record is beside its outputs, ",
    False: "its record is not beside its outputs, ",
}


def _stands_at(offsets: Mapping[str, int], committed: Mapping[str, int]) -> bool:
    return all(committed[topic] == offset for topic, offset in offsets.items() if topic in committed)


def _again(unit: Unit, branch: str, topic_ids: Mapping[str, str]) -> Recovery:
    """Returns a recovery that makes the delivery again. Raises RecoveryUndecidable if its inputs have changed."""
    had = {at.topic: at.topic_id for at in unit.snapshot.inputs}
    if had.keys() != topic_ids.keys():
        raise RecoveryUndecidable(
            f"a delivery of {_names(had)} was not committed, and the processor reads {_names(topic_ids)} now: start it "
            "once with the inputs that it had"
        )
    if remade := _remade(unit, topic_ids):
        raise RecoveryUndecidable(
            f"a delivery was not committed, and {_names(remade)} was deleted and created again since"
        )
    return Recovery(branch, unit.snapshot, unit.choices)


def _remade(unit: Unit, topic_ids: Mapping[str, str]) -> list[str]:
    """Returns the inputs that were deleted and created again since the snapshot."""
    had = {at.topic: at.topic_id for at in unit.snapshot.inputs if at.topic_id}
    return [topic for topic, known in had.items() if topic_ids.get(topic, "") not in ("", known)]


def _same(attempt: Attempt, topic_ids: Mapping[str, str]) -> dict[str, int]:
    """Returns the offsets after an attempt, for the inputs that were not created again since."""
    return {at.topic: at.offset for at in attempt.inputs if topic_ids.get(at.topic) == at.topic_id}


def show(offsets: Mapping[str, int]) -> str:
    """Returns offsets by topic, as text."""
    return ", ".join(f"{topic}@{offset}" for topic, offset in sorted(offsets.items())) or "none"


def _names(topics: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(topics)))
