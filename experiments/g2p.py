"""Spelling to phonemes in several languages: are the figures of the shared task's own Transformer reached?

  python -m launch.local experiments/g2p.py --output=runs/g2p --config.data.folder=FOLDER --experiment.languages=hun,hin,fre,ice
  python -m experiments.report runs/g2p

FOLDER is that of configs/g2p.py. Scales "paper" and "small" are the same: the models are small.
"""

from configs import g2p
from experiments.experiment import Column, Experiment
from experiments.smoke import smoke_config
from experiments.sweep import Setting, seeds
from transformer_jax.errors import UserError

# Language → word error rate and phoneme error rate of the task's Transformer, percent.
PUBLISHED = {
  "arm": (15.78, 3.44),
  "bul": (29.11, 6.70),
  "fre": (7.56, 2.12),
  "gre": (14.89, 2.75),
  "hin": (7.11, 1.70),
  "hun": (3.11, 0.60),
  "ice": (10.22, 2.44),
}


def get_experiment(scale: str, languages: str = "hun,hin,fre,ice") -> Experiment:
  """Each language with three seeds."""
  names = languages.split(",")
  for name in names:
    if name not in PUBLISHED:
      raise UserError(f"--experiment.languages: {name!r} is none of {', '.join(PUBLISHED)}")
  base = smoke_config() if scale == "smoke" else g2p.get_config()
  base.evaluation.metrics = ("wer", "per")
  return Experiment(
    question="Does a small Transformer spell out phonemes as well as that of the SIGMORPHON 2020 shared task?",
    base=base,
    sweep=seeds(
      [Setting({} if scale == "smoke" else corpora(name), name) for name in names], 1 if scale == "smoke" else 3
    ),
    columns=(Column("WER", "test.wer", lower_is_better=True), Column("PER", "test.per", lower_is_better=True)),
    published={name: {"WER": wer, "PER": per} for name, (wer, per) in PUBLISHED.items()},
    source="Gorman et al. 2020, SIGMORPHON shared task 1, the Transformer baseline",
    compared_with="",
  )


def corpora(language: str) -> dict[str, object]:
  """The fields that name a language's files."""
  return {
    "data.train": (f"tsv:{language}_train.tsv",),
    "data.valid": f"tsv:{language}_dev.tsv",
    "data.test": (f"{language}=tsv:{language}_test.tsv",),
  }
