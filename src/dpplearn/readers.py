"""Files to data and back: points, windows, subsets and items; each mistake is one line naming file and row.

"row" is the line of the file, the header being row 1. `note` is called with what a user should know
but need not change, such as a column that is not used; by default nobody listens.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float

from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import BaseSet, Box
from dpplearn.errors import InputError

Note = Callable[[str], None]

AXES = ("x", "y", "z")
LABELS = ("id", "name")
# What pandas calls an index that it stores among the columns.
PANDAS_INDEX = "__index_level_"


class Window(NamedTuple):
    """One row of a windows file; `pattern` is blank where one window serves every pattern."""

    row: int
    pattern: str
    box: Box
    group: str
    unit: str


class _Table(NamedTuple):
    """A delimited file: the names in its header, and (line of the file, fields) for each row."""

    path: Path
    columns: list[str]
    rows: list[tuple[int, list[str]]]
    delimiter: str


class _PointRow(NamedTuple):
    """One row of a points file; `point` is None where all coordinates are blank: an empty set."""

    row: int
    pattern: str
    group: str
    point: tuple[float, ...] | None


def silent(message: str) -> None:
    """The default `note`: says nothing."""


def read_file(
    path: str | Path, items: str | Path | None = None, windows: str | Path | None = None, note: Note = silent
) -> PointPatterns | Subsets:
    """Points or subsets, whichever the file holds: subsets need `items`, points may have `windows`."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected a file, found a folder")
    text = _read_text(path)
    columns = [] if _is_json(text) else [column.casefold() for column in _parse_table(path, text).columns]
    if {"given", "chosen"} <= set(columns):
        raise InputError(f"{path}: choices (columns set, given, chosen, alternatives) are not supported yet")
    if _is_json(text) or {"set", "item"} <= set(columns):
        if windows is not None:
            raise InputError(f"{path}: holds subsets of items, which have no windows; leave out --windows")
        if items is None:
            raise InputError(f"{path}: holds subsets, expected the items they are taken from; add --items FILE")
        return read_subsets(path, items, note)
    if items is not None:
        raise InputError(f"{path}: --items goes with subsets (JSON, or columns set,item), found {_names(columns)}")
    return read_points(path, windows, note)


def read_points(path: str | Path, windows: str | Path | None = None, note: Note = silent) -> PointPatterns:
    """Point patterns from a CSV with columns pattern, x[, y[, z]] and optional group, and their windows."""
    path = Path(path)
    table = _parse_table(path, _read_text(path), note)
    axes = _axes(table)
    patterns: dict[str, list[_PointRow]] = {}
    for row in _point_rows(table, axes, note):
        patterns.setdefault(row.pattern, []).append(row)
    chosen: dict[str, Window] = {}
    if windows is not None:
        known = read_windows(windows, len(axes), data_name=path.name)
        if patterns and _position(table, "pattern") is None and len(known) == 1:
            patterns = {known[0].pattern or path.stem: patterns[path.stem]}
        chosen = _match_windows(path, patterns, Path(windows), known)
        if empty := [name for name in chosen if name not in patterns]:
            count = f"{len(empty)} of {len(chosen)} windows"
            note(f"{windows}: without points are {count}, which count as empty patterns: {_names(empty)}")
    elif not patterns:
        raise InputError(f"{path}: expected at least one row of points, or windows for empty patterns, found neither")
    for name, rows in patterns.items():
        _check_pattern(path, name, rows, chosen.get(name))
    names = list(chosen or patterns)
    points = [[row.point for row in patterns.get(name, ()) if row.point is not None] for name in names]
    groups = [patterns[name][0].group if name in patterns else "" for name in names]
    if chosen:
        groups = [group or chosen[name].group for name, group in zip(names, groups, strict=True)]
    return PointPatterns.from_arrays(
        [np.array(pattern, dtype=np.float64).reshape(-1, len(axes)) for pattern in points],
        windows=[chosen[name].box for name in names] if chosen else None,
        names=names,
        groups=groups if any(groups) else (),
        unit=(chosen[names[0]].unit or None) if chosen else None,
    )


