"""The report: a study worked out into one self-contained HTML page."""
