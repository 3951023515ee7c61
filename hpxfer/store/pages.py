"""Pages: how many bytes the columns of a Parquet file unpack to, by the headers of their pages.

The footer of a file holds such a number too, but nothing checks it: a forged footer may say 1 kB where a page unpacks
to 2 GB. The size in the header of a page is what a reader sets aside, and unpacking more than that is an error. Headers
and footer are structs in Thrift's compact protocol, in which a number of seven bits per byte ends at a byte below 128.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

_MAX_NESTED = 16
_END = 8  # bytes after the footer: its length and PAR1
# Numbers of fields in Parquet's structs: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and PageHeader.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE = 7, 9, 11
_PAGE_UNPACKED, _PAGE_COMPRESSED = 2, 3
_DAMAGED = (EOFError, LookupError, TypeError, ValueError, OverflowError)


def unpacked_bytes(file: IO[bytes], file_bytes: int, most: int) -> int:
    """Return how many bytes the pages of a file unpack to, or a number above `most` as soon as it is reached.

    Raise ValueError if the footer is damaged. A damaged page ends the count of its column, as it ends the reading.
    """
    total = packed = 0
    for start, size in _columns(file, file_bytes):
        for page_packed, page_unpacked in _pages(file, start, min(start + size, file_bytes)):
            packed, total = packed + page_packed, total + page_unpacked
            if packed > file_bytes:  # or a small file could take hours
                raise ValueError("its columns share pages")
            if total > most:
                return total
    return total


def _columns(file: IO[bytes], file_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, number of bytes) of every column of every row group."""
    try:
        file.seek(file_bytes - _END)
        file.seek(file_bytes - _END - int.from_bytes(file.read(4), "little"))
        groups = _struct(file).get(_ROW_GROUPS, [])
        for group in groups:
            for column in group[_COLUMNS]:
                facts = column[_META_DATA]
                start, dictionary = int(facts[_DATA_PAGE]), int(facts.get(_DICTIONARY_PAGE, 0))
                yield (dictionary if 0 < dictionary < start else start), int(facts[_COMPRESSED])
    except (*_DAMAGED, AttributeError, OSError) as error:
        raise ValueError(f"its footer is damaged: {type(error).__name__}") from None


def _pages(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (bytes with its header, bytes that it unpacks to) of each page between two bytes of a file."""
    while 0 <= start < end:
        file.seek(start)
        try:
            header = _struct(file)
            unpacked, compressed = int(header[_PAGE_UNPACKED]), int(header[_PAGE_COMPRESSED])
        except _DAMAGED:
            return
        if not (0 <= unpacked < 2**31 and 0 <= compressed < 2**31):
            return
        after = file.tell() + compressed
        yield after - start, unpacked
        start = after


def _struct(file: IO[bytes], nested: int = 0) -> Mapping[int, Any]:
    """Return field number -> value of the struct that starts here. Texts are None, and structs inside are mappings."""
    out: dict[int, Any] = {}
    number = 0
    while head := _byte(file):
        number = number + (head >> 4) if head >> 4 else _integer(file)
        kind = head & 15
        out[number] = kind == 1 if kind in (1, 2) else _value(file, kind, nested + 1)
    return out


def _value(file: IO[bytes], kind: int, nested: int) -> Any:
    """Return the value of a kind that starts here."""
    if nested > _MAX_NESTED:
        raise ValueError("nested too deep")
    match kind:
        case 1 | 2 | 3:  # as an entry of a list, a truth value is a byte
            return _byte(file)
        case 4 | 5 | 6:
            return _integer(file)
        case 7:
            if len(file.read(8)) < 8:  # or a list of numbers that are not there would have no end
                raise EOFError
            return None
        case 8:
            file.seek(_varint(file), 1)
            return None
        case 9 | 10:
            head = _byte(file)
            size = head >> 4 if head >> 4 < 15 else _varint(file)
            return [_value(file, head & 15, nested + 1) for _ in range(size)]
        case 12:
            return _struct(file, nested)
    raise ValueError(f"no kind of Parquet's structs: {kind}")


def _integer(file: IO[bytes]) -> int:
    number = _varint(file)
    return number >> 1 if number % 2 == 0 else -(number >> 1) - 1


def _varint(file: IO[bytes]) -> int:
    out = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        out |= (byte & 127) << shift
        if byte < 128:
            return out
    raise ValueError("a number of more than 64 bits")


def _byte(file: IO[bytes]) -> int:
    byte = file.read(1)
    if not byte:
        raise EOFError
    return byte[0]
