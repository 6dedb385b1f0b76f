"""Small real point patterns, each with its publication, scale and terms in `provenance.csv`."""

import csv
from pathlib import Path
from typing import NamedTuple

from dpplearn.data import PointPatterns
from dpplearn.errors import InputError
from dpplearn.readers import read_points

_HERE = Path(__file__).parent


class Description(NamedTuple):
    """What ships under a name, and where it comes from."""

    name: str
    patterns: int
    points: int
    window: str
    unit: str
    what: str
    publication: str
    scale: str
    terms: str


def names() -> list[str]:
    """The names of the shipped data sets."""
    return [row["name"] for row in _provenance()]


def load(name: str) -> PointPatterns:
    """A shipped data set with its windows: `load("cells")`."""
    if name not in names():
        raise InputError(f"expected a shipped data set ({', '.join(names())}), found {name!r}")
    return read_points(_HERE / f"{name}.csv", _HERE / "windows.csv")


def describe() -> list[Description]:
    """All shipped data sets, counted and described."""
    rows = []
    for row in _provenance():
        data = load(row["name"])
        windows = {
            " x ".join(f"[{a:g}, {b:g}]" for a, b in zip(w.lower, w.upper, strict=True)) for w in data.windows or ()
        }
        rows.append(
            Description(
                row["name"],
                patterns=len(data),
                points=int(data.counts.sum()),
                window=", ".join(sorted(windows)),
                unit=data.unit or "",
                what=row["what"],
                publication=row["publication"],
                scale=row["scale"],
                terms=row["terms"],
            )
        )
    return rows


def _provenance() -> list[dict[str, str]]:
    with (_HERE / "provenance.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
