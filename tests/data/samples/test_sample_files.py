"""Files of samples: what each format holds, and every broken file refused by name."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_files import HEIGHT, WIDTH, cifar_records, idx_bytes, mnist, numbered, numbers_of, write_idx

from hpxfer.data.samples import Samples
from hpxfer.data.sources import open_samples
from hpxfer.errors import HpxferError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def opened(source: str, only: tuple[int, ...] = ()) -> Samples:
    found = open_samples(source, only)
    assert found is not None
    return found


def everything(source: str, only: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs and targets of the training split in the order of the files, and of the test split."""
    found = opened(source, only)
    assert found.num_train is not None
    x, y = found.train(0, 0, found.num_train, 0)
    order = np.argsort(numbers_of(x))
    test_x, test_y = found.held_out(0, found.num_test or 0)
    test_order = np.argsort(numbers_of(test_x)) if found.num_test else slice(0)
    return x[order], y[order], test_x[test_order], test_y[test_order]


@pytest.mark.parametrize(("packed", "dot"), [(False, "-"), (True, ".")])
def test_idx_holds_images_and_labels_of_both_splits(tmp_path: Path, packed: bool, dot: str) -> None:
    """A test split that is spelled otherwise than the training split must not be lost."""
    write_idx(tmp_path, "train", numbered(30), [k % 3 for k in range(30)], packed=packed, dot="-")
    write_idx(tmp_path, "t10k", numbered(7, start=500), [2] * 7, packed=packed, dot=dot)
    x, y, test_x, test_y = everything(f"idx:{tmp_path}")
    assert np.array_equal(x, numbered(30))
    assert y.tolist() == [k % 3 for k in range(30)]
    assert np.array_equal(test_x, numbered(7, start=500))
    assert test_y.tolist() == [2] * 7
    facts = opened(f"idx:{tmp_path}").facts
    assert (facts.shape, facts.num_inputs, facts.num_classes) == ((HEIGHT, WIDTH), 15, 3)
    found = opened(f"idx:{tmp_path}/t10k-images{dot}idx3-ubyte{'.gz' * packed}", only=(2, 1, 0))
    with pytest.raises(HpxferError, match="got none of class 1, 0"):
        _ = found.num_train


