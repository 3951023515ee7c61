"""URIs of storage: what is taken, what is refused, and that reading and spelling agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_text import SWEEP

from hpxfer.errors import HpxferError
from hpxfer.spec.load import parse_sweep
from hpxfer.storage.uri import Uri, is_uri, parse_root, storage_problem

SEGMENTS = st.text(st.characters(codec="utf-8", exclude_characters='/?"\\'), min_size=1, max_size=12).filter(
    lambda text: text.isprintable() and text not in (".", "..") and "::" not in text
)


@pytest.mark.parametrize(
    ("text", "key", "spelled"),
    [
        ("s3://bucket", "bucket", "s3://bucket"),
        ("s3://bucket/", "bucket", "s3://bucket"),
        ("s3://bucket/a/b//", "bucket/a/b", "s3://bucket/a/b"),
        ("S3://bucket/a b/50%20", "bucket/a b/50%20", "s3://bucket/a b/50%20"),
        ("s3a://bucket/a", "bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "bucket/a", "gs://bucket/a"),
        ("s3://bucket/a?region=eu-west-1", "bucket/a", "s3://bucket/a?region=eu-west-1"),
        ("abfs://box@account.dfs.core.windows.net/a", "box@account.dfs.core.windows.net/a", None),
    ],
)
def test_a_uri_is_read_as_it_stands(text: str, key: str, spelled: str | None) -> None:
    found = parse_root(text)
    assert isinstance(found, Uri)
    assert found.key == key
    assert str(found) == (spelled or text)
    assert (found / "quickstart").key == f"{key}/quickstart"


@pytest.mark.parametrize(
    ("text", "path"),
    [("results", "results"), ("/shared/a b", "/shared/a b"), ("file:///shared/a%20b", "/shared/a%20b"), ("a:b", "a:b")],
)
def test_a_folder_is_a_folder(text: str, path: str) -> None:
    assert parse_root(text) == Path(path)
    assert parse_root(Path(path)) == Path(path)
    assert not is_uri(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got nothing"),
        ("s3://", "must be s3://BUCKET/PREFIX"),
        ("s3:///a", "must be s3://BUCKET/PREFIX"),
        ("s3://bucket/a//b", "without empty parts"),
        ("s3://bucket/../other", "'..'"),
        ("s3://bucket/a\nb", "without empty parts"),
        ('s3://bucket/a"b', "quotes"),
        ("s3://bucket/a?access_key=AKIA", "keys go in the environment"),
        ("s3://bucket/a?region", "'region'"),
        ("https://example.com/a", "that can be written"),
        ("simplecache::s3://bucket/a", "must be a folder or a URI"),
        ("s3:/bucket/a", "must be a folder or a URI"),
        ("file://host/a", "file:///absolute/path"),
        ("file:///", "file:///absolute/path"),
    ],
)
def test_what_is_no_root_is_refused(text: str, said: str) -> None:
    with pytest.raises(HpxferError) as error:
        parse_root(text)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["s3://AKIA:s3cr3t@bucket/a", "gs://s3cr3t@bucket", "sftp://me:s3cr3t@host/a"])
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(HpxferError, match="must hold no credentials") as error:
        parse_root(text)
    assert "s3cr3t" not in str(error.value)


@given(host=st.from_regex(r"[a-z0-9][a-z0-9-]{1,20}", fullmatch=True), path=st.lists(SEGMENTS, max_size=4))
def test_spelling_and_reading_agree(host: str, path: list[str]) -> None:
    uri = Uri(scheme="s3", host=host, path=tuple(path))
    assert parse_root(str(uri)) == uri


def test_a_sweep_names_its_storage() -> None:
    assert parse_sweep(SWEEP + "storage: s3://bucket/prefix\n").storage == "s3://bucket/prefix"
    assert parse_sweep(SWEEP).storage is None


@pytest.mark.parametrize("text", ["s3://key:secret@bucket", "'results'", "s3://bucket/a/../b", "''"])
def test_a_sweep_with_storage_that_is_none_is_refused(text: str) -> None:
    line = SWEEP.count("\n") + 1
    with pytest.raises(HpxferError, match=rf"<sweep>:{line}: storage: must ") as error:
        parse_sweep(f"{SWEEP}storage: {text}\n")
    assert "secret" not in str(error.value)


def test_an_absolute_folder_is_storage() -> None:
    assert storage_problem("/shared/results") is None
    assert storage_problem("file:///shared/results") is None
