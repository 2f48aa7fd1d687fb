"""Post-processing processes: detokenising and spelling answers, taken off the HTTP loop."""
