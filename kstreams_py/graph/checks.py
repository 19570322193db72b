"""Refuses wrong declarations: each check raises GraphError, which names the thing and the remedy.

`what` names the declared thing in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, TypeVar

from typing_extensions import TypeIs

from kstreams_py.errors import GraphError, did_you_mean
from kstreams_py.formats.serdes import Serde
from kstreams_py.graph.declarations import (
    Classes,
    Journal,
    Options,
    Order,
    Processor,
    Routing,
    Start,
    State,
    Topic,
    dead_letters,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.names import RESERVED
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.sink import Evidence, Sink

Choice = TypeVar("Choice", Guarantee, Durability, Order, Routing, Start)

CONCURRENCY_MAX: Final = 10_000
"""The maximum number of concurrent calls: each call of a plain function has a thread."""

_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_GRAPH_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,100}\Z")  # directories get this name
_PROCESSOR_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,100}\Z")


def check_graph_name(what: str, name: str) -> None:
    if not _GRAPH_NAME.match(name):
        raise GraphError(f"{what}: this name is not usable: use 1 to 100 of a-z A-Z 0-9 . _ -, not . or .. alone")


def check_topic_name(name: str) -> None:
    if not isinstance(name, str) or not _TOPIC_NAME.match(name):
        raise GraphError(f"topic name {name!r} is not usable: use 1 to 249 of a-z A-Z 0-9 . _ -, not . or .. alone")
    if name.startswith(RESERVED):
        raise GraphError(
            f"topic name {name!r} is reserved: names that start with {RESERVED} are the system's own: "
            "choose another one"
        )


_SERDES: Final[dict[Any, str]] = {
    str: "ks.String()", bytes: "ks.Bytes()", dict: "ks.Json()", list: "ks.Json()", int: "ks.Json()", float: "ks.Json()",
}  # fmt: skip
"""The serde of a Python type."""

_ANY_SERDE: Final = "ks.Json(), ks.String(), ks.Bytes() or ks.Avro(...), a serde that makes bytes of the values"


def check_serdes(what: str, key: Serde, value: Serde) -> None:
    for role, serde in (("key", key), ("value", value)):
        if isinstance(serde, type):
            own = "ks." if serde.__module__.startswith("kstreams_py.") else ""
            write = f"{own}{serde.__name__}()" if hasattr(serde, "serialize") else _SERDES.get(serde, _ANY_SERDE)
            raise GraphError(f"{what}: {role} is the class {serde.__name__}: write {role}={write}")
        if not callable(getattr(serde, "serialize", None)) or not callable(getattr(serde, "deserialize", None)):
            write = next((each for each in _SERDES.values() if each.lower() == f"ks.{serde}()".lower()), _ANY_SERDE)
            raise GraphError(f"{what}: {role}={serde!r} is not a serde: write {role}={write}")


def check_topic(topic: Topic) -> None:
    check_serdes(f"topic {topic.name!r}", topic.key, topic.value)
    for role, number in (("partitions", topic.partitions), ("replication", topic.replication)):
        if number is not None and number < 1:
            raise GraphError(f"topic {topic.name!r}: {role} is {number}: give 1 or more, or leave it out")


def check_join(by: str | None) -> None:
    """Refuses a join by anything but order, and a join that does not say how its inputs are joined."""
    if by == "order":
        return
    pairs = "write by='order', which pairs the n-th records of a partition, whatever their keys"
    if by is None:
        raise GraphError(f"a join does not say how its inputs are joined: {pairs}")
    raise GraphError(f"a join by {by!r} is not built: {pairs}, or join by a state, graph.alts(..., state=...)")


def check_dead_letters(topic: Topic) -> None:
    """Refuses a dead-letter topic whose value serde is not the serde of dead letters."""
    if topic.value is not dead_letters():
        raise GraphError(
            f"topic {topic.name!r} takes dead letters, which have a schema of their own: declare it with "
            "value=ks.dead_letters(), or after the errors= that names it, or not at all: graph.topics has it"
        )


def choose(what: str, choices: type[Choice], role: str, choice: str) -> Choice:
    """Returns the member of `choices` with this name. Raises GraphError. `role`: the name of the option."""
    try:
        return choices(choice)
    except ValueError:
        close = did_you_mean(str(choice), choices) or f"choose {', '.join(choices)}"
        raise GraphError(f"{what}: {role} {choice!r} is not known: {close}") from None


def list_exceptions(what: str, stop_on: Classes) -> tuple[type[BaseException], ...]:
    """Returns the exception classes of the option `stop_on`, which takes one or several."""
    classes = tuple(stop_on) if isinstance(stop_on, Iterable) else (stop_on,)
    for each in classes:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise GraphError(f"{what}: stop_on has {each!r}: give exception classes")
    return classes


def check_retry(what: str, retry: object) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise GraphError(f"{what}: retry is {retry!r}: give Retry(...), or None for no retries")
    return retry


def choose_journal(what: str, persistence: object, writes: Sequence[Topic]) -> Journal | None:
    """Returns the journal of the option `persistence`; None for "transaction".

    Without the option (None), a processor has a journal if its outputs are on another cluster.
    """
    elsewhere = next((topic for topic in writes if topic.cluster), None)
    if isinstance(persistence, Journal):
        return persistence
    if persistence == "journal" or (persistence is None and elsewhere is not None):
        return Journal()
    if persistence not in ("transaction", None):
        raise GraphError(
            f"{what}: persistence {persistence!r} is not known: choose 'transaction', 'journal' or Journal(batch=...)"
        )
    if elsewhere is not None:
        raise GraphError(
            f"{what} writes to {elsewhere.name!r} on cluster {elsewhere.cluster!r}, and no transaction spans two "
            "clusters: leave persistence out, or give it 'journal'"
        )
    return None


def check_clusters(processor: Processor, topics: Mapping[str, Topic]) -> None:
    """Refuses topics on clusters that no transaction of this processor spans. `topics`: the topics of its graph."""
    what, cluster = f"processor {processor.id!r}", processor.cluster
    if foreign := next((topic for topic in processor.inputs if topic.cluster), None):
        raise GraphError(
            f"{what} reads {foreign.name!r} on cluster {foreign.cluster!r}, where it can only write: read the topic in "
            "another graph, run with that cluster's bootstrap_servers"
        )
    if other := next((topic for topic in processor.outputs if topic.cluster != cluster), None):
        raise GraphError(
            f"{what} writes to {_show_cluster(cluster)} and, with {other.name!r}, to {_show_cluster(other.cluster)}, "
            "and no transaction spans both: write to one of them, and let another processor write to the other"
        )
    if cluster and not processor.guarantee.is_transactional:
        raise GraphError(
            f"{what} is {processor.guarantee} and writes to {_show_cluster(cluster)}: give it guarantee exactly_once, "
            "which goes through a journal there"
        )
    if processor.errors is None:
        return
    known = topics.get(processor.errors)
    if known is not None and (place := known.cluster) != cluster:
        raise GraphError(
            f"{what} writes to {_show_cluster(cluster)} and its dead letters, {processor.errors!r}, to "
            f"{_show_cluster(place)}, and no transaction spans both: give it errors=None, or the name of another "
            "topic, which is then on the cluster of its outputs"
        )


def _show_cluster(name: str) -> str:
    return f"cluster {name!r}" if name else "the graph's own cluster"


def check_journal(processor: Processor) -> None:
    """Refuses a journal that could not tell whether a delivery was committed."""
    what = f"processor {processor.id!r} has a journal"
    if processor.journal is None:
        return
    if not processor.guarantee.is_transactional:
        raise GraphError(
            f"{what} and is {processor.guarantee}, which commits outputs and offsets apart: give it "
            "persistence='transaction', or guarantee exactly_once"
        )
    if processor.target is not None:
        raise GraphError(
            f"{what} and stores rows in {processor.target}, which keeps evidence of its own: give it "
            "persistence='transaction'"
        )
    if processor.overlaps:
        raise GraphError(
            f"{what} and calls that overlap, which do not end in the order in which they are recorded: give it "
            "persistence='transaction', or a plain function without concurrency"
        )
    if processor.outputs and not processor.hash_header:
        raise GraphError(
            f"{what} and outputs without the delivery hash, by which they are recognized: leave hash_header out, "
            "or give it persistence='transaction'"
        )


def check_calls(what: str, concurrency: object) -> int:
    """Returns how many calls may run concurrently. Raises GraphError for a value that is not such a number."""
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise GraphError(f"{what}: concurrency is {concurrency!r}: give a number from 1 to {CONCURRENCY_MAX:,}")
    return concurrency


def check_concurrency(processor: Processor, order: str | None) -> None:
    """Refuses concurrent calls where no order of results keeps the guarantee. `order`: None if not given."""
    what, concurrency = f"processor {processor.id!r}", processor.concurrency
    check_calls(what, concurrency)
    if order is not None and concurrency == 1:
        raise GraphError(f"{what}: order={order!r} is for several calls at once: add concurrency=, or leave it out")
    if concurrency > 1 and processor.batch:
        raise GraphError(f"{what} is a batch, which is one call: leave concurrency out, or batch")
    if processor.order is Order.KEY and processor.joins:
        raise GraphError(f"{what} is a join, whose steps have several keys: choose order 'partition' or 'none'")
    if processor.order is not Order.PARTITION and processor.guarantee.commits_first:
        raise GraphError(
            f"{what} is at_most_once with order '{processor.order}': if a step fails, a step that ran ahead of it "
            "could be neither kept nor repeated: choose order 'partition', or another guarantee"
        )


def check_target(what: str, target: object) -> Sink | None:
    """Returns the target of a sink, or None; raises GraphError for anything else.

    - `target`: the value of the option `to`.
    """
    if target is None or is_target(target):
        return target
    raise GraphError(
        f"{what}: to={target!r} is not a target of a sink: give one of kstreams_py.sinks, or declare it with graph.map "
        "to write to a topic"
    )


def is_target(target: object) -> TypeIs[Sink]:
    """Returns whether this is the declaration of a sink's target."""
    return not isinstance(target, type) and callable(getattr(target, "open", None)) and hasattr(target, "evidence")


