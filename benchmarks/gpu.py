"""One GPU, five minutes: does bfloat16 agree with float32, how fast is the quickstart, how fast are base-size steps.

  bash benchmarks/gpu.sh [--out=FOLDER] [--seconds=270] [--config.data.cache=FOLDER] [--tiny]

It needs no network. Three tables, on the screen and in FOLDER (else $OUT, else benchmarks/out) as gpu.md and *.csv:

  agreement   loss and gradients of the base model on one batch, in every arithmetic and with every attention kernel, against
              float32 with full-precision products; relative differences.
  base        updates of the base model on packed rows of 25,000 + 25,000 tokens.
  quickstart  updates of configs/quickstart.py, in its own batches and in packed ones of 25,000 tokens. On the real corpus where
              `data.cache` has it or pip can fetch it, else on synthetic ids of the same lengths; the table says which.

What the numbers are: a time is the median over rounds of updates that the device finished, after a round that is not counted;
the batches lie on the device before. Target tokens are pieces, end of sentence included, padding not. TFLOP/s counts the
matrix products that these pieces need (`transformer_jax.describe`), not those spent on padding and on masked places, and
three times the forward pass for an update. The share is that of the rate of a large bfloat16 product, measured in the same
process. Memory is what XLA says that the compiled update holds: state, batch, temporaries.
"""

import csv
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table as ScreenTable

from transformer_jax.checks import load_config_file, parse_arguments
from transformer_jax.commands import parse_flags, run_command
from transformer_jax.data.batches import Batch
from transformer_jax.data.encoded import Encoded, Ragged
from transformer_jax.data.prepared import batch_plan, prepare_data
from transformer_jax.data.vocabulary import EOS, SPECIALS
from transformer_jax.describe import forward_work
from transformer_jax.errors import UserError
from transformer_jax.model.config import ModelConfig, model_config
from transformer_jax.model.transformer import Transformer
from transformer_jax.training import step as programs
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = (("float32", "xla"), ("bfloat16", "xla"), ("bfloat16", "cudnn"))  # cuDNN's kernel does not compute in float32


class Lengths(NamedTuple):
  """Pieces a side, end of sentence included: log-normal, with one spread, the two sides correlated."""

  source: float  # mean
  target: float  # mean
  spread: float  # standard deviation of the logarithms
  correlation: float  # of the logarithms


HOME_ASSISTANT = Lengths(10.2, 11.8, 0.63, 0.93)  # measured on home_assistant/en-de with 3,000 BPE pieces
WMT14 = Lengths(30.0, 30.0, 0.6, 0.9)  # a mean of 30 as in the count of 9.5 TFLOP a step; spread and correlation assumed


class Sizes(NamedTuple):
  """How much is measured."""

  matrix: int  # rows of the square matrices
  rounds: int
  base_batches: int  # updates in a round
  quickstart_batches: int
  agreement_tokens: int
  large_tokens: int
  pairs: int


FULL = Sizes(8_192, 7, 4, 60, 4_096, 25_000, 21_000)
TINY = Sizes(64, 2, 2, 3, 128, 256, 200)


class Table(NamedTuple):
  """What one question's answer looks like: cells are text or numbers, None where there is none."""

  name: str
  title: str
  columns: tuple[str, ...]
  rows: list[tuple]
  notes: list[str]


class Deadline:
  """No measurement begins after so many seconds; what is left out says so in its row."""

  def __init__(self, seconds: float):
    self.end = time.monotonic() + seconds

  def passed(self) -> bool:
    return time.monotonic() > self.end


class Speed(NamedTuple):
  """Of updates, from `time_updates`."""

  milliseconds: float  # an update, median over the rounds
  tokens_per_second: float
  flops_per_second: float
  memory: float  # bytes
  compile_seconds: float
  skipped: int  # updates that were not finite


def time_rounds(work: Callable[[], Any], rounds: int) -> float:
  """Seconds of one call of `work`, whose result is waited for: the median of so many calls after one that is not counted."""
  seconds = []
  for _ in range(rounds + 1):
    start = time.perf_counter()
    jax.block_until_ready(work())
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[1:])


