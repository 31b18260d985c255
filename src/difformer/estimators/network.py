"""The network of a forecaster: it sees windows of a series and predicts the steps after them.

Every node has a scale of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from difformer.data.dataset import Edges, fingerprint, single
from difformer.data.series import Series, fill
from difformer.data.snapshots import TemporalDataset, time_split
from difformer.data.table.scales import standardise
from difformer.data.times import calendar, cycles_of, following, season_of
from difformer.estimators.mix import (
    OURS,
    Forecast,
    Past,
    known_mean,
    neighbours_of,
    pasts,
    reach_of,
    shares_of,
    simple_forecasts,
    steps_after,
    steps_before,
)
from difformer.estimators.settings import ForecastSettings
from difformer.nn.config import RECIPES
from difformer.nn.model import DIFFormer
from difformer.train.batches import Snapshots
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.objective import SquaredError
from difformer.train.seeding import seeded

Array = NDArray[Any]


# Values to a scale on which they vary evenly, and back. "sqrt" and "log" need values of 0 or more.
TRANSFORMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "none": (np.asarray, np.asarray),
    "sqrt": (np.sqrt, lambda z: np.square(np.maximum(z, 0.0))),
    "log": (np.log1p, lambda z: np.expm1(np.maximum(z, 0.0))),
}
ENOUGH = 5  # steps at which a node must differ from its median, to be learned from


def looks_like_counts(values: Array) -> bool:
    """Whether all known values are whole numbers of 0 or more."""
    known = values[~np.isnan(values)]
    return bool(known.size and known.min() >= 0 and (known == np.round(known)).all())


class Preprocessing(NamedTuple):
    """How a series becomes features; see the parameters of `DIFFormerForecaster`."""

    transform: str = "none"
    level: str = "mean"
    calendar: str = "none"

    @property
    def name(self) -> str:
        """The settings that are not the default ones; "none" where all are."""
        own = (a for a, b in zip(self, Preprocessing(), strict=True) if a != b)
        return "-".join(own) or "none"


@dataclass(frozen=True, eq=False)
class Windows:
    """Features from the last `lags` values of each node, targets from the `horizon` values after.

    A value is seen as (f(value) − mean) / scale of its node; f is the transform.

    Args:
        mean, scale: (n,) of each node.
        naive: (n,) the nodes that are not learned from, which are 0 everywhere.
        level: (n,) the mean of a node's values in their units, 0 where none is known.
        reach: (2, n) the lowest and the highest forecast, see `reach_of`.
        cycles: the cycles of the calendar; the place of the first step ahead in them is a feature.
        known: mean and scale (c,) of the columns known ahead, a feature for every step ahead.
    """

    preprocessing: Preprocessing
    lags: int
    horizon: int
    mean: Array
    scale: Array
    naive: Array
    level: Array
    reach: Array
    cycles: tuple[int, ...]
    known: tuple[Array, Array] | None

    @classmethod
    def learn(cls, data: Series, preprocessing: Preprocessing, lags: int, horizon: int) -> Windows:
        """From the series that a network is fitted on, nan where missing. O(T n).

        A node is naive if it has fewer than lags + 2 known values, if it is constant, or if it
        differs from its median at a few steps only.
        """
        values, transform = data.values, preprocessing.transform
        if transform != "none" and float(np.nanmin(values)) < 0:
            raise ValueError(f"transform must be none for values below 0, got {transform!r}")
        known = ~np.isnan(values)
        median = np.nanmedian(np.where(known.any(0), values, 0.0), axis=0)
        differing = (known & (values != median)).sum(0)
        least = min(ENOUGH, max(1, len(values) // 10))
        naive = (known.sum(0) < lags + 2) | (differing < least)
        changed = np.where(naive, 0.0, TRANSFORMS[transform][0](np.where(naive, 0.0, values)))
        mean, scale = np.nanmean(changed, axis=0), np.nanstd(changed, axis=0)
        naive = naive | ~(scale > 0)
        if naive.all():
            raise ValueError("series: no node varies enough to be learned from")
        level = known_mean(values)
        return cls(
            preprocessing,
            lags,
            horizon,
            mean,
            np.where(naive, 1.0, scale),
            naive,
            level,
            reach_of(np.where(known, values, level)),
            cycles_of(data.stamps) if preprocessing.calendar == "cycles" else (),
            None if data.known is None else standardise(data.known[: len(values)], clip=False)[:2],
        )

    def forward(self, values: Array) -> Array:
        """Scaled values, nan where missing; 0 for naive nodes."""
        change, _ = TRANSFORMS[self.preprocessing.transform]
        changed = change(np.where(self.naive, 0.0, values))
        return np.where(self.naive, 0.0, (changed - self.mean) / self.scale)

    def back(self, scaled: Array) -> Array:
        """Values in the units of the series; those of naive nodes have no meaning."""
        _, restore = TRANSFORMS[self.preprocessing.transform]
        return np.clip(restore(scaled * self.scale + self.mean), *self.reach)

    def targets(self, values: Array, origins: Array) -> Array:
        """The `horizon` values from each origin on (o, h, n); nan for naive nodes."""
        return steps_after(np.where(self.naive, np.nan, values), origins, self.horizon)

    def scaled(self, data: Series) -> Array:
        """(T, n): missing values are the last known one, or the mean before the first."""
        return fill(self.forward(data.values), np.zeros(data.values.shape[1]))

    def beside(self, data: Series, ahead: int) -> Array:
        """Calendar and known columns of each step and of `ahead` further ones, (T + ahead, c).

        0 where a value is missing.
        """
        steps = len(data.values) + ahead
        found = np.zeros((steps, 0))
        if self.cycles:
            if len(data.stamps) != len(data.values):
                raise ValueError("series must have times: the calendar is a feature")
            later = following(data.stamps, ahead, guess=True) if ahead else []
            found = calendar([*data.stamps, *(later or [])], self.cycles)
        if self.known is None:
            return found
        mean, scale = self.known
        if data.known is None or data.known.shape[1] != len(mean):
            raise ValueError(f"known must have the {len(mean)} columns of fit")
        known = np.nan_to_num((data.known[:steps] - mean) / scale)
        return np.hstack([found, np.pad(known, ((0, steps - len(known)), (0, 0)))])

    def features(self, window: Array, beside: Array, origins: Array) -> tuple[Array, Array]:
        """Features (o, n, f) of windows (o, lags, n), and the level (o, n) that is subtracted."""
        last = window[:, -1] if self.preprocessing.level == "last" else np.zeros_like(window[:, -1])
        own = (window - last[:, None]).swapaxes(1, 2)
        cycled = 4 * len(self.cycles)
        known = beside[np.minimum(origins[:, None] + np.arange(self.horizon), len(beside) - 1)]
        common = np.hstack([known[:, 0, :cycled], known[:, :, cycled:].reshape(len(origins), -1)])
        every = np.broadcast_to(common[:, None], (len(own), own.shape[1], common.shape[1]))
        return np.concatenate([own, every], axis=2), last

    def snapshots(
        self, data: Series, edges: tuple[Edges, ...], train: int | None = None
    ) -> TemporalDataset:
        """One snapshot for each origin within the series, nan where a target is unknown.

        The targets of the first `train` snapshots end before the first step of the later ones, so
        that no validation step is learned from.
        """
        origins = np.arange(self.lags, len(data.values))
        window = steps_before(self.scaled(data), origins, self.lags)
        x, last = self.features(window, self.beside(data, self.horizon), origins)
        y = self.targets(self.forward(data.values), origins) - last[:, None]  # (o, h, n)
        if train is not None:
            after = origins[:, None] + np.arange(self.horizon)
            hidden = (origins[:, None] < self.lags + train) & (after >= self.lags + train)
            y = np.where(hidden[..., None], np.nan, y)
        return _dataset(x, y.swapaxes(1, 2), self.seen(edges, origins))

    def seen(self, edges: tuple[Edges, ...], origins: Array) -> tuple[Edges, ...]:
        """The graph of the last step before each origin, or the last graph there is."""
        if len(edges) < 2:
            return edges
        return tuple(edges[min(int(o) - 1, len(edges) - 1)] for o in origins)


@dataclass(frozen=True, eq=False)
class Network:
    """A fitted network and the windows that it sees; its forecasts may be mixed with simple ones.

    Args:
        data: the series of fit.
        simple: the simple forecasts by name; none without a mix.
        past: the errors of the network and of each of them in fit; None for the network alone.
    """

    data: Series
    windows: Windows
    model: DIFFormer
    result: FitResult
    simple: Mapping[str, Forecast] = field(default_factory=dict[str, Forecast])
    past: Past | None = None

    @classmethod
    def learn(
        cls,
        data: Series,
        edges: tuple[Edges, ...],
        windows: Windows,
        settings: ForecastSettings,
        *,
        seed: int,
        kept: int,
        epochs: int,
        folder: Path | None,
    ) -> Network:
        """Train on all snapshots except the last `kept`, which pick the epoch."""
        train = len(data.values) - windows.lags - kept
        snapshots = windows.snapshots(data, edges, train)
        share = kept / snapshots.num_snapshots
        split = time_split(
            snapshots.num_snapshots, snapshots.num_nodes, (1 - share, share, 0.0), name="fit"
        )
        with seeded(seed, own=True):
            model = DIFFormer(
                snapshots.num_features,
                settings.hidden_channels,
                windows.horizon,
                kernel=settings.kernel,
                **{**RECIPES[settings.recipe], **(settings.options or {})},
            )
        patience = settings.patience if kept else None
        training = settings.loop(epochs=epochs, patience=patience, seed=seed)
        graphs = [part for edges, weight in snapshots.edges for part in (edges, single(weight))]
        shape = {"lags": windows.lags, "hidden_channels": settings.hidden_channels}
        config = {
            "data": {"fingerprint": fingerprint(snapshots.x, snapshots.y, *graphs)},
            "model": {**shape, **vars(model.config)},
        }
        source = Snapshots(snapshots, split)
        result = fit(model, source, SquaredError(), split, training, folder=folder, config=config)
        return cls(data, windows, model.cpu().eval(), result)

    def mixed(self, edges: tuple[Edges, ...], kept: int) -> Network:
        """Learn the shares from the last `kept` steps, then the simple forecasts from all steps."""
        data, lags, steps = self.data, self.windows.lags, len(self.data.values)
        if steps - kept < lags + 2:
            return self
        filled, season = self.filled(data), season_of(data.stamps)
        near = neighbours_of(edges[-1:], data.values.shape[1])
        early, late = (
            simple_forecasts(filled[:end], data.values[:end], lags, season=season, neighbours=near)
            for end in (steps - kept, steps)
        )
        errors = replace(self, simple=early).errors(data, edges, np.arange(steps - kept, steps))
        return replace(self, simple={name: late[name] for name in early}, past=pasts(errors)[-1])

    @property
    def shares(self) -> dict[str, float]:
        """The share of the network, and of each simple forecast, after the steps of fit."""
        shares = [1.0] if self.past is None else shares_of(self.past).tolist()
        return dict(zip((OURS, *self.simple), shares, strict=True))

    def filled(self, data: Series) -> Array:
        """Values (T, n): missing ones are the last known one, or the node's mean."""
        return fill(data.values, self.windows.level)

    def ahead(self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int) -> Array:
        """Forecasts from each origin (o, steps, n), each by the steps before its origin only."""
        each = self._each(data, edges, origins, steps)
        shares = self._shares_at(data, edges, origins).T
        mixed: Any = sum(w[:, None, None] * one for w, one in zip(shares, each, strict=True))
        last = fill(data.values, np.full(data.values.shape[1], np.nan))[origins - 1]
        return np.where(self.windows.naive, last[:, None], mixed)

    def errors(self, data: Series, edges: tuple[Edges, ...], origins: Array) -> Array:
        """Those of the network and of each simple forecast, (o, horizon, n, k).

        They are nan for unknown values and for naive nodes.
        """
        windows = self.windows
        truth = windows.targets(data.values, origins)
        each = self._each(data, edges, origins, windows.horizon)
        return np.stack(each, axis=-1) - truth[..., None]

    def _each(
        self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int
    ) -> list[Array]:
        """The forecasts that are mixed, each (o, steps, n): first that of the network."""
        filled = self.filled(data)
        simple = (one(filled, origins, steps) for one in self.simple.values())
        return [self._alone(data, edges, origins, steps), *simple]

    def _shares_at(self, data: Series, edges: tuple[Edges, ...], origins: Array) -> Array:
        """The share of each forecast at each origin (o, k), by errors after fit too."""
        if self.past is None:
            return np.ones((len(origins), 1))
        first = max(self._seen(data), self.windows.lags)
        newer = np.arange(first, max(first, int(origins.max())))
        found = [self.past]
        if len(newer):
            found = pasts(self.errors(data, edges, newer), self.past)
        return np.array([shares_of(found[max(0, origin - first)]) for origin in origins])

    def _seen(self, data: Series) -> int:
        """How many of the first steps of a series were in fit.

        By their times; without times, those of fit if the series begins with the same values.
        """
        known, both = self.data, min(len(data.values), len(self.data.values))
        if data.stamps and known.stamps:
            return sum(stamp <= known.stamps[-1] for stamp in data.stamps)
        same = np.array_equal(data.values[:both], known.values[:both], equal_nan=True)
        return both if same else 0

    def _alone(self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int) -> Array:
        """Those of the network from each origin, (o, steps, n), in the units of the series.

        Each uses only the steps before its origin. `horizon` steps are predicted at once; later
        ones are forecast from them.
        """
        own, most = self.windows, self.windows.horizon
        beside = own.beside(data, steps + most)
        window = steps_before(own.scaled(data), origins, own.lags)
        found: list[Array] = []
        for first in range(0, steps, most):
            x, last = own.features(window[:, -own.lags :], beside, origins + first)
            y = np.zeros((*x.shape[:2], most))
            seen = _dataset(x, y, own.seen(edges, origins))
            split = time_split(len(origins), x.shape[1], (1.0, 0.0, 0.0))
            with torch.no_grad():
                output = Snapshots(seen, split).evaluate(self.model)
            after = output.double().numpy().reshape(y.shape).swapaxes(1, 2) + last[:, None]
            found.append(own.back(after))
            window = np.concatenate([window, own.forward(found[-1])], axis=1)
        return np.concatenate(found, axis=1)[:, :steps]


def _dataset(x: Array, y: Array, edges: tuple[Edges, ...]) -> TemporalDataset:
    """Features (o, n, f) and targets (o, n, h) as snapshots."""
    return TemporalDataset(
        "series",
        torch.from_numpy(x.reshape(-1, x.shape[2])).float(),
        torch.from_numpy(y.reshape(-1, y.shape[2])).float(),
        task="regression",
        num_nodes=x.shape[1],
        edges=edges,
    )
