"""The command line: one file per command. These modules alone may import harness and analysis; nobody imports them."""