def matrix_rate(size: int, dtype: str, rounds: int, device: jax.Device) -> float:
  """FLOP/s of products of square random matrices, in JAX's default precision for the type."""
  draw = jax.jit(lambda key: jax.random.normal(key, (size, size), jnp.dtype(dtype)))
  with jax.default_device(device):
    a, b = draw(jax.random.key(0)), draw(jax.random.key(1))
    product = jax.jit(jnp.matmul)
    repeats = 10
    seconds = time_rounds(lambda: [product(a, b) for _ in range(repeats)], rounds)
  return repeats * 2 * size**3 / seconds


def synthetic_pairs(count: int, vocabularies: tuple[int, int], lengths: Lengths, longest: int) -> Encoded:
  """Pairs of random ids with the given lengths, cut to 2 … `longest`; the same on every call."""
  random = np.random.default_rng(0)
  means = np.log([lengths.source, lengths.target]) - lengths.spread**2 / 2
  covariance = lengths.spread**2 * np.array([[1.0, lengths.correlation], [lengths.correlation, 1.0]])
  drawn = np.exp(random.multivariate_normal(means, covariance, size=count))
  pieces = np.clip(np.rint(drawn), 2, longest).astype(np.int32)  # [pairs, 2]

  def side(column: int) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(pieces[:, column], dtype=np.int64)])
    ids = random.integers(len(SPECIALS), vocabularies[column], offsets[-1], dtype=np.int32)
    ids[offsets[1:] - 1] = EOS
    return Ragged(ids, offsets)

  return Encoded(
    sources=side(0),
    targets=side(1),
    source_lengths=np.ascontiguousarray(pieces[:, 0]),
    target_lengths=np.ascontiguousarray(pieces[:, 1]),
    removed={},
    corpus_offsets=(0, count),
    weights=(1.0,),
  )


def quickstart_pairs(config: ConfigDict, count: int, real: bool = True) -> tuple[Encoded, tuple[int, int], str]:
  """Returns the training pairs of the quickstart, the sizes of its vocabularies, and what the pairs are, in words."""
  reason = "as asked for"
  if real:
    try:
      data = prepare_data(config, None, rows_multiple=1)
      sizes = data.vocabularies.source.size, data.vocabularies.target.size
      return data.train, sizes, f"the real corpus, {', '.join(config.data.train)}"
    except (UserError, ImportError) as error:
      reason = str(error)
  sizes = config.vocabulary.size, config.vocabulary.target_size or config.vocabulary.size
  pairs = synthetic_pairs(count, sizes, HOME_ASSISTANT, config.data.max_length)
  return pairs, sizes, f"synthetic ids with the lengths of home_assistant/en-de (the real corpus is not here: {reason})"


def relative_differences(found: tuple[Any, Any], reference: tuple[Any, Any]) -> tuple[float, float, float, str]:
  """Of (loss, gradients): loss, all gradients as one vector, and the array that differs most with its name."""
  names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(found[1])]
  pairs = [
    (np.asarray(a, np.float64), np.asarray(b, np.float64))
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(reference[1]), strict=True)
  ]
  distances = np.array([np.linalg.norm(a - b) for a, b in pairs])
  norms = np.array([np.linalg.norm(b) for _, b in pairs])
  each = distances / np.maximum(norms, np.finfo(np.float64).tiny)
  worst = int(np.argmax(each))
  loss = abs(float(found[0]) - float(reference[0])) / abs(float(reference[0]))
  return loss, float(np.linalg.norm(distances) / np.linalg.norm(norms)), float(each[worst]), names[worst]


def loss_and_gradients(sizes: ModelConfig, params: Any, batch: Batch, config: ConfigDict) -> tuple[Any, Any]:
  """The mean loss of a batch and the gradients of its sum, with dropout; on the host."""
  model, smoothing = Transformer(sizes), config.training.label_smoothing

  @jax.jit
  def compute(params, batch):
    return programs.summed_gradients(model, params, batch, jax.random.key(config.seed), smoothing, accumulate=1)

  gradients, sums = jax.device_get(compute(params, batch))
  return sums.loss / sums.pieces, gradients


