"""YAML errors in plain words: the line at fault, the rule that it breaks, what stands there, and the fix.

The parser names what it expected in words of its grammar, at the place where it noticed. That is often a line below the
mistake: a bracket that is never closed is noticed at the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from hpxfer.errors import shown

_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_CLOSER = {"[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the parser gave up, and where what it was reading began. Lines count from 0."""

    lines: list[str]
    line: int
    column: int
    began: int | None  # the line of the bracket, quote, key or block that was being read
    problem: str  # in the parser's words

    @property
    def text(self) -> str:
        return self.at(self.line)

    def at(self, line: int) -> str:
        """Return a line without its comment, or nothing beyond the end of the file."""
        return re.sub(r"(^|\s)#.*", "", self.lines[line]).rstrip() if line < len(self.lines) else ""

    def before(self, line: int) -> int | None:
        """Return the last line above that holds more than a comment, or None."""
        return next((above for above in range(line - 1, -1, -1) if self.at(above).strip()), None)

    def found(self) -> str:
        """Return the token that the parser names, e.g. `]` or `<scalar>`, or the character."""
        quoted = re.search(r"(?:found|got)(?: character)? ['\"](.*?)['\"](?: that|$)", self.problem)
        return quoted[1] if quoted else ""


Found = tuple[int, str, str]  # the line at fault, from 0; the rule; the fix


