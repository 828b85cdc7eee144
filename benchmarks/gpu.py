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

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich.console import Console

from benchmarks.synthetic import HOME_ASSISTANT, WMT14, synthetic_pairs
from benchmarks.tables import Table, show_table, write_tables
from transformer_jax.checks import load_config_file, parse_arguments
from transformer_jax.commands import parse_flags, run_command
from transformer_jax.data.batches import Batch
from transformer_jax.data.encoded import Encoded
from transformer_jax.data.prepared import batch_plan, prepare_data
from transformer_jax.describe import forward_work
from transformer_jax.errors import UserError
from transformer_jax.model.config import ModelConfig, model_config
from transformer_jax.model.transformer import Transformer
from transformer_jax.training import step as programs
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = (("float32", "xla"), ("bfloat16", "xla"), ("bfloat16", "cudnn"))  # cuDNN's kernel takes no float32


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
    [
      "relative differences; gradients: |a - b| / |b| of all arrays as one vector, and of the array where it is largest"
    ],
  )
  for dtype, kernel, precision in [("float32", "xla", "highest"), *((*variant, None) for variant in VARIANTS)]:
    name = exact if precision else f"{dtype}, {kernel}"
    if deadline.passed():
      table.rows.append((name, "left out: no time", None, None, None, None))
      continue
    variant = model_config(
      changed(config, {"model.dtype": dtype, "model.kernel": kernel}).model, vocabulary, vocabulary
    )
    try:
      with jax.default_matmul_precision(precision or "default"):
        results[name] = loss_and_gradients(variant, params, batch, config)
    except (RuntimeError, NotImplementedError, ValueError) as error:
      table.rows.append((name, why_not(error, kernel), None, None, None, None))
      continue
    against = [exact] if name != exact else []
    if kernel == "cudnn":
      against.append("bfloat16, xla")
    for other in against:
      if other in results:
        table.rows.append((name, other, *relative_differences(results[name], results[other])))
  return table


def why_not(error: Exception, kernel: str) -> str:
  """In a few words why this machine cannot do it: cuDNN does not take the shapes or is missing, or memory is. Else a defect."""
  if kernel != "cudnn" and "RESOURCE_EXHAUSTED" not in str(error):
    raise error
  text = str(error).strip() or type(error).__name__
  return f"not here: {text.splitlines()[0][:100]}"


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
  source = sum(int((batch.source_segments > 0).sum()) for batch in batches)  # pieces
  target = sum(int((batch.target_segments > 0).sum()) for batch in batches)
  pairs = sum(int(batch.source_segments.max(axis=1).sum()) for batch in batches)
  work = forward_work(sizes, source / pairs, target / pairs)
  return Speed(
    milliseconds=1e3 * seconds / len(batches),
    tokens_per_second=target / seconds,
    flops_per_second=3 * (source * work.source + target * work.target) / seconds,
    memory=max(program_memory(program) for program in compiled.values()),
    compile_seconds=compile_seconds,
    skipped=int(state.skipped),
  )


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
  words: str,
  config: ConfigDict,
  pairs: Encoded,
  vocabularies: tuple[int, int],
  count: int,
  rounds: int,
  rate: float,
  mesh: Mesh,
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
  except (RuntimeError, NotImplementedError, ValueError) as error:
    return (*row, why_not(error, config.model.kernel), None, None, None, None, None)
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
      table.rows.append(
        (words, config.model.dtype, config.model.kernel, "left out: no time", None, None, None, None, None)
      )
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


def machine_table(rates: dict[str, float], size: int, device: jax.Device) -> Table:
  """The device, and how fast it multiplies matrices."""
  rows = [(f"{dtype} product of {size:,} x {size:,} matrices, TFLOP/s", rate / 1e12) for dtype, rate in rates.items()]
  note = "float32 products are JAX's default ones: TensorFloat-32 where the card has it"
  return Table("machine", f"{device.device_kind}, JAX {jax.__version__}", ("what", "value"), rows, [note])


def measure(
  quickstart: ConfigDict, sizes: Sizes, tiny: bool, device: jax.Device, deadline: Deadline
) -> Iterator[Table]:
  """Yields the tables of one device as they are measured, the most telling first; tiny: fewer lines of each."""
  mesh = programs.data_mesh([device])
  rates = {dtype: matrix_rate(sizes.matrix, dtype, sizes.rounds, device) for dtype in ("bfloat16", "float32")}
  yield machine_table(rates, sizes.matrix, device)

  def speeds(name: str, title: str, choices: list, pairs: Encoded, vocabularies: tuple[int, int], note: str) -> Table:
    rate = rates["bfloat16"]
    return speed_table(name, title, choices, pairs, vocabularies, sizes.rounds, rate, mesh, deadline, [note])

  base = base_config(tiny)
  vocabularies = base.vocabulary.size, base.vocabulary.size
  pairs = synthetic_pairs(sizes.pairs, vocabularies, WMT14, base.data.max_length)
  choices = [
    ("packed", changed(base, {"model.dtype": dtype, "model.kernel": kernel}), sizes.base_batches)
    for dtype, kernel in (VARIANTS[::2] if tiny else VARIANTS)
  ]
  note = f"synthetic ids; lengths log-normal with a mean of {WMT14.target:.0f} pieces"
  tokens = f"{base.batch.tokens:,}"
  yield speeds("base", f"Base-size steps: {tokens} + {tokens} tokens", choices, pairs, vocabularies, note)
  yield agreement_table(base, pairs, sizes, mesh, deadline)

  pairs, vocabularies, note = quickstart_pairs(quickstart, sizes.pairs, real=not tiny)
  tokens = max(sizes.large_tokens, quickstart.data.max_length)
  large = changed(quickstart, {"batch.tokens": tokens, "batch.packing": True, "batch.buckets": ()})
  choices = [
    (kind, changed(config, {"model.dtype": dtype}), sizes.quickstart_batches)
    for kind, config in (("its own", quickstart), ("large, packed", large))
    for dtype in ("float32", "bfloat16")
  ]
  yield speeds("quickstart", "The quickstart's model", choices[-1:] if tiny else choices, pairs, vocabularies, note)


def find_device(tiny: bool) -> jax.Device:
  """The first GPU; with `tiny`, whatever there is."""
  if tiny:
    return jax.devices()[0]
  try:
    return jax.devices("gpu")[0]
  except RuntimeError:
    raise UserError(
      "no GPU is found by JAX: install jax[cuda13] on a machine with an NVIDIA GPU (--tiny tries everything on a CPU)"
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
    sizes = {"model.num_layers": 1, "model.d_model": 16, "model.d_ff": 32, "vocabulary.size": 300}
    quickstart = changed(
      quickstart, {**sizes, "optimizer.name": "adam", "optimizer.weight_decay": 0.0}
    )  # compiles soon
  console = Console(markup=False, highlight=False, width=None if os.isatty(1) else 160)
  tables = []
  for table in measure(quickstart, TINY if values.tiny else FULL, values.tiny, device, deadline):
    tables.append(table)
    show_table(console, table)
    write_tables("One GPU", tables, Path(values.out) / "gpu.md")
  console.print(f"written to {values.out}: gpu.md, {', '.join(f'{table.name}.csv' for table in tables)}")


if __name__ == "__main__":
  run_command(main)