def agreement_table(config: ConfigDict, pairs: Encoded, sizes: Sizes, mesh: Mesh, deadline: Deadline) -> Table:
  """Loss and gradients of one model on one batch, in every arithmetic."""
  config = changed(config, {"batch.tokens": max(sizes.agreement_tokens, config.data.max_length)})
  vocabulary = config.vocabulary.size
  epoch = batch_plan(pairs, config, 1, shuffle=True).epoch(0)
  batch = programs.put_batch(epoch[0], mesh)
  base = model_config(config.model, vocabulary, vocabulary)
  with jax.default_device(mesh.devices.flat[0]):
    params = jax.jit(Transformer(base).init)(jax.random.key(config.seed), batch)["params"]
  results: dict[str, tuple[Any, Any]] = {}
  exact = "float32, full precision"
  table = Table(
    "agreement",
    f"Agreement: {config.model.num_layers} + {config.model.num_decoder_layers or config.model.num_layers} layers, "
    f"d_model {config.model.d_model}, new parameters, {int((epoch[0].target_segments > 0).sum()):,} target tokens, dropout on",
    ("arithmetic", "against", "loss", "gradients", "worst array", "its name"),
    [],
    ["relative differences; gradients: |a - b| / |b| of all arrays as one vector, and of the array where it is largest"],
  )
  for dtype, kernel, precision in [("float32", "xla", "highest"), *((*variant, None) for variant in VARIANTS)]:
    name = exact if precision else f"{dtype}, {kernel}"
    if deadline.passed():
      table.rows.append((name, "left out: no time", None, None, None, None))
      continue
    variant = model_config(changed(config, {"model.dtype": dtype, "model.kernel": kernel}).model, vocabulary, vocabulary)
    try:
      with jax.default_matmul_precision(precision or "default"):
        results[name] = loss_and_gradients(variant, params, batch, config)
    except (RuntimeError, NotImplementedError, ValueError) as error:
      table.rows.append((name, f"not here: {first_line(error)}", None, None, None, None))
      continue
    against = [exact] if name != exact else []
    if kernel == "cudnn":
      against.append("bfloat16, xla")
    for other in against:
      if other in results:
        table.rows.append((name, other, *relative_differences(results[name], results[other])))
  return table


def first_line(error: Exception) -> str:
  """An error in a few words, for a cell of a table."""
  text = str(error).strip() or type(error).__name__
  return text.splitlines()[0][:100]


def changed(config: ConfigDict, values: dict[str, Any]) -> ConfigDict:
  """A copy of a configuration with some fields changed."""
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(values)
  return config


def time_updates(config: ConfigDict, sizes: ModelConfig, batches: Sequence[Batch], rounds: int, mesh: Mesh) -> Speed:
  """Makes updates with the package's own step; a round goes through all the batches."""
  model = Transformer(sizes)
  schedule = learning_rate_schedule(config.optimizer, config.model.d_model, config.training.steps)
  optimizer = make_optimizer(config.optimizer, schedule)
  begin = functools.partial(programs.initial_state, model, optimizer, batches[0], config.seed)
  shardings = programs.state_shardings(jax.eval_shape(begin), mesh, fsdp=False)
  update = programs.make_train_step(model, optimizer, schedule, config.training.label_smoothing)
  jitted = programs.compile_train_step(update, shardings, mesh)
  state = jax.jit(begin, out_shardings=shardings)()
  placed = [programs.put_batch(batch, mesh) for batch in batches]
  start, compiled = time.perf_counter(), {}
  for batch in placed:
    if shape_of(batch) not in compiled:
      compiled[shape_of(batch)] = jitted.lower(state, batch).compile()
  compile_seconds = time.perf_counter() - start

  def one_round():
    nonlocal state
    for batch in placed:
      state, metrics = compiled[shape_of(batch)](state, batch)
    return state, metrics

  seconds = time_rounds(one_round, rounds)
  source, target = (np.concatenate([(getattr(b, s) > 0).ravel() for b in batches]).sum() for s in SEGMENTS)
  ends = sum(int(b.source_segments.max(axis=1).sum()) for b in batches)  # pairs
  work = forward_work(sizes, source / ends, target / ends)
  return Speed(
    milliseconds=1e3 * seconds / len(batches),
    tokens_per_second=float(target / seconds),
    flops_per_second=float(3 * (source * work.source + target * work.target) / seconds),
    memory=max(program_memory(program) for program in compiled.values()),
    compile_seconds=compile_seconds,
    skipped=int(state.skipped),
  )


SEGMENTS = ("source_segments", "target_segments")


def shape_of(batch: Batch) -> tuple[int, int, int]:
  """Rows, source length and target length."""
  return (*batch.source.shape, batch.target_inputs.shape[1])


