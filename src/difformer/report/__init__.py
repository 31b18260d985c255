"""Reports: the HTML pages of runs and comparisons, and what they show."""
