"""Commands to actions (SCAN): which position encodings let a Transformer give longer sequences than it was trained on?

  python -m launch.local experiments/scan.py --output=runs/scan --config.data.folder=FOLDER
  python -m experiments.report runs/scan

FOLDER is that of configs/scan.py. --experiment.splits=simple,length chooses the splits.
"""

from configs import scan
from experiments.experiment import Column, Experiment
from experiments.smoke import smoke_config
from experiments.sweep import Setting, Sweep, seeds
from transformer_jax.errors import UserError

POSITIONS = ("sinusoidal", "learned", "shaw", "t5", "rotary", "alibi", "none")
SPLITS = ("simple", "length", "addprim_jump")


def get_experiment(scale: str, splits: str = "simple,length") -> Experiment:
  """Each position encoding on each split: three seeds, but one on the simple split, where seeds differ by little."""
  names = splits.split(",")
  for name in names:
    if name not in SPLITS:
      raise UserError(f"--experiment.splits: {name!r} is none of {', '.join(SPLITS)}")
  base = smoke_config() if scale == "smoke" else scan.get_config()
  base.evaluation.metrics = ("exact_match",)
  sweep: Sweep = []
  for split in names:
    rows = [
      Setting({"model.positions": positions, **({} if scale == "smoke" else corpora(split))}, f"{split}, {positions}")
      for positions in POSITIONS
    ]
    sweep += seeds(rows, 1 if scale == "smoke" or split == "simple" else 3)
  return Experiment(
    question="Which position encodings let a Transformer give longer sequences than it was trained on?",
    base=base,
    sweep=sweep,
    columns=(Column("exact match", "test.exact_match", digits=1),),
    source="",
    compared_with="",
  )


def corpora(split: str) -> dict[str, object]:
  """The fields that name a split's files; a twentieth of the training lines is for validation."""
  part = "@shuffled:" if split == "length" else "@"  # that file is sorted by length
  return {
    "data.train": (f"tsv:{split}.train.tsv.xz{part}0:0.95",),
    "data.valid": f"tsv:{split}.train.tsv.xz{part}0.95:1",
    "data.test": (f"{split}=tsv:{split}.test.tsv.xz",),
  }
