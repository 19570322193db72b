"""A graph that runs with --http as a process of its own, and its pages."""

from __future__ import annotations

import http.client
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from kstreams_py.running.http.remedies import REMEDIES, RUNBOOK
from tests.system.command import RunningCommand
from tests.system.harness import wait_until

PAUSE: Final = 0.3
"""Seconds between two looks at a page: the run has to make it, and most findings take seconds."""


class Found(NamedTuple):
    """A finding: its level, its kind, its processor or None, and its text."""

    level: str
    kind: str
    processor: str | None
    what: str


class Site:
    """A graph that runs with --http, and its pages."""

    def __init__(self, running: RunningCommand) -> None:
        running.await_text(r"serving .* at http://\S+")
        found = re.search(r" at http://(\S+)", running.text)
        assert found is not None
        self.running, self.address = running, found[1]

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The sums of a sample over all other labels."""
        found: Counter[tuple[str, ...]] = Counter()
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == f"kstreams_{name}":
                    found[tuple(sample.labels[label] for label in labels)] += sample.value  # type: ignore[assignment]
        return dict(found)

    def await_page(self, path: str, status: int, text: str = "") -> str:
        """Waits for the status of a page, and a match of its text; returns the text."""
        seen: list[tuple[int, str]] = []

        def is_there() -> bool:
            seen[:] = [self.get(path)]
            return seen[0][0] == status and re.search(text, seen[0][1]) is not None

        try:
            wait_until(is_there, f"{path} answers {status} {text!r}", pause=PAUSE)
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}\n{self.running.text}") from None
        return seen[0][1]

    def findings(self) -> list[Found]:
        """What /status finds not well, the worst first; each has the remedy and the section of the table."""
        found = []
        for each in json.loads(self.get("/status")[1])["findings"]:
            general = re.sub(
                r" \S+\.py(:\w+)?( --source \S+ --all)?", "", each["remedy"]
            )  # its commands name the graph
            assert (general, each["runbook"]) == (REMEDIES[each["kind"]], RUNBOOK[each["kind"]])
            found.append(Found(each["level"], each["kind"], each["processor"], each["what"]))
        return found

    def await_findings(self, expected: Mapping[tuple[str, str | None], str]) -> None:
        """Waits until exactly these are found: by kind and processor, the text, as a regular expression."""
        seen: list[Found] = []

        def are_found() -> bool:
            seen[:] = self.findings()
            said = {(each.kind, each.processor): each.what for each in seen}
            return said.keys() == expected.keys() and all(re.search(expected[of], said[of]) for of in expected)

        try:
            wait_until(are_found, f"{expected} is found", pause=PAUSE)
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}\n{self.running.text}") from None

    def await_kinds(self, kinds: set[tuple[str, str | None]]) -> None:
        """Waits until these are among what is found: kind and processor."""
        wait_until(lambda: kinds <= {(each.kind, each.processor) for each in self.findings()}, f"{kinds} are found")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/status")[1])
        return found

    def slot(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["slots"][number]
        return found
