"""The package: `pip install -e .` for use, `pip install -e '.[test]'` for work on it."""

from setuptools import find_packages, setup

setup(
  name="transformer_jax",
  version="0.1.0",
  description='The Transformer of "Attention Is All You Need" in JAX and Flax: train, ablate, translate',
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=find_packages(include=["transformer_jax", "transformer_jax.*"]),
  install_requires=[
    "jax>=0.10.2,<0.13",
    "flax>=0.12.6,<0.14",
    "optax>=0.2.8,<0.4",
    "orbax-checkpoint>=0.11.36,<0.13",
    "ml_collections>=1.1,<2",
    "absl-py>=2.3,<3",
    "grain>=0.2.15,<0.4",
    "tensorflow_datasets>=4.9.9,<5",
    "importlib_resources>=6.5",  # tensorflow_datasets needs it to prepare a set and does not say so
    "array_record>=0.8.1,<0.10",
    "sentencepiece>=0.2.1,<0.3",
    "sacrebleu>=2.5,<3",
    "sacremoses>=0.1.1,<0.3",
    "rapidfuzz>=3.9,<4",
    "scikit-learn>=1.5,<2",
    "tensorboardX>=2.6.4,<3",
    "rich>=14,<16",
    "submitit>=1.5.2,<2",
    "matplotlib>=3.10,<4",
    "jaxtyping>=0.3,<0.4",
    "numpy>=2,<3",
  ],
  extras_require={
    "test": [
      "pytest>=8,<10",
      "pytest-xdist>=3.8,<4",
      "beartype>=0.21,<0.24",
      "hypothesis>=6,<7",
      "ruff>=0.14,<0.18",
      "mypy>=1.18,<3",
    ],
    "peers": ["torch>=2.9,<3", "ctranslate2>=4.6,<5"],
    "cuda13": ["jax[cuda13]>=0.10.2,<0.13"],
    "tpu": ["jax[tpu]>=0.10.2,<0.13"],
  },
)
