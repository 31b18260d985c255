"""DIFFormerForecaster: the next values of many series that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from difformer.data.series import Series, fill, read_series, with_known
from difformer.data.snapshots import Edges, TemporalDataset
from difformer.data.times import cycles_of, following, season_of
from difformer.estimators.backtest import OURS, Backtest, run_backtest
from difformer.estimators.mix import Mix
from difformer.estimators.network import Form, Network, Windows
from difformer.estimators.nodes import TRANSFORMS, looks_like_counts
from difformer.estimators.settings import ForecastSettings
from difformer.estimators.simple import Forecast, neighbours_of, simple_forecasts
from difformer.estimators.step_graphs import read_step_graphs

__all__ = ["DIFFormerForecaster"]

Array = NDArray[Any]

HORIZON = 4  # steps that are learned at once where nobody says how many are wanted
LONGEST = 24  # that a backtest has learned at once


@dataclass(kw_only=True, eq=False, repr=False)
class DIFFormerForecaster(ForecastSettings, BaseEstimator):
    """Forecast each node from its own last `lags` values, moved by all other nodes and a graph.

    A series is (steps, nodes): an array, nested lists, a mapping of columns, or a data frame whose
    index is the time. Each node is scaled to zero mean and unit variance over the series it is
    fitted on, and forecasts are scaled back. The last `validation_fraction` of the steps pick the
    form, the epoch and the mix with simple forecasts; then all steps are learned from, for as many
    epochs. A node that cannot be learned from (constant, or nearly so, or hardly known) is in
    `naive_nodes_`: it is forecast by its last known value.

    Missing values (nan): as a feature, a missing value is the node's last known one, or its mean
    before the first; as a target it is left out of the loss and of scores.

    Graph: None; one for all steps; or one for each step, of which a forecast sees the last one
    before it (the last known one, where steps ahead have none). An edge list (2, e), a pair (edge
    list, weights), a SciPy matrix, a Graph, or a data frame of source, target and maybe weight,
    its nodes named as the series' columns are.

    Args:
        lags: how many past values of a node are its features.
        horizon: steps ahead that are learned at once; later ones are forecast from them. None: as
            many as a backtest asks for, otherwise 4.
        hidden_channels: width of the states.
        kernel: "simple" (DIFFormer-s) or "sigmoid" (DIFFormer-a), see `DIFFormerConfig`.
        recipe: a name in `RECIPES`; options: options of the model that replace the recipe's.
        calendar: "none", or "cycles": the place of the step to come in the day, the week and the
            year, as far as the times have gone through them twice, is a feature too; "auto" takes
            them where they validate better.
        transform: "none", "sqrt" or "log" (of 1 + value) before scaling, for values of 0 or more;
            "auto" takes for counts the one that validates best, in the units of the series.
        level: what values are told from: "mean", that of the node over the series; or "last", its
            last known value, as series need that drift; "auto" takes what validates better.
        linear: "none", or "auto": the forecast is mixed with simple linear ones (last value,
            seasonal naive, mean of lags, autoregression on the lags of a node and on those of its
            neighbours too), by the `shares_` that validate best, in the units of the series: the
            newest errors count most, and those on newer series that are given count, too.
        epochs, lr, weight_decay, patience: see `TrainSettings`.
        validation_fraction: share of the snapshots, the latest ones, that validate; 0 trains on all
            of them for all epochs, in the plainest form and without a mix.
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
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        kept = self._kept(steps - self.lags_)
        self._last, self._edges = data, edges
        self._frame = type(series) if hasattr(series, "columns") else None
        self._simple: dict[str, Forecast] = {}
        self._mixed: Mix | None = None
        validated = self._network = self._chosen(seed, kept)
        self.result_ = result = validated.result
        if kept and not result.interrupted:
            self._mix(kept)
            form, epochs = validated.windows.form, max(1, result.best_epoch)
            self._network = self._learn(form, seed, 0, "all", epochs=epochs)
            if self._network.result.interrupted:
                self.result_ = replace(result, stopped=self._network.result.stopped)
        self.model_ = self._network.model
        self.transform_, self.level_, self.calendar_ = astuple(self._network.windows.form)
        self._nodes = self._network.windows.nodes
        self.mean_, self.scale_ = self._nodes.mean, self._nodes.scale
        self.naive_nodes_ = tuple(
            data.names[j] if data.names else str(j) for j in np.flatnonzero(self._nodes.naive)
        )
        self.n_iter_, self.best_epoch_ = result.epochs, result.best_epoch
        self.history_, self.validation_ = result.history, dict(result.metrics.get("val", {}))
        return self

    def _kept(self, snapshots: int) -> int:
        """How many of the latest snapshots validate: at least one where the share is not zero."""
        share = self.validation_fraction
        return min(snapshots - 1, max(1, round(share * snapshots))) if share else 0

    def _chosen(self, seed: int, kept: int) -> Network:
        """The network of the form that validates best, of those that are "auto" one by one."""
        stamps, values = self._last.stamps, self._last.values
        if self.calendar == "cycles" and not cycles_of(stamps):
            raise ValueError("calendar must be none: the times go through no cycle twice")
        options: dict[str, tuple[str, ...]] = {}
        if kept and looks_like_counts(values):
            options["transform"] = tuple(TRANSFORMS)
        if kept:
            options["level"] = ("mean", "last")
        if kept and cycles_of(stamps[:-kept]) and cycles_of(stamps):  # validation not counted
            options["calendar"] = ("none", "cycles")
        asked = {name: getattr(self, name) for name in asdict(Form())}
        best = Form(**{name: value for name, value in asked.items() if value != "auto"})
        tried: dict[Form, tuple[float, Network]] = {}
        self.tried_: dict[str, float] = {}
        for name, among in options.items():
            forms = [replace(best, **{name: value}) for value in among]
            for form in forms if asked[name] == "auto" else ():
                if form in tried:
                    continue
                network = self._learn(form, seed, kept, f"tried/{form.name}")
                if network.result.interrupted:
                    return network
                tried[form] = self._error(network, kept), network
                self.tried_[form.name] = tried[form][0]
                best = min(tried, key=lambda one: tried[one][0])
        if self.checkpoint is None and best in tried:
            return tried[best][1]
        return self._learn(best, seed, kept, "")

    def _learn(
        self, form: Form, seed: int, kept: int, folder: str, *, epochs: int | None = None
    ) -> Network:
        """A network of one form on the series of fit, kept in a folder of the checkpoint."""
        windows = Windows.learn(self._last, form, self.lags_, self.horizon or HORIZON)
        if windows.nodes.naive.all():
            raise ValueError("series: no node varies enough to be learned from")
        settings = self if epochs is None else self._clone().set_params(epochs=epochs)
        place = None if self.checkpoint is None else Path(self.checkpoint) / folder
        return Network.learn(
            self._last, self._edges, windows, settings, seed=seed, kept=kept, folder=place
        )

    def _validation(self, network: Network, kept: int) -> tuple[Array, Array, Array]:
        """The last origins, forecasts from them and what came, nan where unknown: (o, h, n)."""
        steps, ahead = len(self._last.values), network.windows.horizon
        origins = np.arange(steps - kept, steps)
        truth = _came(self._last, origins, ahead, network.windows.nodes.naive)
        return origins, network.ahead(self._last, self._edges, origins, ahead), truth

    def _error(self, network: Network, kept: int) -> float:
        """The mean squared validation error, in the units of the series."""
        _, ours, truth = self._validation(network, kept)
        errors = np.square(ours - truth)
        return float(np.nanmean(errors)) if np.isfinite(errors).any() else float("inf")

    @property
    def shares_(self) -> dict[str, float]:
        """The share of the network, and of each simple forecast, after the steps of `fit`."""
        check_is_fitted(self, "model_")
        return {OURS: 1.0} if self._mixed is None else self._mixed.shares()

    def _mix(self, kept: int) -> None:
        """How simple forecasts are off on the last `kept` steps; then these learn from all."""
        data, lags = self._last, self.lags_
        if self.linear == "none" or len(data.values) - kept < lags + 2:
            return
        filled, season = self._filled(data), season_of(data.stamps)
        near = neighbours_of(self._edges[-1:], self.n_features_in_)
        origins, ours, truth = self._validation(self._network, kept)
        before, ahead = slice(len(filled) - kept), ours.shape[1]
        told: dict[str, Any] = {"season": season, "neighbours": near}
        early = simple_forecasts(filled[before], data.values[before], lags, **told)
        each = {name: one(filled, origins, ahead) for name, one in early.items()}
        self._mixed = Mix.learn({OURS: ours, **each}, truth)
        late = simple_forecasts(filled, data.values, lags, **told)
        self._simple = {name: late[name] for name in early}

    def _filled(self, data: Series) -> Array:
        """Values in their units, a missing one as the last known one, or the node's mean."""
        return fill(data.values, self._network.windows.nodes.level)

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
        return self._network.windows.snapshots(self._last, self._edges)

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
        if self._network.windows.known is not None and data.known is not None:
            told = len(data.known) - len(data.values)
            if told < steps:
                raise ValueError(f"known must have rows for the {steps} steps ahead, it has {told}")
        values = self._ahead(data, edges, np.array([len(data.values)]), int(steps))[0]
        frame = series if hasattr(series, "columns") else None
        return self._framed(values, data, frame if series is not None else None)

    def predict_next(self, series: Any, graph: Any = None) -> Array:
        """One-step forecasts (T − lags, n): row t is for step t + lags, from the steps before it.

        None of them sees a value, or a graph, of its own step or a later one.
        """
        check_is_fitted(self, "model_")
        data = self._history(series, least=self.lags_ + 1)
        origins = np.arange(self.lags_, len(data.values))
        return self._ahead(data, self._graphs(graph, data), origins, 1)[:, 0]

    def predict_from(
        self, series: Any, origins: Sequence[int], steps: int = 1, *, graph: Any = None
    ) -> Array:
        """Forecasts from several steps of a series on, (o, steps, n), as `predict` gives them.

        None of them sees a value, or a graph, of its origin or a later step.
        """
        data, places = self._history(series), np.asarray(origins, dtype=int)
        if not len(places) or places.min() < self.lags_ or places.max() > len(data.values):
            raise ValueError(
                f"origins must lie in {self.lags_} (lags) to {len(data.values)}, got {origins!r}"
            )
        return self._ahead(data, self._graphs(graph, data), places, steps)

    def _ahead(self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int) -> Array:
        """Mixed forecasts from each origin (o, steps, n), by the steps before it alone."""
        found = self._each_ahead(data, edges, origins, steps)
        if self._mixed is None:
            mixed = found[OURS]
        else:
            shares = self._shares_at(self._mixed, data, edges, origins)
            mixed = sum(shares[name][:, None, None] * one for name, one in found.items())
        last = fill(data.values, np.full(self.n_features_in_, np.nan))[origins - 1]
        return np.where(self._nodes.naive, last[:, None], mixed)

    def _each_ahead(
        self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int
    ) -> dict[str, Array]:
        """The forecasts that are mixed, each (o, steps, n)."""
        filled = self._filled(data)
        simple = {name: one(filled, origins, steps) for name, one in self._simple.items()}
        return {OURS: self._network.ahead(data, edges, origins, steps), **simple}

    def _shares_at(
        self, mix: Mix, data: Series, edges: tuple[Edges, ...], origins: Array
    ) -> dict[str, Array]:
        """The share of each forecast at each origin: those of `fit`, then by newer errors too."""
        first = max(self._seen(data), self.lags_)
        newer = np.arange(first, max(first, int(origins.max())))
        mixes = [mix]
        if len(newer):
            ahead = self._network.windows.horizon
            each = self._each_ahead(data, edges, newer, ahead)
            truth = _came(data, newer, ahead, self._nodes.naive)
            mixes = mix.after(np.stack([*each.values()], axis=-1) - truth[..., None])
        at = [mixes[max(0, origin - first)].shares() for origin in origins]
        return {name: np.array([shares[name] for shares in at]) for name in mix.names}

    def _seen(self, data: Series) -> int:
        """How many of the first steps of a series `fit` has learned from.

        By their times; without times, those of `fit` if the series begins as that one.
        """
        known, both = self._last, min(len(data.values), len(self._last.values))
        if data.stamps and known.stamps:
            return sum(stamp <= known.stamps[-1] for stamp in data.stamps)
        same = np.array_equal(data.values[:both], known.values[:both], equal_nan=True)
        return both if same else 0

    def score(self, series: Any, graph: Any = None) -> float:
        """R² of the one-step forecasts of a series, over all nodes in units of their scale."""
        data = self._history(series, least=self.lags_ + 1)
        actual = self._nodes.forward(data.values[self.lags_ :])
        error = self._nodes.forward(self.predict_next(data, graph)) - actual
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
        ahead = self.horizon or min(horizon, LONGEST)
        return run_backtest(
            lambda past, seen: self._clone().set_params(horizon=ahead).fit(past, seen),
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


def _came(data: Series, origins: Array, ahead: int, naive: Array) -> Array:
    """What came from each origin on (o, ahead, n); nan where unknown, and of nodes not learned."""
    values = np.where(naive, np.nan, data.values)
    values = np.vstack([values, np.full((ahead, values.shape[1]), np.nan)])
    return values[origins[:, None] + np.arange(ahead)]
