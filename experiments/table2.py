"""Table 2 of the paper: BLEU on newstest2014 and the floating-point operations that training costs.

  python -m experiments.table2 --output=runs/table2 [--base=RUN --big=RUN]

The paper's rule is hours times GPUs times 9.5 TFLOP/s, a P100's sustained speed. Beside it stands the model's own count: the matrix
products of a step of 25,000 + 25,000 pieces, forward and backward, times the steps. BLEU is taken from finished run directories
of configs/wmt14_en_de_base.py and configs/wmt14_en_de_big.py where they are given.
"""

import json
from pathlib import Path

from absl import flags
from rich.console import Console

from benchmarks.tables import Table, show_table, write_tables
from configs import wmt14_en_de_base, wmt14_en_de_big
from transformer_jax.commands import parse_flags, required, run_command
from transformer_jax.describe import describe
from transformer_jax.errors import UserError

P100_FLOPS = 9.5e12
GPUS = 8
HOURS = {"base": 12.0, "big": 3.5 * 24}
PUBLISHED_FLOPS = {"base": 3.3e18, "big": 2.3e19}
PUBLISHED_BLEU = {"base": 27.3, "big": 28.4}
CONFIGS = {"base": wmt14_en_de_base, "big": wmt14_en_de_big}
SENTENCE_LENGTH = 30  # pieces, for the share of attention


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of the command."""
  flags.DEFINE_string("output", None, "folder of the report", flag_values=values)
  for name in CONFIGS:
    flags.DEFINE_string(name, None, f"finished run directory of configs/wmt14_en_de_{name}.py", flag_values=values)


def main(arguments: list[str]) -> None:
  """The command."""
  values = parse_flags(define_flags, arguments, __doc__)
  (output,) = required(values, "output")
  columns = {name: column(name, values[name].value) for name in CONFIGS}
  rows = [(fact, *(columns[name][fact] for name in CONFIGS)) for fact in columns["base"]]
  notes = [
    f"Sentences of {SENTENCE_LENGTH} pieces. The rule takes the GPUs' speed for work done, so that counted / rule is the share of "
    f"{P100_FLOPS / 1e12} TFLOP/s that the paper's training reached in matrix products."
  ]
  table = Table("table2", "English to German, newstest2014", ("", *CONFIGS), rows, notes)
  folder = Path(output)
  write_tables("Table 2", [table], folder / "report.md")
  show_table(Console(), table)
  print(f"files: {folder}/report.md, table2.csv")


def column(name: str, run: str | None) -> dict[str, str | None]:
  """A model's figures by what they are."""
  config = CONFIGS[name].get_config()
  sizes, steps = describe(config, SENTENCE_LENGTH), config.training.steps
  counted = float(sizes["step_flops"]) * steps
  rule = HOURS[name] * 3_600 * GPUS * P100_FLOPS
  return {
    "parameters": f"{sizes['parameters']:,}",
    "steps": f"{steps:,}",
    "FLOPs of a step, counted": f"{sizes['step_flops']:.3e}",
    "FLOPs of the training, counted": f"{counted:.2e}",
    "FLOPs by the paper's rule": f"{rule:.2e}",
    "FLOPs printed in the paper": f"{PUBLISHED_FLOPS[name]:.1e}",
    "counted / rule": f"{counted / rule:.2f}",
    "BLEU here": f"{bleu_of(run):.2f}" if run else None,
    "BLEU in the paper": f"{PUBLISHED_BLEU[name]}",
  }


def bleu_of(run: str) -> float:
  """The BLEU score of a finished run; raises UserError where there is none."""
  try:
    return json.loads((Path(run) / "results.json").read_text())["test"]["bleu"]
  except (OSError, KeyError, ValueError):
    raise UserError(
      f"{run} has no results.json with a BLEU score: name the run directory of a finished training"
    ) from None


if __name__ == "__main__":
  run_command(main)
