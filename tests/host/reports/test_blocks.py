"""The timeline in a terminal, drawn out: a step whose every cell was worked out by hand."""

from __future__ import annotations

from gradcore import folds
from gradcore.events import Alloc, Free, Keep, Mark, Record, Reserve, Site, Tag
from gradcore.report import Recording, build_report
from gradcore.report.blocks import block_plot
from gradcore.report.step import PoolFigures
from gradcore.report.timeline import COLORS


def alloc(serial: int, nbytes: int, role: str) -> Alloc:
    tag = Tag("op", "", "forward", role, Site("x.py", 1, "f"), None, None)
    return Alloc(serial, 0, 0, nbytes, nbytes, 0, tag, 0)


def step(*records: Record) -> Recording:
    pool = PoolFigures(0, 0, 0, 0, 0, 0)
    return Recording(build_report(records, device="cpu", batch_size=None, pool=pool), records)


#: Bytes live after each record from ``begin step`` on, a column each: 0, 1024, 2560 (seven times), 4096, 2560 (three times),
#: 3200, 2560 (twice).
OTHER = Mark("begin", "something else", 0)
STEP = step(
    # More than in the step, which is not its peak.
    Reserve(0, 1 << 20), alloc(9, 8192, "input"), Free(9),
    Mark("begin", "step", 0), alloc(1, 1024, "parameter"), alloc(2, 1536, "output"), Keep(2, 1, "out"), OTHER, OTHER, OTHER,
    OTHER, Mark("begin", "backward", 0), alloc(3, 1536, "gradient"), Free(2), OTHER, Mark("begin", "optimizer", 0),
    alloc(4, 640, "workspace"), Free(4), Mark("end", "step", 0))


def test_every_cell_has_the_letter_of_the_role_at_its_middle() -> None:
    # A row is 1 KiB. The word optimizer has no room: backward, which begins in column 8, right behind forward, reaches past it.
    # The peak is named on the left of its mark, where there is room.
    text = block_plot(STEP, height=4, color=False)
    assert not text.spans and text.plain.splitlines() == [
        "       peak 4.00 KiB ▼",
        "  4.00 KiB │         R   W  ",
        "           │  ORRRRRRRGGGWGG",
        "  2.00 KiB │  ORRRRRRGGGGGGG",
        "           │ PPPPPPPPPPPPPPP",
        "       0 B └────────┬───────",
        "            forward backward",
        "  W workspace                     0    0.0%",
        "  O output                        0    0.0%",
        "  R residual                  1,536   37.5%",
        "  G gradient                  1,536   37.5%",
        "  P parameter                 1,024   25.0%"]


def test_no_line_is_wider_than_the_plot_though_the_peak_and_the_update_are_at_its_end() -> None:
    late = step(Mark("begin", "step", 0), *[OTHER] * 12, Mark("begin", "backward", 0), *[OTHER] * 16, alloc(1, 512, "gradient"),
                Mark("begin", "optimizer", 0), Mark("end", "step", 0))
    mark, _, axis, phases, _ = block_plot(late, height=1, color=False).plain.splitlines()
    assert (mark, axis, phases) == ("                               peak 512 B ▼",
                                    "       0 B └─────────────┬─────────────────┬─",
                                    "            forward      backward   optimizer")


def test_in_color_a_cell_is_filled_in_eighths() -> None:
    text = block_plot(STEP, height=4)
    rows = [line[12:] for line in text.plain.splitlines()[1:5]]
    assert rows == ["         █   ▁  ", "  ▄▄▄▄▄▄▄█▄▄▄█▄▄", "  ██████████████", " ███████████████"]
    named = {color: role for role, color in COLORS.items()}
    # What has no role has no color.
    assert [(text.plain[s.start:s.end], named[str(s.style)]) for s in text.spans] == [
        ("█", "residual"), ("▁", "workspace"),
        ("▄", "output"), ("▄▄▄▄▄▄█", "residual"), ("▄▄▄", "gradient"), ("█", "workspace"), ("▄▄", "gradient"),
        ("█", "output"), ("██████", "residual"), ("███████", "gradient"), ("███████████████", "parameter"),
        *(("  ■ ", role) for role in ("workspace", "output", "residual", "gradient", "parameter"))]


def test_a_role_that_has_no_letter_and_a_step_without_bytes() -> None:
    odd = step(Mark("begin", "step", 0), alloc(1, 512, "a role of a later version"), *[OTHER] * 7)
    assert block_plot(odd, height=1, color=False).plain.splitlines()[1:] == [
        "     512 B │ ????????", "       0 B └─────────", "            forward",
        "  ? a role of a later version            512  100.0%"]
    assert block_plot(step(Mark("begin", "step", 0)), height=1).plain.splitlines() == [
        "   peak 0 B ▼", "       0 B │ ", "       0 B └─", "            forward"]


def test_the_holders_of_the_peak_are_those_within_the_step_largest_first_then_oldest() -> None:
    highest, holders = folds.at_peak(STEP.records)
    assert highest.position == 12 and [h.serial for h in holders] == [2, 3, 1]
    unmarked = step(alloc(2, 512, "input"), alloc(1, 1024, "input")._replace(requested=1), Free(2))
    assert [h.serial for h in folds.at_peak(unmarked.records)[1]] == [1, 2]
    assert folds.at_peak(step(alloc(1, 512, "input"), Free(1)).records)[0].position == 0