def explain_yaml_error(error: yaml.YAMLError, text: str) -> tuple[int | None, str]:
    """Return the line at fault (from 1, or None if the parser names none), and what is wrong and how to mend it."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    if mark is None:
        return None, f"{problem}; correct it"
    began = getattr(error, "context_mark", None)
    place = _Place(
        lines=_BREAKS.split(text),
        line=mark.line,
        column=mark.column,
        began=None if began is None else began.line,
        problem=problem,
    )
    line, rule, fix = _explained(place)
    there = place.lines[line].rstrip() if line < len(place.lines) else ""
    got = f"got {shown(there)}" if there else "got the end of the file"
    return line + 1, f"{rule}, {got}; {fix}"


def _explained(place: _Place) -> Found:
    tabs = [line for line in (place.line, place.began) if line is not None and _has_tab(place, line)]
    if tabs:
        return tabs[0], "a line must be indented with spaces", "replace each tab at its start with spaces"
    for start, explain in _RULES:
        if place.problem.startswith(start):
            return explain(place)
    return place.line, f"this line cannot be read ({place.problem})", "correct it, or put its value into quotes"


def _has_tab(place: _Place, line: int) -> bool:
    text = place.lines[line] if line < len(place.lines) else ""
    return "\t" in text[: _column(text)]


def _second_colon(place: _Place) -> Found:
    """Explain a colon where the parser expects no key: a value with a colon, or a line in a wrong column."""
    above = place.before(place.line)
    if re.search(r":\s", place.text[: place.column]):
        return place.line, "a value must not hold a colon and a space", "put the value into quotes"
    if above is not None and not _is_key_line(place.at(above)):
        return _no_colon(place, above)
    return _wrong_column(place)


def _wrong_column(place: _Place) -> Found:
    columns = " or ".join(str(column) for column in _columns(place)) or "other"
    rule = "a key must start in the same column as the keys beside it"
    return place.line, rule, f"put {columns} spaces before it, as lines above have"


def _columns(place: _Place) -> list[int]:
    """Return the columns, ascending, in which the line at fault could start: those of the blocks that it lies in."""
    found: set[int] = set()
    lowest = len(place.text)
    for line in range(place.line - 1, -1, -1):
        text = place.at(line)
        column = _column(text)
        if text and column < lowest:
            lowest = column
            found |= {column, column + 2} if text[column:].startswith("- ") else {column}
    return sorted(found - {_column(place.text)})


def _column(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_key_line(text: str) -> bool:
    """Return whether a line is a key, an entry of a list, or nothing that needs a colon."""
    return bool(re.search(r":(\s|$)", text)) or text.lstrip().startswith(("- ", "---", "[", "{", "?"))


def _no_colon(place: _Place, line: int) -> Found:
    text = place.at(line).strip()
    if stuck := re.match(r"([\w.-]+):(\S.*)", text):
        return line, "a colon must be followed by a space", f"write {shown(f'{stuck[1]}: {stuck[2]}')}"
    return line, "a line must be a key, a colon and a value", "add the colon after the key"


def _missing_colon(place: _Place) -> Found:
    line = place.line if place.began is None else place.began
    if place.at(line).count('"') % 2 or place.at(line).count("'") % 2:
        return _open_quote(place)
    return _no_colon(place, line)


def _open_quote(place: _Place) -> Found:
    line = place.line if place.began is None else place.began
    return line, "a quote must be closed", "add the closing quote at the end of the value"


def _bracket(place: _Place) -> Found:
    """Explain a list or mapping in brackets that goes on with something else than a comma or its closing bracket."""
    opened = "[" if "or ']'" in place.problem else "{"
    line, closer = place.line if place.began is None else place.began, _CLOSER[opened]
    if place.found() in ("]", "}"):
        return place.line, f"what {opened} opens must be closed with {closer}", f"write {closer} there"
    if line != place.line or place.found() == "<stream end>":
        return (
            line,
            f"a bracket {opened} must be closed with {closer}",
            f"add {closer} at the end of the list or mapping",
        )
    return line, f"values between {opened} and {closer} must have commas between them", "add the missing comma"


def _no_value(place: _Place) -> Found:
    """Explain a place where a value should begin and something else stands."""
    found = place.found()
    if found in ("<stream end>", "<document end>", "<document start>") or place.text.strip() == "":
        line = _open_bracket(place)
        return line, "a bracket must be closed", "add the closing bracket at the end of the list or mapping"
    if found in ("]", "}"):
        return place.line, f"a bracket {found} must have an opening one before it", "take it out, or add the other"
    if found == ",":
        return place.line, "a comma must stand between two values", "take the comma out, or add the value"
    return place.line, "a value must stand here", "add it, or put it into quotes"


def _open_bracket(place: _Place) -> int:
    """Return the line of the last bracket that is not closed."""
    opened: list[int] = []
    for line in range(len(place.lines)):
        for letter in re.sub(r"\"[^\"]*\"|'[^']*'", "", place.at(line)):
            if letter in "[{":
                opened.append(line)
            elif letter in "]}" and opened:
                opened.pop()
    return opened[-1] if opened else place.line


def _block(place: _Place) -> Found:
    """Explain a line that does not belong to the block of keys or entries that it stands in."""
    found = place.found()
    if found in ("]", "}"):
        return place.line, f"a bracket {found} must have an opening one before it", "take it out, or add the other"
    if found == ",":
        return place.line, "a comma must stand between brackets", "put brackets around the values, or quotes"
    if found in ("-", "<block sequence start>"):
        return place.line, "an entry of a list must stand below a key, not beside keys", "indent the list below its key"
    if found in ("<scalar>", "[", "{", "<anchor>", "<alias>", "<tag>"):
        odd = [line for line in range(place.began or 0, place.line) if place.at(line).count('"') % 2]
        if odd:
            return odd[-1], "a quote must be closed", "add the closing quote at the end of the value"
        if not _is_key_line(place.text):
            return _no_colon(place, place.line)
        return place.line, "a value must end where its quote or bracket closes", "put the whole value into other quotes"
    if place.began is not None and re.match(rf" {{{_column(place.text)}}}- ", place.at(place.began)):
        return place.line, "a line among the entries of a list must start with `- `", "add it, or indent the line"
    return _wrong_column(place)


def _character(place: _Place) -> Found:
    found = place.found().replace("\\t", "a tab")
    if found == "a tab":
        return place.line, "a value must not start with a tab", "use spaces"
    return place.line, f"a value must not start with {found}", "put the value into quotes"


def _starts_with(letters: str, what: str) -> Callable[[_Place], Found]:
    """Return the explanation of a value that starts with one of the letters by mistake."""

    def explain(place: _Place) -> Found:
        line = place.line if place.began is None else place.began
        letter = next(
            (letter for letter in letters if re.search(rf"(^|[\s,\[{{]){re.escape(letter)}", place.at(line))), ""
        )
        return line, f"a value that starts with {letter or letters[0]} is {what}", "put the value into quotes"

    return explain


def _one_name(place: _Place) -> Found:
    """Explain a letter that may not be in the name of an anchor, an alias, a tag or a directive."""
    line = place.line if place.began is None else place.began
    if place.at(line).startswith("%"):
        return line, "a line must not start with %", "put it into quotes, or make it a comment with #"
    return _starts_with("*&!", "the name of another value, or a tag")(place)


def _after_document(place: _Place) -> Found:
    """Explain text after a value that ended the document, e.g. below a list in brackets."""
    directive = next((line for line in range(place.line) if place.at(line).startswith("%")), None)
    if directive is not None:
        return directive, "a line must not start with %", "put it into quotes, or make it a comment with #"
    return place.line, "nothing may follow the value that the file began with", "write the file as `key: value` lines"


def _said(rule: str, fix: str) -> Callable[[_Place], Found]:
    """Return the explanation of a mistake that lies where the parser gave up."""
    return lambda place: (place.line, rule, fix)


_ALIAS = _said(
    "a value that starts with * repeats the value that & gave this name before, and none has it",
    "put the value into quotes, or correct the name",
)
_TAGGED = _said("a value must be of the kind that its tag with ! says", "take the tag out")
_MERGED = _said("what << merges must be a mapping", "name a mapping, or write the keys out")
_DOCUMENT = _said("a file must hold one document", "take out this line and what belongs to the other document")
_ESCAPE = _said(
    "a backslash between double quotes must begin an escape such as \\n",
    "use single quotes, or write the backslash twice",
)
_ENTRY = _said("an entry of a list must start its own line", "put each `- ` on a line below the key, or use [...]")
_KEY = _said("a key must be text", "write text before the colon; hpxfer fills in no templates such as {{name}}")
_TEXT = _starts_with("|>", "a text of several lines")

_RULES: tuple[tuple[str, Callable[[_Place], Found]], ...] = (
    ("mapping values are not allowed here", _second_colon),
    ("could not find expected ':'", _missing_colon),
    ("found unexpected end of stream", _open_quote),
    ("found unexpected document separator", _open_quote),
    ("expected ',' or", _bracket),
    ("expected the node content", _no_value),
    ("expected <block end>", _block),
    ("found character", _character),
    ("expected alphabetic or numeric character", _one_name),
    ("expected ' '", _one_name),
    ("expected a digit", _one_name),
    ("found incompatible YAML document", _one_name),
    ("found duplicate YAML directive", _one_name),
    ("duplicate tag handle", _one_name),
    ("expected a comment or a line break", _TEXT),
    ("expected chomping or indentation indicators", _TEXT),
    ("expected indentation indicator", _TEXT),
    ("found undefined alias", _ALIAS),
    ("found undefined tag handle", _one_name),
    ("expected URI", _one_name),
    ("expected '!'", _one_name),
    ("expected '>'", _one_name),
    ("expected a scalar node", _TAGGED),
    ("expected a sequence node", _TAGGED),
    ("expected a mapping node", _TAGGED),
    ("expected a mapping or list of mappings", _MERGED),
    ("but found another document", _DOCUMENT),
    ("expected '<document start>'", _after_document),
    ("found unknown escape character", _ESCAPE),
    ("expected escape sequence", _ESCAPE),
    ("sequence entries are not allowed here", _ENTRY),
    ("mapping keys are not allowed here", _KEY),
    ("found unhashable key", _KEY),
)
