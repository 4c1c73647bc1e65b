"""The page as a file: self-contained, without network access, and harmless whatever its data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore.cli.main import main
from gradcore.report import Recording, load_run
from gradcore.report.html import SCRIPTS, escaped, of_recording
from gradcore.report.packed import unpack
from tests.conftest import raises
from tests.host.reports.test_run import write
from tests.meta.test_recording import recorded

PARTS = Path(__file__).resolve().parents[3] / "gradcore" / "report" / "page"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the contents of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.raw.append(data)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded().recording


def test_it_loads_nothing(recording: Recording) -> None:
    found = Elements(of_recording(recording)).found
    assert not any(name in ("src", "href", "srcset", "action", "style") or name.startswith("on")
                   for _, attributes in found for name in attributes)
    tags = {tag for tag, _ in found}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert [tag for tag, _ in found].count("script") == 2


def test_the_policy_names_what_is_there(recording: Recording) -> None:
    elements = Elements(of_recording(recording))
    policy, = (a["content"] or "" for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    style, data, script = elements.raw
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    found = json.loads(data)
    assert unpack(found["runs"][0]["recordings"][0]["log"])


def test_data_mean_nothing_to_a_parser() -> None:
    nasty = {"</script>": ["<!--", "&lt;", "<script>", "]]>", "\u2028", "\x00", "'\""]}
    text = escaped(nasty)
    assert not set(text) & set("<>&\u2028\x00") and json.loads(text) == nasty
    with raises(ValueError, "JSON compliant"):
        escaped(float("nan"))


def test_its_scripts_write_text_only() -> None:
    assert set(SCRIPTS) == {p.name for p in PARTS.glob("*.js")}
    for path in PARTS.iterdir():
        text = path.read_text()
        assert len(text.splitlines()) <= 350 and max(map(len, text.splitlines())) <= 128, path.name
        parsers = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|srcdoc|import\("
        network = r"https?:|//\w+\.\w+/|url\(|@import|fetch|XMLHttp|WebSocket|sendBeacon"
        assert not re.search(f"{parsers}|{network}", text), path.name
    for name in SCRIPTS:
        text = (PARTS / name).read_text()
        assert "</script" not in text and "<!--" not in text, name


def test_a_page_of_a_report_has_its_figures(recording: Recording, tmp_path: Path) -> None:
    recording.report.save_html(tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text()
    assert text == of_recording(Recording(recording.report, ()))
    _, data, _ = Elements(text).raw
    shown, = json.loads(data)["runs"][0]["recordings"]
    assert shown["log"] is None and shown["report"]["peak"]["allocated"] == recording.report.peak.allocated
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_paths_are_shown_from_where_it_was_made(recording: Recording) -> None:
    text = of_recording(recording)
    assert "tests/meta/test_recording.py" in text and str(Path.cwd()) not in text


def test_a_page_of_a_step_with_call_stacks() -> None:
    with gradcore.step(level="stacks", device="meta") as step:
        gradcore.ones(3, device="meta").exp()
    _, data, _ = Elements(of_recording(step.recording)).raw
    assert any("test_page.py" in text for text in json.loads(data)["runs"][0]["recordings"][0]["log"]["strings"])


def test_a_frame_for_notebooks(recording: Recording) -> None:
    for text, whole in ((recording._repr_html_(), of_recording(recording)), (recording.report._repr_html_(),
                                                                             of_recording(Recording(recording.report, ())))):
        (tag, attributes), = Elements(text).found
        assert tag == "iframe" and attributes["sandbox"] == "allow-scripts" and attributes["srcdoc"] == whole
        assert html.escape(whole, quote=True) in text


def test_the_command_writes_it(capsys: Any, tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "a.jsonl", recording, [100, 300, 200])
    write(tmp_path / "b.jsonl", recording, [100])
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "a.jsonl"), "--html", str(out), "--step", "last", "--beside",
                 str(tmp_path / "b.jsonl")]) == 0
    assert str(out) in capsys.readouterr().out
    data = json.loads(Elements(out.read_text()).raw[1])
    assert [run["name"] for run in data["runs"]] == ["a.jsonl", "b.jsonl"] and data["shown"] == 3
    assert data["runs"][0]["steps"]["allocated"] == [100, 300, 200]
    assert [r["step"] for r in data["runs"][0]["recordings"]] == sorted(load_run(tmp_path / "a.jsonl").recordings)
    assert main(["report", str(tmp_path / "a.jsonl"), "--html", str(out), "--step", "7"]) == 1
    assert "no events of step 7" in capsys.readouterr().err
