"""Table 1 of the paper, measured: time and memory of a layer against the length n and the width d, and the exponents they follow.

  python -m experiments.table1 --output=runs/table1            (half a minute on 2 CPU cores; --scale=smoke: seconds)

What the table compares, and nothing else (no projections of queries, keys and values, no heads), forward, one row of float32:
self-attention, an O(n² d); a recurrent layer, O(n d²); a convolution of width k, O(k n d²); and self-attention restricted to r
neighbours, O(r n d). Time is that of a forward pass. Memory is what a forward pass of training takes and leaves for the backward
one, as the compiler lays it out (on a CPU, XLA may fuse the whole of a forward pass alone, and counts nothing inside). An exponent
is the slope of a straight line through the logarithms of the larger half of the measurements, where the term of the table prevails.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.tables import Table, show_table, write_tables
from transformer_jax.commands import parse_flags, required, run_command
from transformer_jax.errors import UserError

KERNEL, NEIGHBOURS = 3, 64
# The exponents of n and of d in a layer's work.
PUBLISHED = {"self-attention": (2, 1), "recurrent": (1, 2), "convolution": (1, 2), "restricted self-attention": (1, 1)}


class Sizes(NamedTuple):
  """What is measured: lengths at one width, and widths at one length."""

  lengths: tuple[int, ...]
  at_width: int
  widths: tuple[int, ...]
  at_length: int


SCALES = {
  "paper": Sizes((256, 512, 1024, 2048, 4096), 128, (128, 256, 512, 1024, 2048), 512),
  "smoke": Sizes((64, 128, 256, 512), 32, (32, 64, 128, 256), 64),
}


def self_attention(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
  """softmax(x xᵀ / √d) x, equation 1 with queries, keys and values alike."""
  return jax.nn.softmax(x @ x.T / math.sqrt(x.shape[1])) @ x


def recurrent(x: Float[Array, "n d"], matrix: Float[Array, "d d"]) -> Float[Array, "n d"]:
  """h_t = tanh(x_t + W h_{t-1}): n steps, one after the other."""

  def step(h: jax.Array, x_t: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jnp.tanh(x_t + matrix @ h)
    return h, h

  return jax.lax.scan(step, jnp.zeros(x.shape[1]), x)[1]


def convolution(x: Float[Array, "n d"], kernel: Float[Array, "k d d"]) -> Float[Array, "n d"]:
  """A convolution over k neighbouring places, d channels in and out: k matrix products."""
  padded = jnp.pad(x, ((len(kernel) // 2, len(kernel) // 2), (0, 0)))
  return sum((padded[i : i + len(x)] @ matrix for i, matrix in enumerate(kernel)), jnp.zeros_like(x))


def restricted_self_attention(x: Float[Array, "n d"], neighbours: int = NEIGHBOURS) -> Float[Array, "n d"]:
  """Self-attention in blocks of r / 2 places, each of which sees itself and the blocks beside it."""
  n, d = x.shape
  size = min(neighbours // 2, n)
  blocks = x.reshape(-1, size, d)
  padded = jnp.pad(blocks, ((1, 1), (0, 0), (0, 0)))
  near = jnp.concatenate([padded[:-2], padded[1:-1], padded[2:]], axis=1)  # [blocks, 3 size, d]
  scores = jnp.einsum("bqd,bkd->bqk", blocks, near) / math.sqrt(d)
  places = jnp.arange(len(blocks))[:, None] * size + jnp.arange(-size, 2 * size)
  scores = jnp.where(((places >= 0) & (places < n))[:, None], scores, -jnp.inf)
  return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), near).reshape(n, d)


def layer(name: str, d: int) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
  """A layer and its weights, small enough that the recurrent one stays stable."""
  key = jax.random.key(1)
  if name == "recurrent":
    return recurrent, (jax.random.normal(key, (d, d)) / math.sqrt(d),)
  if name == "convolution":
    return convolution, (jax.random.normal(key, (KERNEL, d, d)) / math.sqrt(KERNEL * d),)
  return {"self-attention": self_attention, "restricted self-attention": restricted_self_attention}[name], ()


def measure(name: str, n: int, d: int, seconds: float) -> tuple[float, int]:
  """Seconds of one forward pass (the least of those that fit in `seconds`, at least three), and bytes of one that trains."""
  function, weights = layer(name, d)
  x = jax.random.normal(jax.random.key(0), (n, d))
  compiled = jax.jit(function).lower(x, *weights).compile()
  jax.block_until_ready(compiled(x, *weights))
  times: list[float] = []
  while len(times) < 3 or sum(times) < seconds:
    start = time.perf_counter()
    jax.block_until_ready(compiled(x, *weights))
    times.append(time.perf_counter() - start)
  # The result is y and the function of the backward pass, with the arrays that it keeps.
  memory = jax.jit(lambda *inputs: jax.vjp(function, *inputs)).lower(x, *weights).compile().memory_analysis()
  if memory is None:
    raise UserError("the compiler for this device does not say how much memory a program takes")
  return min(times), memory.temp_size_in_bytes + memory.output_size_in_bytes


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
  """The slope of log(value) against log(size) over the larger half of the sizes, at least three of them."""
  half = max(3, (len(sizes) + 1) // 2)
  return statistics.linear_regression(np.log(sizes[-half:]), np.log(values[-half:])).slope


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  flags.DEFINE_string("output", None, "folder of the report", flag_values=values)
  flags.DEFINE_string("scale", "paper", "paper or smoke", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  (output,) = required(values, "output")
  if values.scale not in SCALES:
    raise UserError(f"--scale must be one of {', '.join(SCALES)}, not {values.scale!r}")
  sizes, seconds = SCALES[values.scale], 0.02 if values.scale == "smoke" else 0.5
  found: dict[tuple[str, int, int], tuple[float, int]] = {}
  for name in PUBLISHED:
    for n, d in [*((n, sizes.at_width) for n in sizes.lengths), *((sizes.at_length, d) for d in sizes.widths)]:
      if (name, n, d) not in found:
        found[name, n, d] = measure(name, n, d, seconds)
  folder = Path(output)
  folder.mkdir(parents=True, exist_ok=True)
  tables = [exponents_table(sizes, found), measurements_table(found)]
  write_tables("Table 1, measured", tables, folder / "report.md")
  figure(sizes, found, folder / "table1.png")
  show_table(Console(), tables[0])
  print(f"files: {folder}/report.md, exponents.csv, measurements.csv, table1.png")


def exponents_table(sizes: Sizes, found: dict[tuple[str, int, int], tuple[float, int]]) -> Table:
  """Measured exponents beside the table's."""
  rows = []
  for name, published in PUBLISHED.items():
    against_n = [found[name, n, sizes.at_width] for n in sizes.lengths]
    against_d = [found[name, sizes.at_length, d] for d in sizes.widths]
    for axis, of, points, paper in (
      ("n", sizes.lengths, against_n, published[0]),
      ("d", sizes.widths, against_d, published[1]),
    ):
      time_slope, memory_slope = (exponent(of, [float(point[kind]) for point in points]) for kind in (0, 1))
      rows.append((name, axis, time_slope, paper, memory_slope))
  columns = ("layer", "of", "time", "paper", "memory")
  note = (
    f"Lengths {', '.join(map(str, sizes.lengths))} at d = {sizes.at_width}; widths {', '.join(map(str, sizes.widths))} at "
    f"n = {sizes.at_length}; k = {KERNEL}, r = {NEIGHBOURS}. {jax.devices()[0].device_kind}."
  )
  return Table("exponents", "Exponents of time and memory", columns, rows, [note])


