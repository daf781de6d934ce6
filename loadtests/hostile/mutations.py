"""Hypothesis strategies that damage valid bytes, JSON and TOML.

Strategies are module constants, because building one per draw would take most of the time.
"""

import copy
import json
from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

MAX_INPUT_BYTES: Final = 65_536
_TIMES: Final = st.sampled_from([1, 1, 1, 1, 2, 3, 20, 300, 3000])
_PLACES: Final = st.integers(0, 9999)
_FEW: Final = st.integers(0, 4)
_LENGTHS: Final = st.sampled_from([0, 0, 1, 2, 10, 40])
_NAMES: Final = st.text(max_size=8)
_ASCII_NAMES: Final = st.text(st.characters(codec="ascii"), max_size=5)


def mutated(seeds: Sequence[bytes], tokens: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a seed with parts removed, inserted or repeated; a part is a token, random, or a copy."""
    edit = st.tuples(_PLACES, _LENGTHS, st.one_of(st.sampled_from(tokens), st.binary(max_size=8), st.none()), _TIMES)
    return st.builds(_edited, st.sampled_from(seeds), st.lists(edit, max_size=6))


def _edited(content: bytes, edits: Sequence[tuple[int, int, bytes | None, int]]) -> bytes:
    for place, length, part, times in edits:
        start = place % (len(content) + 1)
        removed = content[start : start + length]
        inserted = (removed if part is None else part) * times
        content = (content[:start] + inserted + content[start + length :])[:MAX_INPUT_BYTES]
    return content


_UNPRINTABLE: Final = {  # placeholders of JSON that `json.dumps` cannot write
    "<deep>": "[" * 3000 + "]" * 3000, "<long>": "9" * 4301, "<nan>": "NaN", "<big>": "1e999",
}  # fmt: skip
_ODD: Final[list[Any]] = [
    0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, True, False, None, "", "0", "all", [], {},
]  # fmt: skip
_ODD_NAMES: Final = [
    "../x", "/etc", "a/b", "a\0b", "..", "\ud800", "é", "x" * 300, "@stable", "127.0.0.1", "::", "latest:2",
    *_UNPRINTABLE,
]  # fmt: skip
_LEAVES: Final = st.one_of(st.sampled_from([*_ODD, *_ODD_NAMES]), st.integers(), st.floats(), st.text(max_size=10))
_VALUES: Final = st.one_of(
    _LEAVES,
    _LEAVES,
    st.lists(_LEAVES, max_size=3),
    st.dictionaries(_NAMES, st.one_of(_LEAVES, st.lists(_LEAVES)), max_size=2),
)
_CHANGES: Final = st.lists(st.tuples(_PLACES, _FEW, _NAMES, _VALUES), max_size=4)


def mutated_json(seed: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return a JSON object with members replaced, removed, renamed or added at any depth."""
    written = json.dumps(seed)
    return _CHANGES.map(lambda changes: _changed(json.loads(written), changes))


def _changed(tree: dict[str, Any], changes: Sequence[tuple[int, int, str, Any]]) -> bytes:
    for place, kind, name, value in changes:
        tables = _tables(tree)
        table = tables[place % len(tables)]
        key = sorted(table)[place % len(table)] if table else name
        match kind:
            case 0:
                table.pop(key, None)
            case 1:
                table[name] = table.pop(key, None)
            case 2:
                table[name] = copy.deepcopy(value)  # all draws share the sampled [] and {}
            case _:
                table[key] = copy.deepcopy(value)
    content = json.dumps(tree)
    for mark, odd in _UNPRINTABLE.items():
        content = content.replace(json.dumps(mark), odd)
    return content.encode()[:MAX_INPUT_BYTES]


def _tables(value: Any) -> list[dict[str, Any]]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * isinstance(value, dict) + [table for one in inner for table in _tables(one)]


def toml(tables: Sequence[str], keys: Sequence[str]) -> st.SearchStrategy[bytes]:
    """Return TOML with mostly known tables, keys and values."""
    key = st.one_of(st.sampled_from(keys), st.sampled_from(keys), _ASCII_NAMES)
    value = st.one_of(_VALUES.map(_as_toml), _VALUES.map(_as_toml), st.sampled_from(_ODD_VALUES))
    deep = st.tuples(key, st.integers(1, 2000)).map(lambda pair: f"{pair[0]}{'.a' * pair[1]} = 1")
    pair = st.tuples(key, value).map(" = ".join)
    lines = st.lists(st.one_of(deep, st.sampled_from(tables), pair, pair), max_size=8)
    return st.tuples(st.sampled_from(tables), lines).map(_joined)


def _joined(parts: tuple[str, list[str]]) -> bytes:
    first, others = parts
    return "\n".join([first, *others]).encode("utf-8", "surrogatepass")[:MAX_INPUT_BYTES]


_ODD_VALUES: Final = (
    "nan", "-inf", "0x7fffffffffffffff", "0o7", "1_0", "1979-05-27T07:32:00Z", "07:32:00", "'''a\nb'''", '"\\u0000"',
    "{a = 1}", "{}", "[]", "[[]]", "[{}]", "[" * 40 + "]" * 40, "9" * 4301, "[" * 2000, "{a = " * 1000,
    "0x" + "9" * 5000, '"' + "x" * 5000 + '"', "",
)  # fmt: skip


def _as_toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_as_toml(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_as_toml, value)) + "]"
        case None:
            return '"None"'
    return json.dumps(value)
