"""Damaged and hostile files of programs: an equal program or one clear error, and never a large allocation."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.errors import ProgramError
from gradcore.program import Operand
from tests.conftest import raises


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A training program of a few ops, two of them with workspace."""
    gradcore.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = optim.Adam(model.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:, 1:]), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled = gradcore.compile(step)
    for _ in range(3):
        compiled(gradcore.ones(5, 4), gradcore.tensor([0, 1, 0, 1, 1]))
    path = tmp_path_factory.mktemp("program") / "step"
    compiled.save(path)
    return path.read_bytes()


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A file's header, with the program parsed in place of its text, and the tensors' bytes."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header["__metadata__"]["gradcore.program"] = json.loads(header["__metadata__"]["gradcore.program"])
    return header, data[8 + length:]


def closed(header: dict[str, Any], rest: bytes) -> bytes:
    """The file with a matching digest, as an attacker would write it."""
    header = copy.deepcopy(header)
    text = header["__metadata__"]["gradcore.program"]
    text = text if isinstance(text, str) else json.dumps(text)
    header["__metadata__"].update({"gradcore.program": text, "gradcore.digest": hashlib.sha256(text.encode()).hexdigest()})
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + rest


def changed(shipped: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    header, rest = opened(shipped)
    change(header["__metadata__"]["gradcore.program"])
    return closed(header, rest)


def test_the_file_opened_and_closed_is_the_same_program(shipped: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(shipped)
    (tmp_path / "b").write_bytes(changed(shipped, lambda p: None))
    a, b = (gradcore.load_program(tmp_path / name) for name in "ab")
    x, y = gradcore.ones(5, 4), gradcore.tensor([0, 1, 0, 1, 1])
    assert a.program == b.program and a(x, y).item() == b(x, y).item()


def nested(p: dict[str, Any]) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    p["instructions"][0][3].append(["x", deep])


def instruction(p: dict[str, Any], op: str) -> list[Any]:
    return next(i for i in p["instructions"] if i[0] == op)


def of_kind(p: dict[str, Any], kind: str) -> list[Any]:
    return next(b for b in p["buffers"] if b[0] == kind)


CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another version": (lambda p: p.update(version=1), "version: expected 2"),
    "a part too many": (lambda p: p.update(more=1), "expected an object with"),
    "pairs of buffers that share a place": (lambda p: p.update(shared=[[5, 4]]), "expected an object with"),
    "an operand that ends before a result could take its place": (
        lambda p: p["buffers"][instruction(p, "relu_grad")[1][1]["at"][0]].__setitem__(4, 2), "lives from"),
    "a part too few": (lambda p: p.pop("slots"), "expected an object with"),
    "no instructions": (lambda p: p.update(instructions=[]), "expected an integer"),
    "unknown op": (lambda p: p["instructions"][0].__setitem__(0, "system"), "unknown op"),
    "a view": (lambda p: instruction(p, "relu").__setitem__(0, "permute"), "unknown op"),
    "unknown attribute": (lambda p: p["instructions"][0][3].append(["device", "cpu"]), "unexpected keyword argument 'device'"),
    "missing attribute": (lambda p: instruction(p, "advance")[3].clear(), "cannot run on these operands"),
    "an attribute twice": (lambda p: instruction(p, "advance")[3].append(["numel", 1]), "each name once"),
    "deep attribute": (nested, "more than 16 levels deep"),
    "operand beside its buffer": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(3, 90), "does not fit in the 80 bytes of buffer"),
    "operand before its buffer": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(2, [-4, 1]), "does not fit in the 80 bytes of buffer"),
    "stride that reaches out": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(2, [400, 1]), "does not fit in the 80 bytes of buffer"),
    "huge shape": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(0, [2**47, 2**47]), "at most 32 dimensions and fewer than"),
    "many dimensions": (
        lambda p: p["inputs"][0].update(at=[0, [[1] * 40, "float32", [0] * 40, 0]]), "at most 32 dimensions"),
    "negative size": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(0, [-5, 3]), "expected an integer from 0"),
    "an input with fewer rows than its layer's gradient": (
        lambda p: next(i for i in p["instructions"] if i[0] == "linear_grad" and i[1][2] is None)[1][1]["at"][1].__setitem__(
            0, [4, 3]), "linear makes no float32[5, 4] of input float32[4, 3]"),
    "size that is true": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(0, [True, 3]), "expected an integer from 0"),
    "size that is a float": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(0, [5.0, 3]), "expected an integer from 0"),
    "unknown dtype": (
        lambda p: p["instructions"][0][1][0]["at"][1].__setitem__(1, "object"), "expected one of the dtypes"),
    "another dtype": (
        lambda p: p["instructions"][0][1][1]["at"][1].__setitem__(1, "int32"), "instruction 0, linear"),
    "buffer out of range": (lambda p: p["instructions"][0][1][0]["at"].__setitem__(0, 999), "expected an integer from 0"),
    "negative buffer": (lambda p: p["instructions"][0][1][0]["at"].__setitem__(0, -1), "expected an integer from 0"),
    "result of another size": (
        lambda p: p["instructions"][0][4][0]["at"][1].__setitem__(0, [5, 5]), "its results are"),
    "buffer of another size": (
        lambda p: of_kind(p, "made").__setitem__(1, 2**40), "has 1099511627776"),
    "too many bytes": (lambda p: of_kind(p, "made").__setitem__(1, 2**48), "expected an integer from 0 to below"),
    "fewer words of a generator": (
        lambda p: instruction(p, "dropout")[1][1]["at"][1].__setitem__(0, [1]), "the state of a generator is"),
    "workspace gone": (lambda p: instruction(p, "dropout").__setitem__(6, None), "its workspace is"),
    "wrong writes": (lambda p: instruction(p, "adam_").__setitem__(5, [0]), "it writes to operands"),
    "wrong counts": (lambda p: instruction(p, "adam_").__setitem__(2, [10**12] * 6), "do not match the inputs"),
    "read before it is made": (lambda p: p["instructions"].reverse(), "before anything was written to it"),
    "made twice": (lambda p: p["instructions"].__setitem__(1, copy.deepcopy(p["instructions"][0])), "is made a second time"),
    "never made": (
        lambda p: p["buffers"].append(["made", 4, 0, 0, 0]), "is never made"),
    "lifetime too short": (lambda p: of_kind(p, "made").__setitem__(4, 0), "lives from"),
    "lifetime backwards": (lambda p: of_kind(p, "made").__setitem__(3, 9), "expected an integer from 9"),
    "unknown kind": (lambda p: of_kind(p, "made").__setitem__(0, "free"), "expected one of input"),
    "an input that no run is given": (lambda p: p["inputs"].pop(), "of kind input"),
    "input beside its buffer": (lambda p: p["inputs"][0]["at"][1].__setitem__(3, 1), "input or output 0: float32[5, 4]"),
    "output beside its buffer": (lambda p: p["outputs"][0]["at"][1].__setitem__(3, 1), "input or output 2: float32[]"),
    "output out of range": (lambda p: p["outputs"][0]["at"].__setitem__(0, 10**6), "expected an integer"),
    "captured under another name": (lambda p: p["captured"][0].__setitem__(1, "nothing"), "a tensor of its own"),
    "captured twice": (lambda p: p["captured"].append(p["captured"][0]), "a tensor of its own"),
    "captured and not said": (lambda p: p["captured"].pop(), "do not match"),
    "captured of another size": (lambda p: of_kind(p, "captured").__setitem__(1, 3), "expected 3 bytes"),
    "a checksum": (lambda p: p["captured"][0].__setitem__(2, 1), "its checksum does not match"),
    "leaf beside its buffer": (lambda p: p["leaves"][0][1]["at"][1].__setitem__(3, 100), "is not in a captured buffer"),
    "leaf in a buffer of the run": (lambda p: p["leaves"][0][1]["at"].__setitem__(0, next(
        k for k, b in enumerate(p["buffers"]) if b[0] == "made" and b[1] >= 48)), "is not in a captured buffer"),
    "leaf that is named twice": (lambda p: p["leaves"].append(p["leaves"][0]), "leaves: expected each name once"),
    "leaf with another tensor's name": (
        lambda p: p["leaves"][0].__setitem__(0, p["captured"][-1][1]), "has the name of another tensor"),
    "a leaf that must have a gradient, and none": (
        lambda p: p["presence"].extend([[0, True], [0, False]]), "presence: expected each once"),
    "a leaf that must have something else": (lambda p: p.update(presence=[[0, 1]]), "presence: expected true or false"),
    "gradient for no leaf": (lambda p: p["left"][0].__setitem__(0, 99), "a leaf: expected an integer"),
    "gradient of another shape": (lambda p: p["left"][0].__setitem__(1, p["left"][1][1]), "lives from"),
    "gradient of fewer elements": (lambda p: p["left"][0][1]["at"].__setitem__(1, [[1], "float32", [1], 0]), "but the leaf is"),
    "gradient of another dtype": (lambda p: p["left"][0][1]["at"][1].__setitem__(1, "int32"), "but the leaf is"),
    "gradient beside its buffer": (lambda p: p["left"][0][1]["at"][1].__setitem__(3, 1), "but the leaf is"),
    "unknown optimizer": (lambda p: p["optimizers"][0].__setitem__(0, "os.system"), "a class of gradcore.optim"),
    "the base class": (lambda p: p["optimizers"][0].__setitem__(0, "Optimizer"), "a class of gradcore.optim"),
    "another optimizer": (lambda p: p["optimizers"][0].__setitem__(0, "SGD"), "SGD counts nothing"),
    "an option gone": (lambda p: p["optimizers"][0][1][0].__delitem__(0), "Adam cannot continue"),
    "steps that are no count": (lambda p: p["updates"][0][3][0].__setitem__(1, "1"), "Adam counts step"),
    "an update of nothing": (lambda p: p["updates"][0].__setitem__(2, []), "has no parameters"),
    "a number out of place": (
        lambda p: next(x for x in instruction(p, "adam_")[1] if "update" in x).update(update=[0, 5]), "has 3 numbers"),
    "a number of no update": (
        lambda p: next(x for x in instruction(p, "adam_")[1] if "update" in x).update(update=[7, 0]), "expected an integer"),
    "a learning rate that is a text": (lambda p: p["optimizers"][0][1][0][0].__setitem__(1, "fast"), "a number is bool"),
    "a line that calls itself": (lambda p: p["sites"][0].__setitem__(3, [0]), "site 0"),
    "a caller that has a caller": (
        lambda p: p["sites"].extend([["a", 1, "f", above] for k in [len(p["sites"])] for above in ([], [k], [k + 1])]),
        "a caller cannot have callers of its own"),
    "unknown role": (lambda p: p["tags"][0].__setitem__(3, "root"), "one of the roles"),
    "a launch too few": (lambda p: p["script"].remove(["launch"]), "a launch for each instruction"),
    "a record of another kind": (lambda p: p["script"].append(["free", 1]), "expected one of launch, keep, drop, mark"),
    "a record of no buffer": (lambda p: p["script"].append(["keep", 999, 1, "x"]), "script: expected an integer"),
    "another device": (lambda p: p.update(device=1), "device: expected a string"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_program_is_refused(case: str, shipped: bytes, tmp_path: Path) -> None:
    change, text = CASES[case]
    (tmp_path / "f").write_bytes(changed(shipped, change))
    tracemalloc.start()
    try:
        with raises(ProgramError, text, str(tmp_path / "f")):
            gradcore.load_program(tmp_path / "f")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_tensor_that_is_for_no_buffer(shipped: bytes, tmp_path: Path) -> None:
    header, rest = opened(shipped)
    header["more"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(rest)] * 2}
    (tmp_path / "f").write_bytes(closed(header, rest))
    with raises(ProgramError, "the captured buffers and the tensors of the file do not match"):
        gradcore.load_program(tmp_path / "f")


