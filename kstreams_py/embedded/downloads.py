"""Fetches jars from a Maven repository, each checked by its checksum; resolves artifacts with `jgo`.

The repository is the first of these that is set: KSTREAMS_MAVEN_REPOSITORY, jgo's own settings file, jgo's default.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kstreams_py.errors import MissingSoftware
from kstreams_py.secrets import redact

if TYPE_CHECKING:
    import requests

Progress = Callable[[str], None]

REPOSITORY: Final = "KSTREAMS_MAVEN_REPOSITORY"
"""The environment variable with the URL of a Maven repository, such as a company's mirror."""

_AT_ONCE: Final = 4
_TIMEOUT: Final = 30.0
"""Seconds without a byte after which a download fails."""

_NETWORK: Final = f"check the network (HTTPS_PROXY; another repository: {REPOSITORY}), then try again"


class Artifact(NamedTuple):
    """The coordinates of a Maven artifact."""

    organisation: str
    name: str
    revision: str

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


class Jar(NamedTuple):
    """A jar, by its path in a Maven repository. If `sha256` is None, the repository's own checksum counts."""

    path: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


def fetch(jars: Sequence[Jar], directory: Path, progress: Progress | None = None) -> None:
    """Downloads jars into a directory; a file whose name ends with `.jar` is complete, and its checksum is right.

    `progress`: called with a line of text for each jar. Raises MissingSoftware, which names the jar and the reason.
    """
    base = repository()
    with _session() as session, ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for jar, wrong in zip(jars, pool.map(lambda jar: _fetch(session, base, jar, directory), jars), strict=True):
                if wrong:
                    raise MissingSoftware(f"could not fetch {jar.name} from {redact(base)}: {wrong}")
                if progress:
                    progress(f"fetched {jar.name}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def repository() -> str:
    """Returns the URL of the Maven repository.

    Raises MissingSoftware if KSTREAMS_MAVEN_REPOSITORY is not an HTTP URL, or if it is not set and jgo is missing.
    """
    if chosen := os.environ.get(REPOSITORY):
        if not chosen.startswith(("http://", "https://")):
            raise MissingSoftware(f"{REPOSITORY}={redact(chosen)} is not a URL that starts with https:// or http://")
        return chosen.rstrip("/")
    _require_jgo()
    from jgo.config import GlobalSettings  # noqa: PLC0415, jgo is optional
    from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415

    return str(next(iter(GlobalSettings.load().repositories.values()), MAVEN_CENTRAL_URL)).rstrip("/")


def resolve(wanted: Iterable[Artifact]) -> list[Jar]:
    """Returns the jars of artifacts and of their run-time dependencies, resolved from the repository's POMs.

    Raises MissingSoftware without jgo, or if the repository does not answer or has no such artifact.
    """
    _require_jgo()
    import requests  # noqa: PLC0415, jgo needs it
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415

    names = ", ".join(map(str, wanted))
    with tempfile.TemporaryDirectory(prefix="kstreams-poms-") as poms:
        context = MavenContext(repo_cache=Path(poms), remote_repos={"repository": repository()})
        asked = [context.create_dependency(str(artifact)) for artifact in wanted]
        for dependency in asked:
            # otherwise the versions in one artifact's parent replace those of the others: Kafka 4.3.1 would get the
            # kafka-clients 3.9.1 of log4j's parent
            dependency.raw = True
        try:
            inputs, transitive = PythonResolver().resolve(asked)
        except requests.RequestException as error:
            raise MissingSoftware(f"could not resolve {names}: {_reason(error)}: {_NETWORK}") from None
        except (RuntimeError, ValueError) as error:
            text = redact(str(error))
            raise MissingSoftware(f"could not resolve {names}: {text}: use a repository that has it") from None
        found = {each.artifact.component.path_prefix.as_posix(): each.artifact for each in (*inputs, *transitive)}
        return [Jar(f"{prefix}/{artifact.filename}") for prefix, artifact in sorted(found.items())]


def _require_jgo() -> None:
    try:
        import jgo  # noqa: F401, PLC0415
    except ImportError:
        raise MissingSoftware(
            "jgo, which fetches the broker's and Spark's jars, is not installed: run pip install 'kstreams_py[broker]'"
        ) from None


def _session() -> requests.Session:
    """Returns a session that retries a request when the repository is busy."""
    try:
        import requests  # noqa: PLC0415, it comes with jgo
        from requests.adapters import HTTPAdapter  # noqa: PLC0415
        from urllib3 import Retry  # noqa: PLC0415
    except ImportError:
        _require_jgo()
        raise
    session = requests.Session()
    busy = Retry(total=3, connect=1, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504))
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=busy, pool_maxsize=_AT_ONCE))
    return session


def _fetch(session: requests.Session, base: str, jar: Jar, directory: Path) -> str:
    """Downloads one jar; returns why that failed, or "". The file gets its name only once its checksum is right."""
    import requests  # noqa: PLC0415

    part = directory / f"{jar.name}.part"
    try:
        kind, wanted = ("sha256", jar.sha256) if jar.sha256 else _checksum(session, f"{base}/{jar.path}")
        digest = hashlib.new(kind)
        with session.get(f"{base}/{jar.path}", stream=True, timeout=_TIMEOUT) as response, part.open("wb") as file:
            response.raise_for_status()
            for chunk in response.iter_content(1 << 18):
                file.write(chunk)
                digest.update(chunk)
        if digest.hexdigest() != wanted:
            raise MissingSoftware(
                f"its {kind} is {digest.hexdigest()} and must be {wanted}: a proxy or the repository changed it; "
                f"use another repository ({REPOSITORY})"
            )
    except requests.RequestException as error:
        return f"{_reason(error)}: {_NETWORK}"
    except MissingSoftware as wrong:
        return str(wrong)
    part.rename(directory / jar.name)
    return ""


def _checksum(session: requests.Session, url: str) -> tuple[str, str]:
    """Returns the checksum that the repository has beside a file, and its kind."""
    for kind in ("sha256", "sha1"):
        response = session.get(f"{url}.{kind}", timeout=_TIMEOUT)
        if response.ok and (words := response.text.split()):
            return kind, words[0].lower()
    raise MissingSoftware("the repository has no checksum of it: use one that has")


def _reason(error: requests.RequestException) -> str:
    """Returns the reason without the URL, which may have a password."""
    import requests  # noqa: PLC0415

    if error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.exceptions.SSLError):
        return "the repository's certificate is not trusted (REQUESTS_CA_BUNDLE names a file of certificates)"
    if isinstance(error, requests.Timeout):
        return f"no answer within {_TIMEOUT:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection ended before the file did"
    return "no connection to the repository"
