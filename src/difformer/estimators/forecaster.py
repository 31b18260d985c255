"""DIFFormerForecaster: the next values of many series that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from difformer.data.dataset import Edges
from difformer.data.graphs import read_step_graphs
from difformer.data.series import Series, read_series, with_known
from difformer.data.snapshots import TemporalDataset
from difformer.data.times import cycles_of, following, season_of
from difformer.estimators.backtest import Backtest, origins_of
from difformer.estimators.mix import neighbours_of
from difformer.estimators.network import (
    TRANSFORMS,
    Network,
    Preprocessing,
    Windows,
    looks_like_counts,
)
from difformer.estimators.settings import ForecastSettings
from difformer.settings import check_count

Array = NDArray[Any]

HORIZON = 4  # steps that are learned at once unless `horizon` says how many
LONGEST = 24  # the most steps that a backtest learns at once


@dataclass(kw_only=True, eq=False, repr=False)
class DIFFormerForecaster(ForecastSettings, BaseEstimator):
    """Forecast each node from its own last `lags` values, the other nodes, and a graph if given.

    A series is (steps, nodes): an array, nested lists, a mapping of columns, or a data frame whose
    index is the time. Each node is scaled to zero mean and unit variance over the series of `fit`,
    and forecasts are scaled back. The last `validation_fraction` of the steps choose the
    preprocessing, the epoch and the mix with simple forecasts; then the model is trained on all
    steps for as many epochs. Nodes that cannot be learned from (constant, or nearly so, or with
    hardly a known value) are in `naive_nodes_`: their forecast is their last known value.

    Missing values (nan): as a feature, a missing value is the node's last known one, or its mean
    before the first; as a target it is left out of the loss and of scores.

    Graph: None; one for all steps; or one for each step, of which a forecast uses the last one
    before it (the last graph there is, for later steps). An edge list (2, e), a pair (edge list,
    weights), a SciPy matrix, a Graph, or a data frame with source, target and optionally weight,
    whose nodes are named like the columns of the series.

    Args:
        lags: how many past values of a node are its features.
        horizon: steps ahead that are learned at once; later ones are forecast from them. None: as
            many as a backtest asks for, otherwise 4.
        hidden_channels: width of the states.
        kernel: "simple" (DIFFormer-s) or "sigmoid" (DIFFormer-a), see `DIFFormerConfig`.
        recipe: a name in `RECIPES`; options: options of the model that replace the recipe's.
        calendar: "none", or "cycles": the place of the next step in the day, the week and the year
            is a feature too, for each of these that the times contain at least twice; "auto"
            chooses by validation.
        transform: "none", "sqrt" or "log" (of 1 + value) before scaling, for values of 0 or more;
            "auto" chooses by validation for counts, by the error in the units of the series.
        level: what is subtracted from values: "mean", the node's mean over the series; or "last",
            its last known value, for series that drift; "auto" chooses by validation.
        linear: "none", or "auto": the forecast is mixed with simple linear ones (last value,
            seasonal naive, mean of lags, autoregression on the lags of a node, and also on those of
            its neighbours). Their `shares_` follow from the validation errors in the units of the
            series; the newest errors count most, and errors on newer series given later count too.
        epochs, lr, weight_decay, patience: see `TrainSettings`.
        validation_fraction: share of the snapshots, the latest ones, that validate; 0 trains on all
            of them for all epochs, with the default preprocessing and without a mix.
        checkpoint: a run folder that saves the fit as it goes: a fit that was killed or interrupted
            is resumed from there, a finished one is read back. `result_.interrupted` says whether
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
        """Learn to forecast a series (T, n); `lags` given here replaces the parameter.

        `known` (T + ahead, c), an array or a data frame, holds what is known in advance, such as
        holidays or prices: one row per step, and one per step that will be forecast.
        """
        self.check_settings()
        lags = self.lags if lags is None else lags
        data = with_known(read_series(series), known).check_fit(lags)
        self.lags_, self.n_features_in_ = int(lags), data.values.shape[1]
        self.series_, self._edges = data, read_step_graphs(graph, data)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if data.names:
            self.feature_names_in_ = np.asarray(data.names, dtype=object)
        self._frame = _frame_type(series)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        kept = self._kept(len(data.values) - self.lags_)
        network = self._chosen(seed, kept)
        self.result_ = result = network.result
        if kept and not result.interrupted:
            mixed = network if self.linear == "none" else network.mixed(self._edges, kept)
            best, epochs = network.windows.preprocessing, max(1, result.best_epoch or 0)
            network = self._learn(best, seed, 0, "all", epochs)
            network = replace(network, simple=mixed.simple, past=mixed.past)
            if network.result.interrupted:
                self.result_ = replace(result, stopped=network.result.stopped)
        self._network, self.model_ = network, network.model
        self.transform_, self.level_, self.calendar_ = network.windows.preprocessing
        own = network.windows
        self.mean_, self.scale_ = own.mean, own.scale
        self.naive_nodes_ = tuple(self.node_names[j] for j in np.flatnonzero(own.naive))
        self.n_iter_, self.best_epoch_ = result.epochs, result.best_epoch
        self.history_, self.validation_ = result.history, dict(result.metrics.get("val", {}))
        return self

    def _kept(self, snapshots: int) -> int:
        """How many of the latest snapshots validate: at least one unless the share is zero."""
        share = self.validation_fraction
        return min(snapshots - 1, max(1, round(share * snapshots))) if share else 0

    def _chosen(self, seed: int, kept: int) -> Network:
        """The network that validates best; the settings that are "auto" are chosen one by one."""
        stamps = self.series_.stamps
        if self.calendar == "cycles" and not cycles_of(stamps):
            raise ValueError("calendar must be none: the times contain no cycle twice")
        options: dict[str, tuple[str, ...]] = {}
        if kept and looks_like_counts(self.series_.values):
            options["transform"] = tuple(TRANSFORMS)
        if kept:
            options["level"] = ("mean", "last")
        if kept and cycles_of(stamps[:-kept]) and cycles_of(stamps):  # without the validation steps
            options["calendar"] = ("none", "cycles")
        asked = {name: getattr(self, name) for name in Preprocessing._fields}
        best = Preprocessing(**{name: value for name, value in asked.items() if value != "auto"})
        tried: dict[Preprocessing, tuple[float, Network]] = {}
        self.tried_: dict[str, float] = {}
        for name in [name for name in options if asked[name] == "auto"]:
            for candidate in [best._replace(**{name: value}) for value in options[name]]:
                if candidate in tried:
                    continue
                network = self._learn(candidate, seed, kept, f"tried/{candidate.name}")
                if network.result.interrupted:
                    return network
                error = self.tried_[candidate.name] = self._error(network, kept)
                tried[candidate] = error, network
                best = min(tried, key=lambda one: tried[one][0])
        if self.checkpoint is None and best in tried:
            return tried[best][1]
        return self._learn(best, seed, kept, "")

    def _learn(
        self, preprocessing: Preprocessing, seed: int, kept: int, folder: str, epochs: int = 0
    ) -> Network:
        """A network trained on the series of fit, saved in a folder of the checkpoint."""
        data = self.series_
        windows = Windows.learn(data, preprocessing, self.lags_, self.horizon or HORIZON)
        return Network.learn(
            data,
            self._edges,
            windows,
            self,
            seed=seed,
            kept=kept,
            epochs=epochs or self.epochs,
            folder=None if self.checkpoint is None else Path(self.checkpoint) / folder,
        )

    def _error(self, network: Network, kept: int) -> float:
        """The mean squared validation error, in the units of the series."""
        steps = len(self.series_.values)
        errors = network.errors(self.series_, self._edges, np.arange(steps - kept, steps))
        errors = np.square(errors)
        return float(np.nanmean(errors)) if np.isfinite(errors).any() else float("inf")

    @property
    def shares_(self) -> dict[str, float]:
        """The share of the network, and of each simple forecast, after the steps of `fit`."""
        check_is_fitted(self, "model_")
        return self._network.shares

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes, or their numbers if they have none."""
        check_is_fitted(self, "model_")
        return self.series_.names or tuple(str(j) for j in range(self.n_features_in_))

    @property
    def edges_(self) -> Array | None:
        """The edges (2, e) of the newest graph of `fit`; None without one."""
        check_is_fitted(self, "model_")
        return self._edges[-1][0].numpy() if self._edges else None

    def snapshots(self) -> TemporalDataset:
        """The series of `fit` as the model sees it: scaled windows, one snapshot per step."""
        check_is_fitted(self, "model_")
        return self._network.windows.snapshots(self.series_, self._edges)

    # --- forecasting -----------------------------------------------------------------------

    def predict(
        self, steps: int = 1, *, series: Any = None, graph: Any = None, known: Any = None
    ) -> Any:
        """The next `steps` values of every node, (steps, n), in the units of the series.

        Later steps are forecast from earlier forecasts. They follow the series of `fit`, or
        `series` if it is given (with its own `graph`, or else the last one of `fit`). If `fit` had
        `known`, it must have rows for these steps. If the series is a data frame of pandas, so is
        the forecast; its index continues that of the series if the steps are equal.
        """
        check_is_fitted(self, "model_")
        check_count("steps", steps)
        data = with_known(self.series_ if series is None else self._history(series), known)
        edges = self._edges if series is None else self._graphs(graph, data)
        if self._network.windows.known is not None and data.known is not None:
            ahead = len(data.known) - len(data.values)
            if ahead < steps:
                raise ValueError(
                    f"known must have rows for the {steps} steps ahead, it has {ahead}"
                )
        origins = np.array([len(data.values)])
        values = self._network.ahead(data, edges, origins, int(steps))[0]
        frame = self._frame if series is None else _frame_type(series)
        if frame is None or not frame.__module__.startswith("pandas"):
            return values
        return frame(values, index=following(data.stamps, len(values)), columns=list(data.names))

    def predict_next(self, series: Any, graph: Any = None) -> Array:
        """One-step forecasts (T − lags, n): row t is for step t + lags, from the steps before it.

        None of them uses a value, or a graph, of its own step or a later one.
        """
        data = self._history(series, least=1)
        return self.predict_from(data, range(self.lags_, len(data.values)), graph=graph)[:, 0]

    def predict_from(
        self, series: Any, origins: Sequence[int], steps: int = 1, *, graph: Any = None
    ) -> Array:
        """Forecasts from several steps of a series, (o, steps, n), as `predict` gives them.

        None of them uses a value, or a graph, of its origin or a later step.
        """
        data, places = self._history(series), np.asarray(origins, dtype=int)
        if not len(places) or places.min() < self.lags_ or places.max() > len(data.values):
            raise ValueError(
                f"origins must lie in {self.lags_} (lags) to {len(data.values)}, got {origins!r}"
            )
        return self._network.ahead(data, self._graphs(graph, data), places, steps)

    def score(self, series: Any, graph: Any = None) -> float:
        """R² of the one-step forecasts of a series, over all nodes in units of their scale."""
        data = self._history(series, least=1)
        nodes = self._network.windows
        actual = nodes.forward(data.values[self.lags_ :])
        error = nodes.forward(self.predict_next(data, graph)) - actual
        known = ~np.isnan(actual) & ~nodes.naive
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
        """Forecast from rolling origins, each from the steps before it only.

        A clone is fitted on the steps before the first origin (before every origin with `refit`);
        this estimator does not change. `Backtest` compares with simple forecasts.

        Args:
            horizon: steps forecast from each origin.
            origins: the steps to forecast from, or how many of the last ones; they are consecutive,
                so that no season is left out; by default the last quarter of the series.
        """
        data = with_known(read_series(series), known)
        edges = read_step_graphs(graph, data)
        places = origins_of(origins, len(data.values), horizon, self.lags)

        def before(origin: int) -> tuple[Edges, ...]:
            return edges[:origin] if len(edges) > 1 else edges

        def fitted(origin: int) -> DIFFormerForecaster:
            model = cast("DIFFormerForecaster", clone(self))
            model.set_params(checkpoint=None, horizon=self.horizon or min(horizon, LONGEST))
            try:
                return model.fit(data.before(origin, horizon), before(origin))
            except ValueError as error:  # such as nodes that are constant until later
                raise ValueError(f"the backtest sees {origin} steps, and {error}") from error

        parts = [[place] for place in places] if refit else [places]
        found = [fitted(at[0]).predict_from(data, at, horizon, graph=edges) for at in parts]
        return Backtest(
            origins=np.asarray(places),
            predicted=np.concatenate(found),
            values=data.values,
            lags=self.lags,
            season=season_of(data.stamps),
            neighbours=neighbours_of(before(places[0])[-1:], data.values.shape[1]),
        )

    def _history(self, series: Any, *, least: int = 0) -> Series:
        """A series with the nodes of fit, and at least `least` steps after its first lags."""
        check_is_fitted(self, "model_")
        data, least = read_series(series), self.lags_ + least
        if data.values.shape[1] != self.n_features_in_:
            raise ValueError(
                f"series must have the {self.n_features_in_} nodes of fit, "
                f"got {data.values.shape[1]}"
            )
        if self.series_.names and data.names and self.series_.names != data.names:
            raise ValueError("series must have the columns of fit, in the same order")
        if len(data.values) < least:
            raise ValueError(f"series must have at least {least} steps, got {len(data.values)}")
        return data

    def _graphs(self, graph: Any, data: Series) -> tuple[Edges, ...]:
        return self._edges[-1:] if graph is None else read_step_graphs(graph, data)


def _frame_type(series: Any) -> Any:
    """The class of a data frame; None for anything else."""
    return type(series) if hasattr(series, "columns") else None
