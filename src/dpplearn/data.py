"""Observed data as padded arrays: point patterns and subsets of a base set.

Host-side and plain: NumPy arrays in frozen dataclasses. Validation happens in the constructors
`PointPatterns.from_arrays` and `Subsets.from_lists`; padded rows are zeros (points) or -1 (items).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from dpplearn.domains import BaseSet, Box
from dpplearn.errors import InputError


def padded_size(largest: int) -> int:
    """Sizes are padded to few values, so that few shapes are compiled: multiples of 4, over 24 of 8, over 128 of 32."""
    step = 4 if largest <= 24 else 8 if largest <= 128 else 32
    return max(step, -(-largest // step) * step)


@dataclass(frozen=True)
class PointPatterns:
    """T point patterns: `points[t, mask[t]]` is the t-th, seen through `windows[t]` where windows are known."""

    points: Float[np.ndarray, "T n D"]
    mask: Bool[np.ndarray, "T n"]
    windows: tuple[Box, ...] | None = None
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    unit: str | None = None

    @classmethod
    def from_arrays(
        cls,
        patterns: Sequence[Float[np.ndarray, "_ D"]],
        window: Box | None = None,
        windows: Sequence[Box] | None = None,
        names: Sequence[str] = (),
        groups: Sequence[str] = (),
        unit: str | None = None,
    ) -> "PointPatterns":
        """One array of points (n_t by D) per pattern; `window` is shared, `windows` has one box per pattern."""
        if window is not None and windows is not None:
            raise InputError("give either one shared window or one window per pattern, not both")
        arrays = [np.asarray(pattern, dtype=np.float64) for pattern in patterns]
        if not arrays:
            raise InputError("expected at least one pattern, found none")
        boxes = (window,) * len(arrays) if window is not None else None if windows is None else tuple(windows)
        dims = {array.shape[1] for array in arrays if array.ndim == 2 and array.shape[1]}
        dims |= {box.dim for box in boxes or ()}
        if len(dims) != 1:
            raise InputError(f"every pattern is an array (points, D) with one D for all; found D in {sorted(dims)}")
        (dim,) = dims
        arrays = [array.reshape(-1, dim) if array.size == 0 else array for array in arrays]
        for name, items in (("windows", boxes), ("names", names), ("groups", groups)):
            if items and len(items) != len(arrays):
                raise InputError(f"{name}: expected {len(arrays)}, one per pattern, found {len(items)}")
        for t, array in enumerate(arrays):
            label = names[t] if names else t
            if array.ndim != 2 or not np.isfinite(array).all():
                raise InputError(f"pattern {label}: expected finite numbers of shape (points, {dim})")
            if len(np.unique(array, axis=0)) < len(array):
                raise InputError(f"pattern {label}: a point occurs twice, which has probability 0 under a DPP")
            if boxes is not None and not boxes[t].contains(array).all():
                row = int(np.argmin(boxes[t].contains(array)))
                raise InputError(f"pattern {label}: point {row} {array[row]} lies outside its window {boxes[t]}")
        points = np.zeros((len(arrays), padded_size(max(map(len, arrays))), dim))
        mask = np.zeros(points.shape[:2], dtype=bool)
        for t, array in enumerate(arrays):
            points[t, : len(array)] = array
            mask[t, : len(array)] = True
        names = tuple(names) or tuple(str(t) for t in range(len(arrays)))
        return cls(points, mask, boxes, names, tuple(groups), unit)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        return self.points.shape[2]

    @property
    def counts(self) -> Int[np.ndarray, " T"]:
        return self.mask.sum(axis=1)

    def arrays(self) -> list[Float[np.ndarray, "_ D"]]:
        """The patterns without padding."""
        return [points[mask] for points, mask in zip(self.points, self.mask, strict=True)]


@dataclass(frozen=True)
class Subsets:
    """T subsets of one base set: `index[t]` holds the item numbers of the t-th, padded with -1."""

    base: BaseSet
    index: Int[np.ndarray, "T k"]
    names: tuple[str, ...] = ()

    @classmethod
    def from_lists(
        cls,
        sets: Sequence[Sequence[int]],
        items: Float[np.ndarray, "N D"] | BaseSet,
        names: Sequence[str] = (),
    ) -> "Subsets":
        """One list of 0-based item numbers per set; `items` has one row of coordinates per item."""
        base = items if isinstance(items, BaseSet) else BaseSet(np.atleast_2d(np.asarray(items, dtype=np.float64)))
        if not np.isfinite(base.items).all():
            raise InputError("items: expected finite numbers")
        if not sets:
            raise InputError("expected at least one set, found none")
        index = np.full((len(sets), padded_size(max(map(len, sets)))), -1)
        for t, members in enumerate(sets):
            label = names[t] if names else t
            if len(set(members)) < len(members):
                raise InputError(f"set {label}: an item occurs twice")
            for item in members:
                if not 0 <= item < len(base):
                    raise InputError(f"set {label}: expected item numbers from 0 to {len(base) - 1}, found {item}")
            index[t, : len(members)] = members
        return cls(base, index, tuple(names) or tuple(str(t) for t in range(len(sets))))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def mask(self) -> Bool[np.ndarray, "T k"]:
        return self.index >= 0

    @property
    def items(self) -> Float[np.ndarray, "N D"]:
        return self.base.items

    @property
    def counts(self) -> Int[np.ndarray, " T"]:
        return self.mask.sum(axis=1)

    def lists(self) -> list[list[int]]:
        """The sets without padding."""
        return [row[row >= 0].tolist() for row in self.index]