def program_memory(program: Any) -> float:
  """Bytes that a compiled program holds at a time: arguments, results and temporaries; donated ones count once."""
  sizes = program.memory_analysis()
  if sizes is None:
    return float("nan")
  held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
  return held - sizes.alias_size_in_bytes


SPEED_COLUMNS = (
  "batches",
  "arithmetic",
  "attention",
  "ms a step",
  "target tokens/s",
  "TFLOP/s",
  "share of matrix rate",
  "memory GiB",
  "compiled in s",
)


def speed_row(
  words: str, config: ConfigDict, pairs: Encoded, vocabularies: tuple[int, int], count: int, rounds: int, rate: float, mesh: Mesh
) -> tuple:
  """One line of a table of speeds, or why there is none."""
  sizes = model_config(config.model, *vocabularies)
  epoch = batch_plan(pairs, config, 1, shuffle=True).epoch(0)
  batches = [epoch[i] for i in range(min(count, len(epoch)))]
  shapes = sorted({shape_of(batch) for batch in batches}, reverse=True)
  words = f"{words}: " + ", ".join(f"{rows} x ({source} + {target})" for rows, source, target in shapes)
  row = (words, config.model.dtype, config.model.kernel)
  try:
    speed = time_updates(config, sizes, batches, rounds, mesh)
  except (RuntimeError, NotImplementedError, ValueError) as error:  # cuDNN or memory is missing
    return (*row, f"not here: {first_line(error)}", None, None, None, None, None)
  if speed.skipped:
    return (*row, f"{speed.skipped} updates were not finite", None, None, None, None, None)
  return (
    *row,
    speed.milliseconds,
    speed.tokens_per_second,
    speed.flops_per_second / 1e12,
    speed.flops_per_second / rate,
    speed.memory / 2**30,
    speed.compile_seconds,
  )


def speed_table(
  name: str,
  title: str,
  choices: Sequence[tuple[str, ConfigDict, int]],
  pairs: Encoded,
  vocabularies: tuple[int, int],
  rounds: int,
  rate: float,
  mesh: Mesh,
  deadline: Deadline,
  notes: Sequence[str] = (),
) -> Table:
  """A line for each choice (words, configuration, batches in a round)."""
  table = Table(name, title, SPEED_COLUMNS, [], list(notes))
  for words, config, count in choices:
    if deadline.passed():
      table.rows.append((words, config.model.dtype, config.model.kernel, "left out: no time", None, None, None, None, None))
    else:
      table.rows.append(speed_row(words, config, pairs, vocabularies, count, rounds, rate, mesh))
  return table


