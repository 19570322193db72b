"""Which guarantee a processor has, and where its rows are stored."""

from __future__ import annotations

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.committer import Committer
from kstreams_py.processing.guarantees import COMMITTERS
from kstreams_py.processing.storing import AtLeastOnceRows, ExactlyOnceRows, StoredOffsets


def committer_of(processor: Processor) -> type[Committer]:
    """The guarantee of a processor: with rows if it has a target for them."""
    if processor.target is None:
        return COMMITTERS[processor.guarantee]
    if processor.stores_offsets:
        return StoredOffsets
    return ExactlyOnceRows if processor.guarantee is Guarantee.EXACTLY_ONCE else AtLeastOnceRows
