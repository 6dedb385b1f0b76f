"""Where points can be: a box, all of R^D, or a finite base set of items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from dpplearn.errors import InputError


@dataclass(frozen=True)
class Box:
    """A closed axis-aligned box, the product of [lower_d, upper_d]: `Box([0, 0], [1, 1])`."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __init__(self, lower: Sequence[float | int], upper: Sequence[float | int]):
        lower, upper = tuple(map(float, lower)), tuple(map(float, upper))
        if len(lower) != len(upper) or not lower:
            raise InputError(f"a Box needs as many lower as upper ends: {lower}, {upper}")
        if not all(a < b for a, b in zip(lower, upper, strict=True)) or not np.isfinite(lower + upper).all():
            raise InputError(f"a Box needs finite ends with lower < upper: {lower}, {upper}")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def dim(self) -> int:
        return len(self.lower)

    @property
    def lengths(self) -> Float[np.ndarray, " D"]:
        return np.subtract(self.upper, self.lower)

    @property
    def volume(self) -> float:
        return float(np.prod(self.lengths))

    @property
    def center(self) -> Float[np.ndarray, " D"]:
        return np.add(self.upper, self.lower) / 2

    def contains(self, points: Float[np.ndarray, "*n D"]) -> Bool[np.ndarray, "*n"]:
        """Which points lie inside or on the edge."""
        return np.asarray(np.all((points >= np.array(self.lower)) & (points <= np.array(self.upper)), axis=-1))


@dataclass(frozen=True)
class RealSpace:
    """All of R^dim, for models whose quality falls off by itself."""

    dim: int


@dataclass(frozen=True)
class BaseSet:
    """A finite base set: one row of coordinates per item, and a label for each where there is one."""

    items: Float[np.ndarray, "N D"]
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def dim(self) -> int:
        return self.items.shape[1]