def check_stores(processor: Processor) -> None:
    """Refuses a target that could lose rows, or could not tell them apart."""
    target, what = processor.target, f"processor {processor.id!r}"
    if target is None:
        return
    if target.evidence not in tuple(Evidence):
        close = did_you_mean(target.evidence, Evidence) or f"choose {' or '.join(Evidence)}"
        raise GraphError(f"{what} stores rows in {target}: evidence {target.evidence!r} is not known: {close}")
    if not target.columns:
        raise GraphError(f"{what} stores rows in {target}, which has no columns: name at least one")
    if twice := [name for i, name in enumerate(target.columns) if name in target.columns[:i]]:
        raise GraphError(f"{what} stores rows in {target}, which has column {twice[0]!r} twice: name it once")
    if processor.guarantee.commits_first:
        raise GraphError(
            f"{what} is at_most_once and stores rows in {target}: a crash would lose some of them: choose exactly_once"
        )
    if processor.stores_offsets and not processor.guarantee.is_transactional:
        raise GraphError(
            f"{what} is {processor.guarantee}, and the offsets in {target} make it exactly_once: choose that, or "
            f"evidence '{Evidence.HASH}'"
        )


def name_processor(function: Callable[..., Any], options: Options, kind: str = "processor") -> str:
    """Returns the id of a processor: the option `id`, or the function's name. Refuses options that do not exist.

    `kind`: what messages call it.
    """
    name = options.get("id", getattr(function, "__name__", ""))
    if not _PROCESSOR_ID.match(name):
        raise GraphError(
            f"{kind} {name!r}: this name is not usable: give it an id= of 1 to 100 of a-z A-Z 0-9 _ - "
            "(a dot would run into the graph's name)"
        )
    check_options(f"{kind} {name!r}", options, Options)
    return name


