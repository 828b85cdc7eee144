"""Reading a configuration and holding it against its rules; every mistake is a `UserError` that names the field.

A configuration comes from a file (`--config=configs/quickstart.py`), from flags (`--config.batch.tokens=2048`) or from a
finished run (`config.json`). All three pass through `check`.
"""

import ast
import difflib
import functools
import importlib.util
import json
import math
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.combinations import check_combinations
from transformer_jax.config import default_config
from transformer_jax.errors import UserError
from transformer_jax.scoring import METRICS

CHOICES = {
  "task": ("translate", "classify", "lm", "mlm"),
  "model.pooling": ("mean", "first"),
  "model.kind": ("transformer", "lstm", "gru"),
  "model.recurrent_attention": ("additive", "dot", "none"),
  "model.norm": ("post", "pre", "both", "none"),
  "model.norm_kind": ("layer", "rms"),
  "model.activation": ("relu", "gelu", "swiglu", "geglu"),
  "model.attention_scale": ("d_k", "d_model", "none", "learned"),
  "model.tie_projections": ("none", "qk", "qv", "kv", "qkv"),
  "model.share_embeddings": ("all", "target", "none"),
  "model.positions": ("sinusoidal", "learned", "shaw", "t5", "rotary", "alibi", "none"),
  "model.positions_in": ("first", "every"),
  "model.beyond_positions": ("refuse", "clip"),
  "model.rotary_scaling": ("none", "linear", "ntk"),
  "model.kernel": ("xla", "chunked", "cudnn"),
  "model.init": ("glorot", "unit_scaling", "normal", "deepnorm"),
  "model.dtype": ("float32", "bfloat16"),
  "vocabulary.kind": ("bpe", "unigram", "subwords", "words", "characters"),
  "vocabulary.target_kind": ("", "bpe", "unigram", "subwords", "words", "characters"),
  "optimizer.name": ("adam", "adamw", "adafactor", "lion", "muon"),
  "optimizer.schedule": ("paper", "constant", "linear", "cosine", "inverse_sqrt"),
  "decoding.method": ("beam", "greedy", "sample"),
  "evaluation.metrics": tuple(METRICS),
  "evaluation.tokenize": ("13a", "zh", "ja-mecab", "intl", "char", "none"),
}

# Lowest and highest value, both allowed; None: no bound.
RANGES: dict[str, tuple[float, float | None]] = {
  "seed": (0, 2**32 - 1),
  "model.num_layers": (1, None),
  "model.num_decoder_layers": (0, None),
  "model.d_model": (2, None),
  "model.d_ff": (1, None),
  "model.num_heads": (1, None),
  "model.d_k": (0, None),
  "model.d_v": (0, None),
  "model.num_kv_heads": (0, None),
  "model.recurrent_size": (0, None),
  "model.dropout": (0.0, 0.999),
  "model.attention_dropout": (0.0, 0.999),
  "model.ffn_dropout": (0.0, 0.999),
  "model.layer_drop": (0.0, 0.999),
  "model.max_positions": (1, None),
  "model.rotary_factor": (1.0, None),
  "model.shaw_clip": (1, None),
  "model.t5_buckets": (4, None),
  "model.local_window_size": (0, None),
  "vocabulary.size": (5, None),
  "vocabulary.target_size": (0, None),
  "vocabulary.character_coverage": (0.9, 1.0),
  "vocabulary.training_pairs": (1, None),
  "data.max_length": (2, None),
  "data.max_ratio": (0.0, None),
  "batch.tokens": (2, None),
  "batch.row_length": (0, None),
  "optimizer.beta1": (0.0, 0.99999),
  "optimizer.beta2": (0.0, 0.99999),
  "optimizer.epsilon": (0.0, 1.0),
  "optimizer.weight_decay": (0.0, None),
  "optimizer.clip_norm": (0.0, None),
  "optimizer.learning_rate": (0.0, None),
  "optimizer.warmup_steps": (0, None),
  "optimizer.final_fraction": (0.0, 1.0),
  "training.steps": (1, None),
  "training.label_smoothing": (0.0, 0.999),
  "training.accumulate": (1, None),
  "training.log_every": (1, None),
  "training.evaluate_every": (0, None),
  "training.checkpoint_every": (0, None),
  "training.keep": (1, None),
  "training.keep_best": (0, None),
  "training.average": (1, None),
  "training.patience": (0, None),
  "training.max_nonfinite": (1, None),
  "decoding.beam_size": (1, None),
  "decoding.length_penalty": (-10.0, 10.0),
  "decoding.max_extra": (0, None),
  "decoding.temperature": (1e-6, None),
  "decoding.top_k": (0, None),
  "decoding.top_p": (1e-6, 1.0),
  "decoding.batch_tokens": (1, None),
  "evaluation.samples": (0, None),
}


def fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields every field as ("model.d_model", 512), in the order of the default configuration."""
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      yield from fields(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value


def unknown_field(name: str) -> UserError:
  """The error for a field that does not exist, with the nearest one that does."""
  known = [field for field, _ in fields(default_config())]
  # A name without its section (`d_model`) is compared with the last parts, too.
  by_last_part = {field.rsplit(".", 1)[-1]: field for field in known}
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
  near = near or [by_last_part[x] for x in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_last_part, n=1)]
  hint = f"; did you mean {near[0]}?" if near else f"; the sections are {', '.join(default_config().keys())}"
  return UserError(f"config has no field {name}{hint}")


@functools.cache
def _defaults() -> ConfigDict:
  """`default_config()`, made once, to be read only: a configuration has a hundred fields to be held against it."""
  return default_config()


def set_field(config: ConfigDict, name: str, value: Any) -> None:
  """Sets a field after holding the value against the type of the field's default."""
  section, _, last = name.rpartition(".")
  try:
    default: Any = _defaults()
    for part in name.split("."):
      default = default[part]
    parent = config
    for part in section.split(".") if section else []:
      parent = parent[part]
  except (KeyError, AttributeError, TypeError):
    raise unknown_field(name) from None
  if isinstance(default, ConfigDict):
    raise UserError(f"{name} is a section of the configuration; set one of its fields: {', '.join(default.keys())}")
  parent[last] = of_type(name, value, default)


def of_type(name: str, value: Any, default: Any) -> Any:
  """Returns the value as the type of the default: int for int (never a bool), int or float for float, list for tuple."""
  expected = type(default)
  if expected is float and type(value) is int:
    return float(value)
  if expected is tuple:
    element = int if name == "batch.buckets" else float if name == "data.weights" else str
    if isinstance(value, str):
      value = (value,)
    if not isinstance(value, (tuple, list)):
      raise UserError(f"{name} must be a list of {element.__name__} values, not {value!r}")
    return tuple(of_type(f"{name}[{i}]", part, element()) for i, part in enumerate(value))
  if type(value) is not expected:
    raise UserError(f"{name} must be of type {expected.__name__}, not {value!r} ({type(value).__name__})")
  return value


def parse_value(text: str, name: str, default: Any) -> Any:
  """Reads a flag's text as the type of the field: `0.1`, `True`, `(16, 32)`, or plain words for a string."""
  if isinstance(default, str):
    return text
  if isinstance(default, bool) and text.lower() in ("true", "false"):
    return text.lower() == "true"
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text  # for a tuple of strings one bare name is enough; for others `of_type` says what is wrong


def load_config_file(path: str) -> ConfigDict:
  """Runs `get_config()` of a Python file and checks what it returns; raises UserError naming the file and the field."""
  file = Path(path)
  if not file.is_file():
    raise UserError(f"--config: no file {path}")
  spec = importlib.util.spec_from_file_location("transformer_jax_config_file", file)
  if spec is None or spec.loader is None:
    raise UserError(f"--config: {path} is not a Python file (.py)")
  module = importlib.util.module_from_spec(spec)
  # So that a file may build on its neighbours (`from configs import wmt14_en_de_base`), wherever the command is started.
  sys.path.insert(0, str(file.resolve().parent.parent))
  try:
    spec.loader.exec_module(module)
    config = module.get_config()
  except UserError:
    raise
  except Exception as error:
    # ml_collections' own message for a misspelt field spans lines; the line of the file says where, the first line what.
    here = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = getattr(error, "lineno", None) or (here[-1] if here else "?")
    first_line = str(error).strip().strip("\"'").splitlines()[0] if str(error).strip() else ""
    raise UserError(f"{path}, line {line}: {type(error).__name__}: {first_line}") from None
  finally:
    sys.path.pop(0)
  if not isinstance(config, ConfigDict):
    raise UserError(f"{path}: get_config() must return a ConfigDict made by transformer_jax.config.default_config()")
  return complete(config.to_dict(), path)


