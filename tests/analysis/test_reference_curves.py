"""Reference curves from CSV: what is read, and every mistake by its line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.analysis.references import read_reference_curves
from hpxfer.errors import HpxferError


def written(folder: Path, text: str) -> Path:
    path = folder / "curves.csv"
    path.write_bytes(text.encode())
    return path


def test_curves_by_name_whose_rows_may_alternate(tmp_path: Path) -> None:
    text = '\ufeffname,tokens,loss\r\n"a, b",1000,4.5\r\nc,0,11\r\n\r\n"a, b",2e3,3.5\r\nc,10,4\r\nc, 20 ,3\r\n'
    first, second = read_reference_curves(written(tmp_path, text))
    assert (first.name, first.tokens, first.losses, first.steps) == ("a, b", (1000.0, 2000.0), (4.5, 3.5), ())
    assert (second.name, second.tokens, second.losses) == ("c", (10.0, 20.0), (4.0, 3.0))  # 0 is on no log axis


def test_steps_and_tokens_may_both_be_given(tmp_path: Path) -> None:
    (found,) = read_reference_curves(written(tmp_path, "loss,step,name,tokens\n4,1,a,100\n3,2,a,300\n"))
    assert (found.steps, found.tokens, found.losses) == ((1.0, 2.0), (100.0, 300.0), (4.0, 3.0))


HEAD = "name,step,loss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must have the columns name, loss, and step or tokens, got an empty file; add name"),
        ("name,loss\n", "line 1: must have the columns name, loss, and step or tokens, got name, loss; add step or"),
        ("name,steps,loss\n", "line 1: column 'steps': unknown; did you mean 'step'?"),
        ("name,step,step,loss\n", "line 1: column step: must stand once, got it twice; take one out"),
        (HEAD, "must hold at least one curve, got a header alone; add rows"),
        (HEAD + "a,1\n", "line 2: must have 3 values, one per column, got 2"),
        (HEAD + "a,1,4\n,2,3\n", "line 3: column name: must have 1 to 60 printable characters, got ''"),
        (HEAD + f"{'x' * 61},1,4\n", "line 2: column name: must have 1 to 60 printable characters, got 'xxx"),
        (HEAD + "a,one,4\n", "line 2: column step: must be a number >= 0, got 'one'; correct it, or take the row out"),
        (HEAD + "a,-1,4\n", "line 2: column step: must be a number >= 0, got '-1'"),
        (HEAD + "a,1,4\na,2,\n", "line 3: column loss: must be a number > 0, the cross entropy in nats, got ''"),
        (HEAD + "a,1,nan\n", "line 2: column loss: must be a number > 0, the cross entropy in nats, got 'nan'"),
        (HEAD + "a,1,inf\n", "line 2: column loss: must be a number > 0, the cross entropy in nats, got 'inf'"),
        (HEAD + "a,1,0\n", "line 2: column loss: must be a number > 0, the cross entropy in nats, got '0'"),
        (HEAD + "a,5,4\na,5,3\n", "line 3: column step: must ascend along the curve 'a', got 5 after 5 of line 2"),
        (
            HEAD + "a,20,4\nb,1,4\na,10,3\nb,2,4\n",
            "line 4: column step: must ascend along the curve 'a', got 10 after 20 of line 2; sort the rows",
        ),
        (
            "name,step,tokens,loss\na,1,9,4\na,2,8,3\n",
            "line 3: column tokens: must ascend along the curve 'a', got 8 after 9 of line 2; sort the rows",
        ),
        (HEAD + "a,0,4\na,1,3\n", "the curve 'a' must have at least 2 points above 0, got 1"),
        (HEAD + 'a,1,"4\n', "must be CSV, got "),
    ],
)
def test_a_mistake_is_named_by_line_and_column(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(HpxferError) as caught:
        read_reference_curves(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"must be a CSV file, cannot be read: No such file"):
        read_reference_curves(tmp_path / "none.csv")
    with pytest.raises(HpxferError, match=r"cannot be read: Is a directory"):
        read_reference_curves(tmp_path)
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"name,step,loss\n\xff\xfe,1,2\n")
    with pytest.raises(HpxferError, match=r"must be UTF-8 text, got other bytes"):
        read_reference_curves(path)
