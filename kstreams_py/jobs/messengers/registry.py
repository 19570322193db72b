"""The messengers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kstreams_py.errors import MissingSoftware, SettingsError, did_you_mean
from kstreams_py.jobs.messengers.contract import Messenger, MessengerSettings
from kstreams_py.jobs.messengers.inproc import InprocMessenger

MessengerFactory = Callable[[MessengerSettings], Messenger]
"""Makes a messenger and does not start it. Raises SettingsError and MissingSoftware."""


def open_messenger(name: str, settings: MessengerSettings) -> Messenger:
    """Returns the messenger with this name, not started yet.

    Raises SettingsError for a name that is not registered, and MissingSoftware if its extra is not installed.
    """
    if (factory := _factories.get(name)) is None:
        offered = [each for each in _factories if each != "inproc"]  # for tests: it reaches no other process
        similar = did_you_mean(name, offered)
        raise SettingsError(
            f"no messenger is called {name!r}{f': {similar}' if similar else ''}: there are {', '.join(offered)}"
        )
    return factory(settings)


def register_messenger(name: str, factory: MessengerFactory) -> None:
    """Adds a messenger. Raises SettingsError if the name is taken."""
    if name in _factories:
        raise SettingsError(f"a messenger is called {name!r} already: choose another name")
    _factories[name] = factory


def _open_zmq(settings: MessengerSettings) -> Messenger:
    try:
        from kstreams_py.jobs.messengers.zmq import ZmqMessenger  # noqa: PLC0415 of an extra
    except ImportError:
        raise MissingSoftware("the messenger zmq needs pyzmq: pip install 'kstreams_py[peers]'") from None
    return ZmqMessenger(settings)


def _open_http(settings: MessengerSettings) -> Messenger:
    try:
        from kstreams_py.jobs.messengers.http import HttpMessenger  # noqa: PLC0415 of an extra
    except ImportError:
        raise MissingSoftware("the messenger http needs Tornado: pip install 'kstreams_py[http,peers]'") from None
    return HttpMessenger(settings)


_factories: Final[dict[str, MessengerFactory]] = {
    "inproc": InprocMessenger,
    "zmq": _open_zmq,
    "http": _open_http,
}
