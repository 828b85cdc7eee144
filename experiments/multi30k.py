"""Image captions, English to German: is the published figure of a small text-only Transformer reached?

  python -m launch.local experiments/multi30k.py --scale=paper --output=runs/multi30k --config.data.folder=FOLDER
  python -m experiments.report runs/multi30k

FOLDER is that of configs/multi30k_en_de.py. Scale "paper" is the recipe; "small" trains a quarter as long; "smoke" is for tests.
"""

from configs import multi30k_en_de
from experiments.experiment import Column, Experiment
from experiments.smoke import smoke_config
from experiments.sweep import one, seeds

SETS = {"test 2016": "test2016", "test 2017": "test2017", "COCO": "coco"}


def get_experiment(scale: str) -> Experiment:
  """The recipe with three seeds."""
  base = multi30k_en_de.get_config()
  columns = tuple(Column(f"BLEU, {title}", f"test.{name}.bleu") for title, name in SETS.items())
  if scale == "small":
    base.training.steps = 2_000
  if scale == "smoke":
    base, columns = smoke_config(), (Column("BLEU, test 2016", "test.bleu"),)
  return Experiment(
    question="Does the Transformer with its published settings for Multi30k reach the published BLEU?",
    base=base,
    sweep=seeds(one("text-only Transformer"), 1 if scale == "smoke" else 3),
    columns=columns,
    published={"text-only Transformer": {"BLEU, test 2016": 41.02}},
    source="Wu et al., ACL 2021, Good for Misconceived Reasons",
    compared_with="",
  )
