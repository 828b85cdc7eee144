"""Training runs of seconds: a made-up corpus of a few dozen lines, and a model that is about as small as models get."""

import contextlib
import hashlib
import json
import os
import random
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


def write_corpus(folder, train=48, valid=11, test=7):
  """Writes train, valid and test, each .en and .de: English and German word for word, 1 to 9 words a line."""
  folder.mkdir(parents=True, exist_ok=True)
  for seed, (name, lines) in enumerate({"train": train, "valid": valid, "test": test}.items()):
    generator = random.Random(seed)
    sentences = [generator.choices(list(WORDS), k=generator.randint(1, 9)) for _ in range(lines)]
    (folder / f"{name}.en").write_text("".join(" ".join(words) + "\n" for words in sentences))
    (folder / f"{name}.de").write_text("".join(" ".join(map(WORDS.get, words)) + "\n" for words in sentences))
  return folder


def tiny_config(folder, **changes):
  """A run on the corpus in `folder`: two epochs and a bit of about 8 updates; `changes` like `model__dropout=0.0`."""
  config = default_config()
  config.data.folder = str(folder)
  config.data.cache = str(folder / "cache")
  config.data.train = ("text:train.en,train.de",)
  config.data.valid = "text:valid.en,valid.de"
  config.data.test = ("text:test.en,test.de",)
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
  config.training.steps = 20
  config.training.evaluate_every = 3
  config.training.log_every = 1
  config.training.average = 2
  config.training.keep = 2
  config.decoding.max_extra = 4
  config.decoding.batch_tokens = 256
  config.evaluation.samples = 0
  for name, value in changes.items():
    checks.set_field(config, name.replace("__", "."), value)
  checks.check(config)
  return config


@contextlib.contextmanager
def devices(number):
  """Trains on the first so many devices while it lasts."""
  original = programs.data_mesh
  programs.data_mesh = lambda: original(jax.devices()[:number])
  try:
    yield
  finally:
    programs.data_mesh = original


def write_config_file(path, config):
  """Writes a config file that returns `config`, for the command line."""
  path.write_text(
    "import json\n\nfrom transformer_jax.checks import complete\n\n\n"
    f"def get_config():\n  return complete(json.loads({json.dumps(config.to_json())}), __file__)\n"
  )
  return path


def start_command(*arguments, module="main", **options):
  """Starts `python -m transformer_jax.<module>` in the repository, with pipes for its output."""
  command = [sys.executable, "-m", f"transformer_jax.{module}", *map(str, arguments)]
  return subprocess.Popen(
    command, cwd=REPOSITORY, env={**os.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
  )


def run_to_the_end(*arguments, module="main"):
  """Returns the exit status, the standard output and the standard error of a command."""
  process = start_command(*arguments, module=module)
  out, error = process.communicate()
  return process.returncode, out, error


def without_time(path):
  """The bytes of a results.json or metrics.jsonl, as they are but for what stands under "time"."""
  lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
  values = [json.loads(line) for line in lines]
  for value in values:
    assert value.pop("time") is not None
  return "\n".join(json.dumps(value) for value in values)


def files_of(directory):
  """Name → content's hash and time of change of every file below a directory, but the lock, which names its last holder."""
  return {
    str(path.relative_to(directory)): path.is_file()
    and (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
    for path in sorted(directory.rglob("*"))
    if path.name != ".lock"
  }


def parameter_bits(workdir):
  """The final parameters of a run as (name, type, shape, bytes)."""
  params, _ = load_final(workdir)
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return [(jax.tree_util.keystr(path), str(leaf.dtype), leaf.shape, leaf.tobytes()) for path, leaf in leaves]
