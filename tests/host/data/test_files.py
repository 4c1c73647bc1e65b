"""Files: exact round trips, also through PyTorch; atomic writes; hostile files are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.utils.files import SafetensorsError
from tests.conftest import raises

R = np.random.default_rng(0)
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def some() -> dict[str, np.ndarray[Any, Any]]:
    """An array of every dtype, and of every number of dimensions."""
    made = {name: (R.normal(size=(3, 5)) * 4).astype(name) for name in DTYPES}
    return {**made, "scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32),
            "deep": R.normal(size=(1, 2, 1, 3)), "ünï/.\"": np.arange(4)}


def same(ours: Any, array: np.ndarray[Any, Any]) -> None:
    found = ours.numpy()
    assert found.dtype == array.dtype and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


def test_tensors_come_back(tmp_path: Path) -> None:
    arrays = some()
    tensors = {k: gradcore.tensor(v) for k, v in arrays.items()}
    tensors["turned"] = gradcore.tensor(arrays["float32"]).T
    gradcore.save(tensors, tmp_path / "a.safetensors")
    back = gradcore.load(tmp_path / "a.safetensors")
    assert set(back) == set(tensors)
    for name, array in arrays.items():
        same(back[name], array)
    same(back["turned"], arrays["float32"].T)
    file = io.BytesIO()
    gradcore.save(tensors, file)
    assert file.getvalue() == (tmp_path / "a.safetensors").read_bytes()
    same(gradcore.load(file)["deep"], arrays["deep"])


def test_names_come_back_in_their_order(tmp_path: Path) -> None:
    tied = gradcore.ones(2)
    given = {"z": gradcore.ones(3), "tied": tied, "half": gradcore.ones(2, dtype=gradcore.float16), "a": tied,
             "double": gradcore.ones(1, dtype=gradcore.float64), "0": gradcore.ones(3)}
    gradcore.save(given, tmp_path / "a.safetensors")
    back = gradcore.load(tmp_path / "a.safetensors")
    assert list(back) == list(given) and back["a"] is back["tied"]
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    gradcore.save(model.state_dict(), tmp_path / "m.safetensors")
    assert list(gradcore.load(tmp_path / "m.safetensors")) == list(model.state_dict())


def test_the_name_that_the_header_keeps(tmp_path: Path) -> None:
    gradcore.save({"__metadata__": gradcore.ones(2), "list": [gradcore.zeros(1)]}, tmp_path / "a.safetensors")
    same(gradcore.load(tmp_path / "a.safetensors")["__metadata__"], np.ones(2, np.float32))


@pytest.mark.oracle
def test_pytorch_opens_a_file_and_the_other_way_round(torch: Any, tmp_path: Path) -> None:
    st = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install -e '.[oracle]'")
    arrays = some()
    gradcore.save({k: gradcore.tensor(v) for k, v in arrays.items()}, tmp_path / "ours")
    theirs = st.load_file(tmp_path / "ours")
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name].numpy(), array)
        assert theirs[name].numpy().dtype == array.dtype
    st.save_file({k: torch.from_numpy(v) for k, v in arrays.items()}, tmp_path / "theirs", {"format": "pt"})
    for name, ours in gradcore.load(str(tmp_path / "theirs")).items():
        same(ours, arrays[name])
    wide = torch.tensor(R.normal(size=(7, 3)).astype(np.float32)).to(torch.bfloat16)
    st.save_file({"w": wide}, tmp_path / "narrow")
    with pytest.MonkeyPatch.context() as without:
        # Without the package that gives NumPy the type, float32 holds all of its values.
        without.setitem(sys.modules, "ml_dtypes", None)
        same(gradcore.load(tmp_path / "narrow")["w"], wide.float().numpy())
    # A model saved and loaded again.
    ours, other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.nn.Sequential(torch.nn.Linear(3, 4),
                                                                                         torch.nn.BatchNorm1d(4))
    gradcore.save(ours.state_dict(), tmp_path / "model")
    other.load_state_dict(st.load_file(tmp_path / "model"))
    torch.nn.init.normal_(other[0].weight)
    st.save_file(other.state_dict(), tmp_path / "model")
    ours.load_state_dict(gradcore.load(tmp_path / "model"))
    np.testing.assert_array_equal(ours[0].weight.detach().numpy(), other[0].weight.detach().numpy())


def test_a_checkpoint_comes_back_and_training_goes_on(tmp_path: Path) -> None:
    gradcore.manual_seed(0)

    def build() -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = optim.NAdam(model.parameters(), lr=0.05)
        return model, optimizer, optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 50)

    def train(model: Any, optimizer: Any, schedule: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            (model(gradcore.ones(2, 3)) - 3).square().sum().backward()
            optimizer.step()
            schedule.step()

    first = build()
    train(*first, 5)
    state = {"model": first[0].state_dict(), "optimizer": first[1].state_dict(), "schedule": first[2].state_dict(), "epoch": 3,
             "history": [1.0, float("inf"), None, True, ("a", 2)], "best": np.float32(0.5), "table": np.arange(3)}
    gradcore.save(state, tmp_path / "c.pt")
    second = build()
    back = gradcore.load(tmp_path / "c.pt", map_location="cpu", weights_only=True)
    data = (tmp_path / "c.pt").read_bytes()
    # Any library for the format finds the tensors by their places.
    names = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]).keys()
    assert {"model.0.weight", "optimizer.state.0.exp_avg", "table"} <= names
    assert (back["epoch"], back["history"], back["best"]) == (3, [1.0, float("inf"), None, True, ("a", 2)], 0.5)
    np.testing.assert_array_equal(back["table"], np.arange(3))
    for part, name in zip(second, ("model", "optimizer", "schedule"), strict=True):
        part.load_state_dict(back[name])
    train(*first, 5)
    train(*second, 5)
    for p, q in zip(first[0].parameters(), second[0].parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "w"
    gradcore.save({"w": gradcore.ones(3)}, path)
    before = path.read_bytes()

    class Broken:
        dtype, shape = np.dtype(np.float32), (2,)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise OSError("no more")

    from gradcore.utils.safetensors import write_file

    with raises(OSError, "no more"):
        write_file(path, {"a": np.ones(1000), "b": Broken()}, {})
    with raises(TypeError, "a tensor on meta has no values to save"):
        gradcore.save({"w": gradcore.ones(3, device="meta")}, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["w"]
    with raises(FileNotFoundError, "none"):
        gradcore.save({"w": gradcore.ones(3)}, tmp_path / "none" / "w")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_one_tensor_is_one_again(checkpoint: bool) -> None:
    """A tied weight stays tied, as through ``torch.save``; a plain file still has each name's own bytes, for other readers."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    state = {**model.state_dict(), "part": model[0].weight.detach()[:2]}
    file = io.BytesIO()
    gradcore.save({"model": state, "again": state, "n": [1]} if checkpoint else state, file)
    header = json.loads(file.getvalue()[8:8 + struct.unpack("<Q", file.getvalue()[:8])[0]])
    assert len(header) - 1 == (3 if checkpoint else 4)
    back = gradcore.load(file)
    if checkpoint:
        assert back["again"]["2.weight"] is back["model"]["2.weight"]
        back = back["model"]
    assert back["0.weight"] is back["1.weight"] and back["0.weight"].storage is not back["2.weight"].storage
    assert back["part"].storage is not back["0.weight"].storage
    for name, value in state.items():
        same(back[name], value.numpy())
    tied = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False))
    tied.load_state_dict({k: v for k, v in back.items() if k != "part"}, assign=True)
    assert tied[0].weight.storage is tied[1].weight.storage


