"""Libraries that g++ makes of kernels are made once, whichever process wants them first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.cuda.compiled import FOLDER, libraries, library_of

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="nothing is compiled on Windows")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, list[str]]]:
    """Asks for a library with the instances of a text; what is to be done while it is made follows."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("tests.host.cuda.compiled._compiler", lambda: "none")

    def ask(wanted: str, making: Callable[[], object] = lambda: None) -> tuple[Path, list[str]]:
        def make(path: Path, instances: list[str]) -> None:
            making()
            path.write_text(" ".join(instances))

        return library_of(tmp_path, "family", ["a text"], set(wanted), make)

    return ask


def unwanted() -> None:
    raise AssertionError("it was made again")


def test_one_with_more_instances_serves(made: Callable[..., tuple[Path, list[str]]], tmp_path: Path) -> None:
    path, instances = made("cab")
    assert instances == ["a", "b", "c"] and path.read_text() == "a b c"
    assert made("b", unwanted) == (path, instances)
    other, instances = made("bd")
    assert other != path and instances == ["b", "d"]
    assert dict(libraries(tmp_path, "family", ["a text"])) == {path: ["a", "b", "c"], other: ["b", "d"]}
    assert libraries(tmp_path, "family", ["another text"]) == []


def test_others_wait_for_what_they_want_alone(made: Callable[..., tuple[Path, list[str]]], tmp_path: Path) -> None:
    begun, go_on, found = threading.Event(), threading.Event(), []

    def slowly() -> None:
        begun.set()
        assert go_on.wait(60)

    first = threading.Thread(target=lambda: found.append(made("ab", slowly)))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=lambda: found.append(made("a", unwanted)))
    second.start()
    # Other instances are made meanwhile, and what is not finished is no library yet.
    other, _ = made("x")
    assert [path for path, _ in libraries(tmp_path, "family", ["a text"])] == [other] and found == []
    go_on.set()
    first.join()
    second.join()
    assert found[0] == found[1]


def test_what_a_process_left_unfinished_is_made_by_the_next(made: Callable[..., tuple[Path, list[str]]],
                                                            tmp_path: Path) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made("a", killed)
    assert libraries(tmp_path, "family", ["a text"]) == []
    path, _ = made("a")
    assert made("a", unwanted)[0] == path