def test_idx_finds_labels_by_the_number_of_dimensions_alone(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", numbered(9), [0, 1, 2] * 3)
    (tmp_path / IMAGES).rename(tmp_path / "mine-idx3-ubyte")
    (tmp_path / LABELS).rename(tmp_path / "mine-idx1-ubyte")
    assert opened(f"idx:{tmp_path}/mine-idx3-ubyte").num_train == 9


def test_packing_and_moving_change_no_digest(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_idx(tmp_path / name, "train", numbered(9), [0, 1, 2] * 3, packed=name == "b")
    (tmp_path / "b" / "other-train-images-idx3-ubyte").write_bytes(b"")
    first = opened(f"idx:{tmp_path}/a").digest()
    assert first == opened(f"idx:{tmp_path}/b/train-images-idx3-ubyte.gz").digest()
    write_idx(tmp_path / "a", "train", numbered(9), [0, 1, 2, 0, 1, 2, 0, 2, 1])
    assert first != opened(f"idx:{tmp_path}/a").digest()


def test_labels_of_emnist_letters_start_at_one(tmp_path: Path) -> None:
    write_idx(tmp_path, "emnist-letters-train", numbered(26), range(1, 27))
    write_idx(tmp_path, "emnist-letters-test", numbered(3, start=100), [1, 26, 2])
    _, y, _, test_y = everything(f"idx:{tmp_path}/emnist-letters-train-images-idx3-ubyte")
    assert y.tolist() == list(range(26))
    assert test_y.tolist() == [0, 25, 1]


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_holds_images_and_fine_labels(tmp_path: Path, label_bytes: int) -> None:
    images, classes = numbered(200, 3072), 10 if label_bytes == 1 else 100
    labels = [k % classes for k in range(200)]
    coarse = [[19] * 200] * (label_bytes - 1)
    if label_bytes == 1:
        (tmp_path / "data_batch_1.bin").write_bytes(cifar_records(images[:150], labels[:150]))
        (tmp_path / "data_batch_2.bin").write_bytes(cifar_records(images[150:], labels[150:]))
    else:
        (tmp_path / "train.bin").write_bytes(cifar_records(images, *coarse, labels))
    name = "test_batch.bin" if label_bytes == 1 else "test.bin"
    (tmp_path / name).write_bytes(cifar_records(images[:5], *(each[:5] for each in coarse), labels[:5]))
    x, y, test_x, _ = everything(f"cifar:{tmp_path}")
    assert np.array_equal(x, images)
    assert y.tolist() == labels
    assert np.array_equal(test_x, images[:5])
    assert opened(f"cifar:{tmp_path}").facts.num_classes == classes


@pytest.mark.parametrize("names", [("x_train", "y_train", "x_test", "y_test"), ("images", "labels")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_holds_pixels_with_classes(tmp_path: Path, names: tuple[str, ...], save: Callable[..., None]) -> None:
    arrays = (numbered(8).reshape(8, 3, 5), np.arange(8)[:, None] % 2, numbered(2, start=100).reshape(2, 3, 5), [0, 1])
    save(tmp_path / "a.npz", **dict(zip(names, arrays, strict=False)))
    x, y, test_x, _ = everything(f"npz:{tmp_path}/a.npz")
    assert np.array_equal(x, numbered(8))
    assert y.tolist() == [0, 1] * 4
    assert len(test_x) == (2 if len(names) == 4 else 0)


def test_npz_holds_real_inputs_and_targets_as_they_are(tmp_path: Path) -> None:
    x, y = np.asfortranarray(np.random.default_rng(0).normal(size=(6, 4))), np.arange(12.0).reshape(6, 2)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    found = opened(f"npz:{tmp_path}/a.npz")
    assert (found.facts.num_inputs, found.facts.num_targets, found.facts.num_classes) == (4, 2, 0)
    assert found.normalization is None
    inputs, targets = found.held_out(0, 6)
    order = np.argsort(targets[:, 0])
    assert np.array_equal(inputs[order], x.astype(np.float32))
    assert np.array_equal(targets[order], y)
    assert targets.dtype == np.float32


def image(path: Path, size: tuple[int, int] = (4, 3), mode: str = "L", value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 1, 2)).save(path)


def test_image_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number, name in enumerate(("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "test/dog/1.png")):
        image(tmp_path / name, value=number)
    found = opened(f"images:{tmp_path}")
    assert (found.num_train, found.num_test, found.facts.shape, found.facts.num_classes) == (3, 1, (3, 4), 2)
    x, y = found.train(0, 0, 3, 0)
    assert sorted(zip(x[:, 0].tolist(), y.tolist(), strict=True)) == [(0, 0), (1, 0), (2, 1)]
    assert found.held_out(0, 1)[1].tolist() == [1]


def test_tiny_imagenet_is_read_as_it_is_shipped(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/images/cat_0.png", "cat/images/cat_1.png", "dog/images/dog_0.png")):
        image(tmp_path / "train" / name, value=number)
        (tmp_path / "train" / name).parent.parent.joinpath("boxes.txt").write_text("cat_0.png\t0\t0\t62\t62\n")
    for number, name in enumerate(("val_0.png", "val_1.png")):
        image(tmp_path / "val" / "images" / name, value=10 + number)
    image(tmp_path / "test" / "images" / "test_0.png", value=20)  # without classes, so that it is no split
    notes = tmp_path / "val" / "val_annotations.txt"
    notes.write_text("val_1.png\tcat\t0\t32\t44\t62\nval_0.png\tdog\t0\t32\t44\t62\n")
    x, y, test_x, test_y = everything(f"images:{tmp_path}")
    assert sorted(zip(x[:, 0].tolist(), y.tolist(), strict=True)) == [(0, 0), (1, 0), (2, 1)]
    assert sorted(zip(test_x[:, 0].tolist(), test_y.tolist(), strict=True)) == [(10, 1), (11, 0)]
    notes.write_text("val_1.png\tcat\n")
    with pytest.raises(HpxferError, match=r"must hold a line FILE, tab, CLASS per image, got none of val_0\.png"):
        opened(f"images:{tmp_path}")
    notes.unlink()
    assert opened(f"images:{tmp_path}").num_test == 0


def test_a_class_is_chosen_among_labels_of_any_size_and_numbered_by_its_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=numbered(6), y=np.array([600_000_000, 7, 0, 7, 3, 600_000_000]))
    source, only = f"npz:{tmp_path}/a.npz", (600_000_000, 3, 7)
    assert everything(source, only)[1].tolist() == [0, 2, 2, 1, 0]
    assert opened(source, only).facts.num_classes == 3
    assert opened(source, only).digest() == opened(source).digest()  # the setting has the classes


def npz(**arrays: object) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def beyond_its_data() -> bytes:
    """Return an archive whose headers ask for more than there is."""
    content, head = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 2**40)})
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, head.getvalue())
    return content.getvalue()


def png(size: tuple[int, int] = (4, 3), deep: bool = False) -> bytes:
    content = io.BytesIO()
    pixels = np.full(size[::-1], 9000, np.uint16) if deep else np.zeros(size[::-1], np.uint8)
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


FORTY = idx_bytes((40, HEIGHT, WIDTH), numbered(40).tobytes())
ALONE, PIXELS = {"x_train": numbered(2), "y_train": [0, 1]}, {"x": numbered(2), "y": [0, 1]}
# name: the source below the folder, the files beside a small set of IDX (None takes one out), what is said.
BROKEN: dict[str, tuple[str, dict[str, bytes | None], str]] = {
    "idx truncated": ("idx", {IMAGES: FORTY[:-1]}, "must have 616 bytes for 40 x 3 x 5 images, got 615"),
    "idx goes on": ("idx", {IMAGES: FORTY + b"x"}, "must have 616 bytes for 40 x 3 x 5 images, got more"),
    "idx empty": ("idx", {IMAGES: b""}, "must start as an IDX file of bytes"),
    "idx magic": ("idx", {IMAGES: b"\x00\x00\x0d" + FORTY[3:]}, "got 00 00 0d 03"),
    "idx header": ("idx", {LABELS: b"\x00\x00\x08\x01\x00"}, "and their sizes, got 00 00 08 01"),
    "idx counts": ("idx", {LABELS: idx_bytes((39,), bytes(39))}, "a target for each of 40 inputs, .* got 39"),
    "idx no labels": ("idx", {LABELS: None}, "must have train-labels-idx1-ubyte or .* beside it"),
    "idx a class without samples": (
        "idx",
        {LABELS: idx_bytes((40,), bytes([0, 1, 2, 200] * 10))},
        "must have a training sample, got none of class 3, 4, .* and 187 more; see data.only",
    ),
    "idx no samples": ("idx", {IMAGES: idx_bytes((0, 3, 5), b"")}, "a target for each of 0 inputs, at least one"),
    "idx bomb": ("idx", {IMAGES: idx_bytes((2**32 - 1,) * 3, b"")}, "must hold at most"),
    "idx labels as images": ("idx", {IMAGES: idx_bytes((40,), bytes(40))}, "must hold images, got the dimensions"),
    "idx broken gz": ("idx", {IMAGES: gzip.compress(FORTY)}, r"a packed file ends in \.gz"),
    "idx cut gz": (
        "idx",
        {IMAGES: None, f"{IMAGES}.gz": gzip.compress(FORTY)[:-9]},
        "must be whole and packed by gzip",
    ),
    "idx empty folder": ("idx", {IMAGES: None}, r"such a file, plain or \.gz, got none in"),
    "idx two sets": ("idx", {f"a-{IMAGES}": b""}, f"got a-{IMAGES}, {IMAGES} in"),
    "idx test labels alone": (
        "idx",
        {"t10k-images-idx3-ubyte": None},
        "t10k-labels-idx1-ubyte: must have t10k-images-idx3-ubyte or .* beside it",
    ),
    "idx test images alone": (
        "idx",
        {"t10k-labels-idx1-ubyte": None},
        "t10k-images-idx3-ubyte: must have t10k-labels-idx1-ubyte or .* beside it",
    ),
    "idx test label": (
        "idx",
        {"t10k-labels-idx1-ubyte": idx_bytes((12,), bytes([0, 1, 2, 3, 9, *[0] * 7]))},
        "train-labels-idx1-ubyte: every class .* must have a training sample, got none of class 4, ",
    ),
    "idx test of another size": (
        "idx",
        {"t10k-images-idx3-ubyte": idx_bytes((12, 1, 5), bytes(60))},
        "t10k-labels-idx1-ubyte: must hold samples of uint8 3x5 with classes as .*, got samples of uint8 1x5",
    ),
    "idx not a name of images": (
        "idx:a.bin",
        {"a.bin": FORTY},
        "a.bin: must have `images` in its name, so that its la",
    ),
    "cifar part of a record": ("cifar", {"data_batch_1.bin": bytes(3072)}, "must be records of 3073 bytes, got 3072"),
    "cifar label": (
        "cifar",
        {"data_batch_1.bin": cifar_records(numbered(2, 3072), [1, 10])},
        "a label must be below 10, got 10 in record 1",
    ),
    "cifar missing batch": ("cifar", {"data_batch_2.bin": b""}, "must hold data_batch_1.bin and all that follow"),
    "cifar both": ("cifar", {"data_batch_1.bin": b"", "train.bin": b""}, "got both"),
    "cifar pickled": ("cifar", {"data_batch_1": pickle.dumps({})}, "files of Python's pickle are not read"),
    "cifar empty folder": ("cifar", {}, "got neither$"),
    "cifar file": ("cifar:a", {"a": b""}, "must name the folder of the files, got the file"),
    "npz of objects": ("npz:a", {"a": npz(x=np.array([{}]), y=[0])}, "got Object arrays cannot be loaded"),
    "npz labels of objects": (
        "npz:a",
        {"a": npz(x=numbered(1), y=np.array([{}]))},
        "got Object arrays cannot be loaded",
    ),
    "npz names": ("npz:a", {"a": npz(data=[1])}, "arrays with the names x_train and y_train; .*got data"),
    "npz counts": ("npz:a", {"a": npz(x=numbered(3), y=[0, 1])}, "a target for each of 3 inputs, at least one, got 2"),
    "npz negative": ("npz:a", {"a": npz(x=numbered(2), y=[0, -1])}, "classes must be from 0 to"),
    "npz whole inputs": ("npz:a", {"a": npz(x=np.ones((2, 2), int), y=[0, 1])}, "must be pixels of uint8 or real"),
    "npz not finite": ("npz:a", {"a": npz(x=[[1.0], [np.nan]], y=[0, 1])}, r"must be finite .* got nan at \(1, 0\)"),
    "npz test of another form": (
        "npz:a",
        {"a": npz(**ALONE, x_test=numbered(2, 4), y_test=[0, 1])},
        "y_test: must hold samples of uint8 15 with classes as .*y_train, got samples of uint8 4 with classes",
    ),
    "npz two pairs": ("npz:a", {"a": npz(**ALONE, **PIXELS)}, "must hold one pair of .*, got x, x_train, y, y_train"),
    "npz half a test split": (
        "npz:a",
        {"a": npz(**ALONE, y_test=[0, 1])},
        "the test split must have both x_test and y_test, got y_test alone",
    ),
    "npz constant": (
        "npz:a",
        {"a": npz(x=np.full((4, 3), 7, np.uint8), y=[0, 1, 0, 1])},
        "all inputs of these training samples are equal, .* got 7 everywhere",
    ),
    "npz constant numbers": ("npz:a", {"a": npz(x=np.ones((4, 3)), y=[0, 1, 0, 1])}, r"got 1\.0 everywhere"),
    "npz no archive": ("npz:a", {"a": b"PK no archive"}, r"must be a whole file of `numpy\.savez`"),
    "npz beyond its data": ("npz:a", {"a": beyond_its_data()}, r"must be a whole file of `numpy\.savez`"),
    "npz empty": ("npz:a", {"a": npz(x=np.zeros((0, 3)), y=np.zeros(0, int))}, "each of 0 inputs, at least one"),
    "npz a label far above the others": (
        "npz:a",
        {"a": npz(x=numbered(4), y=np.array([0, 1, 2, 600_000_000]))},
        "must have a training sample, got none of class 3, 4, .* and 599999987 more",
    ),
    "npz folder": ("npz:a", {"a/b": b""}, "must name one file, got the folder"),
    "images of two sizes": (
        "images:a",
        {"a/a/1.png": png(), "a/b/1.png": png((5, 3))},
        "must have the size of .*1.png, 4 x 3 pixels, got 5 x 3",
    ),
    "images of the test split alone": (
        "images:a",
        {"a/train/README": b"", "a/test/cat/1.png": png()},
        "train: must hold one folder of images per class, .*no image",
    ),
    "images of 16 bits": ("images:a", {"a/cat/1.png": png(deep=True)}, "1.png: must have 8 bits per channel, got the"),
    "images broken": ("images:a", {"a/cat/1.png": png()[:40]}, "1.png: must be an image, got"),
    "images file": ("images:a", {"a": b""}, "must name a folder, got the file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    kind, files, message = BROKEN[name]
    mnist(tmp_path)
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    kind, _, path = kind.partition(":")
    with pytest.raises(HpxferError, match=message) as found:
        everything(f"{kind}:{tmp_path / path}")
    assert str(tmp_path) in str(found.value)


@pytest.mark.parametrize("source", ["idx", "cifar", "npz", "images"])
def test_nothing_on_this_machine_is_no_samples(tmp_path: Path, source: str) -> None:
    assert open_samples(f"{source}:{tmp_path}/nowhere") is None


def test_spoiled_bytes_give_samples_or_a_named_error(tmp_path: Path) -> None:
    """Truncations, random bytes and changed bytes at random places, of files of every format."""
    for name in ("idx", "gz", "cifar"):
        (tmp_path / name).mkdir()
    mnist(tmp_path / "idx", train=6, test=0)
    write_idx(tmp_path / "gz", "train", numbered(6), [0, 1] * 3, packed=True)
    (tmp_path / "cifar" / "train.bin").write_bytes(cifar_records(numbered(100, 3072), [0] * 100, range(100)))
    (tmp_path / "a.npz").write_bytes(npz(x=numbered(4), y=[0, 1, 1, 0]))
    for name in "ab":
        image(tmp_path / "images" / name / "1.png")
    sources = {
        f"idx:{tmp_path}/idx": f"idx/{IMAGES}",
        f"idx:{tmp_path}/idx/{IMAGES}": f"idx/{LABELS}",
        f"idx:{tmp_path}/gz": f"gz/{IMAGES}.gz",
        f"cifar:{tmp_path}/cifar": "cifar/train.bin",
        f"npz:{tmp_path}/a.npz": "a.npz",
        f"images:{tmp_path}/images": "images/b/1.png",
    }
    chance, refused, rounds = random.Random(0), 0, 30
    for source, name in sources.items():
        path = tmp_path / name
        whole = path.read_bytes()
        for number in range(rounds):
            content = bytearray(whole[: chance.randrange(len(whole))] if number % 3 == 0 else whole)
            if number % 3 == 1:
                content = bytearray(chance.randbytes(chance.randrange(200)))
            for _ in range(chance.randrange(1, 4) if number % 3 == 2 else 0):
                content[chance.randrange(min(len(content), 600))] = chance.randrange(256)
            path.write_bytes(content)
            try:
                everything(source)
                assert len(opened(source).digest()) == 32
            except HpxferError:
                refused += 1
        path.write_bytes(whole)
    assert refused > len(sources) * rounds // 2