def test_names_that_another_program_gave_other_values_are_apart() -> None:
    w = gradcore.ones(2)
    file = io.BytesIO()
    gradcore.save({"a": w, "b": w}, file)
    data = file.getvalue()
    back = gradcore.load(io.BytesIO(data[:-4] + struct.pack("<f", 7)))
    assert (back["a"].tolist(), back["b"].tolist()) == ([1, 1], [1, 7])
    # The same bytes may be other numbers.
    data = data.replace(b'"b":{"dtype":"F32"', b'"b":{"dtype":"I32"')
    assert gradcore.load(io.BytesIO(data))["b"].dtype == gradcore.int32


def test_what_cannot_be_saved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    for obj, text in (({"a": {"b": object()}}, "a.b is of type object"), ({"f": print}, "f is of type builtin"),
                      ({object(): 1}, "has a key of type object"), (deep, "more than 100 levels deep"),
                      ({"c": np.zeros(2, np.complex64)}, "'c' is complex64")):
        with raises(TypeError, text):
            gradcore.save(obj, io.BytesIO())
    monkeypatch.setattr("gradcore.utils.safetensors.LONGEST_HEADER", 40)
    with raises(ValueError, "more than the limit of 40"):
        gradcore.save({"w": gradcore.ones(1)}, io.BytesIO())


