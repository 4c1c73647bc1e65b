"""Synthetic steps: with any number of records, with kinds of records that a plain step lacks, and one with figures by hand."""

from __future__ import annotations

from gradcore.events import (
    Alloc,
    Drop,
    Export,
    Free,
    Invocation,
    Keep,
    Launch,
    Mark,
    Record,
    Reserve,
    Retag,
    Site,
    Tag,
    Unreserve,
    View,
)
from gradcore.report import Recording, build_report
from gradcore.report.step import PoolFigures
from gradcore.spec import TensorSpec

#: Records of a layer in forward and in backward, and the bytes of its output.
_FORWARD, _BACKWARD = 3, 5
_SEGMENT = 1 << 30


def long_step(events: int, widths: tuple[int, ...] = (64, 128, 256, 32)) -> Recording:
    """A chain of layers, each of which keeps its output for backward: some ``events`` records, at the peak a buffer a layer."""
    layers = max(1, (events - 6) // (_FORWARD + _BACKWARD))
    records: list[Record] = [Mark("begin", "step", 0)]
    site, at, sizes = Site("/somewhere/model.py", 7, "forward"), 0, []
    for i in range(layers):
        spec = TensorSpec.of((widths[i % len(widths)], 8), "float32")
        sizes.append(spec)
        if at % _SEGMENT + 2 * spec.nbytes > _SEGMENT or at == 0:
            at = (at // _SEGMENT + (at > 0)) * _SEGMENT
            records.append(Reserve(at // _SEGMENT, _SEGMENT))
        tag = Tag("relu" if i % 3 else "linear", f"blocks.{i % 40}.{'abc'[i % 3]}", "forward", "output", site, None, spec)
        records += [Alloc(i + 1, at // _SEGMENT, at % _SEGMENT, spec.nbytes, spec.nbytes, 0, tag, i + 1),
                    Launch(Invocation(tag.op, (spec,), (spec,), (), 0, ()), tag, i + 1, (i,), (i + 1,), 1000 * i),
                    Keep(i + 1, i + 1, "out")]
        at += spec.nbytes
    records.append(Mark("begin", "backward", 1000 * layers))
    for i in reversed(range(layers)):
        tag = Tag("linear_grad", f"blocks.{i % 40}.{'abc'[i % 3]}", "backward", "temporary", site, site, sizes[i])
        serial = 2 * layers - i
        records += [Alloc(serial, at // _SEGMENT, at % _SEGMENT, sizes[i].nbytes, sizes[i].nbytes, 0, tag, i + 1),
                    Launch(Invocation(tag.op, (sizes[i],), (sizes[i],), (), 0, ()), tag, i + 1, (i + 1,), (serial,),
                           1000 * (2 * layers - i)),
                    Drop(i + 1, i + 1, "consumed"), Free(i + 1), Free(serial)]
    records += [Mark("end", "backward", 2000 * layers), Mark("end", "step", 2000 * layers)]
    return Recording(build_report(records, device="cpu", batch_size=1, pool=PoolFigures(0, 0, 0, 0, 0, 0)), tuple(records))


def corners() -> Recording:
    """Kept before the log began, kept twice, a kept temporary, changes of owner, a released segment, several equal peaks."""
    def tag(op: str, role: str) -> Tag:
        return Tag(op, "", "forward", role, Site("x.py", 1, "f"), None, None)

    def block(serial: int, segment: int, owner: Tag, node: int) -> Alloc:
        return Alloc(serial, segment, 512 * serial, 8, 512, 0, owner, node)

    early, soon = tag("early", "output"), tag("soon", "temporary")
    records: list[Record] = [
        Reserve(0, 4096), block(1, 0, early, 3), Keep(1, 0, "kept before the log began"), Mark("begin", "step", 0),
        block(2, 0, tag("twice", "output"), 1), Keep(2, 1, "x"), Keep(2, 2, "y"), block(3, 0, soon, 2), Keep(3, 2, "out"),
        Reserve(1, 4096), block(4, 1, soon, 0), Retag(2, tag("new", "temporary")), Free(4), Unreserve(1, 4096),
        block(5, 0, soon, 0), Drop(2, 1, "consumed"), Free(5), Drop(1, 3, "consumed"), Free(1), Drop(3, 9, "consumed"),
        Drop(2, 2, "graph died"), Retag(3, early), Drop(3, 2, "consumed"), Free(3), Mark("end", "step", 9)]
    return Recording(build_report(records, device="cpu", batch_size=None, pool=PoolFigures(0, 0, 0, 0, 0, 0)), tuple(records))


def reached_again() -> Recording:
    """As much is live at the beginning as at the peak, but other things."""
    def block(serial: int, role: str) -> Alloc:
        return Alloc(serial, 0, 512 * serial, 8, 512, 0, Tag(role, "", "forward", role, Site("x.py", 1, "f"), None, None), 0)

    records: list[Record] = [
        Reserve(0, 4096), block(1, "gradient"), block(2, "parameter"), Mark("begin", "step", 0), Free(1), block(3, "output"),
        Free(3), Mark("end", "step", 9)]
    return Recording(build_report(records, device="cpu", batch_size=None, pool=PoolFigures(0, 0, 0, 0, 0, 0)), tuple(records))


# -- a step with figures by hand ----------------------------------------------------------------------------------------

OUTER = Site("/code/train.py", 90, "main")
MUL = Tag("mul", "l1", "forward", "output", Site("/code/model.py", 3, "forward", (OUTER,)), None,
          TensorSpec.of((5, 3), "float32"))
EXP = Tag("exp", "l2", "forward", "output", Site("/code/model.py", 4, "forward"), None, TensorSpec.of((), "float64"))
WEIGHT = Tag("upload", "l1", "setup", "parameter", Site("/code/model.py", 1, "__init__"), None,
             TensorSpec.of((250,), "float32"))
INPUT = Tag("upload", "", "forward", "input", Site("/code/train.py", 80, "main"), None, TensorSpec.of((500,), "int32"),
            Export("numpy()", Site("/code/train.py", 81, "main")))
#: Backward runs the gradient of a line, and is called from another.
GRAD = Tag("mul", "l1", "backward", "temporary", MUL.site, OUTER, None)
CALL = Invocation("any", (), (), (), 0, ())


def by_hand() -> list[Record]:
    """Two ops, each of which keeps its output, a backward that frees one of them, and an optimizer; a memory of 8 KiB that has
    gone before the step begins is more than its peak. The first timed record is at a second, and one follows each second."""
    second = 10**9
    return [
        Reserve(0, 1 << 20), Alloc(1, 0, 0, 1000, 1024, 0, WEIGHT, 0), Alloc(9, 0, 1024, 8000, 8192, 0, INPUT, 0), Free(9),
        Mark("begin", "step", second),                                                                             # 4
        Alloc(2, 0, 1024, 2000, 2048, 0, INPUT, 0),
        Alloc(3, 0, 3072, 3000, 3072, 2, MUL, 1), Launch(CALL, MUL, 1, (1, 2), (3,), 2 * second),                  # 6, 7
        Keep(3, 1, "out"), Keep(2, 1, "x"), View(CALL, MUL, 2, 3),
        Alloc(4, 0, 6144, 100, 512, 0, EXP, 3), Launch(CALL, EXP, 3, (3,), (4,), 3 * second), Keep(4, 3, "out"),   # 11, 12, 13
        Mark("begin", "backward", 4 * second),                                                                     # 14
        Alloc(5, 0, 6656, 1000, 1024, 0, GRAD, 3), Launch(CALL, GRAD, 7, (4,), (5,), 5 * second),                  # 15, 16
        Drop(4, 3, "consumed"), Free(4), Retag(5, WEIGHT._replace(op="mul", role="gradient")),                     # 17, 18, 19
        Mark("end", "backward", 6 * second), Mark("begin", "optimizer", 7 * second), Mark("end", "optimizer", 8 * second),
        Mark("end", "step", 9 * second)]                                                                           # 23
