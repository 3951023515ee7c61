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


def opened(source: str, only: tuple[int, ...] = ()) -> Samples:
    found = open_samples(source, only)
    assert found is not None
    return found


def everything(source: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs and targets of the training split in the order of the files, and of the test split."""
    found = opened(source)
    assert found.num_train is not None
    x, y = found.train(0, 0, found.num_train, 0)
    order = np.argsort(numbers_of(x))
    test_x, test_y = found.held_out(0, found.num_test or 0)
    test_order = np.argsort(numbers_of(test_x)) if found.num_test else slice(0)
    return x[order], y[order], test_x[test_order], test_y[test_order]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
def test_idx_holds_images_and_labels_of_both_splits(tmp_path: Path, packed: bool, dot: str) -> None:
    write_idx(tmp_path, "train", numbered(30), [k % 3 for k in range(30)], packed=packed, dot=dot)
    write_idx(tmp_path, "t10k", numbered(7, start=500), [2] * 7, packed=packed, dot=dot)
    x, y, test_x, test_y = everything(f"idx:{tmp_path}")
    assert np.array_equal(x, numbered(30))
    assert y.tolist() == [k % 3 for k in range(30)]
    assert np.array_equal(test_x, numbered(7, start=500))
    assert test_y.tolist() == [2] * 7
    facts = opened(f"idx:{tmp_path}").facts
    assert (facts.shape, facts.num_inputs, facts.num_classes) == ((HEIGHT, WIDTH), 15, 3)


def test_a_folder_may_mix_both_spellings(tmp_path: Path) -> None:
    """A test split that is spelled otherwise than the training split must not be lost."""
    write_idx(tmp_path, "train", numbered(30), [k % 3 for k in range(30)], dot="-")
    write_idx(tmp_path, "t10k", numbered(7, start=500), [2] * 7, dot=".")
    (tmp_path / "t10k-labels.idx1-ubyte").rename(tmp_path / "t10k-labels-idx1-ubyte")
    assert np.array_equal(everything(f"idx:{tmp_path}")[2], numbered(7, start=500))


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


def test_one_file_of_a_test_split_is_a_source_without_one(tmp_path: Path) -> None:
    mnist(tmp_path)
    found = opened(f"idx:{tmp_path}/t10k-images-idx3-ubyte")
    assert (found.num_train, found.num_test) == (12, 0)


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


def test_a_chosen_class_is_numbered_by_its_place(tmp_path: Path) -> None:
    found = opened(mnist(tmp_path), only=(3, 1))
    assert (found.num_train, found.num_test, found.facts.num_classes) == (20, 6, 2)
    x, y = found.train(0, 0, 20, 0)
    assert np.array_equal(y, np.where(numbers_of(x) % 4 == 3, 0, 1))
    assert found.digest() == opened(f"idx:{tmp_path}").digest()  # the setting has the classes


def test_a_class_is_chosen_among_labels_of_any_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=numbered(6), y=np.array([600_000_000, 7, 0, 7, 3, 600_000_000]))
    found = opened(f"npz:{tmp_path}/a.npz", only=(600_000_000, 3, 7))
    x, y = found.train(0, 0, 5, 0)
    assert y[np.argsort(numbers_of(x))].tolist() == [0, 2, 2, 1, 0]


def npz(**arrays: object) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def spoiled(name: str, content: bytes | None) -> Callable[[Path], str]:
    """Return a function that writes a small set of IDX with one file replaced, or taken out."""

    def write(folder: Path) -> str:
        source = mnist(folder)
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        return source

    return write


def one(kind: str, name: str, content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / name).write_bytes(content)
        return f"{kind}:{folder / name if kind == 'npz' else folder}"

    return write


def other_name(folder: Path) -> str:
    (folder / "a.bin").write_bytes(FORTY)
    return f"idx:{folder}/a.bin"


def two_sizes(folder: Path) -> str:
    image(folder / "a" / "1.png")
    image(folder / "b" / "1.png", size=(5, 3))
    return f"images:{folder}"


def no_training_images(folder: Path) -> str:
    (folder / "train").mkdir()
    image(folder / "test" / "cat" / "1.png")
    image(folder / "test" / "dog" / "1.png", value=1)
    return f"images:{folder}"


def deep(folder: Path) -> str:
    (folder / "cat").mkdir()
    Image.fromarray(np.full((3, 4), 9000, np.uint16)).save(folder / "cat" / "1.png")
    return f"images:{folder}"


def letters(folder: Path) -> str:
    write_idx(folder, "train", numbered(3), [1, 2, 3])
    write_idx(folder, "test", numbered(2), [1, 4])
    return f"idx:{folder}"


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
FORTY = idx_bytes((40, HEIGHT, WIDTH), numbered(40).tobytes())
BROKEN: dict[str, tuple[Callable[[Path], str], str]] = {
    "idx truncated": (spoiled(IMAGES, FORTY[:-1]), "must have 616 bytes for 40 x 3 x 5 images, got 615"),
    "idx goes on": (spoiled(IMAGES, FORTY + b"x"), "must have 616 bytes for 40 x 3 x 5 images, got more"),
    "idx empty": (spoiled(IMAGES, b""), "must start as an IDX file of bytes"),
    "idx magic": (spoiled(IMAGES, b"\x00\x00\x0d" + FORTY[3:]), "got 00 00 0d 03"),
    "idx header": (spoiled(LABELS, b"\x00\x00\x08\x01\x00"), "and their sizes, got 00 00 08 01"),
    "idx counts": (
        spoiled(LABELS, idx_bytes((39,), bytes(39))),
        "must hold a target for each of 40 inputs, at least one, got 39",
    ),
    "idx no labels": (spoiled(LABELS, None), "must have train-labels-idx1-ubyte or .* beside it"),
    "idx a class without samples": (
        spoiled(LABELS, idx_bytes((40,), bytes([0, 1, 2, 200] * 10))),
        "must have a training sample, got none of class 3, 4, .* and 187 more; see data.only",
    ),
    "idx no samples": (
        spoiled(IMAGES, idx_bytes((0, 3, 5), b"")),
        "must hold a target for each of 0 inputs, at least one, got 40",
    ),
    "idx bomb": (spoiled(IMAGES, idx_bytes((2**32 - 1,) * 3, b"")), "must hold at most"),
    "idx labels as images": (spoiled(IMAGES, idx_bytes((40,), bytes(40))), "must hold images, got the dimensions"),
    "idx broken gz": (spoiled(f"{IMAGES}", gzip.compress(FORTY)), r"a packed file ends in \.gz"),
    "idx empty folder": (lambda folder: f"idx:{folder}", "or such a file, plain or .gz, got none in"),
    "idx test labels alone": (
        spoiled("t10k-images-idx3-ubyte", None),
        "t10k-labels-idx1-ubyte: must have t10k-images-idx3-ubyte or .* beside it",
    ),
    "idx test images alone": (
        spoiled("t10k-labels-idx1-ubyte", None),
        "t10k-images-idx3-ubyte: must have t10k-labels-idx1-ubyte or .* beside it",
    ),
    "idx test label": (
        spoiled("t10k-labels-idx1-ubyte", idx_bytes((12,), bytes([0, 1, 2, 3, 9, *[0] * 7]))),
        "train-labels-idx1-ubyte: every class .* must have a training sample, got none of class 4, ",
    ),
    "idx test label of letters": (letters, "train-labels-idx1-ubyte: every class .*, got none of class 3; see"),
    "cifar part of a record": (
        one("cifar", "data_batch_1.bin", bytes(3072)),
        "must be records of 3073 bytes, got 3072",
    ),
    "cifar label": (
        one("cifar", "data_batch_1.bin", cifar_records(numbered(2, 3072), [1, 10])),
        "a label must be below 10, got 10 in record 1",
    ),
    "cifar missing batch": (one("cifar", "data_batch_2.bin", b""), "must hold data_batch_1.bin and all that follow"),
    "cifar pickled": (one("cifar", "data_batch_1", pickle.dumps({})), "files of Python's pickle are not read"),
    "cifar empty folder": (lambda folder: f"cifar:{folder}", "got neither$"),
    "npz of objects": (one("npz", "a.npz", npz(x=np.array([{}]), y=[0])), "got Object arrays cannot be loaded"),
    "npz labels of objects": (
        one("npz", "a.npz", npz(x=numbered(1), y=np.array([{}]))),
        "got Object arrays cannot be loaded",
    ),
    "npz names": (
        one("npz", "a.npz", npz(data=[1])),
        "arrays with the names x_train and y_train; .*got data",
    ),
    "npz counts": (
        one("npz", "a.npz", npz(x=numbered(3), y=[0, 1])),
        "a target for each of 3 inputs, at least one, got 2",
    ),
    "npz negative": (one("npz", "a.npz", npz(x=numbered(2), y=[0, -1])), "classes must be from 0 to"),
    "npz whole inputs": (one("npz", "a.npz", npz(x=np.ones((2, 2), int), y=[0, 1])), "must be pixels of uint8 or real"),
    "npz not finite": (
        one("npz", "a.npz", npz(x=[[1.0], [np.nan]], y=[0, 1])),
        r"must be finite .* got nan at \(1, 0\)",
    ),
    "npz test of another form": (
        one("npz", "a.npz", npz(x_train=numbered(2), y_train=[0, 1], x_test=numbered(2, 4), y_test=[0, 1])),
        "y_test: must hold samples of uint8 15 with classes as .*y_train, got samples of uint8 4 with classes",
    ),
    "npz two pairs": (
        one("npz", "a.npz", npz(x_train=numbered(2), y_train=[0, 1], x=numbered(2), y=[0, 1])),
        "must hold one pair of training arrays .*, got x, x_train, y, y_train",
    ),
    "npz half a test split": (
        one("npz", "a.npz", npz(x_train=numbered(2), y_train=[0, 1], y_test=[0, 1])),
        "the test split must have both x_test and y_test, got y_test alone",
    ),
    "npz test label": (
        one("npz", "a.npz", npz(x=numbered(5), y=np.arange(5), x_test=numbered(2), y_test=[0, 9])),
        "y: every class .* must have a training sample, got none of class 5, 6, 7, 8, 9",
    ),
    "npz constant pixels": (
        one("npz", "a.npz", npz(x=np.full((4, 3), 7, np.uint8), y=[0, 1, 0, 1])),
        "all inputs of these training samples are equal, .* got 7 everywhere",
    ),
    "npz constant numbers": (
        one("npz", "a.npz", npz(x=np.ones((4, 3)), y=[0, 1, 0, 1])),
        r"all inputs of these training samples are equal, .* got 1\.0 everywhere",
    ),
    "npz no archive": (one("npz", "a.npz", b"PK no archive"), "must be a whole file of `numpy.savez`"),
    "npz empty": (
        one("npz", "a.npz", npz(x=np.zeros((0, 3)), y=np.zeros(0, int))),
        "must hold a target for each of 0 inputs, at least one",
    ),
    "npz a label far above the others": (
        one("npz", "a.npz", npz(x=numbered(4), y=np.array([0, 1, 2, 600_000_000]))),
        "must have a training sample, got none of class 3, 4, .* and 599999987 more; see",
    ),
    "idx not a name of images": (other_name, "a.bin: must have `images` in its name, so that its labels"),
    "images of two sizes": (two_sizes, "must have the size of .*1.png, 4 x 3 pixels, got 5 x 3"),
    "images of the test split alone": (
        no_training_images,
        "train: must hold one folder of images per class, .*no image",
    ),
    "images of 16 bits": (deep, "1.png: must have 8 bits per channel, got the mode I;16"),
    "images none": (lambda folder: f"images:{folder}", "one folder of images per class, .*got no image"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write, message = BROKEN[name]
    source = write(tmp_path)
    with pytest.raises(HpxferError, match=message) as found:
        everything(source)
    assert str(tmp_path) in str(found.value)


def test_a_header_that_asks_for_more_than_its_data_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 2**40)})
        archive.writestr("x.npy", head.getvalue())
        archive.writestr("y.npy", head.getvalue())
    (tmp_path / "a.npz").write_bytes(content.getvalue())
    with pytest.raises(HpxferError, match=r"must be a whole file of `numpy\.savez`"):
        everything(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("source", ["idx", "cifar", "npz", "images"])
def test_nothing_on_this_machine_is_no_samples(tmp_path: Path, source: str) -> None:
    assert open_samples(f"{source}:{tmp_path}/nowhere") is None


def written(folder: Path) -> dict[str, str]:
    """Write a small set of each format and return its file to spoil, by source."""
    for name in ("idx", "gz", "cifar", "images"):
        (folder / name).mkdir()
    mnist(folder / "idx", train=6, test=0)
    write_idx(folder / "gz", "train", numbered(6), [0, 1] * 3, packed=True)
    (folder / "cifar" / "train.bin").write_bytes(cifar_records(numbered(100, 3072), [0] * 100, range(100)))
    (folder / "a.npz").write_bytes(npz(x=numbered(4), y=[0, 1, 1, 0]))
    image(folder / "images" / "a" / "1.png")
    image(folder / "images" / "b" / "1.png")
    return {
        f"idx:{folder}/idx": f"idx/{IMAGES}",
        f"idx:{folder}/idx/{IMAGES}": f"idx/{LABELS}",
        f"idx:{folder}/gz": f"gz/{IMAGES}.gz",
        f"cifar:{folder}/cifar": "cifar/train.bin",
        f"npz:{folder}/a.npz": "a.npz",
        f"images:{folder}/images": "images/b/1.png",
    }


def test_spoiled_bytes_give_samples_or_a_named_error(tmp_path: Path) -> None:
    """Truncations, random bytes and changed bytes at random places, of files of every format."""
    chance, refused, rounds = random.Random(0), 0, 30
    sources = written(tmp_path)
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
                found = opened(source)
                assert len(found.digest()) == 32
                assert found.num_train is not None
                found.train(0, 0, found.num_train, 0)
            except HpxferError:
                refused += 1
        path.write_bytes(whole)
    assert refused > len(sources) * rounds // 2
