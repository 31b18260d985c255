"""A small HTTP service for a run on a table: predictions, health, metrics, a page to type into.

`server` listens and limits connections, `app` has the routes, `requests` reads and checks one
request, `together` answers the requests that wait in one batch. Every request is limited (bytes,
rows, time to arrive) and checked before the model sees it. An error in it is a 4xx with one line;
too much work is a 503 that says when to try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.experiments.service.app import make_app
    from difformer.experiments.service.limits import Limits
    from difformer.experiments.service.server import listen, make_server, serve

__all__ = ["Limits", "listen", "make_app", "make_server", "serve"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "app": ("make_app",),
        "limits": ("Limits",),
        "server": ("listen", "make_server", "serve"),
    },
)
