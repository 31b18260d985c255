"""Split conformal prediction: intervals and sets that contain the truth as often as they say.

A score says how far a prediction is from the truth. Of m labelled rows whose labels the model had
not seen, the ⌈(m + 1) level⌉-th smallest score q is kept; what is within q of the prediction for a
new row then contains its truth with probability `level` or more, if the new row is drawn like the
held-out ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNKNOWN = -1.0  # the score of a target that is not known; scores are 0 or more


def conformal_quantile(scores: Array, level: float) -> float:
    """The ⌈(m + 1) level⌉-th smallest of m scores; infinite where m is too small. O(m log m).

    `level` is the share of new rows that must be covered, in (0, 1).

    >>> conformal_quantile(np.arange(1.0, 20.0), 0.9)
    18.0
    >>> conformal_quantile(np.arange(1.0, 5.0), 0.9)
    inf
    """
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf
