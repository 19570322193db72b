"""Whether a record is inside a cut, as an expression on the columns of Spark's Kafka reader, without Python."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kstreams_py.records import HASH_HEADER, PLACE_HEADER
from kstreams_py.spark.cuts import Cut

with suppress(ImportError):
    from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column


def is_inside(cut: Cut, topic: str) -> Column:
    """Returns whether a record of the topic is inside the cut; never null."""
    spans, limits = cut.topic(topic).partitions, cut.limits(topic)
    is_below_end = sf.col("offset") < _by_partition([each.end for each in spans])
    if not limits:
        return is_below_end
    is_settled = sf.col("offset") < _by_partition([each.settled for each in spans])
    known = sf.create_map(*(sf.lit(part) for pair in limits.items() for part in pair))

    def is_before(place: Column) -> Column:
        """Returns whether the step at this place is inside; null if the place belongs to no writer."""
        return sf.substring(place, 9, 8) < sf.try_element_at(known, sf.substring(place, 1, 8))

    # the hash first: a processor of an older release passes on the place of the step before its own
    own, place = header_value(HASH_HEADER), header_value(PLACE_HEADER)
    is_step_inside = sf.coalesce(is_before(own), is_before(place), sf.lit(True))
    # an event that was held: a later record of the same task has released it
    is_same_task = sf.substring(own, 1, 8) == sf.substring(place, 1, 8)
    is_released_later = sf.coalesce(is_same_task & ~is_before(place), sf.lit(False))
    return is_settled | (is_below_end & is_step_inside & ~is_released_later)


def header_value(name: str) -> Column:
    """Returns the value of a record's first header of this name; null without one."""
    return sf.get(sf.filter("headers", lambda header: header["key"] == name), sf.lit(0))["value"]


def _by_partition(offsets: Sequence[int]) -> Column:
    """Returns the offset for a record's partition; 0 for a partition that the cut does not have."""
    return sf.coalesce(
        sf.get(sf.array(*(sf.lit(each).cast("bigint") for each in offsets)), sf.col("partition")), sf.lit(0)
    )
