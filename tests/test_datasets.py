"""The shipped data are what the literature says, and say where they come from."""

import pytest

from dpplearn import datasets
from dpplearn.domains import Box
from dpplearn.errors import InputError

FACTS = {
    "cells": ([42], Box([0.0, 0.0], [1.0, 1.0]), "unit"),
    "swedishpines": ([71], Box([0.0, 0.0], [96.0, 100.0]), "0.1 m"),
    "japanesepines": ([65], Box([0.0, 0.0], [1.0, 1.0]), "5.7 m"),
    "redwood": ([62], Box([0.0, -1.0], [1.0, 0.0]), "unit"),
}


def test_names():
    assert datasets.names() == ["cells", "swedishpines", "japanesepines", "pyramidal", "redwood"]


@pytest.mark.parametrize("name", FACTS)
def test_single_patterns(name):
    data = datasets.load(name)
    counts, window, unit = FACTS[name]
    assert (list(data.counts), data.windows, data.unit, data.names) == (counts, (window,), unit, (name,))


def test_pyramidal_has_three_groups():
    data = datasets.load("pyramidal")
    sizes = {group: data.groups.count(group) for group in set(data.groups)}
    assert sizes == {"control": 12, "schizoaffective": 9, "schizophrenic": 10}
    assert (len(data), data.counts.min(), data.counts.max(), data.counts.sum()) == (31, 2, 106, 1400)


def test_every_data_set_has_its_provenance():
    described = datasets.describe()
    assert [row.name for row in described] == datasets.names()
    assert all(all(field != "" for field in row) for row in described)
    assert all(any(year in row.publication for year in ("1961", "1975", "1977", "1981", "1991")) for row in described)


def test_an_unknown_name():
    with pytest.raises(InputError, match=r"^expected a shipped data set \(cells, .*\), found 'cell'$"):
        datasets.load("cell")
