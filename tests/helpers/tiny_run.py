"""Training runs of seconds: a made-up corpus of a few dozen lines, and a model that is about as small as models get."""

import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import jax
from helpers.wmt14_archives import WORDS

from transformer_jax import checks
from transformer_jax.config import default_config
from transformer_jax.training import step as programs
from transformer_jax.training.checkpoints import load_final

REPOSITORY = Path(__file__).parents[2]


def write_corpus(folder, train=64, valid=11, test=7):
  """Writes train, valid and test, each .en, .de and .tsv: English and German word for word, 1 to 9 words a line."""
  folder.mkdir(parents=True, exist_ok=True)
  for seed, (name, lines) in enumerate({"train": train, "valid": valid, "test": test}.items()):
    generator = random.Random(seed)
    english = [generator.choices(list(WORDS), k=generator.randint(1, 9)) for _ in range(lines)]
    pairs = [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in english]
    (folder / f"{name}.en").write_text("".join(f"{source}\n" for source, _ in pairs))
    (folder / f"{name}.de").write_text("".join(f"{target}\n" for _, target in pairs))
    (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
  return folder


def tiny_config(folder, **changes):
  """A run of 16 updates on the corpus in `folder`, 7 an epoch; `changes` like `model__dropout=0.0`."""
  config = default_config()
  config.data.folder = str(folder)
  config.data.cache = str(Path(folder) / "cache")
  config.data.train = ("text:train.en,train.de",)
  config.data.valid = "text:valid.en,valid.de"
  config.data.test = ("first=text:test.en,test.de", "second=tsv:test.tsv")
  config.data.max_length = 16
  config.vocabulary.kind = "words"
  config.vocabulary.size = 100
  config.model.num_layers = 1
  config.model.d_model = 16
  config.model.d_ff = 32
  config.model.num_heads = 2
  config.batch.tokens = 64
  config.optimizer.schedule = "constant"
  config.optimizer.learning_rate = 0.01
  config.optimizer.warmup_steps = 4
  config.training.steps = 16
  config.training.evaluate_every = 5
  config.training.log_every = 1
  config.training.average = 2
  config.training.keep = 2
  config.training.patience = 3
  config.decoding.max_extra = 4
  config.decoding.length_penalty = 5.0  # so that even this model says something
  config.decoding.batch_tokens = 256
  config.evaluation.samples = 0
  config.evaluation.attention_figure = False  # drawing it takes a third of such a run
  for name, value in changes.items():
    checks.set_field(config, name.replace("__", "."), value)
  checks.check(config)
  return config


@contextlib.contextmanager
def devices(number):
  """Trains on the first so many devices while it lasts."""
  original = programs.data_mesh
  programs.data_mesh = lambda chosen=None: original(chosen or jax.devices()[:number])
  try:
    yield
  finally:
    programs.data_mesh = original


def write_config_file(path, config):
  """Writes a config file that returns `config`, for the command line."""
  path.write_text(
    "import json\n\nfrom transformer_jax.checks import complete\n\n\n"
    f"def get_config():\n  return complete(json.loads({json.dumps(config.to_dict())!r}), __file__)\n"
  )
  return path


def run_python(*arguments, environment=()):
  """Runs Python in the repository with one device; returns the exit status, the standard output and the standard error."""
  done = subprocess.run(
    [sys.executable, *map(str, arguments)],
    cwd=REPOSITORY,
    env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **dict(environment)},
    capture_output=True,
    text=True,
    check=False,
  )
  return done.returncode, done.stdout, done.stderr


def run_processes(*commands, environment=()):
  """Runs Python at once with each tuple of arguments, as processes of one run; returns what `run_python` does, for each.

  The first is process 0. All are ended if one takes longer than twenty minutes.
  """
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    port = probe.getsockname()[1]
  shared = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "JAX_NUM_PROCESSES": str(len(commands)), **dict(environment)}
  processes = [
    subprocess.Popen(
      [sys.executable, *map(str, arguments)],
      cwd=REPOSITORY,
      env={**shared, "JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_PROCESS_ID": str(number)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for number, arguments in enumerate(commands)
  ]
  try:
    outputs = [process.communicate(timeout=1200) for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def without_time(path):
  """The text of a results.json or metrics.jsonl without what stands under "time"."""
  lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
  values = [json.loads(line) for line in lines]
  for value in values:
    del value["time"]
  return "\n".join(json.dumps(value) for value in values)


def parameter_bits(workdir):
  """The final parameters of a run: name, type, shape and bytes of each array."""
  params, _ = load_final(workdir)
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return [(jax.tree_util.keystr(path), str(leaf.dtype), leaf.shape, leaf.tobytes()) for path, leaf in leaves]


def assert_same_run(one, other):
  """Two run directories hold the same run, bit for bit, but for what the clock says."""
  for name in ("results.json", "metrics.jsonl"):
    assert without_time(one / name) == without_time(other / name)
  assert parameter_bits(one) == parameter_bits(other)
  for path in (one / "translations").iterdir():
    assert path.read_bytes() == (other / "translations" / path.name).read_bytes()


def files_of(directory):
  """Name → hash and time of change of all that lies in a directory, but the lock, which names its last holder."""
  return {
    str(path.relative_to(directory)): path.is_file()
    and (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
    for path in sorted(directory.rglob("*"))
    if path.name != ".lock"
  }
