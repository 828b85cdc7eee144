"""Launchers: run every setting of an experiment, on this machine (`local`) or on a cluster (`slurm`)."""