def complete(values: dict, where: str) -> ConfigDict:
  """Builds a locked configuration from nested values, which may lack fields (they get their defaults) but not add any."""
  config = default_config()

  def fill(part: dict, prefix: str) -> None:
    for name, value in part.items():
      if isinstance(value, dict):
        fill(value, f"{prefix}{name}.")
      else:
        try:
          set_field(config, f"{prefix}{name}", value)
        except UserError as error:
          raise UserError(f"{where}: {error}") from None

  fill(values, "")
  return config


def split_changes(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
  """Takes `--config=FILE` and `--config.FIELD=VALUE`, in any order, out of a command line.

  Returns: (field, text) pairs, with "" as the field of `--config`, and the arguments that are left. The value may also stand as an
    argument of its own.
  """
  changes: list[tuple[str, str]] = []
  left = []
  position = 0
  while position < len(arguments):
    argument = arguments[position]
    position += 1
    name, equals, value = argument.lstrip("-").partition("=")
    if not argument.startswith("-") or not (name == "config" or name.startswith("config.")):
      left.append(argument)
      continue
    if not equals:
      if position == len(arguments):
        raise UserError(f"--{name} needs a value: --{name}=…")
      value = arguments[position]
      position += 1
    changes.append((name.removeprefix("config").removeprefix("."), value))
  return changes, left


def change_fields(config: ConfigDict, changes: list[tuple[str, str]]) -> None:
  """Sets fields to what their texts say; raises UserError for a mistake."""
  defaults = dict(fields(default_config()))
  for name, text in changes:
    if name not in defaults:
      set_field(config, name, text)  # raises the error for an unknown field or a section
    set_field(config, name, parse_value(text, name, defaults[name]))


def parse_arguments(arguments: list[str]) -> tuple[ConfigDict, list[str]]:
  """Takes `--config=FILE` and `--config.FIELD=VALUE`, in any order, out of a command line.

  The file is a Python file with `get_config()`, or the config.json of a run. Returns the checked configuration and the
  arguments that are left.
  """
  changes, left = split_changes(arguments)
  files = [text for name, text in changes if not name]
  if not files:
    raise UserError("--config is missing: name a config file, for example --config=configs/quickstart.py")
  path = files[-1]
  config = load_saved_config(path) if path.endswith(".json") else load_config_file(path)
  change_fields(config, [(name, text) for name, text in changes if name])
  check(config)
  return config, left


def load_saved_config(path: str | Path) -> ConfigDict:
  """Reads the config.json of a run directory and checks it."""
  try:
    values = json.loads(Path(path).read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise UserError(f"no {path}: this is not a run directory of transformer_jax.main") from None
  except (ValueError, UnicodeDecodeError) as error:
    raise UserError(f"{path} is damaged: {error}") from None
  if not isinstance(values, dict):
    raise UserError(f"{path} is damaged: it holds no configuration")
  config = complete(values, str(path))
  check(config)
  return config


def check_choice(name: str, value: Any) -> None:
  """Raises UserError, with the nearest choice, where a field's value, or one of its values, is none of `CHOICES`."""
  if value not in CHOICES[name]:
    near = difflib.get_close_matches(str(value), [c for c in CHOICES[name] if c], n=1)
    hint = f" (nearest: {near[0]})" if near else ""
    raise UserError(f"{name} must be one of {', '.join(c for c in CHOICES[name] if c)}, not {value!r}{hint}")


def check(config: ConfigDict) -> None:
  """Raises UserError for the first value that is out of range or goes with no other."""
  for name, value in fields(config):
    if isinstance(value, float) and not math.isfinite(value):
      raise UserError(f"{name} must be a finite number, not {value}")
    if name in CHOICES:
      for choice in value if isinstance(value, tuple) else (value,):
        check_choice(name, choice)
    if name in RANGES:
      low, high = RANGES[name]
      if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{name} must be {bounds}, not {value}")
  check_combinations(config)