def read_windows(path: str | Path, dim: int | None = None, data_name: str | None = None) -> list[Window]:
    """The windows in a CSV: pattern, xmin, xmax, … [, unit]; a column `file` selects the rows of `data_name`."""
    table = _parse_table(Path(path), _read_text(Path(path)))
    axes = AXES[:dim] if dim else [axis for axis in AXES if _position(table, f"{axis}min") is not None] or AXES[:1]
    ends = [_required(table, f"{axis}{end}") for axis in axes for end in ("min", "max")]
    of_file, of_pattern, of_group, of_unit = (_position(table, name) for name in ("file", "pattern", "group", "unit"))
    windows: dict[str, Window] = {}
    files = list(dict.fromkeys(fields[of_file] for _, fields in table.rows)) if of_file is not None else []
    for row, fields in table.rows:
        if of_file is not None and data_name is not None and fields[of_file] != data_name:
            continue
        values = [_number(table, row, table.columns[i], fields[i]) for i in ends]
        for axis, low, high in zip(axes, values[::2], values[1::2], strict=True):
            if not low < high:
                _fail(table.path, row, f"{axis}min < {axis}max", f"{low:g} and {high:g}")
        pattern, group, unit = ("" if i is None else fields[i] for i in (of_pattern, of_group, of_unit))
        if pattern in windows:
            _fail(table.path, row, "one window per pattern", f"{pattern!r} again (first in row {windows[pattern].row})")
        windows[pattern] = Window(row, pattern, Box(values[::2], values[1::2]), group, unit)
        first = next(iter(windows.values()))
        if unit != first.unit:
            _fail(table.path, row, "one unit for all windows", f"{first.unit!r} (row {first.row}) and {unit!r}")
    if not windows:
        of_data = f" with {data_name!r} in column 'file'" if files else ""
        found = f"only {_names(files)}" if files else "none"
        raise InputError(f"{path}: expected at least one window{of_data}, found {found}")
    if "" in windows and len(windows) > 1:
        _fail(table.path, windows[""].row, "a pattern for each of several windows", "a blank")
    return list(windows.values())


def read_subsets(
    path: str | Path, items: str | Path | BaseSet | Float[np.ndarray, "N D"], note: Note = silent
) -> Subsets:
    """Subsets of the items, from a JSON list of lists of 0-based item numbers or a CSV with columns set, item."""
    path = Path(path)
    if isinstance(items, str | Path):
        items = read_items(items, note)
    base = items if isinstance(items, BaseSet) else BaseSet(np.asarray(items, dtype=np.float64))
    text = _read_text(path)
    sets = _sets_from_json(path, text) if _is_json(text) else _sets_from_table(_parse_table(path, text, note), note)
    if not sets:
        raise InputError(f"{path}: expected at least one set, found none")
    spots = np.unique(base.items, axis=0, return_inverse=True)[1].ravel()
    for name, members in sets.items():
        item_at: dict[int, int] = {}
        for where, item in members:
            if not 0 <= item < len(base):
                raise InputError(f"{where}: expected an item number from 0 to {len(base) - 1}, found {item}")
            other = item_at.setdefault(int(spots[item]), item)
            if other != item:
                raise InputError(
                    f"{where}: expected items at different coordinates in set {name!r}, found {other} and {item} "
                    "at the same, which a DPP never holds together"
                )
        if len(item_at) < len(members):
            numbers = [item for _, item in members]
            where, item = next(member for k, member in enumerate(members) if member[1] in numbers[:k])
            raise InputError(f"{where}: expected each item once in set {name!r}, found {item} again")
    return Subsets.from_lists([[item for _, item in members] for members in sets.values()], base, names=list(sets))


