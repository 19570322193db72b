"""Which guarantee a processor has."""

from __future__ import annotations

from kstreams_py.graph.declarations import Processor
from kstreams_py.processing.committer import Committer
from kstreams_py.processing.guarantees import COMMITTERS
from kstreams_py.processing.journal.journaled import Journaled


def committer_of(processor: Processor) -> type[Committer]:
    """The guarantee of a processor: with a journal if it has one."""
    return COMMITTERS[processor.guarantee] if processor.journal is None else Journaled
