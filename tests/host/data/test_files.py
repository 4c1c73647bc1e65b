"""Files: exact round trips, also through PyTorch; atomic writes; what cannot be saved."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
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


@pytest.mark.parametrize("form", ["plain", "checkpoint", "with a tensor"])
def test_what_a_state_dict_says_of_its_modules_comes_back(form: str) -> None:
    """As through ``torch.save``: hooks that load older files ask for the version of the class that wrote them."""
    seen = []

    class Newer(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
            seen.append((prefix, local_metadata.get("version")))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    model = nn.Sequential(Newer(2, 2), nn.BatchNorm1d(2))
    state = model.state_dict()
    if form == "with a tensor":
        state._metadata["0"]["scale"] = gradcore.ones(2)  # type: ignore[attr-defined]
    file = io.BytesIO()
    gradcore.save({"model": state, 7: [state]} if form == "checkpoint" else state, file)
    back = gradcore.load(file)
    if form == "checkpoint":
        assert back[7][0]._metadata == back["model"]._metadata
        back = back["model"]
    assert list(back) == list(state)
    if form == "with a tensor":
        assert back._metadata["0"].pop("scale").tolist() == [1, 1]
    assert back._metadata == {"": {"version": 1}, "0": {"version": 3}, "1": {"version": 2}}
    model.load_state_dict(back)
    assert seen == [("0.", 3)]


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


@pytest.mark.parametrize(("path", "said", "words"), [("epoch", 3, "'epoch' to int"), (0, {}, "0 to dict")])
def test_what_would_not_load_as_metadata_is_not_saved(tmp_path: Path, path: Any, said: Any, words: str) -> None:
    state: Any = nn.Linear(1, 1).state_dict()
    state._metadata[path] = said
    for given in (state, {"model": state, "epoch": 1}):
        with raises(TypeError, f"save: _metadata of a state dict maps paths of modules to dicts, but {words}"):
            gradcore.save(given, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