def read_items(path: str | Path, note: Note = silent) -> BaseSet:
    """A base set from CSV or Parquet (numeric columns are coordinates, `id` or `name` a label) or from `.npy`."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected a file, found a folder")
    readers = {".npy": _items_from_npy, ".parquet": _items_from_parquet, ".pq": _items_from_parquet}
    base = readers.get(path.suffix.lower(), _items_from_csv)(path, note)
    if not len(base):
        raise InputError(f"{path}: expected at least one item, found none")
    return base


def write_points(path: str | Path, data: PointPatterns) -> None:
    """The CSV that `read_points` reads; an empty set is a row with blank coordinates."""
    axes, groups = AXES[: data.dim], data.groups or ("",) * len(data)
    rows = [["pattern", *(["group"] if data.groups else []), *axes]]
    for name, group, points in zip(data.names, groups, data.arrays(), strict=True):
        start = [name, group] if data.groups else [name]
        rows += [[*start, *map(repr, point)] for point in points.tolist()] or [[*start, *("" for _ in axes)]]
    _write_rows(Path(path), rows)


def write_windows(path: str | Path, data: PointPatterns) -> None:
    """The CSV that `read_windows` reads."""
    if data.windows is None:
        raise InputError("expected patterns whose windows are known, found none")
    rows = [["pattern", *(f"{axis}{end}" for axis in AXES[: data.dim] for end in ("min", "max")), "unit"]]
    for name, box in zip(data.names, data.windows, strict=True):
        ends = [repr(end) for pair in zip(box.lower, box.upper, strict=True) for end in pair]
        rows.append([name, *ends, data.unit or ""])
    _write_rows(Path(path), rows)


def write_subsets(path: str | Path, data: Subsets) -> None:
    """The JSON that `read_subsets` reads: a list of lists of 0-based item numbers, one set a line."""
    lines = ",\n ".join(json.dumps(members) for members in data.lists())
    _write_text(Path(path), f"[{lines}]\n")


def _point_rows(table: _Table, axes: list[int], note: Note) -> list[_PointRow]:
    of_pattern, of_group = _position(table, "pattern"), _position(table, "group")
    used = {*axes, of_pattern, of_group, _position(table, "subject")}
    _note_unused(table, used, note)
    if of_pattern is None:
        note(f"{table.path}: no column 'pattern', so all {len(table.rows)} rows are read as one pattern")
    rows = []
    for row, fields in table.rows:
        name = table.path.stem if of_pattern is None else fields[of_pattern]
        if not name:
            _fail(table.path, row, "a pattern name in column 'pattern'", "a blank")
        blank = [axis for axis, i in zip(AXES, axes, strict=False) if not fields[i]]
        if blank and len(blank) < len(axes):
            _fail(table.path, row, "all coordinates, or none for an empty set", f"a blank {' and '.join(blank)}")
        point = None if blank else tuple(_number(table, row, table.columns[i], fields[i]) for i in axes)
        rows.append(_PointRow(row, name, "" if of_group is None else fields[of_group], point))
    return rows


def _check_pattern(path: Path, name: str, rows: Sequence[_PointRow], window: Window | None) -> None:
    first_rows: dict[tuple[float, ...], int] = {}
    for row, _, group, point in rows:
        if group != rows[0].group:
            _fail(path, row, f"one group for pattern {name!r}", f"{rows[0].group!r} (row {rows[0].row}) and {group!r}")
        if point is None:
            if len(rows) > 1:
                other = next(r.row for r in rows if r.row != row)
                _fail(path, row, f"coordinates, as pattern {name!r} has other rows (row {other})", "blanks")
            continue
        if point in first_rows:
            found = f"{_show(point)} again (first in row {first_rows[point]})"
            _fail(path, row, f"each point of pattern {name!r} once", found)
        first_rows[point] = row
    if window is not None and first_rows:
        is_inside = window.box.contains(np.array(list(first_rows)))
        for (point, row), inside in zip(first_rows.items(), is_inside, strict=True):
            if not inside:
                box = " x ".join(f"[{a:g}, {b:g}]" for a, b in zip(window.box.lower, window.box.upper, strict=True))
                _fail(path, row, f"a point in the window {box} of pattern {name!r}", _show(point))


def _match_windows(
    path: Path, patterns: dict[str, list[_PointRow]], windows_path: Path, windows: list[Window]
) -> dict[str, Window]:
    """The window of every pattern; a pattern that only the windows name is an empty set."""
    if not windows[0].pattern:
        if not patterns:
            raise InputError(f"{path}: expected rows of points, or windows that name the patterns, found neither")
        return dict.fromkeys(patterns, windows[0])
    by_name = {window.pattern: window for window in windows}
    for name, rows in patterns.items():
        if name not in by_name:
            hint = "; one window for all needs no column 'pattern'" if len(windows) == 1 else ""
            expected = f"a window for pattern {name!r} in {windows_path}"
            _fail(path, rows[0].row, expected, f"windows for {_names(list(by_name))}{hint}")
    return {name: by_name[name] for name in patterns} | by_name


def _sets_from_json(path: Path, text: str) -> dict[str, list[tuple[str, int]]]:
    """Per set the (place in the file, item number) of its members."""
    try:
        sets = json.loads(text)
    except json.JSONDecodeError as error:
        _fail(path, error.lineno, "a JSON list of lists of item numbers", error.msg)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: expected a JSON list of lists of item numbers, found something too long") from None
    if not isinstance(sets, list):
        raise InputError(f"{path}: expected a JSON list of lists of item numbers, found {_json_kind(sets)}")
    members: dict[str, list[tuple[str, int]]] = {}
    for t, row in enumerate(sets):
        where = f"{path}: set {t} (counting from 0)"
        if not isinstance(row, list):
            raise InputError(f"{where}: expected a list of item numbers, found {_json_kind(row)}")
        for item in row:
            if type(item) is not int:
                raise InputError(f"{where}: expected item numbers, found {_json_kind(item)}")
        members[str(t)] = [(where, item) for item in row]
    return members


def _sets_from_table(table: _Table, note: Note) -> dict[str, list[tuple[str, int]]]:
    """Per set the (place in the file, item number) of its members."""
    if _position(table, "base") is not None:
        raise InputError(f"{table.path}: column 'base': several base sets are not supported yet; expected set,item")
    of_set, of_item = _required(table, "set"), _required(table, "item")
    _note_unused(table, {of_set, of_item}, note)
    sets: dict[str, list[tuple[str, int]]] = {}
    blank_rows: dict[str, int] = {}
    for row, fields in table.rows:
        name, item = fields[of_set], fields[of_item]
        if not name:
            _fail(table.path, row, "a name in column 'set'", "a blank")
        if name in blank_rows or (not item and name in sets):
            _fail(table.path, row, f"no other row beside the blank item of set {name!r}", repr(item))
        sets.setdefault(name, [])
        if not item:
            blank_rows[name] = row
        elif re.fullmatch(r"[0-9]{1,18}", item):
            sets[name].append((f"{table.path}: row {row}", int(item)))
        else:
            _fail(table.path, row, "an item number (0 is the first item)", repr(item))
    return sets


def _items_from_csv(path: Path, note: Note) -> BaseSet:
    table = _parse_table(path, _read_text(path), note, keep_blank=True)
    of_label = next((i for i in (_position(table, name) for name in LABELS) if i is not None), None)
    if all(_is_number(column) for column in table.columns):
        _fail(path, 1, "a header that names the columns", f"numbers: {_names(table.columns)}")
    used = []
    for i, column in enumerate(table.columns):
        numeric = [_is_number(fields[i], table.delimiter) for _, fields in table.rows]
        # a column with some numbers is a coordinate with mistakes in it; one with none is text
        if column and i != of_label and column.casefold() not in LABELS and any(numeric):
            used.append(i)
    if not used:
        raise InputError(f"{path}: expected at least one numeric column of coordinates, found {_names(table.columns)}")
    _note_unused(table, {*used, of_label}, note)
    items = [[_number(table, row, table.columns[i], fields[i]) for i in used] for row, fields in table.rows]
    labels = () if of_label is None else tuple(fields[of_label] for _, fields in table.rows)
    return BaseSet(np.array(items), tuple(table.columns[i] for i in used), labels)


def _items_from_npy(path: Path, note: Note) -> BaseSet:  # noqa: ARG001
    try:
        items = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "something else"
        raise InputError(f"{path}: expected a .npy array of numbers, found: {reason}") from None
    if not isinstance(items, np.ndarray) or items.ndim != 2 or items.dtype.kind not in "fiu":
        found = f"{items.dtype} of shape {items.shape}" if isinstance(items, np.ndarray) else "several arrays"
        raise InputError(f"{path}: expected numbers of shape (items, coordinates), found {found}")
    return _finite_base(path, items.astype(np.float64))


def _items_from_parquet(path: Path, note: Note) -> BaseSet:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(f'{path}: reading Parquet needs pyarrow; pip install "dpplearn[tables]"') from None
    try:
        table: Any = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"{path}: expected a Parquet file, found: {reason}") from None
    label = next((name for name in table.column_names if name.casefold() in LABELS), None)
    kinds = {field.name: field.type for field in table.schema}
    is_numeric = {name: pa.types.is_integer(kind) or pa.types.is_floating(kind) for name, kind in kinds.items()}
    used = [
        name
        for name in table.column_names
        if is_numeric[name] and name.casefold() not in LABELS and not name.startswith(PANDAS_INDEX)
    ]
    if not used:
        raise InputError(f"{path}: expected at least one numeric column of coordinates, found {_names(list(kinds))}")
    unused = [name for name in table.column_names if name not in used and name != label]
    if unused:
        note(f"{path}: columns not used: {', '.join(unused)}")
    # a null becomes nan and is refused below
    items = np.stack([np.array(table[name].to_pylist(), dtype=np.float64) for name in used], axis=1)
    labels = () if label is None else tuple(map(str, table[label].to_pylist()))
    return _finite_base(path, items, tuple(used), labels)


def _finite_base(
    path: Path, items: Float[np.ndarray, "N D"], columns: tuple[str, ...] = (), labels: tuple[str, ...] = ()
) -> BaseSet:
    if not np.isfinite(items).all():
        item, column = np.argwhere(~np.isfinite(items))[0]
        raise InputError(f"{path}: item {item}, column {column}: expected a finite number, found {items[item, column]}")
    return BaseSet(items, columns, labels)


def _read_text(path: Path) -> str:
    try:
        # utf-8-sig also takes the mark that Excel puts first; universal newlines take CRLF
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, found nothing there") from None
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        found = f"byte {error.object[error.start]:#04x}"
        raise InputError(f'{path}: row {row}: expected UTF-8 text (in Excel: "CSV UTF-8"), found {found}') from None
    except OSError as error:
        raise InputError(f"{path}: expected a readable file, found: {error.strerror}") from None


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("[", "{")


def _parse_table(path: Path, text: str, note: Note = silent, keep_blank: bool = False) -> _Table:
    """Comma-, semicolon- or tab-separated rows as wide as the header; blank rows are dropped unless kept."""
    header_line = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = next((mark for mark in ",;\t" if mark in header_line), ",")
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        records = [(reader.line_num, [field.strip() for field in record]) for record in reader]
    except csv.Error as error:
        _fail(path, reader.line_num, "comma-separated values", str(error))
    while records and not any(records[-1][1]):
        records.pop()
    while records and not any(records[0][1]):
        records.pop(0)
    if not records:
        raise InputError(f"{path}: expected a header that names the columns, found an empty file")
    _, columns = records[0]
    while columns and not columns[-1]:
        columns = columns[:-1]
    rows = []
    for row, fields in records[1:]:
        if not any(fields) and not keep_blank:
            continue
        if len(fields) < len(columns) or any(fields[len(columns) :]):
            _fail(path, row, f"{len(columns)} fields ({delimiter.join(columns)})", str(len(fields)))
        rows.append((row, fields[: len(columns)]))
    if delimiter != ",":
        mark = "semicolons" if delimiter == ";" else "tabs"
        note(f"{path}: read with {mark} between fields; a comma in a number is its decimal point")
    return _Table(path, columns, rows, delimiter)


def _axes(table: _Table) -> list[int]:
    positions = [_position(table, axis) for axis in AXES]
    axes = [i for i in positions if i is not None]
    if not axes or positions[: len(axes)] != axes:
        _fail(table.path, 1, "columns pattern, x[, y[, z]]", _names(table.columns))
    return axes


def _position(table: _Table, name: str) -> int | None:
    """Where a column is, by its name in lower or upper case."""
    positions = [i for i, column in enumerate(table.columns) if column.casefold() == name]
    if len(positions) > 1:
        _fail(table.path, 1, f"one column {name!r}", str(len(positions)))
    return positions[0] if positions else None


def _required(table: _Table, name: str) -> int:
    position = _position(table, name)
    return _fail(table.path, 1, f"a column {name!r}", _names(table.columns)) if position is None else position


def _note_unused(table: _Table, used: set[int | None], note: Note) -> None:
    unused = [column or f"(column {i + 1}, no name)" for i, column in enumerate(table.columns) if i not in used]
    if unused:
        note(f"{table.path}: columns not used: {', '.join(unused)}")


def _number(table: _Table, row: int, column: str, text: str) -> float:
    if not _is_number(text, table.delimiter):
        _fail(table.path, row, f"a number in column {column!r}", repr(text) if text else "a blank")
    value = float(text if table.delimiter == "," else text.replace(",", "."))
    if not math.isfinite(value):
        _fail(table.path, row, f"a finite number in column {column!r}", repr(text))
    return value


def _is_number(text: str, delimiter: str = ",") -> bool:
    try:
        float(text if delimiter == "," else text.replace(",", "."))
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_000 as a number, nobody else does


def _json_kind(value: Any) -> str:
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)


def _names(names: Sequence[str]) -> str:
    """Names for a message, the first few of many."""
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _show(point: tuple[float, ...]) -> str:
    return f"({', '.join(f'{value:.10g}' for value in point)})"


def _fail(path: Path, row: int, expected: str, found: str) -> NoReturn:
    raise InputError(f"{path}: row {row}: expected {expected}, found {found}")


def _write_rows(path: Path, rows: list[list[str]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    _write_text(path, buffer.getvalue())


def _write_text(path: Path, text: str) -> None:
    """All or nothing: a file that is there is complete."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    partial.replace(path)
