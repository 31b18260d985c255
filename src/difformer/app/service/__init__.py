"""An HTTP service for a run on a table: `server` listens and limits, `app` reads and answers."""
