"""Bytes that arrays of other libraries share: reports and figures about them, and when these change."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.engine.exports import Shown, settle
from gradcore.errors import OutOfMemory
from gradcore.events import HELD_OUTSIDE
from gradcore.reading import short_path
from gradcore.report import load_report
from gradcore.report.exports import to_csv
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.recording import Recording
from gradcore.testing.account import Account, DeviceMemory, held
from tests.conftest import torch_or_skip
from tests.host.reports.browser import Opened
from tests.meta.test_interrupts import at_every_moment

HERE = Path(__file__)


def line(mark: str) -> str:
    """The line of this file that ends with a mark."""
    return f"{HERE}:{next(n for n, text in enumerate(HERE.read_text().splitlines(), 1) if text.endswith('# ' + mark))}"


#: Ways to export a tensor, and the form that a report names.
FORMS: dict[str, tuple[Any, str]] = {
    "numpy": (lambda x: x.numpy(), "numpy()"),
    "force": (lambda x: x.numpy(force=True), "numpy()"),
    "asarray": (np.asarray, "__array__"),
    "from_dlpack": (np.from_dlpack, "__dlpack__"),
    "part of a view": (lambda x: x.T[2:].numpy()[:1], "numpy()"),
    "torch": (lambda x: torch_or_skip().from_dlpack(x), "__dlpack__ for torch")}


@pytest.mark.oracle
@pytest.mark.parametrize("form", FORMS)
def test_what_outlives_its_tensor_is_held_outside(form: str) -> None:
    take, name = FORMS[form]
    layer = nn.Linear(64, 32)
    inputs = gradcore.ones(16, 64)
    with gradcore.step() as s:
        y = layer(inputs).detach().relu()  # made
        array = [take(y)]  # taken
        del y
    (found,) = s.report.exported
    function = "test_what_outlives_its_tensor_is_held_outside"
    assert (found.op, found.line, found.form) == ("relu", f"{line('made')} in {function}", name)
    assert (found.alone, found.count, found.allocated) == (True, 1, 16 * 32 * 4)
    # A builtin calls back from the line that called it.
    code = getattr(take, "__code__", None)
    assert found.exported_at == (f"{line('taken')} in {function}" if code is None else
                                 f"{HERE}:{code.co_firstlineno} in {code.co_qualname}")
    assert [(x.op, x.held_by) for x in s.report.left] == [("relu", "outside")]
    with gradcore.step() as s:
        inputs + 1
    assert s.report.by_role[HELD_OUTSIDE] == s.report.exported[0].allocated == 2048
    assert sum(s.report.by_role.values()) == s.report.peak.allocated
    array.clear()
    with gradcore.step() as s:
        inputs + 1
    assert HELD_OUTSIDE not in s.report.by_role and s.report.exported == ()


def test_while_a_tensor_lives_the_bytes_keep_their_role() -> None:
    w = nn.Parameter(gradcore.ones(1000))
    first = w.detach().numpy()
    with gradcore.step() as s:
        loss = (w * 2).sum()
    assert s.report.by_role["parameter"] == 4096 and HELD_OUTSIDE not in s.report.by_role
    (found,) = s.report.exported
    assert (found.alone, found.form, found.allocated) == (False, "numpy()", 4096)
    assert "held by its tensor, and shared by numpy()" in str(s.report)
    second = np.from_dlpack(w.detach())
    tag = w.storage.block.tag
    assert tag.export is not None and (tag.export.form, tag.role) == ("__dlpack__", "parameter")
    del second
    tag = w.storage.block.tag
    assert tag.export is not None and tag.export.form == "numpy()", "the older one is there still"
    del first
    assert w.storage.block.tag.export is None
    del loss


def test_what_a_graph_keeps_is_not_held_outside() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    y = w.exp()
    array = y.detach().numpy()
    loss = y.sum()
    del y
    with gradcore.step() as s:
        pass
    assert [(x.op, x.alone) for x in s.report.exported] == [("exp", False)]
    (residual,) = [r for n in gradcore.graph(loss) for r in n.residuals]
    assert residual.exported.startswith(f"numpy(), {HERE}:") and "(shared by numpy()" in str(gradcore.graph(loss))
    loss.backward()
    with gradcore.step() as s:
        pass
    assert [(x.op, x.alone) for x in s.report.exported] == [("exp", True)]
    np.testing.assert_allclose(array, np.e, rtol=1e-6)


def test_arrays_that_pile_up_are_named() -> None:
    arrays = []
    for _ in range(5):
        with gradcore.step() as s:
            arrays.append((gradcore.ones(1000) * 2).numpy())
    growth = s.report.growth
    assert growth is not None and [(g.op, g.count, g.held_by) for g in growth.grown] == [("mul", 5, "outside")]
    text = str(s.report)
    assert "20,480 bytes in 5 buffers of mul in (root)" in text and ": held only by numpy()," in text
    assert "20,480 bytes in 5 results of mul" in text and "held by another library's array\n" in text


def test_files_and_figures_carry_it() -> None:
    array = (gradcore.ones(1000) * 2).numpy()
    with gradcore.step() as s:
        gradcore.ones(10)
    assert load_report(json.loads(s.report.to_json())) == s.report
    recording = Recording.from_dict(json.loads(json.dumps(s.recording.to_dict())))
    assert recording.records == s.recording.records
    (holder,) = [h for h in folds.live_at(recording.records, len(recording.records) - 1) if h.role == HELD_OUTSIDE]
    assert holder.tag.op == "mul" and holder.tag.export is not None and holder.tag.export.form == "numpy()"
    (row,) = [r for r in csv.DictReader(io.StringIO(to_csv(recording))) if r["exported"]]
    assert (row["op"], row["role"]) == ("mul", HELD_OUTSIDE) and row["exported"].startswith(f"numpy(), {HERE}:")
    frames = [b["frames"][0]["name"] for g in to_snapshot(recording)["segments"] for b in g["blocks"] if b["frames"]]
    assert any(f"mul ({HELD_OUTSIDE}, layer (root), " in f and f"shared by numpy(), {HERE}:" in f for f in frames)
    del array


def test_the_page_warns_of_it(browser: Any, tmp_path: Path) -> None:
    array = (gradcore.ones(1000) * 2).numpy()
    with gradcore.step() as s:
        gradcore.ones(10)
    s.recording.save_html(tmp_path / "report.html")
    # The browser's library takes the locals of its callers.
    del array
    opened = Opened(browser, tmp_path / "report.html")
    (text,) = opened.texts("#warning")
    assert text.startswith("Held only by arrays of other libraries: 4,096 bytes, most of them by numpy(), ")
    assert opened.complaints == []
    opened.context.close()


def test_introspection_of_live_memory_names_it() -> None:
    account = Account("cpu")
    memory = DeviceMemory(account)
    array = (gradcore.ones(1000) * 2).numpy()
    assert f"4,096 bytes  held outside of mul in layer (root), {short_path(str(HERE))}:" in gradcore.memory_summary()
    (found,) = held(memory.stretch.made_at_end(), memory.live_allocated, HERE.parent)
    assert found.startswith(f"{4096:>17,} bytes  held outside of mul in (root), {HERE.name}:")
    assert f", shared by numpy(), {HERE.name}:" in found
    assert [x.op for x in memory.report.exported] == ["mul"]
    account.close()
    device = gradcore.device("cpu")
    try:
        gradcore.set_memory_limit(device.ledger.reserved)
        with pytest.raises(OutOfMemory, match=r"held outside of mul in layer \(root\), .*, shared by numpy\(\), "):
            gradcore.empty(1 << 26)
    finally:
        gradcore.set_memory_limit(None)
    del array


def test_memory_of_others_stays_out_of_it() -> None:
    mine = np.ones(1000, np.float32)
    x = gradcore.from_numpy(mine)
    array = x.numpy()
    del x
    with gradcore.step() as s:
        pass
    assert s.report.exported == () and s.report.outside_bytes == 4000 and HELD_OUTSIDE not in s.report.by_role
    del array


def test_a_replay_leaves_what_arrays_show() -> None:
    w = nn.Parameter(gradcore.ones(300))
    optimizer = gradcore.optim.SGD([w], lr=0.1)

    @gradcore.compile
    def train(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    arrays = []
    for k in range(4):
        with gradcore.step() as s:
            train(gradcore.full((300,), float(k)))
            arrays.append(w.grad.numpy())
        assert Recording.from_dict(s.recording.to_dict()).report == s.report
    assert [float(a[0]) for a in arrays] == [0, 1, 2, 3]
    assert sum(x.count for x in s.report.exported if x.alone) == 3
    arrays.clear()
    with gradcore.step() as s:
        train(gradcore.ones(300))
    assert s.report.exported == ()
    w.grad = None


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_tensors_views_and_arrays(seed: int) -> None:
    """Reports compared with a model: bytes are held outside if arrays over them are alive, but no tensor and no graph."""
    dice = random.Random(seed)
    tensors: list[tuple[int, Any]] = []
    arrays: list[tuple[int, Any]] = []
    serials: dict[int, int] = {}
    for count in range(120):
        match dice.randrange(6):
            case 0:
                tensors.append((count, gradcore.full((4, 4), float(count))))
                serials[count] = tensors[-1][1].storage.serial
            case 1 | 2 if tensors:
                of, x = dice.choice(tensors)
                arrays.append((of, dice.choice([np.asarray, np.from_dlpack, lambda t: t.numpy()])(x)))
                del x
            case 3 if tensors:
                of, x = dice.choice(tensors)
                tensors.append((of, dice.choice([lambda t: t.T, lambda t: t[1:2], lambda t: t.detach()])(x)))
                del x
            case 4 if arrays:
                arrays.pop(dice.randrange(len(arrays)))
            case 5 if tensors:
                tensors.pop(dice.randrange(len(tensors)))
        if count % 10 == 9:
            settle()
            shown, there = {of for of, _ in arrays}, {of for of, _ in tensors}
            live = gradcore.device("cpu").ledger.live
            tags = {of: live[serial].tag for of, serial in serials.items() if serial in live}
            assert set(tags) == shown | there
            assert {of for of, tag in tags.items() if tag.export is not None} == shown
            assert {of for of, tag in tags.items() if tag.role == HELD_OUTSIDE} == shown - there
    assert all((array == of).all() for of, array in arrays)


def test_arrays_go_on_other_threads_and_at_the_end_of_the_process() -> None:
    arrays = [(gradcore.ones(100) * k).numpy() for k in range(50)]
    settle()
    threads = [threading.Thread(target=arrays.pop) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with gradcore.step() as s:
        pass
    assert s.report.exported == ()
    code = "import gradcore; kept = gradcore.ones(10).numpy(); x = gradcore.ones(3); loop = [x.numpy()]; loop.append(loop)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=HERE.parents[3],
                          env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_array_whose_making_was_interrupted_goes_without_a_word() -> None:
    interrupted = Shown.__new__(Shown)
    interrupted.__del__()


def test_an_array_that_is_interrupted_while_it_is_made_keeps_no_bytes() -> None:
    live, made = gradcore.memory_allocated(), []
    for moment in at_every_moment(lambda: made.append(gradcore.ones(3).numpy()), "/gradcore/engine/exports.py"):
        made.clear()
        gc.collect()
        assert gradcore.memory_allocated() == live, moment
