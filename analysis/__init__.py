"""From record files to answers: tables, metrics, paired comparisons, warnings, plots and the HTML report.

Reads the results folder (contracts.folder) and nothing else: no process, no socket, no server. Everything shown is
recomputed from raw records. The way data flows, one module each:

    tables, stacks -> metrics -> limits, doubts, compare -> study -> summary (JSON, terminal), report (plots, HTML)
"""