def check_options(what: str, options: Mapping[str, object], known: type) -> None:
    """Refuses options that do not exist. `known`: the TypedDict of the options that exist."""
    names = known.__annotations__
    if unknown := sorted(options.keys() - names.keys()):
        close = did_you_mean(unknown[0], names) or f"choose from {', '.join(names)}"
        raise GraphError(f"{what} has no option {unknown[0]!r}: {close}")


def check_ends(what: str, reads: Sequence[Topic], writes: Sequence[Topic] | None, least: int) -> None:
    """Refuses missing, repeated and circular topics.

    - `writes`: None for a sink.
    - `least`: how many inputs the kind of processor needs.
    """
    if len(reads) < least:
        few = "one topic, and join and alts need two: use graph.map or graph.sink" if reads else "no topic: name one"
        raise GraphError(f"{what} reads {few}")
    if writes is not None and not writes:
        raise GraphError(f"{what} writes no topic: name one in to=, or declare it with graph.sink")
    for role, ends in (("reads", reads), ("writes", writes or ())):
        if twice := [topic for i, topic in enumerate(ends) if topic in ends[:i]]:
            raise GraphError(f"{what} {role} {twice[0].name!r} twice: name it once")
    if both := [topic for topic in writes or () if topic in reads]:
        raise GraphError(f"{what} reads and writes {both[0].name!r}, an endless loop: write to another topic")


