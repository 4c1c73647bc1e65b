"""Data sets: files are read correctly, and damaged files raise an error without allocating memory."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcore import data
from gradcore.data import Batches, IdxError, read_idx, registry
from gradcore.models.cnn import CNN
from gradcore.utils.data import DataLoader, TensorDataset
from tests.conftest import raises
from tests.host.memory.holding import fresh, holder


def idx(values: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    return bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def folder(path: Path, packed: bool = False) -> Path:
    rng = np.random.default_rng(0)
    for part, n in (("train", 6), ("t10k", 4)):
        for name, values in ((f"{part}-images-idx3-ubyte", rng.integers(0, 256, (n, 2, 3)).astype(np.uint8)),
                             (f"{part}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8))):
            (path / (name + ".gz" * packed)).write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return path


# -- digits ------------------------------------------------------------------------------------------------------------


def test_digits() -> None:
    d = data.load("digits")
    assert (d.name, d.classes, d.image, d.features) == ("digits", 10, (8, 8), 64)
    assert (d.train_x.shape, d.test_x.shape) == ((1437, 64), (360, 64))
    for x, y in ((d.train_x, d.train_y), (d.test_x, d.test_y)):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert x.min() == 0 and x.max() == 1 and set(y) == set(range(10))
    counts = np.bincount(np.concatenate([d.train_y, d.test_y]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert "CC BY 4.0" in d.source


def test_the_split_never_changes() -> None:
    d = data.load("digits")
    assert d.test_y[:12].tolist() == [7, 9, 4, 7, 0, 2, 6, 1, 3, 1, 3, 7]
    assert data.load("digits") is d and not d.train_x.flags.writeable


def test_digits_are_told_apart_by_their_neighbors() -> None:
    """Pixels and labels belong together: the nearest training image has the right class."""
    d = data.load("digits")
    distance = ((d.test_x[:100, None] - d.train_x[None]) ** 2).sum(-1)
    assert (d.train_y[distance.argmin(1)] == d.test_y[:100]).mean() > 0.95


# -- IDX ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"),
                                             (14, ">f8")])
def test_idx_types(tmp_path: Path, kind: int, dtype: str, packed: bool) -> None:
    values = (np.arange(24) - 7 * (kind > 8)).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(idx(values, kind)) if packed else idx(values, kind))
    found = read_idx(path, 3)
    np.testing.assert_array_equal(found, values)
    assert found.dtype.isnative and found.flags.writeable


@pytest.mark.parametrize(("content", "texts"), [
    (b"", ("not an IDX file", "nothing")),
    (b"\x89PNG....", ("it starts with 89 50 4e 47", "0d, 0e")),
    (b"\0\0\x07\1\0\0\0\1a", ("not an IDX file",)),
    (b"\0\0\x08\0", ("not an IDX file",)),
    (b"\0\0\x08\3\0\0\0\1", ("header ends before the sizes of its 3 dimensions",)),
    (b"\0\0\x08\1\0\0\0\5abcd", ("declares 5 bytes of values [5], but the file holds 4",)),
    (b"\0\0\x08\1\0\0\0\3abcd", ("declares 3 bytes", "more than 3")),
    (b"\0\0\x0e\3" + b"\xff" * 12, ("declares", "more than the file of 16 bytes can hold")),
])
def test_damaged_idx(tmp_path: Path, content: bytes, texts: tuple[str, ...]) -> None:
    (tmp_path / "x").write_bytes(content)
    with raises(IdxError, str(tmp_path / "x"), *texts):
        read_idx(tmp_path / "x")


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(idx(np.arange(200, dtype=np.uint8)))
    path = tmp_path / "x.gz"
    for content, text in (
            (whole[:-30], "incomplete or damaged gzip file"),
            (whole[:10] + b"\x07" * 50, "incomplete or damaged gzip file"),  # an invalid kind of block
            (b"plain text", "incomplete or damaged gzip file"),
            (gzip.compress(b"\0\0\x08\1\xff\xff\xff\xff"), "more than the file of"),
            (gzip.compress(b"\0\0\x08\1\0\0\0\x09abc"), "declares 9 bytes of values [9], but the file holds 3")):
        path.write_bytes(content)
        with raises(IdxError, text):
            read_idx(path)
    path.write_bytes(whole)
    with raises(IdxError, "expected 3 dimensions, but the header gives 1: [200]"):
        read_idx(path, 3)


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder(tmp_path: Path, packed: bool) -> None:
    d = data.load(folder(tmp_path, packed))
    assert d.train_x.shape == (6, 6) and d.test_x.shape == (4, 6) and d.classes == 6 and d.image == (2, 3)
    assert d.train_x.dtype == np.float32 and d.train_x.min() >= 0 and d.train_x.max() <= 1
    assert d.name == tmp_path.name and str(tmp_path) in d.source


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(5, dtype=np.uint8)))
    with raises(IdxError, "holds 6 images", "5 labels"):
        data.load(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.array([0, 1, -3, 2, 3, 4], np.int8), 9))
    with raises(IdxError, "train-labels-idx1-ubyte: labels must be at least 0, but label 2 is -3"):
        data.load(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with raises(FileNotFoundError, "has neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz"):
        data.load(tmp_path)


@pytest.mark.parametrize(("part", "shape"), [("train", (0, 2, 3)), ("t10k", (0, 2, 3)), ("train", (2, 0, 3))])
def test_a_folder_without_an_element(tmp_path: Path, part: str, shape: tuple[int, ...]) -> None:
    folder(tmp_path)
    (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros(shape, np.uint8)))
    (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.zeros(shape[0], np.uint8)))
    with raises(IdxError, f"{part}-images-idx3-ubyte", "at least one image", str(list(shape))):
        data.load(tmp_path)


def arrays(**changed: object) -> dict[str, Any]:
    images = {"x_train": np.full((6, 2, 3), 255, np.uint8), "x_test": np.zeros((4, 2, 3), np.uint8)}
    return {**images, "y_train": np.arange(6), "y_test": np.arange(4, dtype=np.uint8), "names": np.array(["a"]), **changed}


def test_a_file_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "my images.npz"
    np.savez_compressed(path, **arrays())
    d = data.load(path)
    assert (d.name, d.classes, d.image, d.features) == ("my images", 6, (2, 3), 6) and str(path) in d.source
    assert d.train_x.dtype == np.float32 and d.train_x.min() == 1 and d.test_x.max() == 0 and d.train_y.tolist() == [*range(6)]
    # Of other integers nobody knows the largest.
    np.savez(path, **arrays(x_train=np.full((6, 2), 200), x_test=np.full((4, 2), -1.5)))
    d = data.load(path)
    assert d.train_x.dtype == np.float32 and d.train_x.min() == 200 and d.test_x.max() == -1.5 and d.image == (2,)


def test_channels_that_are_last_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "colors.npz", **arrays(x_train=np.zeros((6, 8, 8, 3)), x_test=np.zeros((4, 8, 8, 3))))
    d = data.load(tmp_path / "colors.npz")
    with raises(ValueError, "images of shape (H, W) or (C, H, W), of at least 4 x 4 elements, but got (8, 8, 3)"):
        CNN(d.image, d.classes)


@pytest.mark.parametrize(("changed", "words"), [
    ({"x_test": np.zeros((4, 3, 2))}, "images of [2, 3] for training and [3, 2] for testing"),
    ({"y_train": np.arange(6)[:, None]}, "y_train must be numbers of shape [N], but is int64 [6, 1]"),
    ({"x_train": np.zeros(6)}, "x_train must be numbers of shape [N, ...], but is float64 [6]"),
    ({"x_train": np.array([["a"]] * 6)}, "x_train must be numbers of shape [N, ...], but is str"),
    ({"x_train": np.array([[None]] * 6)}, "Object arrays cannot be loaded"),
    ({"y_test": np.zeros(4)}, "y_test: labels must be integers, but are float64"),
    ({"y_test": np.arange(5)}, "x_test holds 4 images, and y_test 5 labels")])
def test_arrays_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(**changed))
    with raises(ValueError, str(path), words):
        data.load(path)


def test_files_without_the_arrays(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=np.zeros((2, 2)), y=np.zeros(2))
    with raises(ValueError, f"{path} is no data set: it lacks y_train, x_test, y_test, and has x_train, y"):
        data.load(path)
    path.write_bytes(path.read_bytes()[:-30])
    with raises(ValueError, f"{path} is no data set: it is not what numpy.savez writes"):
        data.load(path)


@pytest.mark.parametrize("content", [
    b"", b"no array", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    *(b"\x93NUMPY\x01\x00\x76\x00%-117s\n" % f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({n}, 2)}}".encode()
      for n in (10**13, 10**30, -1))])
def test_damaged_files_of_arrays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **{name: a for name, a in arrays().items() if name != "x_train"})
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x_train.npy", content)
    with raises(ValueError, f"{path} is no data set: "):
        data.load(path)


@pytest.mark.parametrize(("at", "value"), [(8, 1), (10, 99)], ids=["encrypted", "of another compression"])
def test_files_of_arrays_that_cannot_be_read(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    content = bytearray(path.read_bytes())
    # In the entry of a file in the directory at the end, and in that before its content.
    for mark, back in ((b"PK\x01\x02", 0), (b"PK\x03\x04", 2)):
        content[content.find(mark) + at - back] = value
    path.write_bytes(content)
    with raises(ValueError, f"{path} is no data set: "):
        data.load(path)


def test_labels_that_are_too_large(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(y_train=np.full(6, 2 ** 63 + 1, np.uint64)))
    with raises(ValueError, "y_train: labels must be below 2**63, but label 0 is 9223372036854775809"):
        data.load(tmp_path / "mine.npz")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    with raises(ValueError, str(tmp_path / "image.png"), "no text file in UTF-8", "0x89"):
        data.load(tmp_path / "image.png")


def test_fashion_mnist_is_found_or_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DEBIAN", tmp_path / "absent")
    monkeypatch.setenv("GRADCORE_DATA", str(tmp_path))
    with raises(FileNotFoundError, "dataset-fashion-mnist", "GRADCORE_DATA", str(tmp_path / "absent")):
        data.load("fashion-mnist")
    (tmp_path / "fashion-mnist").mkdir()
    folder(tmp_path / "fashion-mnist", packed=True)
    assert data.load("fashion-mnist").name == "fashion-mnist"


def test_unknown_names() -> None:
    with raises(ValueError, "unknown data set 'mnist-1d'", "digits, fashion-mnist", "path of a folder"):
        data.load("mnist-1d")


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_cover_everything_once_an_epoch() -> None:
    x, y = np.arange(10), np.arange(10) * 2
    batches = Batches(x, y, batch_size=4, seed=5)
    first, second = list(batches), list(batches)
    assert [len(b[0]) for b in first] == [4, 4, 2] and len(batches) == 3
    for epoch in (first, second):
        assert sorted(np.concatenate([b[0] for b in epoch])) == list(range(10))
        assert all((b[1] == 2 * b[0]).all() for b in epoch)
    assert [b[0].tolist() for b in first] != [b[0].tolist() for b in second]
    again = list(Batches(x, y, batch_size=4, seed=5))
    assert [b[0].tolist() for b in again] == [b[0].tolist() for b in first]
    orders = {seed: [b[0].tolist() for b in Batches(x, batch_size=4, seed=seed)] for seed in (5, 6, -1)}
    assert orders[5] != orders[6] != orders[-1] != orders[5]


def test_batches_drop_and_order() -> None:
    x = np.arange(10)
    batches = Batches(x, batch_size=4, shuffle=False, drop_last=True)
    assert [b.tolist() for (b,) in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(batches) == 2
    with raises(ValueError, "Size mismatch between tensors", "[10, 9]"):
        Batches(x, x[:9], batch_size=1)
    with raises(ValueError, "batch_size should be a positive integer value, but got batch_size=0"):
        Batches(x, batch_size=0)


def test_what_a_loader_reads_is_not_named_after_its_own_generators() -> None:
    used = {"train": [DataLoader(TensorDataset(fresh()))]}
    for _ in used["train"][0]:
        serial = used["train"][0].dataset.tensors[0].storage.serial
        assert holder(serial).startswith("used['train'][0].dataset.tensors[0] in test_what_a_loader_")
        break
    x = fresh()
    # Better than nothing.
    for _ in DataLoader(TensorDataset(x)):
        serial = x.storage.serial
        del x
        assert holder(serial).startswith("items.data_source.tensors[0] in the generator ")
        break
