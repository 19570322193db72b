"""Lets one peer read its suspects alone: the peers that read a job's sources agree that all others read nothing.

The inputs of all readers meet at the peers that call functions. If two readers had suspects under way at once, a
suspect that ends a peer would take the other suspect with it, until both were refused. So a reader whose source has
suspects asks all others to read nothing, and reads the suspects once each has answered that none of its inputs is
under way.

Source: G. Ricart and A. K. Agrawala, An Optimal Algorithm for Mutual Exclusion in Computer Networks (1981), with the
order of the readers in place of timestamps: if several ask, the first in this order goes first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple


class ReaderId(NamedTuple):
    """A peer whose task reads a source.

    - `number`: the number of the peer.
    - `since`: the epoch in which it got the task. With a task from a later epoch, it is another reader.
    """

    number: int
    since: int


class Wish(NamedTuple):
    """A message from one reader to another, which replaces the one before.

    - `request`: the number of the sender's request that the receiver read nothing; 0 if the sender has none.
    - `answer`: the number of the receiver's request that the sender grants; 0 for none. A grant means that no input of
      the sender is under way, and that none will be while the receiver has this request.
    """

    request: int = 0
    answer: int = 0


NO_WISH: Final = Wish()

RESEND_SECONDS: Final = 1.0
"""Seconds between two copies of a wish: the first one may come before the receiver knows that it is a reader."""


class Agreement:
    """One reader's part in the agreement. Messages from one reader to another must arrive in order."""

    def __init__(self, me: ReaderId) -> None:
        self.me = me
        self._told: dict[ReaderId, Wish] = {}
        """The other readers of the job, with the newest message to each."""
        self._heard: dict[ReaderId, Wish] = {}
        """The newest message from each other reader that has sent any."""
        self._request, self._requests = 0, 0
        """The number of this reader's request, 0 for none; and how many requests it has made."""
        self._sent_at = float("-inf")

    @property
    def is_alone(self) -> bool:
        """Whether all other readers have granted this reader's request."""
        return bool(self._request) and all(
            self._heard.get(other, NO_WISH).answer == self._request for other in self._told
        )

    @property
    def is_only(self) -> bool:
        """Whether there is no other reader."""
        return not self._told

    @property
    def must_wait(self) -> bool:
        """Whether another reader has a request."""
        return any(wish.request for wish in self._heard.values())

    def keep(self, readers: Collection[ReaderId]) -> None:
        """Takes the readers of the job."""
        self._told = {each: self._told.get(each, NO_WISH) for each in readers if each != self.me}
        self._heard = {each: wish for each, wish in self._heard.items() if each in self._told}

    def take(self, sender: ReaderId, wish: Wish) -> None:
        """Takes a message. Drops the message of a reader that is not known yet: that reader sends another one."""
        if sender in self._told:
            self._heard[sender] = wish

    def turn(
        self, now: float, *, asks: bool, is_empty: bool, unreachable: Collection[int] = ()
    ) -> list[tuple[ReaderId, Wish]]:
        """Returns the messages to send.

        - `asks`: whether suspects of this reader wait, or are under way.
        - `is_empty`: whether no input of this reader is under way.
        - `unreachable`: the numbers of peers that cannot be reached. While another reader is among them, this one asks
          for nothing, because that reader cannot answer. Its requests count as taken back: it could not report that.
        """
        away = {other for other in self._told if other.number in unreachable}
        for other in away:
            self._heard.pop(other, None)
        if not asks or away:
            self._request = 0
        elif not self._request:
            self._ask()
        answers = {other: self._answer(other, told.answer, is_empty=is_empty) for other, told in self._told.items()}
        if self._request and any(answers[other] > told.answer for other, told in self._told.items()):
            self._ask()  # a reader that lets another go first gives up its grants
        wishes = {other: Wish(self._request, answer) for other, answer in answers.items()}
        is_due = now >= self._sent_at + RESEND_SECONDS
        sent = [
            (other, wish)
            for other, wish in wishes.items()
            if wish != self._told[other] or (is_due and wish != NO_WISH and other not in away)
        ]
        self._told = wishes
        if sent:
            self._sent_at = now
        return sent

    def _ask(self) -> None:
        self._requests += 1
        self._request = self._requests

    def _answer(self, other: ReaderId, answered: int, *, is_empty: bool) -> int:
        wanted = self._heard.get(other, NO_WISH).request
        if wanted in (0, answered):  # an answer stands as long as the request
            return wanted
        goes_first = self._request and self.me < other
        return wanted if is_empty and not goes_first else 0
