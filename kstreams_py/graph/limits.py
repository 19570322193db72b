"""What commands cannot do with a processor, and why: replay its dead letters, audit its outputs, cut its topics.

A new kind of processor needs an answer in each of these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from kstreams_py.graph.declarations import Processor


def why_not_replayed(processor: Processor, send_again: str = "send its record again") -> str:
    """Returns why no dead letter of a processor can be replayed, with the remedy; "" if they can.

    - `send_again`: how the record of a dead letter gets to the processor again.
    """
    if processor.cluster:
        return (
            f"its outputs are on cluster {processor.cluster!r}, and no transaction spans them and the marks of what is "
            f"replayed: {send_again}"
        )
    if processor.stores_offsets:
        return (
            f"its processor stores offsets with its rows in {processor.target}, which prove nothing about a single "
            f"step: {send_again}"
        )
    if processor.ordered is not None:
        return (
            "its processor applies events in their order: `kstreams order resume` sends those of a stopped object "
            "again; send another to its topic with its headers"
        )
    if processor.state is not None:
        return f"its processor has state {processor.state.name!r}, which its workers keep: {send_again}"
    return ""


def why_not_audited(processor: Processor) -> str:
    """Returns why a processor cannot be audited, not even in part; "" if it can."""
    has_more = processor.errors is not None or processor.journal is not None
    # dead letters are committed before the offsets that its target stores: a crash in between duplicates them
    return "" if has_more and not processor.stores_offsets else why_not_judged(processor)


def why_not_judged(processor: Processor) -> str:
    """Returns why the outputs of a processor cannot be judged by an audit; "" if they can."""
    if processor.target is not None:
        return f"its rows are in {processor.target}, which has their delivery hashes or offsets"
    if not processor.outputs:
        return "it writes no outputs"
    if not processor.hash_header:
        return "its outputs have no delivery hash (hash_header=False)"
    return ""


def why_not_cut(processor: Processor, names: Sequence[str]) -> str:
    """Returns why a processor's records in these topics do not show their transactions; "" if they do."""
    if processor.cluster:
        return f"its outputs are on cluster {processor.cluster!r}, and its offsets are not in their transactions"
    if processor.journal is not None:
        return "its deliveries are committed by its journal"
    if processor.stores_offsets:
        return f"its offsets are stored in {processor.target}, and its dead letters are committed before them"
    if not processor.hash_header and {topic.name for topic in processor.outputs} & set(names):
        return "its outputs have no delivery hash (hash_header=False)"
    return ""
