"""Time and peak memory of one attention layer, forward and backward, against the length of its row.

  python -m benchmarks.attention [--lengths=1024,2048,4096] [--patterns=full,chunked,window] [--out=FOLDER]

Each measurement runs in a process of its own, whose peak resident memory is the figure: the layer's, and what JAX itself takes.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from absl import flags
from rich.console import Console

from benchmarks.tables import Table, show_table, write_tables
from transformer_jax.allocator import keep_freed_memory
from transformer_jax.commands import parse_flags, run_command
from transformer_jax.config import default_config
from transformer_jax.errors import UserError
from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.config import model_config
from transformer_jax.model.visibility import Visibility

PATTERNS = {
  "full": {"kernel": "xla"},
  "chunked": {"kernel": "chunked"},
  "window": {"kernel": "xla", "local_window_size": 256},
  "chunked window": {"kernel": "chunked", "local_window_size": 256},
  "cudnn": {"kernel": "cudnn", "dtype": "bfloat16"},
}
D_MODEL, HEADS = 256, 4
FULL_LIMIT = 8_192  # beyond it the weights alone take more than 1 GB, several times


def peak_memory() -> int:
  """Bytes of resident memory that this process held at most.

  Linux hands `ru_maxrss` on to the programs a process starts, so that a small child of a large parent would report its
  parent's; VmHWM is the program's own. Elsewhere (macOS counts in bytes) `ru_maxrss` has to do.
  """
  try:
    status = Path("/proc/self/status").read_text()
  except FileNotFoundError:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure(pattern: str, length: int, repeats: int = 3) -> dict[str, float]:
  """Seconds of a forward and backward pass (the best of `repeats`), and the process's peak memory in GB."""
  keep_freed_memory()
  model = default_config().model
  model.update({"d_model": D_MODEL, "num_heads": HEADS, **PATTERNS[pattern]})
  config = model_config(model, 8, 8)
  module = MultiHeadAttention(config, self_attention=True)
  visibility = Visibility(None, None, causal=True, window=config.local_window_size)
  x = jax.random.normal(jax.random.key(0), (1, length, D_MODEL))
  params = jax.jit(lambda: module.init(jax.random.key(1), x[:, :8], x[:, :8], visibility))()

  @jax.jit
  def gradients(params, x):
    return jax.grad(lambda p, x: jnp.square(module.apply(p, x, x, visibility)).sum(), argnums=(0, 1))(params, x)

  jax.block_until_ready(gradients(params, x))
  seconds = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(gradients(params, x))
    seconds.append(time.perf_counter() - start)
  return {"seconds": min(seconds), "peak_gb": peak_memory() / 1e9}


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  flags.DEFINE_string("lengths", "1024,2048,4096,8192,16384", "lengths of the row", flag_values=values)
  flags.DEFINE_string("patterns", "full,chunked,window,chunked window", "which patterns", flag_values=values)
  flags.DEFINE_string("out", None, "folder for the table as Markdown and CSV", flag_values=values)
  flags.DEFINE_string("one", None, "PATTERN:LENGTH, measured in this process and printed as JSON", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  if values.one:
    pattern, _, length = values.one.partition(":")
    print(json.dumps(measure(pattern, int(length))))
    return
  lengths = [int(length) for length in values.lengths.split(",")]
  rows = []
  for pattern in values.patterns.split(","):
    if pattern not in PATTERNS:
      raise UserError(f"--patterns: {pattern!r} is none of {', '.join(PATTERNS)}")
    before = None
    for length in lengths:
      if PATTERNS[pattern]["kernel"] == "xla" and length > FULL_LIMIT:
        rows.append((pattern, length, None, None, None))
        continue
      command = [sys.executable, "-m", "benchmarks.attention", f"--one={pattern}:{length}"]
      found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
      ratio = found["seconds"] / before if before else None
      rows.append((pattern, length, found["seconds"], ratio, found["peak_gb"]))
      before = found["seconds"]
  device = jax.devices()[0]
  table = Table(
    "attention",
    f"One causal self-attention layer, d_model {D_MODEL}, {HEADS} heads, forward and backward, {device.device_kind}",
    ("pattern", "length", "seconds", "times the row above", "peak GB of the process"),
    rows,
    ["window: 256 places to the left. The cells left empty would need several GB for the weights alone."],
  )
  show_table(Console(), table)
  if values.out:
    Path(values.out).mkdir(parents=True, exist_ok=True)
    write_tables("Attention against length", [table], Path(values.out) / "attention.md")


if __name__ == "__main__":
  run_command(main)
