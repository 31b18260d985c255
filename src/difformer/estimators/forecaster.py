"""DIFFormerForecaster: the next values of many series that belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from difformer.core.graph import Graph
from difformer.data.dataset import fingerprint
from difformer.data.series import Series, fill, read_series, with_known
from difformer.data.snapshots import Edges, TemporalDataset, from_windows, time_split
from difformer.data.times import calendar, cycles_of, following
from difformer.estimators.autoregression import (
    Autoregression,
    averaging,
    neighbours_of,
    share_of,
)
from difformer.estimators.backtest import Backtest, run_backtest
from difformer.estimators.nodes import TRANSFORMS, NodeScale, looks_like_counts
from difformer.estimators.settings import ForecastSettings
from difformer.estimators.step_graphs import read_step_graphs
from difformer.nn.model import DIFFormer
from difformer.nn.recipes import RECIPES
from difformer.train.loop import fit
from difformer.train.objective import SnapshotError
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer.train.snapshots import Snapshots

__all__ = ["DIFFormerForecaster"]

Array = NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class DIFFormerForecaster(ForecastSettings, BaseEstimator):
    """Forecast each node from its own last `lags` values, moved by all other nodes and a graph.

    A series is (steps, nodes): an array, nested lists, a mapping of columns, or a data frame whose
    index is the time. Each node is scaled to zero mean and unit variance over the series it is
    fitted on, and forecasts are scaled back. The last `validation_fraction` of the steps pick the
    epoch. A node that cannot be learned from (constant, or nearly so, or hardly known) is in
    `naive_nodes_`: it is forecast by its last known value.

    Missing values (nan): as a feature, a missing value is the node's last known one, or its mean
    before the first; as a target it is left out of the loss and of scores.

    Graph: None; one for all steps; or one for each step, of which a forecast sees the last one
    before it (the last known one, where steps ahead have none). An edge list (2, e), a pair (edge
    list, weights), a SciPy matrix, a Graph, or a data frame of source, target and maybe weight,
    its nodes named as the series' columns are.

    Args:
        lags: how many past values of a node are its features.
        hidden_channels: width of the states.
        kernel: "simple" (DIFFormer-s) or "sigmoid" (DIFFormer-a), see `DIFFormerConfig`.
        recipe: a name in `RECIPES`; options: options of the model that replace the recipe's.
        calendar: "none", or "cycles": the place of the step to come in the day, the week and the
            year, as far as the times have gone through them twice, is a feature too; "auto" takes
            them where they validate better.
        transform: "none", "sqrt" or "log" (of 1 + value) before scaling, for values of 0 or more;
            "auto" takes for counts the one that validates best, in the units of the series.
        linear: "none", or "auto": the forecast is mixed with that of a linear autoregression on the
            lags of a node and of its neighbours (all others without a graph), by the share
            `linear_share_` that validates best, in the units of the series.
        epochs, lr, weight_decay, patience: see `TrainSettings`.
        validation_fraction: share of the snapshots, the latest ones, that pick the epoch; 0 trains
            on all of them for all epochs.
        checkpoint: a run folder to keep the fit in as it goes: a fit that was killed or interrupted
            goes on from there, a finished one is read back. `result_.interrupted` says whether
            Ctrl-C ended it.

    >>> waves = np.sin(np.arange(60)[:, None] / 3 + np.arange(4))
    >>> DIFFormerForecaster(epochs=5, random_state=0).fit(waves).predict(3).shape
    (3, 4)
    """

    checkpoint: str | PathLike[str] | None = None
    random_state: Any = None

    # --- fitting ---------------------------------------------------------------------------

    def fit(
        self, series: Any, graph: Any = None, *, known: Any = None, lags: int | None = None
    ) -> DIFFormerForecaster:
        """Learn to forecast a series (T, n); `lags` given here goes before the parameter.

        `known` (T + ahead, c), an array or a data frame, is what is known before it happens, such
        as holidays or prices: a row for each step, and for those that will be forecast.
        """
        self.check_settings()
        lags = self.lags if lags is None else lags
        data = with_known(read_series(series), known).check_fit(lags)
        steps, nodes = data.values.shape
        edges = read_step_graphs(graph, data)
        self.lags_, self.n_features_in_ = int(lags), nodes
        if data.names:
            self.feature_names_in_ = np.asarray(data.names, dtype=object)
        chosen = self._chosen(data, edges)
        if chosen is None:  # interrupted
            return self
        self.transform_ = chosen["transform"]
        self.calendar_ = chosen["calendar"]
        self._cycles = cycles_of(data.stamps) if self.calendar_ == "cycles" else ()
        self._known_scale = _scale_known(data)
        self._nodes = NodeScale.learn(data.values, lags, self.transform_)
        self.mean_, self.scale_ = self._nodes.mean, self._nodes.scale
        self.naive_nodes_ = tuple(
            data.names[j] if data.names else str(j) for j in np.flatnonzero(self._nodes.naive)
        )
        if self._nodes.naive.all():
            raise ValueError("series: no node varies enough to be learned from")
        snapshots = self._snapshots(data, edges)
        share = self._fraction(steps - lags)
        split = time_split(steps - lags, nodes, (1 - share, share, 0.0), name="fit")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed, own=True):
            model = DIFFormer(
                snapshots.num_features,
                self.hidden_channels,
                1,
                kernel=self.kernel,
                **{**RECIPES[self.recipe], **(self.options or {})},
            )
        settings = TrainSettings(
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            patience=self.patience if split.val.numel() else None,
            device=self.device,
            seed=seed,
        )
        source = Snapshots(snapshots, split)
        objective = SnapshotError(num_nodes=nodes)
        shape = {"lags": int(lags), "hidden_channels": self.hidden_channels}
        config = {
            "data": {"fingerprint": self._seen(snapshots)},
            "model": {**shape, **vars(model.config)},
        }
        folder = None if self.checkpoint is None else Path(self.checkpoint)
        result = fit(model, source, objective, split, settings, folder=folder, config=config)
        self.result_ = result
        self.model_ = model.cpu().eval()
        self.n_iter_, self.best_epoch_, self.history_ = (
            result.epochs,
            result.best_epoch,
            result.history,
        )
        self.validation_ = dict(result.metrics.get("val", {}))
        self._last, self._edges = data, edges
        self._linear, self.linear_share_ = None, 0.0
        if not result.interrupted:
            self._mix(data, edges, len(split.val) // nodes)
        self._frame = type(series) if hasattr(series, "columns") else None
        return self

    def _mix(self, data: Series, edges: tuple[Edges, ...], kept: int) -> None:
        """The share of a linear autoregression by the last `kept` steps, then learned from all."""
        before = len(data.values) - kept
        if self.linear == "none" or not kept or before < self.lags_ + 2:
            return
        filled, average = (
            self._filled(data),
            averaging(neighbours_of(edges[-1:], self.n_features_in_)),
        )
        tried = Autoregression.learn(filled[:before], data.values[:before], self.lags_, average)
        ours = self.predict_next(data, edges or None)[-kept:]
        truth = np.where(self._nodes.naive, np.nan, data.values[before:])
        self.linear_share_ = share_of(tried.next(filled)[-kept:], ours, truth)
        self._linear = Autoregression.learn(filled, data.values, self.lags_, average)

    def _mixed(self, ours: Array, linear: Callable[[Autoregression], Array]) -> Array:
        """Our forecast with the share of the linear one; of counts none is below zero."""
        share = self.linear_share_
        if self._linear is not None and share:
            ours = share * linear(self._linear) + (1 - share) * ours
        return np.maximum(ours, 0.0) if looks_like_counts(self._last.values) else ours

    def _filled(self, data: Series) -> Array:
        """Values in their units, a missing one as the last known one, or the node's mean."""
        return fill(data.values, self._nodes.level)

    def _seen(self, snapshots: TemporalDataset) -> str:
        """Equal for equal snapshots and graphs, by which a kept fit knows its data again."""
        edges = [tensor for pair in snapshots.edges for tensor in pair]
        return fingerprint(snapshots.x, snapshots.y, *edges)

    @property
    def series_(self) -> Series:
        """The series of `fit`."""
        check_is_fitted(self, "model_")
        return self._last

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes: their numbers where they have none."""
        return self.series_.names or tuple(str(j) for j in range(self.n_features_in_))

    @property
    def edges_(self) -> Array | None:
        """The edges (2, e) of the newest graph of `fit`; None without one."""
        check_is_fitted(self, "model_")
        return self._edges[-1][0].numpy() if self._edges else None

    def snapshots(self) -> TemporalDataset:
        """The series of `fit` as the model sees it: scaled windows, one snapshot per step."""
        check_is_fitted(self, "model_")
        return self._snapshots(self._last, self._edges)

    def _fraction(self, snapshots: int) -> float:
        """The validation share, rounded up to a snapshot where it is not zero."""
        share = self.validation_fraction
        kept = min(snapshots - 1, max(1, round(share * snapshots))) if share else 0
        return kept / snapshots

    def _chosen(self, data: Series, edges: tuple[Edges, ...]) -> dict[str, str] | None:
        """Transform and calendar, by validation where they are "auto"; None where interrupted."""
        if self.calendar == "cycles" and not cycles_of(data.stamps):
            raise ValueError("calendar must be none: the times go through no cycle twice")
        steps = len(data.values) - self.lags_
        kept = round(self._fraction(steps) * steps)
        best = {"transform": self.transform, "calendar": self.calendar}
        options: dict[str, Sequence[str]] = {"transform": ("none",), "calendar": ("none",)}
        if kept and looks_like_counts(data.values):
            options["transform"] = tuple(TRANSFORMS)
        seen = data.stamps[: self.lags_ + steps - kept]  # what validation does not hold
        if kept and cycles_of(seen) and cycles_of(data.stamps):
            options["calendar"] = ("none", "cycles")
        self.tried_: dict[str, float] = {}
        for name, among in options.items():  # one after the other: the calendar for the transform
            if best[name] != "auto":
                continue
            best[name] = among[0]
            if len(among) == 1:
                continue
            scores: dict[str, float] = {}
            for value in among:
                tried = {**best, name: value}
                tried["calendar"] = "none" if tried["calendar"] == "auto" else tried["calendar"]
                score = self._tried(data, edges, tried, kept)
                if score is None:
                    return None
                scores[value] = score
            best[name] = min(scores, key=scores.__getitem__)
        return best

    def _tried(
        self, data: Series, edges: tuple[Edges, ...], tried: Mapping[str, str], kept: int
    ) -> float | None:
        """The validation error of one choice, in the units of the series; None: interrupted."""
        name = "-".join(value for value in tried.values() if value != "none") or "none"
        if name in self.tried_:
            return self.tried_[name]
        folder = None if self.checkpoint is None else Path(self.checkpoint) / "tried" / name
        one = self._clone().set_params(**tried, linear="none", checkpoint=folder, lags=self.lags_)
        one.fit(data, edges)
        self.result_ = one.result_
        if one.result_.interrupted:
            return None
        error = one.predict_next(data, edges or None)[-kept:] - data.values[-kept:]
        self.tried_[name] = float(np.nanmean(np.square(error)))
        return self.tried_[name]

    def _scaled(self, values: Array) -> Array:
        return self._nodes.forward(values)

    def _window(self, data: Series) -> Array:
        """Scaled values, a missing one as the last known one, or as the mean before the first."""
        return fill(self._scaled(data.values), np.zeros(self.n_features_in_))

    def _naive(self, values: Array) -> Array:
        """Each step's last known value, (T, n), nan before the first."""
        return fill(values, np.full(values.shape[1], np.nan))

    def _snapshots(self, data: Series, edges: tuple[Edges, ...]) -> TemporalDataset:
        """Windows of filled features and of targets that are missing where they are missing."""
        features = torch.from_numpy(self._window(data)).float()
        found = from_windows("series", features, self.lags_, ratios=None)
        known = np.where(self._nodes.naive, np.nan, self._scaled(data.values[self.lags_ :]))
        targets = torch.from_numpy(known).float()
        if len(edges) > 1:  # the graph of the last step before the target
            edges = edges[self.lags_ - 1 : -1]
        beside = torch.from_numpy(self._beside(data, 0)[self.lags_ :]).float()
        return TemporalDataset(
            "series",
            torch.cat([found.x, beside.repeat_interleave(found.num_nodes, dim=0)], dim=1),
            targets.reshape(-1, 1),
            task="regression",
            num_nodes=found.num_nodes,
            edges=edges,
        )

    def _beside(self, data: Series, ahead: int) -> Array:
        """What is known of each step and of those ahead, (T + ahead, c): calendar and `known`."""
        steps = len(data.values) + ahead
        found = np.zeros((steps, 0))
        if self._cycles:
            if len(data.stamps) != len(data.values):
                raise ValueError("series must have times: the calendar is a feature")
            later = following(data.stamps, ahead, guess=True) if ahead else []
            found = calendar([*data.stamps, *(later or [])], self._cycles)
        if self._known_scale is None:
            return found
        mean, scale = self._known_scale
        known = data.known
        if known is None or known.shape[1] != len(mean):
            raise ValueError(f"known must have the {len(mean)} columns of fit")
        if len(known) < steps:
            raise ValueError(
                f"known must have rows for the {ahead} steps ahead, "
                f"it has {len(known) - len(data.values)}"
            )
        return np.hstack([found, np.nan_to_num((known[:steps] - mean) / scale)])

    # --- forecasting -----------------------------------------------------------------------

    def predict(
        self, steps: int = 1, *, series: Any = None, graph: Any = None, known: Any = None
    ) -> Any:
        """The next `steps` values of every node, (steps, n), in the units of the series.

        Later steps are forecast from earlier forecasts. They follow the series of `fit`, or
        `series` where it is given (with its own `graph`, else the last one of `fit`); `known` must
        have rows for them, where `fit` had it. A data frame of pandas gives a data frame, its index
        going on where its steps are equal.
        """
        check_is_fitted(self, "model_")
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
        data = with_known(self._last if series is None else self._history(series), known)
        edges = self._edges if series is None else self._graphs(graph, data)
        beside = self._beside(data, steps)[len(data.values) :]
        window = self._window(data)[-self.lags_ :]
        prepared = _graph(edges[-1:], self.n_features_in_)
        for own in beside:
            rows = np.broadcast_to(own, (self.n_features_in_, len(own)))
            x = torch.from_numpy(np.hstack([window[-self.lags_ :].T, rows])).float()
            with torch.no_grad():
                after = self.model_(x, prepared).squeeze(1).double().numpy()
            window = np.vstack([window, after])
        values = self._nodes.back(window[self.lags_ :])
        values = self._mixed(values, lambda linear: linear.forecast(self._filled(data), steps))
        values = np.where(self._nodes.naive, self._naive(data.values)[-1], values)
        frame = series if hasattr(series, "columns") else None
        return self._framed(values, data, frame if series is not None else None)

    def predict_next(self, series: Any, graph: Any = None) -> Array:
        """One-step forecasts (T − lags, n): row t is for step t + lags, from the steps before it.

        None of them sees a value, or a graph, of its own step or a later one.
        """
        check_is_fitted(self, "model_")
        data = self._history(series, least=self.lags_ + 1)
        snapshots = self._snapshots(data, self._graphs(graph, data))
        split = time_split(snapshots.num_snapshots, snapshots.num_nodes, (1.0, 0.0, 0.0))
        if bool(snapshots.y.isnan().all()):
            raise ValueError("series must have a known value after its first lags, it has none")
        with torch.no_grad():
            output = Snapshots(snapshots, split).evaluate(self.model_)
        found = self._nodes.back(output.reshape(-1, self.n_features_in_).double().numpy())
        found = self._mixed(found, lambda linear: linear.next(self._filled(data)))
        return np.where(self._nodes.naive, self._naive(data.values)[self.lags_ - 1 : -1], found)

    def score(self, series: Any, graph: Any = None) -> float:
        """R² of the one-step forecasts of a series, over all nodes in units of their scale."""
        data = self._history(series, least=self.lags_ + 1)
        actual = self._scaled(data.values[self.lags_ :])
        error = self._scaled(self.predict_next(data, graph)) - actual
        known = ~np.isnan(actual) & ~self._nodes.naive
        spread = (actual - np.nanmean(np.where(known, actual, np.nan), axis=0))[known]
        total = float(np.square(spread).sum())
        return 1.0 - float(np.square(error[known]).sum()) / total if total > 0 else float("nan")

    def backtest(
        self,
        series: Any,
        graph: Any = None,
        *,
        known: Any = None,
        horizon: int = 1,
        origins: int | Sequence[int] | None = None,
        refit: bool = False,
    ) -> Backtest:
        """Forecast from rolling origins, each seeing only the steps before it.

        A clone is fitted on the steps before the first origin (at every origin with `refit`);
        this estimator is left as it is. `Backtest` compares with simple forecasts.

        Args:
            horizon: steps forecast from each origin.
            origins: the steps to forecast from, or how many: the last ones, one after the other,
                so that no season is passed over; by default over the last quarter of the series.
        """
        data = with_known(read_series(series), known)
        return run_backtest(
            lambda past, seen: self._clone().fit(past, seen),
            data,
            read_step_graphs(graph, data),
            lags=self.lags,
            horizon=horizon,
            origins=origins,
            refit=refit,
        )

    def _clone(self) -> DIFFormerForecaster:
        return cast("DIFFormerForecaster", clone(self)).set_params(checkpoint=None)

    def _history(self, series: Any, *, least: int | None = None) -> Series:
        check_is_fitted(self, "model_")
        data = read_series(series)
        least = self.lags_ if least is None else least
        if data.values.shape[1] != self.n_features_in_:
            raise ValueError(
                f"series must have the {self.n_features_in_} nodes of fit, "
                f"got {data.values.shape[1]}"
            )
        known = getattr(self, "feature_names_in_", None)
        if known is not None and data.names and tuple(known) != data.names:
            raise ValueError("series must have the columns of fit, in the same order")
        if len(data.values) < least:
            raise ValueError(f"series must have at least {least} steps, got {len(data.values)}")
        return data

    def _graphs(self, graph: Any, data: Series) -> tuple[Edges, ...]:
        if graph is not None:
            return read_step_graphs(graph, data)
        return self._edges[-1:]

    def _framed(self, values: Array, data: Series, given: Any) -> Any:
        frame = self._frame if given is None else type(given)
        if frame is None or not frame.__module__.startswith("pandas"):
            return values
        return frame(values, index=following(data.stamps, len(values)), columns=list(data.names))


def _scale_known(data: Series) -> tuple[Array, Array] | None:
    """Mean and scale of what is known, over the steps of the series."""
    if data.known is None:
        return None
    seen = data.known[: len(data.values)]
    count = (~np.isnan(seen)).sum(0)
    mean = np.where(count > 0, np.nansum(seen, axis=0) / np.maximum(count, 1), 0.0)
    scale = np.sqrt(np.nansum(np.square(seen - mean), axis=0) / np.maximum(count, 1))
    return mean, np.where(scale > 0, scale, 1.0)


def _graph(edges: tuple[Edges, ...], n: int) -> Graph | None:
    return Graph.from_edges(edges[0][0], n, edges[0][1]) if edges else None
