"""Drawing pieces from logits: with a temperature, among the top k (Fan et al. 2018, arXiv:1805.04833) or the top p of
probability (Holtzman et al. 2020, arXiv:1904.09751)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key


def draw(
  keys: Key[Array, "batch"],
  logits: Float[Array, "batch n vocabulary"],
  temperature: float,
  top_k: int,
  top_p: float,
) -> Int[Array, "batch n"]:
  """Draws n pieces per key from their softmax(logits / temperature), cut to the top k pieces, then to the top p."""
  scaled = logits / temperature
  if top_k > 0 or top_p < 1.0:
    scaled = jnp.where(likeliest(scaled, top_k, top_p), scaled, -jnp.inf)
  return jax.vmap(jax.random.categorical)(keys, scaled).astype(jnp.int32)


def likeliest(logits: Float[Array, "*batch vocabulary"], top_k: int, top_p: float) -> Bool[Array, "*batch vocabulary"]:
  """Which pieces stay: the `top_k` likeliest (0: all), and of these the fewest likeliest whose share reaches `top_p`.

  The likeliest piece always stays. Among equal logits the smaller id counts as likelier, so exactly `top_k` stay.
  """
  order = jnp.argsort(-logits, axis=-1, stable=True)  # [*batch, vocabulary], likeliest first
  ranked = jnp.take_along_axis(logits, order, axis=-1)
  if top_k > 0:
    ranked = jnp.where(jnp.arange(ranked.shape[-1]) < top_k, ranked, -jnp.inf)
  stays = ranked > -jnp.inf
  if top_p < 1.0:
    probabilities = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities  # what the likelier pieces have together
    stays &= (before < top_p).at[..., 0].set(True)
  ranks = jnp.argsort(order, axis=-1)  # where each piece stands in the ranking
  return jnp.take_along_axis(stays, ranks, axis=-1)