# -- hostile files -----------------------------------------------------------------------------------------------------


def packed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: Any = (2,), dtype: Any = "F32", offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": offsets}


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "it has only 0 bytes"),
    "a few bytes": (b"abc", "it has only 3 bytes"),
    "a long header": (struct.pack("<Q", 1 << 62) + b"{}", "the header's length would be 4,611,686,018,427,387,904 bytes"),
    "a header longer than the file": (struct.pack("<Q", 100) + b"{}", "the header's length would be 100"),
    "a pickle": (pickle.dumps({"w": 1}), "looks like a file of torch.save or pickle"),
    "a zip": (b"PK\x03\x04" + b"x" * 100, "looks like a file of torch.save or pickle"),
    "not valid JSON": (packed(b"{nope}"), "the header is not valid JSON"),
    "no UTF-8": (packed(b'{"\xff": 1}'), "the header is not valid JSON"),
    "deep JSON": (packed(b"[" * 100_000), "the header is not valid JSON"),
    "a list": (packed([1]), "must be a JSON object, but is a list"),
    "a name twice": (packed(b'{"a": {}, "a": {}}'), "a name is repeated"),
    "bad metadata": (packed({"__metadata__": {"a": 1}}), "__metadata__ must map names to strings"),
    "an entry that is none": (packed({"w": 3}), "must have a dtype, a shape and data_offsets, but is 3"),
    "more in an entry": (packed({"w": {**entry(), "code": "x"}}, b"x" * 8), "must have a dtype, a shape and data_offsets"),
    "an unknown dtype": (packed({"w": entry(dtype="F8_E4M3")}, b"x" * 8), "has the dtype 'F8_E4M3'"),
    "a dtype that is none": (packed({"w": entry(dtype=["F32"])}, b"x" * 8), "has the dtype"),
    "a negative size": (packed({"w": entry((-2,))}, b"x" * 8), "a shape is a list of at most 64 sizes"),
    "a true size": (packed({"w": entry([True, 2])}, b"x" * 8), "a shape is a list of at most 64 sizes"),
    "a fraction": (packed({"w": entry((2.0,))}, b"x" * 8), "a shape is a list of at most 64 sizes"),
    "many dimensions": (packed({"w": entry((1,) * 65, offsets=[0, 4])}, b"x" * 4), "a shape is a list of at most 64 sizes"),
    "a vast shape": (packed({"w": entry((1 << 40, 1 << 40))}, b"x" * 8), "bytes, but data_offsets [0, 8] give it 8"),
    "a vast shape and offsets": (packed({"w": entry((1 << 40,), offsets=[0, 1 << 42])}, b"x" * 8), "the tensors end at byte"),
    "a wrapped size": (packed({"w": entry((1 << 62, 4), offsets=[0, 0])}), "bytes, but data_offsets [0, 0] give it 0"),
    "offsets that fall": (packed({"w": entry(offsets=[8, 0])}, b"x" * 8), "data_offsets are two positions"),
    "three offsets": (packed({"w": entry(offsets=[0, 4, 8])}, b"x" * 8), "data_offsets are two positions"),
    "a gap": (packed({"v": entry(), "w": entry(offsets=[12, 20])}, b"x" * 20), "gaps and overlaps are not allowed"),
    "an overlap": (packed({"v": entry(), "w": entry(offsets=[4, 12])}, b"x" * 12), "gaps and overlaps are not allowed"),
    "less data": (packed({"w": entry()}, b"x" * 7), "but the file has"),
    "more data": (packed({"w": entry()}, b"x" * 9), "but the file has"),
    "bytes that are no bools": (packed({"w": entry(dtype="BOOL", offsets=[0, 2])}, b"\x01\x07"), "neither 0 nor 1"),
    "a tree that is no JSON": (packed({"__metadata__": {"gradcore": "["}}), "the metadata is not valid JSON"),
    "a deep tree": (packed({"__metadata__": {"gradcore": "[" * 50_000}}), "the metadata is not valid JSON"),
    "a tree of something else": (packed({"__metadata__": {"gradcore": '{"a": 1}'}}), "unexpected metadata"),
    "a tree that names no tensor": (packed({"__metadata__": {"gradcore": '["tensor", "w"]'}}), "unexpected metadata"),
    "a tree of an unknown kind": (packed({"__metadata__": {"gradcore": '["os.system", "ls"]'}}), "unexpected metadata"),
    "an unknown kind of pairs": (packed({"__metadata__": {"gradcore": '["set", [[1, 2]]]'}}), "unexpected metadata"),
    "shared names that are no dict": (packed({"__metadata__": {"gradcore.shared": "[1]"}}), "unexpected metadata [1]"),
    "a shared name that is no string": (packed({"__metadata__": {"gradcore.shared": '{"a": ["b"]}'}}), "unexpected metadata"),
    "a key that is a list": (packed({"__metadata__": {"gradcore": '["dict", [[["list", []], 1]]]'}}), "unexpected metadata"),
    "a key with a list inside": (packed({"__metadata__": {"gradcore": '["dict", [[["tuple", [["list", []]]], 1]]]'}}),
                                 "unexpected metadata"),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_files_are_refused_without_a_large_allocation(name: str, tmp_path: Path) -> None:
    data, text = BAD[name]
    path = tmp_path / "bad"
    path.write_bytes(data)
    live = set(gradcore.device("cpu").ledger.live)
    tracemalloc.start()
    try:
        for given in (path, io.BytesIO(data)):
            with raises(SafetensorsError, text):
                gradcore.load(given)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert set(gradcore.device("cpu").ledger.live) == live