def check_dead_letter_loops(processors: Iterable[Processor]) -> None:
    """Refuses dead letters that lead back to a processor that reads them."""
    errors: dict[str, list[str]] = {}
    for processor in processors:
        if processor.errors is not None:
            for topic in processor.inputs:
                errors.setdefault(topic.name, []).append(processor.errors)
    try:
        TopologicalSorter(errors).prepare()
    except CycleError as error:
        raise GraphError(
            f"dead letters form an endless loop, {' -> '.join(reversed(error.args[1]))}: "
            "give a processor that reads them errors=None, or another topic"
        ) from None


def check_state(processor: Processor, others: Iterable[Processor]) -> None:
    """Refuses a state that is not committed in the transaction of its step, or that another processor has too."""
    state, what = processor.state, f"processor {processor.id!r}"
    if state is None:
        return
    if not isinstance(state, State):
        raise GraphError(f"{what}: state is {state!r}: give State(name)")
    what = f"{what} has state {state.name!r}"
    if not isinstance(state.name, str) or not _PROCESSOR_ID.match(state.name):
        raise GraphError(f"{what}: this name is not usable: use 1 to 100 of a-z A-Z 0-9 _ -")
    if other := next((each.id for each in others if each.state is not None and each.state.name == state.name), None):
        raise GraphError(f"{what}, as processor {other!r} has: a state belongs to one processor: choose another name")
    for role, serde in (("key", state.key), ("value", state.value)):
        if isinstance(serde, type) or not callable(getattr(serde, "serialize", None)):
            raise GraphError(f"{what}, whose {role} is {serde!r}: give a serde, such as Json()")
    if (why := _why_not_with_state(processor)) is not None:
        raise GraphError(f"{what} and {why}")


def _why_not_with_state(processor: Processor) -> str | None:
    if not processor.guarantee.is_transactional:
        return (
            f"is {processor.guarantee}: its changes are committed with outputs and offsets, in one transaction: give "
            "it guarantee exactly_once"
        )
    if processor.journal is not None:
        return (
            "a journal, which does not record its changes: give it persistence='transaction', and outputs on the "
            "graph's own cluster"
        )
    if processor.overlaps:
        return (
            "calls that overlap, each of which would see half of what others change: give it a plain function without "
            "concurrency"
        )
    if processor.ordered is not None and (processor.batch or processor.retry is not None):
        option = "batch" if processor.batch else "retry"
        return f"applies events one after the other: leave {option} out"
    if processor.stores_offsets:
        return f"stores its offsets in {processor.target}, apart from its changes: give the target evidence='hash'"
    return None
