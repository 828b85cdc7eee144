"""Initial values of the matrices by name (`config.model.init`)."""

import dataclasses
import math

import flax.linen as nn
from flax.typing import Initializer

from transformer_jax.model.config import ModelConfig


def matrix_initializer(name: str, gain: float = 1.0, sublayers: int = 1) -> Initializer:
  """Returns the initializer of a matrix [inputs, *outputs].

  "glorot": uniform with variance 2 / (inputs + outputs) (Glorot & Bengio 2010); Tensor2Tensor's hyperparameter
  `uniform_unit_scaling` means this rule too. "unit_scaling": uniform with variance 1 / inputs, which keeps the variance of
  what passes through a linear layer (TensorFlow's initializer of that name). "normal": N(0, 0.02²), over the
  square root of `sublayers` where the matrix is the last one of a sub-layer and a stack adds up so many of them (Radford et al.
  2019, section 2.3).
  "deepnorm": normal with variance 2 gain² / (inputs + outputs), where the gain is below 1 for the matrices that DeepNorm
  names (Wang et al. 2022, arXiv:2203.00555, figure 2), see `deepnorm_constants`.
  """
  initializers = {
    "glorot": lambda: nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
    "unit_scaling": lambda: nn.initializers.variance_scaling(1.0, "fan_in", "uniform"),
    "normal": lambda: nn.initializers.normal(0.02 / math.sqrt(sublayers)),
    "deepnorm": lambda: nn.initializers.variance_scaling(gain**2, "fan_avg", "normal"),
  }
  return initializers[name]()


def deepnorm_constants(encoder_layers: int, decoder_layers: int) -> tuple[tuple[float, float], tuple[float, float]]:
  """Returns (alpha, beta) of the encoder and of the decoder (arXiv:2203.00555, table 1); 0 layers: there is no such stack.

  alpha is what a residual connection multiplies its input by, beta the gain of FFN, value and output matrices.
  """
  n, m = encoder_layers, decoder_layers
  if n and m:
    encoder = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return encoder, ((3 * m) ** 0.25, (12 * m) ** -0.25)
  alone = ((2 * (n or m)) ** 0.25, (8 * (n or m)) ** -0.25)
  return alone, alone


@dataclasses.dataclass(frozen=True)
class Scales:
  """Constants of one stack, which depend on its depth."""

  alpha: float = 1.0  # what residual connections multiply their input by (DeepNorm)
  gain: float = 1.0  # of the initial FFN, value and output matrices (init "deepnorm")
  sublayers: int = 1  # how many residual connections add up (init "normal")


def stack_scales(config: ModelConfig, decoder: bool, cross: bool = False) -> Scales:
  """The constants of the encoder, or of the decoder with or without attention to a memory."""
  alpha, gain = deepnorm_constants(config.num_encoder_layers, config.num_decoder_layers)[decoder]
  layers = config.num_decoder_layers if decoder else config.num_encoder_layers
  return Scales(alpha if config.deepnorm else 1.0, gain, layers * (3 if cross else 2))


def embedding_initializer(name: str, d_model: int) -> Initializer:
  """Normal with deviation d_model^-0.5: times sqrt(d_model) at the input (section 3.4) the elements have variance 1, and as
  output layer the same matrix gives logits of variance about 1. "normal": 0.02, as everywhere in that scheme."""
  return nn.initializers.normal(0.02 if name == "normal" else 1 / math.sqrt(d_model))