def test_a_damaged_file_never_does_more_than_raise() -> None:
    """Bytes of a good file changed, cut and doubled at random: each time gradcore's error, or tensors of the right sizes."""
    file = io.BytesIO()
    gradcore.save({"model": {"w": gradcore.ones(3, 2), "n": gradcore.tensor([1, 2])}, "epoch": 3}, file)
    good = file.getvalue()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        bad = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(bad)))
            kind = rng.integers(0, 3)
            if kind == 0:
                bad[at] = int(rng.integers(0, 256))
            elif kind == 1:
                del bad[at:at + int(rng.integers(1, 9))]
            else:
                bad[at:at] = bad[at:at + 5]
        try:
            gradcore.load(io.BytesIO(bytes(bad)))
        except SafetensorsError:
            refused += 1
    assert refused > 300


def test_a_function_that_says_where_leaves_tensors_on_the_cpu(tmp_path: Path) -> None:
    gradcore.save({"w": gradcore.ones(2)}, tmp_path / "w.st")
    for place in (lambda storage, location: storage, {"cuda:0": "cpu"}, {"cpu": "cpu"}):
        assert gradcore.load(tmp_path / "w.st", map_location=place)["w"].tolist() == [1, 1]


@pytest.mark.parametrize(("value", "text"), [
    (SimpleNamespace(lr=0.1), "args is of type SimpleNamespace; .* can be saved; vars\\(\\) makes a dict of it"),
    ({1, 2}, "args is of type set; .* can be saved; sorted\\(\\) makes a list of it"), (print, "can be saved$")])
def test_what_cannot_be_saved_says_what_to_save_instead(value: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=text):
        gradcore.save({"args": value}, tmp_path / "x.safetensors")
