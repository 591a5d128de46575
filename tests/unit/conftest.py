"""What all unit tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps what is cached from the user's folder; an engine that is missing can't be fetched.

    One that a test asked for by mistake would be fetched silently, for a minute.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECREG_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("UV_OFFLINE", "1")
        patch.setenv("UV_NO_CACHE", "1")
        yield


@pytest.fixture(autouse=True)
def _own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test know only the secrets that it learns itself.

    A run names those that are too short to hide, so a test's remarks would depend on the others.
    """
    monkeypatch.setattr("specreg.core.redaction._LEARNT", set())
