"""Mistakes in a configuration: one line that names the field and what would be right, before anything is touched."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.tiny_run import files_of, run_python, tiny_config, write_config_file, write_corpus

from transformer_jax import checks
from transformer_jax.checks import check, fields, load_saved_config, parse_arguments
from transformer_jax.config import default_config
from transformer_jax.errors import UserError

REPOSITORY = Path(__file__).parents[1]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.py"))
QUICKSTART = f"--config={REPOSITORY / 'configs' / 'quickstart.py'}"


def refused(*arguments):
  """The message that a command line is refused with."""
  with pytest.raises(UserError) as error:
    parse_arguments([QUICKSTART, *arguments])
  assert "\n" not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_read_and_without_contradiction(path):
  config, left = parse_arguments([f"--config={path}"])
  assert left == [] and config.is_locked
  assert dict(fields(config)).keys() == dict(fields(default_config())).keys()


def test_the_configs_of_the_paper_are_the_papers():
  """Attention Is All You Need, table 3, section 5 and 6.1."""
  paper = {
    "wmt14_en_de_base": (512, 2048, 8, 0.1, 100_000, 5, 37_000),
    "wmt14_en_de_big": (1024, 4096, 16, 0.3, 300_000, 20, 37_000),
    "wmt14_en_fr_base": (512, 2048, 8, 0.1, 100_000, 5, 32_000),
    "wmt14_en_fr_big": (1024, 4096, 16, 0.1, 300_000, 20, 32_000),
  }
  for name, expected in paper.items():
    config, _ = parse_arguments([f"--config={REPOSITORY / 'configs' / name}.py"])
    model, training, optimizer = config.model, config.training, config.optimizer
    sizes = model.d_model, model.d_ff, model.num_heads, model.dropout
    assert (*sizes, training.steps, training.average, config.vocabulary.size) == expected
    assert (model.num_layers, model.norm, model.share_embeddings) == (6, "post", "all")
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("adam", 0.9, 0.98, 1e-9)
    assert (optimizer.schedule, optimizer.warmup_steps, training.label_smoothing) == ("paper", 4_000, 0.1)
    assert config.batch.tokens == 25_000
    assert (config.decoding.beam_size, config.decoding.length_penalty, config.decoding.max_extra) == (4, 0.6, 50)
    assert config.data.target_language == ("de" if "en_de" in name else "fr")


def test_every_field_of_the_default_configuration_is_commented():
  """On its line or on the line above it."""
  lines = (REPOSITORY / "transformer_jax" / "config.py").read_text().splitlines()
  assigned = {}
  for number, line in enumerate(lines):
    if match := re.match(r"  (\w+)\.(\w+) = (?!ConfigDict|\w+_fields\(\))", line):
      assigned[match[1], match[2]] = "  # " in line or lines[number - 1].lstrip().startswith("# ")
  known = {tuple(("config." + name).rsplit(".", 2)[-2:]) for name, _ in fields(default_config())}
  assert assigned.keys() == known
  assert [name for name, commented in assigned.items() if not commented] == []


@pytest.mark.parametrize(
  ("argument", "nearest"),
  [
    ("--config.model.d_modle=64", "did you mean model.d_model?"),
    ("--config.d_model=64", "did you mean model.d_model?"),
    ("--config.traning.steps=10", "did you mean training.steps?"),
    ("--config.batch.token=10", "did you mean batch.tokens?"),
    ("--config.model.d_model.x=10", "did you mean model.d_model?"),
    ("--config.zzzz=1", "the sections are "),
    ("--config.model=1", "model is a section of the configuration; set one of its fields: activation, attention_bias"),
  ],
)
def test_unknown_field_by_flag(argument, nearest):
  assert nearest in refused(argument)


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--config.training.steps=abc", "training.steps must be of type int, not 'abc' (str)"),
    ("--config.training.steps=True", "training.steps must be of type int, not True (bool)"),
    ("--config.training.steps=1.5", "training.steps must be of type int, not 1.5 (float)"),
    ("--config.training.steps=", "training.steps must be of type int, not '' (str)"),
    ("--config.training.fsdp=1", "training.fsdp must be of type bool, not 1 (int)"),
    ("--config.training.fsdp=yes", "training.fsdp must be of type bool, not 'yes' (str)"),
    ("--config.model.dropout=True", "model.dropout must be of type float, not True (bool)"),
    ("--config.model.dropout=None", "model.dropout must be of type float, not None (NoneType)"),
    ("--config.batch.buckets=(16,'a')", "batch.buckets[1] must be of type int, not 'a' (str)"),
    ("--config.batch.buckets=16", "batch.buckets must be a list of int values, not 16"),
    ("--config.data.weights=(1.0,True)", "data.weights[1] must be of type float, not True (bool)"),
  ],
)
def test_wrong_type_by_flag(argument, message):
  assert refused(argument) == message


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--config.training.steps=0", "training.steps must be at least 1, not 0"),
    ("--config.model.dropout=1.0", "model.dropout must be from 0.0 to 0.999, not 1.0"),
    ("--config.optimizer.beta2=1.0", "optimizer.beta2 must be from 0.0 to 0.99999, not 1.0"),
    ("--config.optimizer.learning_rate=-1", "optimizer.learning_rate must be at least 0.0, not -1.0"),
    ("--config.optimizer.learning_rate=1e999", "optimizer.learning_rate must be a finite number, not inf"),
    ("--config.seed=-1", "seed must be from 0 to 4294967295, not -1"),
    ("--config.model.norm=pots", "model.norm must be one of post, pre, both, none, not 'pots' (nearest: post)"),
    (
      "--config.optimizer.name=Adam",
      "optimizer.name must be one of adam, adamw, adafactor, lion, muon, not 'Adam' (nearest: adam)",
    ),
    ("--config.decoding.method=x", "decoding.method must be one of beam, greedy, sample, not 'x'"),
    (
      '--config.evaluation.metrics=("chrf", "blue")',
      "evaluation.metrics must be one of bleu, chrf, paper_bleu, wer, per, exact_match, not 'blue' (nearest: bleu)",
    ),
  ],
)
def test_out_of_range_by_flag(argument, message):
  assert refused(argument) == message


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model.num_heads": 3}, "model.d_model 128 is not divisible by model.num_heads 3: set model.d_k and model.d_v"),
    ({"model.kernel": "cudnn"}, "model.kernel cudnn needs model.dtype bfloat16"),
    ({"vocabulary.shared": False}, 'model.share_embeddings "all" needs vocabulary.shared True'),
    (
      {"vocabulary.target_size": 100},
      "vocabulary.target_kind, target_size and target_file need vocabulary.shared False",
    ),
    ({"data.train": "()"}, "data.train names no corpus"),
    ({"evaluation.metrics": "()"}, "evaluation.metrics names no metric"),
    ({"data.valid": ""}, "data.valid names no corpus"),
    ({"data.weights": "(1.0, 2.0)"}, "data.weights has 2 values for 1 corpora in data.train"),
    ({"data.weights": "(0.0,)"}, "data.weights must be above 0"),
    ({"data.max_ratio": 0.5}, "data.max_ratio must be 0 (off) or at least 1, not 0.5"),
    ({"batch.tokens": 63}, "batch.tokens 63 is less than data.max_length 64"),
    ({"batch.packing": True, "batch.row_length": 63}, "batch.row_length 63 is less than data.max_length 64"),
    ({"batch.packing": True, "batch.row_length": 4096}, "batch.row_length 4096 is more than batch.tokens"),
    ({"batch.packing": False, "batch.row_length": 64}, "batch.row_length needs batch.packing True"),
    ({"batch.packing": True, "batch.buckets": "(32, 64)"}, "batch.buckets needs batch.packing False"),
    ({"batch.packing": False, "batch.buckets": "(64, 32)"}, "batch.buckets must rise, not (64, 32)"),
    ({"batch.packing": False, "batch.buckets": "(16, 32)"}, "the last of batch.buckets must be data.max_length 64"),
    ({"optimizer.schedule": "paper"}, "optimizer.learning_rate must be 0 with"),
    ({"optimizer.learning_rate": 0}, "optimizer.learning_rate is missing"),
    ({"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 0}, "optimizer.warmup_steps must be at least 1"),
    ({"optimizer.name": "adam", "optimizer.weight_decay": 0.1}, "optimizer.weight_decay needs optimizer.name"),
    ({"training.patience": 2, "training.keep_best": 0}, "training.patience needs training.keep_best of at least 1"),
  ],
)
def test_impossible_combination_by_flag(changes, message):
  assert message in refused(*(f"--config.{name}={value}" for name, value in changes.items()))


def test_flags_stand_anywhere_and_what_is_left_is_handed_back():
  left, config = ["--workdir=w", "stray"], REPOSITORY / "configs" / "quickstart.py"
  for arguments in (
    ["--config.training.steps=7", left[0], "--config", str(config), left[1], "--config.model.dropout", "0"],
    [f"--config={config}", "--config.training.steps=7", "--config.model.dropout=0", *left],
    [left[0], "-config.model.dropout=0", "--config.training.steps", "7", left[1], f"--config={config}"],
  ):
    changed, rest = parse_arguments(arguments)
    assert (changed.training.steps, changed.model.dropout, rest) == (7, 0.0, left)
    assert type(changed.model.dropout) is float
  last, _ = parse_arguments([QUICKSTART, "--config.seed=1", "--config.seed=2"])
  assert last.seed == 2


@pytest.mark.parametrize(
  ("argument", "field", "value"),
  [
    ("--config.training.fsdp=TRUE", "training.fsdp", True),
    ("--config.batch.buckets=[16, 64]", "batch.buckets", (16, 64)),
    ("--config.data.train=text:a=b.en,c.de", "data.train", ("text:a=b.en,c.de",)),
    ('--config.data.train=("reverse", "copy")', "data.train", ("reverse", "copy")),
    ("--config.data.weights=(2,)", "data.weights", (2.0,)),
    ("--config.data.folder=1", "data.folder", "1"),
    ("--config.training.steps=1_000", "training.steps", 1000),
  ],
)
def test_flags_are_read_as_the_type_of_their_field(argument, field, value):
  config, _ = parse_arguments([QUICKSTART, argument, "--config.batch.packing=False"])
  read = dict(fields(config))[field]
  assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.training.steps=7"], "--config is missing"),
    (["--config"], "--config needs a value"),
    ([QUICKSTART, "--config.training.steps"], "--config.training.steps needs a value"),
    (["--config=nowhere.py"], "--config: no file nowhere.py"),
    ([f"--config={REPOSITORY / 'pyproject.toml'}"], "is not a Python file (.py)"),
  ],
)
def test_config_flag_that_is_missing_or_names_no_file(arguments, message):
  with pytest.raises(UserError) as error:
    parse_arguments(arguments)
  assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("config.model.d_modle = 64", r"config\.py, line 5: AttributeError: .*d_modle"),
    ("config.model.d_model = 'wide'", r"config\.py, line 5: TypeError: "),
    ("config.model.d_model = 64.5", r"config\.py, line 5: TypeError: "),
    ("config.training.steps = True", r"training\.steps must be of type int, not True \(bool\)"),
    ("config.data.train = ('reverse', 3)", r"data\.train\[1\] must be of type str, not 3 \(int\)"),
    ("config = config.to_dict()", r"must return a ConfigDict"),
    ("config.model.d_model = = 64", r"config\.py, line 5: SyntaxError: "),
    ("import nowhere_to_be_found", r"config\.py, line 5: ModuleNotFoundError: "),
    ("with config.unlocked(): config.model.d_modle = 3", r"no field model\.d_modle; did you mean model\.d_model\?"),
  ],
)
def test_mistakes_in_a_config_file(tmp_path, line, message):
  """Named with the file, and with the line where Python tells it."""
  path = tmp_path / "config.py"
  start = "from transformer_jax.config import default_config\n\ndef get_config():\n  config = default_config()\n"
  path.write_text(f"{start}  {line}\n  return config\n")
  with pytest.raises(UserError, match=message) as error:
    parse_arguments([f"--config={path}"])
  assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_value_out_of_range_in_a_config_file(tmp_path):
  config = default_config()
  config.training.steps = 0
  path = write_config_file(tmp_path / "config.py", config)
  with pytest.raises(UserError, match=r"training\.steps must be at least 1, not 0"):
    parse_arguments([f"--config={path}"])


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda saved: saved["model"].update(d_modle=3), "has no field model.d_modle; did you mean model.d_model?"),
    (lambda saved: saved["model"].update(d_model=True), "model.d_model must be of type int, not True (bool)"),
    (lambda saved: saved["model"].update(d_model=1), "model.d_model must be at least 2, not 1"),
    (lambda saved: saved.update(model=3), "model is a section of the configuration"),
    (lambda saved: saved.update(seed={"x": 1}), "has no field seed.x"),
    (lambda saved: saved["model"].update(num_heads=3), "model.d_model 512 is not divisible by model.num_heads 3"),
  ],
)
def test_mistakes_in_a_saved_configuration(tmp_path, change, message):
  path = tmp_path / "config.json"
  saved = default_config().to_dict()
  change(saved)
  path.write_text(json.dumps(saved))
  with pytest.raises(UserError) as error:
    load_saved_config(path)
  assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", b"\xff"])
def test_a_damaged_saved_configuration(tmp_path, content):
  path = tmp_path / "config.json"
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(UserError, match="is damaged") as error:
    load_saved_config(path)
  assert "\n" not in str(error.value)


def test_a_saved_configuration_is_read_back_whole(tmp_path):
  """Lists become tuples again, and fields that an older version did not have get their defaults."""
  config, _ = parse_arguments([QUICKSTART])
  saved = config.to_dict()
  (tmp_path / "config.json").write_text(json.dumps(saved))
  assert load_saved_config(tmp_path / "config.json").to_dict() == saved
  del saved["decoding"]["top_p"]
  (tmp_path / "config.json").write_text(json.dumps(saved))
  assert load_saved_config(tmp_path / "config.json").decoding.top_p == 1.0
  with pytest.raises(UserError, match="this is not a run directory"):
    load_saved_config(tmp_path / "nowhere" / "config.json")


def test_every_rule_is_about_a_field_that_exists():
  known = dict(fields(default_config()))
  assert known.keys() >= checks.RANGES.keys() | checks.CHOICES.keys()
  numbers = {name for name, value in known.items() if type(value) in (int, float)}
  assert numbers == checks.RANGES.keys()
  check(default_config())


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.training.stepz=3"], "did you mean training.steps?"),
    (["here"], "stray argument 'here'"),
    (["--workdri=x"], "workdri"),
  ],
)
def test_mistakes_on_the_command_line_end_with_status_2_before_jax_is_loaded(tmp_path, arguments, message):
  """One line on the standard error; the run directory does not exist afterwards."""
  code = (
    "import sys, atexit\n"
    "atexit.register(lambda: print('jax' in sys.modules))\n"
    "from transformer_jax.commands import run_command\nfrom transformer_jax.main import main\n"
    "run_command(main, sys.argv[1:])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code, QUICKSTART, f"--workdir={tmp_path / 'run'}", *arguments],
    cwd=REPOSITORY,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2 and done.stdout == "False\n"
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr
  assert list(tmp_path.iterdir()) == []


def test_a_missing_corpus_file_leaves_nothing_behind(tmp_path):
  """The command itself: status 2, one line that names the file, and no run directory."""
  folder = write_corpus(tmp_path / "corpus")
  (folder / "train.de").unlink()
  before = files_of(tmp_path)
  config = write_config_file(tmp_path / "config.py", tiny_config(folder, training__compilation_cache=False))
  status, _, error = run_python("-m", "transformer_jax.main", f"--config={config}", f"--workdir={tmp_path / 'run'}")
  assert status == 2 and error.startswith("error: ") and error.count("\n") == 1 and "train.de" in error
  config.unlink()
  assert files_of(tmp_path) == before
