"""Every mistake in a file is one line that names file, row, what was expected and what was found."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpplearn import readers
from dpplearn.data import PointPatterns, Subsets
from dpplearn.domains import Box
from dpplearn.errors import InputError

ITEMS = "id,f1,f2\na,0,0\nb,1,0\nc,0,1\nd,1,0\n"


def save(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(read, *arguments) -> str:
    with pytest.raises(InputError) as error:
        read(*arguments)
    return str(error.value)


POINT_MISTAKES = {
    "empty": ("", "p.csv: expected a header that names the columns, found an empty file"),
    "blank lines": ("\n\n", "p.csv: expected a header that names the columns, found an empty file"),
    "no rows": (
        "pattern,x,y\n",
        "p.csv: expected at least one row of points, or windows for empty patterns, found neither",
    ),
    "no header": ("a,0.1,0.2\n", "p.csv: row 1: expected columns pattern, x[, y[, z]], found a, 0.1, 0.2"),
    "no y": ("pattern,x,z\na,1,2\n", "p.csv: row 1: expected columns pattern, x[, y[, z]], found pattern, x, z"),
    "two x": ("pattern,x,X\na,1,2\n", "p.csv: row 1: expected one column 'x', found 2"),
    "text": ("pattern,x,y\na,1,2\na,3,NA\n", "p.csv: row 3: expected a number in column 'y', found 'NA'"),
    "underscore": ("pattern,x,y\na,1_0,2\n", "p.csv: row 2: expected a number in column 'x', found '1_0'"),
    "nan": ("pattern,x,y\na,nan,2\n", "p.csv: row 2: expected a finite number in column 'x', found 'nan'"),
    "inf": ("pattern,x,y\na,1,-inf\n", "p.csv: row 2: expected a finite number in column 'y', found '-inf'"),
    "too large": ("pattern,x,y\na,1,1e999\n", "p.csv: row 2: expected a finite number in column 'y', found '1e999'"),
    "partly blank": (
        "pattern,x,y\n\na,,2\n",
        "p.csv: row 3: expected all coordinates, or none for an empty set, found a blank x",
    ),
    "few fields": ("pattern,x,y\na,1\n", "p.csv: row 2: expected 3 fields (pattern,x,y), found 2"),
    "many fields": ("pattern,x,y\na,1,2,3\n", "p.csv: row 2: expected 3 fields (pattern,x,y), found 4"),
    "twice": (
        "pattern,x,y\na,1,2\nb,1,2\na,1.0,2e0\n",
        "p.csv: row 4: expected each point of pattern 'a' once, found (1, 2) again (first in row 2)",
    ),
    "no name": ("pattern,x,y\n,1,2\n", "p.csv: row 2: expected a pattern name in column 'pattern', found a blank"),
    "blank beside points": (
        "pattern,x,y\na,1,2\na,,\n",
        "p.csv: row 3: expected coordinates, as pattern 'a' has other rows (row 2), found blanks",
    ),
    "two groups": (
        "pattern,group,x,y\na,g,1,2\na,h,1,3\n",
        "p.csv: row 3: expected one group for pattern 'a', found 'g' (row 2) and 'h'",
    ),
    "open quote": (
        'pattern,x,y\n"a,1,2\n',
        "p.csv: row 2: expected comma-separated values, found unexpected end of data",
    ),
    "latin-1": (
        "pattern,x,y\nä,1,2\n".encode("latin-1"),
        'p.csv: row 2: expected UTF-8 text (in Excel: "CSV UTF-8"), found byte 0xe4',
    ),
    "utf-16": (
        "pattern,x,y\na,1,2\n".encode("utf-16"),
        'p.csv: row 1: expected UTF-8 text (in Excel: "CSV UTF-8"), found byte 0xff',
    ),
}


@pytest.mark.parametrize(("content", "message"), POINT_MISTAKES.values(), ids=POINT_MISTAKES)
def test_mistakes_in_points(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "p.csv", content)
    assert refusal(readers.read_points, "p.csv") == message


def test_no_file_and_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(readers.read_points, "p.csv") == "p.csv: expected a file, found nothing there"
    assert refusal(readers.read_points, ".") == ".: expected a readable file, found: Is a directory"


POINTS = "pattern,x,y\na,0.5,0.5\na,1,0\nb,0.25,0.5\n"
HEADER = "pattern,xmin,xmax,ymin,ymax\n"
WINDOW_MISTAKES = {
    "outside": (
        HEADER + "a,0,1,0,1\nb,0.3,1,0,1\n",
        "p.csv: row 4: expected a point in the window [0.3, 1] x [0, 1] of pattern 'b', found (0.25, 0.5)",
    ),
    "no window": (
        HEADER + "a,0,1,0,1\nc,0,1,0,1\n",
        "p.csv: row 4: expected a window for pattern 'b' in w.csv, found windows for a, c",
    ),
    "one window with a name": (
        HEADER + "a,0,1,0,1\n",
        "p.csv: row 4: expected a window for pattern 'b' in w.csv, found windows for a; "
        "one window for all needs no column 'pattern'",
    ),
    "twice": (
        HEADER + "a,0,1,0,1\nb,0,1,0,1\na,0,2,0,1\n",
        "w.csv: row 4: expected one window per pattern, found 'a' again (first in row 2)",
    ),
    "order": (HEADER + "a,0,1,1,1\n", "w.csv: row 2: expected ymin < ymax, found 1 and 1"),
    "reversed": (HEADER + "a,1,0,0,1\n", "w.csv: row 2: expected xmin < xmax, found 1 and 0"),
    "blank": (HEADER + "a,0,,0,1\n", "w.csv: row 2: expected a number in column 'xmax', found a blank"),
    "infinite": (HEADER + "a,0,inf,0,1\n", "w.csv: row 2: expected a finite number in column 'xmax', found 'inf'"),
    "no ymax": (
        "pattern,xmin,xmax,ymin\na,0,1,0\n",
        "w.csv: row 1: expected a column 'ymax', found pattern, xmin, xmax, ymin",
    ),
    "no rows": (HEADER, "w.csv: expected at least one window, found none"),
    "other file": (
        "file,pattern,xmin,xmax,ymin,ymax\nq.csv,a,0,1,0,1\n",
        "w.csv: expected at least one window with 'p.csv' in column 'file', found only q.csv",
    ),
    "units": (
        "pattern,xmin,xmax,ymin,ymax,unit\na,0,1,0,1,m\nb,0,1,0,1,cm\n",
        "w.csv: row 3: expected one unit for all windows, found 'm' (row 2) and 'cm'",
    ),
    "several without a name": (
        HEADER + "a,0,1,0,1\n,0,1,0,1\n",
        "w.csv: row 3: expected a pattern for each of several windows, found a blank",
    ),
}


@pytest.mark.parametrize(("content", "message"), WINDOW_MISTAKES.values(), ids=WINDOW_MISTAKES)
def test_mistakes_in_windows(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "p.csv", POINTS)
    save(tmp_path / "w.csv", content)
    assert refusal(readers.read_points, "p.csv", "w.csv") == message


def test_points_with_windows_empty_sets_and_groups(tmp_path):
    p = save(tmp_path / "p.csv", "y,Pattern,x,group,subject,age\n0,a,1,g,s1,3\n.5,a,.5,g,s1,4\n,b,,h,s2,5\n")
    w = save(
        tmp_path / "w.csv",
        "file,pattern,xmin,xmax,ymin,ymax,unit,group,zmin\n"
        "q.csv,a,5,6,5,6,km,,\np.csv,c,0,2,0,1,mm,k,\np.csv,a,0,1,0,1,mm,,\np.csv,b,0,1,0,3,mm,,\n",
    )
    notes = []
    data = readers.read_points(p, w, notes.append)
    assert (data.names, data.groups, data.unit) == (("a", "b", "c"), ("g", "h", "k"), "mm")
    assert data.windows == (Box([0.0, 0.0], [1.0, 1.0]), Box([0.0, 0.0], [1.0, 3.0]), Box([0.0, 0.0], [2.0, 1.0]))
    np.testing.assert_array_equal(data.counts, [2, 0, 0])
    np.testing.assert_array_equal(data.arrays()[0], [[1, 0], [0.5, 0.5]])
    assert notes == [
        f"{p}: columns not used: age",
        f"{w}: without points are 1 of 3 windows, which count as empty patterns: c",
    ]


def test_windows_alone_are_empty_patterns(tmp_path):
    p = save(tmp_path / "p.csv", "pattern,x,y\n")
    w = save(tmp_path / "w.csv", HEADER + "a,0,1,0,1\nb,0,1,0,1\n")
    data = readers.read_points(p, w)
    assert (data.names, list(data.counts), data.dim) == (("a", "b"), [0, 0], 2)


def test_one_window_without_a_name_serves_every_pattern(tmp_path):
    w = save(tmp_path / "w.csv", "xmin,xmax,ymin,ymax\n0,1,0,1\n")
    data = readers.read_points(save(tmp_path / "p.csv", POINTS), w)
    assert data.windows == (Box([0.0, 0.0], [1.0, 1.0]),) * 2
    empty = save(tmp_path / "e.csv", "pattern,x,y\n")
    expected = f"{empty}: expected rows of points, or windows that name the patterns, found neither"
    assert refusal(readers.read_points, empty, w) == expected


def test_without_a_pattern_column_all_rows_are_one_pattern(tmp_path):
    notes = []
    p = save(tmp_path / "cage.csv", "x,y\n1,2\n3,4\n")
    data = readers.read_points(p, None, notes.append)
    assert (data.names, list(data.counts)) == (("cage",), [2])
    assert notes == [f"{p}: no column 'pattern', so all 2 rows are read as one pattern"]
    w = save(tmp_path / "w.csv", HEADER + "first,0,9,0,9\n")
    assert readers.read_points(p, w).names == ("first",)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfpattern,x,y\r\na,0.5,1.5\r\nb,2,3\r\n",
        b"pattern;x;y\r\na;0,5;1,5\r\nb;2;3\r\n;;\r\n",
        b"pattern\tx\ty\na\t0.5\t1.5\nb\t2\t3\n",
        b'"pattern","x","y",\n"a", 0.5 ,1.5,\n\n"b",2,3,\n\n,,,\n',
        b"\n\npattern,x,y\na,0.5,1.5\nb,2,3",
    ],
    ids=["mark and CRLF", "semicolons", "tabs", "quotes and spaces", "blank lines"],
)
def test_what_spreadsheets_write(tmp_path, content):
    data = readers.read_points(save(tmp_path / "p.csv", content))
    assert data.names == ("a", "b")
    assert [array.tolist() for array in data.arrays()] == [[[0.5, 1.5]], [[2.0, 3.0]]]


@pytest.mark.parametrize(("header", "dim"), [("x", 1), ("x,y,z", 3)])
def test_one_and_three_dimensions(tmp_path, header, dim):
    p = save(tmp_path / "p.csv", f"pattern,{header}\na,{','.join('123'[:dim])}\n")
    w = save(tmp_path / "w.csv", "pattern,xmin,xmax,ymin,ymax,zmin,zmax\na,0,9,0,9,0,9\n")
    data = readers.read_points(p, w)
    assert data.windows == (Box([0.0] * dim, [9.0] * dim),)
    assert data.arrays()[0].tolist() == [[1.0, 2.0, 3.0][:dim]]


number = st.floats(-1e300, 1e300, allow_subnormal=True)
name = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=5)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_points_written_are_points_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("round")
    names = data.draw(st.lists(name, min_size=1, max_size=4, unique=True))
    dim = data.draw(st.integers(1, 3))
    patterns = [data.draw(st.lists(st.tuples(*[number] * dim), max_size=5, unique=True)) for _ in names]
    arrays = [np.array(pattern).reshape(-1, dim) for pattern in patterns]
    groups = data.draw(st.one_of(st.just(()), st.lists(name, min_size=len(names), max_size=len(names))))
    box = Box([-1e301] * dim, [1e301] * dim)
    written = PointPatterns.from_arrays(arrays, window=box, names=names, groups=groups, unit="µm")
    readers.write_points(folder / "p.csv", written)
    readers.write_windows(folder / "w.csv", written)
    read = readers.read_points(folder / "p.csv", folder / "w.csv")
    assert (read.names, read.groups, read.windows, read.unit) == (tuple(names), tuple(groups), written.windows, "µm")
    assert [a.tolist() for a in read.arrays()] == [a.tolist() for a in written.arrays()]
    assert sorted(path.name for path in folder.iterdir()) == ["p.csv", "w.csv"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), unique=True), min_size=1, max_size=6))
def test_subsets_written_are_subsets_read(tmp_path_factory, sets):
    path = tmp_path_factory.mktemp("round") / "s.json"
    items = np.arange(10.0)[:, None]
    readers.write_subsets(path, Subsets.from_lists(sets, items))
    assert readers.read_subsets(path, items).lists() == sets


def test_windows_are_written_only_where_known():
    with pytest.raises(InputError, match="expected patterns whose windows are known"):
        readers.write_windows("unused.csv", PointPatterns.from_arrays([np.zeros((1, 2))]))


SUBSET_MISTAKES = {
    "json": ("s.json", "[[1,2],\n[3,]]", "s.json: row 2: expected a JSON list of lists of item numbers, found "),
    "object": ("s.json", '{"a": 1}', "s.json: expected a JSON list of lists of item numbers, found an object"),
    "flat": ("s.json", "[1, 2]", "s.json: set 0 (counting from 0): expected a list of item numbers, found 1"),
    "fraction": ("s.json", "[[], [0.5]]", "s.json: set 1 (counting from 0): expected item numbers, found 0.5"),
    "true": ("s.json", "[[true]]", "s.json: set 0 (counting from 0): expected item numbers, found true"),
    "label": ("s.json", '[["a"]]', 's.json: set 0 (counting from 0): expected item numbers, found "a"'),
    "nested": ("s.json", "[" * 100_000, "s.json: "),
    "none": ("s.json", "[]", "s.json: expected at least one set, found none"),
    "too high": ("s.json", "[[4]]", "s.json: set 0 (counting from 0): expected an item number from 0 to 3, found 4"),
    "negative": ("s.json", "[[-1]]", "s.json: set 0 (counting from 0): expected an item number from 0 to 3, found -1"),
    "twice": (
        "s.json",
        "[[0, 2, 0]]",
        "s.json: set 0 (counting from 0): expected each item once in set '0', found 0 again",
    ),
    "same place": (
        "s.json",
        "[[0], [1, 3]]",
        "s.json: set 1 (counting from 0): expected items at different coordinates in set '1', found 1 and 3 "
        "at the same, which a DPP never holds together",
    ),
    "no rows": ("s.csv", "set,item\n", "s.csv: expected at least one set, found none"),
    "base": (
        "s.csv",
        "set,item,base\n0,1,cars\n",
        "s.csv: column 'base': several base sets are not supported yet; expected set,item",
    ),
    "no item": ("s.csv", "set,points\n0,1\n", "s.csv: row 1: expected a column 'item', found set, points"),
    "csv label": ("s.csv", "set,item\n0,b\n", "s.csv: row 2: expected an item number (0 is the first item), found 'b'"),
    "csv sign": (
        "s.csv",
        "set,item\n0,-1\n",
        "s.csv: row 2: expected an item number (0 is the first item), found '-1'",
    ),
    "csv too high": ("s.csv", "set,item\n0,1\n0,7\n", "s.csv: row 3: expected an item number from 0 to 3, found 7"),
    "csv twice": (
        "s.csv",
        "set,item\na,1\nb,1\na,1\n",
        "s.csv: row 4: expected each item once in set 'a', found 1 again",
    ),
    "no set": ("s.csv", "set,item\n,1\n", "s.csv: row 2: expected a name in column 'set', found a blank"),
    "blank beside items": (
        "s.csv",
        "set,item\na,1\na,\n",
        "s.csv: row 3: expected no other row beside the blank item of set 'a', found ''",
    ),
    "items beside blank": (
        "s.csv",
        "set,item\na,\na,1\n",
        "s.csv: row 3: expected no other row beside the blank item of set 'a', found '1'",
    ),
    "few fields": ("s.csv", "set,item\na\n", "s.csv: row 2: expected 2 fields (set,item), found 1"),
}


@pytest.mark.parametrize(("file", "content", "message"), SUBSET_MISTAKES.values(), ids=SUBSET_MISTAKES)
def test_mistakes_in_subsets(tmp_path, monkeypatch, file, content, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / file, content)
    found = refusal(readers.read_subsets, file, save(tmp_path / "i.csv", ITEMS))
    assert found.startswith(message)
    assert "\n" not in found


def test_subsets_from_json_and_csv(tmp_path):
    items = save(tmp_path / "i.csv", ITEMS)
    json = readers.read_subsets(save(tmp_path / "s.json", "\ufeff[[2, 0], [], [1]]\r\n"), items)
    notes = []
    table = readers.read_subsets(
        save(tmp_path / "s.csv", "when,set,item\n1,a,2\n1,b,\n2,c,1\n2,a,0\n"), items, notes.append
    )
    assert json.lists() == table.lists() == [[2, 0], [], [1]]
    assert (json.names, table.names) == (("0", "1", "2"), ("a", "b", "c"))
    assert json.base.labels == ("a", "b", "c", "d")
    assert notes == [f"{tmp_path / 's.csv'}: columns not used: when"]


ITEM_MISTAKES = {
    "empty": ("", "i.csv: expected a header that names the columns, found an empty file"),
    "no rows": ("f1,f2\n", "i.csv: expected at least one numeric column of coordinates, found f1, f2"),
    "no header": ("1,2\n3,4\n", "i.csv: row 1: expected a header that names the columns, found numbers: 1, 2"),
    "text only": ("id,colour\n1,red\n", "i.csv: expected at least one numeric column of coordinates, found id, colour"),
    "one bad": ("f1,f2\n1,2\n3,NA\n", "i.csv: row 3: expected a number in column 'f2', found 'NA'"),
    "nan": ("f1,f2\n1,2\n3,nan\n", "i.csv: row 3: expected a finite number in column 'f2', found 'nan'"),
    "blank": ("f1,f2\n1,2\n,4\n", "i.csv: row 3: expected a number in column 'f1', found a blank"),
    "blank row": ("f1,f2\n1,2\n\n3,4\n", "i.csv: row 3: expected 2 fields (f1,f2), found 0"),
}


@pytest.mark.parametrize(("content", "message"), ITEM_MISTAKES.values(), ids=ITEM_MISTAKES)
def test_mistakes_in_items(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "i.csv", content)
    assert refusal(readers.read_items, "i.csv") == message


def test_items_from_csv(tmp_path):
    notes = []
    path = save(tmp_path / "i.csv", ',f1,name,colour,f2\n1,0.5,a,red,1e3\n2,"-1",b,blue,7\n')
    base = readers.read_items(path, notes.append)
    assert (base.columns, base.labels, base.items.tolist()) == (("f1", "f2"), ("a", "b"), [[0.5, 1000.0], [-1.0, 7.0]])
    assert notes == [f"{path}: columns not used: (column 1, no name), colour"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "expected numbers of shape (items, coordinates), found float64 of shape (3,)"),
        (np.array([["a"]]), "expected numbers of shape (items, coordinates), found <U1 of shape (1, 1)"),
        (np.array([[1.0], [math.nan]]), "item 1, column 0: expected a finite number, found nan"),
        (np.zeros((0, 2)), "expected at least one item, found none"),
    ],
)
def test_mistakes_in_npy(tmp_path, array, message):
    np.save(tmp_path / "i.npy", array)
    assert refusal(readers.read_items, tmp_path / "i.npy") == f"{tmp_path / 'i.npy'}: {message}"


def test_items_from_npy(tmp_path):
    np.save(tmp_path / "i.npy", np.array([[1, 2], [3, 4]], dtype=np.int32))
    assert readers.read_items(tmp_path / "i.npy").items.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    broken = save(tmp_path / "b.npy", "nothing")
    assert refusal(readers.read_items, broken).startswith(f"{broken}: expected a .npy array of numbers, found: ")
    missing = tmp_path / "m.npy"
    expected = f"{missing}: expected a .npy array of numbers, found: No such file or directory"
    assert refusal(readers.read_items, missing) == expected


def test_items_from_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "i.parquet"
    columns = {"f1": [1, 2], "name": ["a", "b"], "colour": ["r", "b"], "f2": [0.5, 1.5], "__index_level_0__": [7, 8]}
    pq.write_table(pa.table(columns), path)
    notes = []
    base = readers.read_items(path, notes.append)
    assert (base.columns, base.labels, base.items.tolist()) == (("f1", "f2"), ("a", "b"), [[1.0, 0.5], [2.0, 1.5]])
    assert notes == [f"{path}: columns not used: colour, __index_level_0__"]
    pq.write_table(pa.table({"f1": [1.0, None]}), path)
    assert refusal(readers.read_items, path) == f"{path}: item 1, column 0: expected a finite number, found nan"
    pq.write_table(pa.table({"colour": ["r"]}), path)
    assert refusal(readers.read_items, path).endswith("at least one numeric column of coordinates, found colour")
    save(path, "nothing")
    assert refusal(readers.read_items, path).startswith(f"{path}: expected a Parquet file, found: ")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    found = refusal(readers.read_items, tmp_path / "i.parquet")
    assert found.endswith('reading Parquet needs pyarrow; pip install "dpplearn[tables]"')


def test_what_a_file_holds_is_read_from_its_header(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "i.csv", ITEMS)
    save(tmp_path / "p.csv", POINTS)
    save(tmp_path / "w.csv", "xmin,xmax,ymin,ymax\n0,1,0,1\n")
    save(tmp_path / "s.csv", "item,set\n1,a\n")
    save(tmp_path / "s.json", " [[1]]")
    save(tmp_path / "c.csv", "set,given,chosen,alternatives\n0,a,b,\n")
    assert isinstance(readers.read_file("p.csv"), PointPatterns)
    assert isinstance(readers.read_file("p.csv", windows="w.csv"), PointPatterns)
    assert isinstance(readers.read_file("s.csv", items="i.csv"), Subsets)
    assert isinstance(readers.read_file("s.json", items="i.csv"), Subsets)
    for arguments, message in {
        ("s.json", None, None): "s.json: holds subsets, expected the items they are taken from; add --items FILE",
        ("s.csv", None, "w.csv"): "s.csv: holds subsets of items, which have no windows; leave out --windows",
        ("p.csv", "i.csv", None): ("p.csv: --items goes with subsets (JSON, or columns set,item), found pattern, x, y"),
        ("c.csv", None, None): ("c.csv: choices (columns set, given, chosen, alternatives) are not supported yet"),
        (".", None, None): ".: expected a file, found a folder",
    }.items():
        assert refusal(readers.read_file, *arguments) == message