def measurements_table(found: dict[tuple[str, int, int], tuple[float, int]]) -> Table:
  """Every measurement."""
  rows = [(name, n, d, seconds, memory) for (name, n, d), (seconds, memory) in found.items()]
  return Table("measurements", "Measurements", ("layer", "n", "d", "seconds", "bytes"), rows, [])


def figure(sizes: Sizes, found: dict[tuple[str, int, int], tuple[float, int]], path: Path) -> None:
  """Time against n and against d, on logarithmic axes."""
  drawing = Figure(figsize=(9, 4), layout="constrained")
  left, right = drawing.subplots(1, 2, sharey=True)
  for name in PUBLISHED:
    left.loglog(sizes.lengths, [1e3 * found[name, n, sizes.at_width][0] for n in sizes.lengths], "o-", label=name)
    right.loglog(sizes.widths, [1e3 * found[name, sizes.at_length, d][0] for d in sizes.widths], "o-", label=name)
  left.set(xlabel=f"length n (d = {sizes.at_width})", ylabel="milliseconds")
  right.set(xlabel=f"width d (n = {sizes.at_length})")
  for axes, ticks in ((left, sizes.lengths), (right, sizes.widths)):
    axes.set_xticks(ticks, map(str, ticks), minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(linewidth=0.3)
  left.legend(fontsize="small")
  drawing.savefig(path, dpi=150)


if __name__ == "__main__":
  run_command(main)
