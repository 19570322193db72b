"""Reads `--slot`: a slot number, or `auto`, which takes the number from the environment of the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kstreams_py.errors import SettingsError

AUTO: Final = "auto"

SLOT: Final = "KSTREAMS_SLOT"
"""The environment variable that gives `--slot auto` its number."""

_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)

_POD: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?-(?P<ordinal>0|[1-9]\d{0,3})", re.ASCII)
"""A StatefulSet's pod name, `name-3`: at most 4 digits, because a Deployment's pod name may end with 5 digits."""


def slot_number(text: str, environment: Mapping[str, str], host: str) -> int:
    """Returns the slot that `--slot` names.

    - `text`: a number; or `auto`, for the number in KSTREAMS_SLOT or else the ordinal of the pod: 3 for `name-3`.
    - `environment`: the environment variables of the process; HOSTNAME takes precedence over `host`.
    - `host`: the name of this host; in a pod, the name of the pod.

    Raises SettingsError if it finds no number.
    """
    if text != AUTO:
        if not _NUMBER.fullmatch(text):
            raise SettingsError(f"--slot {text!r} is not a slot: write 0 or a higher number, or {AUTO}")
        return int(text)
    named = environment.get(SLOT)
    if named is not None:
        if not _NUMBER.fullmatch(named):
            raise SettingsError(f"{SLOT}={named!r} is not a slot: set 0 or a higher number")
        return int(named)
    name = environment.get("HOSTNAME") or host
    pod = _POD.fullmatch(name.partition(".")[0])
    if pod is None:
        raise SettingsError(
            f"--slot {AUTO} found no number: {SLOT} is not set, and the host name {name!r} is not the name of a "
            f"StatefulSet's pod, such as shop-3: set {SLOT}, or give --slot a number"
        )
    return int(pod["ordinal"])