def base_config(tiny: bool) -> ConfigDict:
  """The base experiment; tiny: the same fields with small numbers."""
  config = load_config_file(str(ROOT / "configs" / "wmt14_en_de_base.py"))
  if tiny:
    sizes = {"model.num_layers": 1, "model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2}
    config = changed(config, {**sizes, "vocabulary.size": 50, "data.max_length": 32, "batch.tokens": 128})
  return config


def measure(
  quickstart: ConfigDict, sizes: Sizes, tiny: bool, device: jax.Device, deadline: Deadline, show: Callable[[Table], None]
) -> list[Table]:
  """Makes all the measurements on one device, the most telling first; `show` gets each table when it is done."""
  mesh = programs.data_mesh([device])
  rates = {dtype: matrix_rate(sizes.matrix, dtype, sizes.rounds, device) for dtype in ("bfloat16", "float32")}
  machine = Table("machine", f"{device.device_kind}, JAX {jax.__version__}", ("what", "value"), [], [])
  for dtype, rate in rates.items():
    machine.rows.append((f"{dtype} product of {sizes.matrix:,} x {sizes.matrix:,} matrices, TFLOP/s", rate / 1e12))
  machine.notes.append("float32 products are JAX's default ones: TensorFloat-32 where the card has it")
  tables = []

  def done(table: Table) -> None:
    tables.append(table)
    show(table)

  done(machine)
  rate = rates["bfloat16"]
  base = base_config(tiny)
  vocabularies = base.vocabulary.size, base.vocabulary.size
  pairs = synthetic_pairs(sizes.pairs, vocabularies, WMT14, base.data.max_length)
  note = f"synthetic ids, lengths around {WMT14.target:.0f} pieces (log-normal), packed"
  choices = [
    (note, changed(base, {"model.dtype": dtype, "model.kernel": kernel}), sizes.base_batches) for dtype, kernel in VARIANTS
  ]
  title = f"Base-size steps: {base.batch.tokens:,} + {base.batch.tokens:,} tokens"
  done(speed_table("base", title, choices, pairs, vocabularies, sizes.rounds, rate, mesh, deadline))
  done(agreement_table(base, pairs, sizes, mesh, deadline))

  quick_pairs, quick_vocabularies, words = quickstart_pairs(quickstart, sizes.pairs, real=not tiny)
  large = changed(
    quickstart,
    {"batch.tokens": max(sizes.large_tokens, quickstart.data.max_length), "batch.packing": True, "batch.buckets": ()},
  )
  choices = [
    (kind, changed(config, {"model.dtype": dtype}), sizes.quickstart_batches)
    for kind, config in (("its own", quickstart), ("large, packed", large))
    for dtype in ("float32", "bfloat16")
  ]
  title = "The quickstart's model"
  done(
    speed_table("quickstart", title, choices, quick_pairs, quick_vocabularies, sizes.rounds, rate, mesh, deadline, [words])
  )
  return tables


def text_of(cell: Any) -> str:
  """A cell for people: four digits, or the text."""
  if not isinstance(cell, float):
    return "" if cell is None else str(cell)
  return f"{cell:,.0f}" if cell >= 1e3 else f"{cell:.4g}"


def show_table(console: Console, table: Table) -> None:
  """Prints a table."""
  screen = ScreenTable(*table.columns, title=table.title)
  for row in table.rows:
    screen.add_row(*map(text_of, row))
  console.print(screen)
  for note in table.notes:
    console.print(note)


def write_tables(tables: Sequence[Table], folder: Path) -> None:
  """Writes gpu.md with all tables and one CSV file a table, with every digit."""
  folder.mkdir(parents=True, exist_ok=True)
  parts = []
  for table in tables:
    lines = [table.columns, ["---"] * len(table.columns), *([text_of(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    parts.append("\n\n".join([f"## {table.title}", body, *table.notes]))
    with open(folder / f"{table.name}.csv", "w", newline="", encoding="utf-8") as file:
      csv.writer(file).writerows([table.columns, *table.rows])
  (folder / "gpu.md").write_text("# One GPU\n\n" + "\n\n".join(parts) + "\n", encoding="utf-8")


def find_device(tiny: bool) -> jax.Device:
  """The first GPU; with `tiny`, whatever there is."""
  if tiny:
    return jax.devices()[0]
  try:
    return jax.devices("gpu")[0]
  except RuntimeError:
    raise UserError(
      'no GPU is found by JAX: install jax[cuda13] on a machine with an NVIDIA GPU (--tiny tries everything on a CPU)'
    ) from None


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command, beside the fields of the quickstart's configuration."""
  default = os.environ.get("OUT") or str(ROOT / "benchmarks" / "out")
  flags.DEFINE_string("out", default, "folder for gpu.md and the CSV files", flag_values=values)
  flags.DEFINE_float("seconds", 270.0, "no measurement begins later than this", flag_values=values)
  flags.DEFINE_boolean("tiny", False, "every piece with tiny sizes, on any device", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  if any(argument in ("--help", "-h") for argument in arguments):
    parse_flags(define_flags, arguments, __doc__)
  quickstart, left = parse_arguments([f"--config={ROOT / 'configs' / 'quickstart.py'}", *arguments])
  values = parse_flags(define_flags, left, __doc__)
  deadline = Deadline(values.seconds)
  device = find_device(values.tiny)
  if values.tiny:
    quickstart = changed(quickstart, {"model.num_layers": 1, "model.d_model": 16, "model.d_ff": 32, "vocabulary.size": 300})
  console = Console(markup=False, highlight=False, width=None if os.isatty(1) else 160)
  sizes = TINY if values.tiny else FULL
  tables = measure(quickstart, sizes, values.tiny, device, deadline, functools.partial(show_table, console))
  write_tables(tables, Path(values.out))
  console.print(f"written to {values.out}: gpu.md, {', '.join(f'{table.name}.csv' for table in tables)}")


if __name__ == "__main__":
  run_command(main)
