"""Files that are no safetensors files, or damaged ones, are refused, without a large allocation."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.utils.files import SafetensorsError
from tests.conftest import raises


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
    "modules that are no dict": (packed({"__metadata__": {"gradcore.modules": "[1]"}}), "unexpected metadata [1]"),
    "a module of which a number is said": (packed({"__metadata__": {"gradcore.modules": '["dict", [["a", 1]]]'}}),
                                           "unexpected metadata ['dict', [['a', 1]]]"),
    "a state dict without modules": (packed({"__metadata__": {"gradcore": '["state_dict", [[]]]'}}), "unexpected metadata"),
    "a state dict that is a list": (packed({"__metadata__": {"gradcore": '["state_dict", [[1], ["dict", []]]]'}}),
                                    "unexpected metadata ['dict', [1]]"),
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