TEXTS = {
    "deep nesting": ("[" * 100_000, "not valid JSON"),
    "nan": ('{"version": NaN}', "NaN is not a JSON number"),
    "a name twice": ('{"version": 1, "version": 1}', "a name is repeated"),
    "long number": ('{"version": ' + "9" * 5000 + "}", "not valid JSON"),
    "a list": ("[]", "expected an object"),
    "nothing": ("", "not valid JSON"),
    "infinity": ('{"version": 1e999}', "expected an object"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_that_is_no_program(case: str, shipped: bytes, tmp_path: Path) -> None:
    header, rest = opened(shipped)
    header["__metadata__"]["gradcore.program"], text = TEXTS[case]
    (tmp_path / "f").write_bytes(closed(header, rest))
    with raises(ProgramError, text):
        gradcore.load_program(tmp_path / "f")


def outcome(path: Path, data: bytes) -> Any:
    """The program of a file, or None if it is refused; any other error fails the test."""
    path.write_bytes(data)
    try:
        return gradcore.load_program(path)
    except ProgramError as error:
        assert str(error).startswith(str(path))
        return None


def test_cut_off_files(shipped: bytes, tmp_path: Path) -> None:
    for end in (*range(0, 40), *range(40, len(shipped), 397), len(shipped) - 1):
        assert outcome(tmp_path / "f", shipped[:end]) is None
    assert outcome(tmp_path / "f", shipped + b"\0") is None


def test_flipped_bytes(shipped: bytes, tmp_path: Path) -> None:
    """A flipped byte gives an equal program, for instance in the quoting of a name in the header, or an error."""
    (tmp_path / "whole").write_bytes(shipped)
    whole = gradcore.load_program(tmp_path / "whole")
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(shipped), 400):
        data = bytearray(shipped)
        data[at] ^= 1 << int(rng.integers(8))
        found = outcome(tmp_path / "f", bytes(data))
        if found is not None:
            assert found.program == whole.program
            for name, t in whole.state.items():
                np.testing.assert_array_equal(found.state[name].detach().numpy(), t.detach().numpy())


def places(x: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    for key, value in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


OTHERS = (None, True, -1, 0, 1, 7, 2**31, 2**47, 2**63, 2**200, 1.5, "", "float64", [], [[]], {}, {"float": "nan"},
          {"at": [0, [[], "float32", [], 0]]})


def test_changed_fields(shipped: bytes, tmp_path: Path) -> None:
    """Changed fields with a matching digest: an error, or a program whose operands all fit in their buffers."""
    header, rest = opened(shipped)
    program = header["__metadata__"]["gradcore.program"]
    rng = np.random.default_rng(0)
    everywhere = list(places(program))
    taken = refused = 0
    for k in rng.permutation(len(everywhere))[:300]:
        *above, last = everywhere[int(k)]
        header["__metadata__"]["gradcore.program"] = other = copy.deepcopy(program)
        for key in above:
            other = other[key]
        other[last] = OTHERS[int(rng.integers(len(OTHERS)))]
        found = outcome(tmp_path / "f", closed(header, rest))
        taken, refused = taken + (found is not None), refused + (found is None)
        if found is not None:
            p = found.program
            assert all(x.spec.fits(p.buffers[x.buffer].nbytes) for i in p.instructions
                       for x in (*i.operands, *i.outputs) if isinstance(x, Operand))
        del found
    assert refused > 200 and taken > 0


VIEWS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "slice_grad": (lambda x: x[:, 1:3], "shape", [2, 4]),
    "as_strided_grad": (lambda x: x.as_strided((2, 3), (6, 1), 0), "like", [2, 3]),
    "windows_grad": (lambda x: x.unfold(1, 2, 2), "shape", [4, 3]),
    "conv2d_input_grad": (lambda x: nn.functional.conv2d(x.view(1, 1, 4, 6), gradcore.ones(1, 1, 2, 2)), "shape", [1, 1, 4, 4]),
    # More channels than before: the result is larger than what it is made from.
    "conv2d_weight_grad": (
        lambda x: nn.functional.conv2d(gradcore.ones(1, 1, 5, 5), x.view(6, 1, 2, 2)), "shape", [6, 1, 3, 3]),
    "avg_pool2d_grad": (lambda x: nn.functional.avg_pool2d(x.view(1, 1, 4, 6), 2), "shape", [1, 1, 2, 2]),
    "take_along_grad": (lambda x: x.gather(1, gradcore.zeros(3, 2, dtype=gradcore.int64)), "shape", [2, 6]),
    "adaptive_avg_pool2d_grad": (
        lambda x: nn.functional.adaptive_avg_pool2d(x.view(1, 1, 4, 6), (2, 5)), "shape", [1, 2, 4, 6]),
}


@pytest.mark.parametrize("op", VIEWS)
def test_a_gradient_that_would_write_elsewhere(op: str, tmp_path: Path) -> None:
    """The gradient of a view is written to a result whose shape is in the file: all results' sizes are made consistent here."""
    function, attribute, other = VIEWS[op]
    w, x = gradcore.ones(4, 6, requires_grad=True), gradcore.ones(4, 6)
    optimizer = optim.SGD([w])

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = function(w * x).square().sum()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for _ in range(3):
        compiled(x)
    compiled.save(tmp_path / "a")

    def change(p: dict[str, Any]) -> None:
        found = instruction(p, op)
        next(a for a in found[3] if a[0] == attribute)[1] = other
        at = found[4][0]["at"]
        strides = [int(np.prod(other[k + 1:])) for k in range(len(other))]
        at[1] = [other, "float32", strides, 0]
        p["buffers"][at[0]][1] = 4 * int(np.prod(other))

    (tmp_path / "b").write_bytes(changed((tmp_path / "a").read_bytes(), change))
    with raises(ProgramError, op, "cannot run on these operands"):
        gradcore.load_program(tmp_path / "b")
    assert gradcore.load_program(tmp_path / "a")(x).item() == compiled(x).item()
