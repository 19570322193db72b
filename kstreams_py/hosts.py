"""Tells whether an HTTP request is for this server, by the host that it names."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_IP_ADDRESS: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]", re.ASCII)


def is_own_host(header: str, own: Collection[str]) -> bool:
    """Returns whether a Host header names this server: an IP address, localhost, or a name in `own` ("*" for any).

    A page of another site can reach a server on the loopback interface by changing the address of its own name (DNS
    rebinding); the browser then sends that name.
    """
    host = re.sub(r":\d*\Z", "", header.strip().lower(), flags=re.ASCII)
    return "*" in own or host in {"localhost", *own} - {""} or bool(_IP_ADDRESS.fullmatch(host))
