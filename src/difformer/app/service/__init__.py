"""A small HTTP service for a run on a table: predictions, health, metrics, a page to type into.

`server` listens and limits connections, `app` has the routes, `requests` reads and checks one
request, `together` answers the requests that wait in one batch. Every request is limited (bytes,
rows, time to arrive) and checked before the model sees it. An error in it is a 4xx with one line;
too much work is a 503 that says when to try again.
"""
