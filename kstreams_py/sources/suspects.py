"""Suspects: inputs whose workers died. They are read again in small groups, until the culprit is alone."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from kstreams_py.errors import SettingsError

KeyT = TypeVar("KeyT", bound=Hashable)

DEATHS_MAX: Final = 5
"""An input under way at this many deaths of its worker is not read again; at the last two of them, it was alone."""

GROUPS: Final = {2: 100, 3: 1, 4: 1}
"""How many suspects are read together, by the number of deaths at which they were under way.

The first death says nothing, as many inputs were under way. Each further death leaves fewer suspects. An input is alone
twice, as its worker may die of something else the first time.
"""

SUSPECTED: Final = min(GROUPS)
"""Inputs that were under way at this many deaths are suspects."""

REASON: Final = f"{DEATHS_MAX} times its worker died, or its job failed or lost it, while it was under way"
"""Why a suspect is refused in the end."""

DELETED: Final = "it was deleted before it was processed"
"""Why a deleted input is refused when it is to be read again."""


TURN_MAX: Final = 600.0
"""The longest turn of suspects, in seconds. Their source may then rest for as long, even if the service is back."""


class SuspectTurns:
    """The turns of a reader's suspects: how long they may keep other readers waiting, and then rest for as long.

    Suspects may never end: a function may be called again for as long as a service is away. Each turn is twice as long
    as the one before, so that suspects that need a long time end, too. The turns of other readers prolong the rest,
    because there may be readers without suspects, which wait for all of them.
    """

    def __init__(self, seconds: float) -> None:
        """Begins without a turn. `seconds`: the length of the first one."""
        self._seconds = seconds
        self._rest = 0.0
        self._noted_at = float("-inf")

    def is_over(self, since: float, now: float) -> bool:
        """Returns whether a turn is over. `since`: when its suspects were read."""
        return now >= since + self._seconds

    def end(self) -> None:
        """Ends a turn."""
        self._rest = self._seconds
        self._seconds = max(self._seconds, min(2 * self._seconds, TURN_MAX))

    def note(self, now: float, *, others_wait: bool) -> None:
        """Notes whether suspects of other readers have their turn, or wait for it."""
        if self._rest and not others_wait:
            self._rest = max(0.0, self._rest - (now - self._noted_at))
        self._noted_at = now

    @property
    def is_resting(self) -> bool:
        """Whether the suspects wait for their next turn."""
        return self._rest > 0


class Choice(NamedTuple, Generic[KeyT]):
    """The choice among inputs that are to be read again.

    - `read`: those to read now.
    - `refused`: those not to be read again.
    - `are_suspects`: whether nothing else may be read beside the inputs in `read`.
    - `left`: whether others must wait until nothing is under way.
    """

    read: list[KeyT]
    refused: list[KeyT]
    are_suspects: bool
    left: bool


def has_suspects(deaths: Iterable[int]) -> bool:
    """Returns whether any input is a suspect, judging by its deaths. Nothing else is read beside suspects."""
    return any(count >= SUSPECTED for count in deaths)


def choose(deaths: Mapping[KeyT, int], limit: int, *, alone: bool) -> Choice[KeyT]:
    """Chooses from inputs that are to be read again.

    - `deaths`: for each, how often its worker has died while it was under way.
    - `limit`: how many may be read now.
    - `alone`: nothing is under way.
    """
    refused = [key for key, count in deaths.items() if count >= DEATHS_MAX]
    suspects = {key: count for key, count in deaths.items() if SUSPECTED <= count < DEATHS_MAX}
    if alone and suspects:
        most = max(suspects.values())
        group = [key for key, count in suspects.items() if count == most]
        read = group[: min(limit, GROUPS[most])]
        return Choice(read, refused, are_suspects=True, left=len(read) < len(deaths) - len(refused))
    read = [key for key, count in deaths.items() if count < SUSPECTED][:limit]
    return Choice(read, refused, are_suspects=False, left=bool(suspects))


def check_refused(source: object, refused: Collection[str], keys: Collection[str] | None) -> None:
    """Raises SettingsError for keys of inputs that are not refused.

    - `refused`: the keys of the inputs that are refused.
    - `keys`: None for all of them.
    """
    if missing := [key for key in keys or () if key not in refused]:
        raise SettingsError(
            f"{source}: no input with the key {', '.join(missing)} is refused: `kstreams sources list` has the keys"
        )
