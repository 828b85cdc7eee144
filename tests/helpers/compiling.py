"""Options for `jax.jit` in tests, where XLA is told not to optimise."""

# At level 0 XLA on a CPU makes NaN of the gradients of a scan with a condition inside (JAX 0.10.2); from level 1 on it does not.
RIGHT = {"xla_backend_optimization_level": 1}
