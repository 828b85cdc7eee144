"""Experiments: one file a table, figure or question. `launch/` runs them, `experiments.report` reports on them."""
