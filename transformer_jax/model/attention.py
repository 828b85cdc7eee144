"""Attention (paper, section 3.2): scaled dot-product attention and multi-head attention with its variants."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.model.cache import LayerCache, MemoryCache
from transformer_jax.model.chunked import chunked_attention
from transformer_jax.model.config import Kernel, ModelConfig
from transformer_jax.model.dropout import dropout
from transformer_jax.model.initializers import Scales, matrix_initializer
from transformer_jax.model.norms import norm
from transformer_jax.model.positions import PositionBias, rotary_frequencies, rotate, shaw_distances
from transformer_jax.model.products import weight_product
from transformer_jax.model.visibility import Visibility, hide, visible


def scaled_dot_product_attention(
  query: Float[Array, "batch queries heads d_k"],
  key: Float[Array, "batch keys kv_heads d_k"],
  value: Float[Array, "batch keys kv_heads d_v"],
  mask: Bool[Array, "#batch #heads #queries keys"],
  bias: Float[Array, "#batch heads queries keys"] | None = None,
  scale: float | None = None,
  dropout_rate: float | Float[Array, ""] = 0.0,
  dropout_key: PRNGKeyArray | jax.Array | None = None,
) -> tuple[Float[Array, "batch queries heads d_v"], Float[Array, "batch heads queries keys"]]:
  """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1. Returns the result and the weights.

  Fewer key than query heads: each is shared by a group of query heads that follow each other (Ainslie et al. 2023). Hidden
  keys (mask False) get the least finite float32 instead of minus infinity: a query that may see nothing then weighs all keys
  alike, where minus infinity would give NaN. The softmax is float32 whatever the type of the inputs.

  Args:
    bias: is added to the scaled scores.
    scale: of the scores; None: 1 / sqrt(d_k).
    dropout_rate: the probability that a weight is set to 0, with a key; the weights returned are those that were used.
  """
  if (groups := query.shape[2] // key.shape[2]) > 1:
    key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  scores = scores * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)  # [batch, heads, queries, keys]
  if bias is not None:
    scores = scores + bias
  weights = jax.nn.softmax(hide(scores, mask))
  if dropout_key is not None:
    weights = dropout(dropout_key, weights, dropout_rate)
  return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value), weights


def attend(
  query: Float[Array, "batch queries heads d_k"],
  key: Float[Array, "batch keys kv_heads d_k"],
  value: Float[Array, "batch keys kv_heads d_v"],
  mask: Bool[Array, "#batch #heads #queries keys"],
  bias: Float[Array, "#batch heads queries keys"] | None = None,
  scale: float | None = None,
  kernel: Kernel = "xla",
) -> Float[Array, "batch queries heads d_v"]:
  """The same without the weights, through `jax.nn.dot_product_attention` where that can express it (d_k = d_v)."""
  if query.shape[-1] != value.shape[-1]:
    return scaled_dot_product_attention(query, key, value, mask, bias, scale)[0]
  if kernel != "cudnn":
    return jax.nn.dot_product_attention(query, key, value, bias, mask, scale=scale, implementation="xla")
  # cuDNN takes even lengths and a bias of the queries' type only.
  num_queries, num_keys = query.shape[1], key.shape[1]
  query, key, value = (jnp.pad(x, [(0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)]) for x in (query, key, value))
  mask = jnp.broadcast_to(mask, (*mask.shape[:2], num_queries, num_keys))
  fill = [(0, 0), (0, 0), (0, num_queries % 2), (0, num_keys % 2)]
  mask = jnp.pad(mask, fill)
  bias = None if bias is None else jnp.pad(bias, fill).astype(query.dtype)
  return jax.nn.dot_product_attention(query, key, value, bias, mask, scale=scale, implementation="cudnn")[
    :, :num_queries
  ]


class MultiHeadAttention(nn.Module):
  """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), section 3.2.2.

  Attributes:
    config: widths, heads and variants.
    self_attention: whether queries and keys are places of the same row, which rotary and Shaw's positions are for.
    scales: of the initial matrices.
  """

  config: ModelConfig
  self_attention: bool
  scales: Scales = Scales()

  def setup(self):
    config = self.config

    # The h matrices of a role are one parameter [d_model, heads, width]; Glorot's rule counts the width of all heads together.
    def into_heads(heads: int, width: int, gain: float = 1.0) -> nn.DenseGeneral:
      init = matrix_initializer(config.init, gain)
      return nn.DenseGeneral(
        (heads, width),
        use_bias=config.attention_bias,
        dtype=config.dtype,
        kernel_init=init,
        dot_general=weight_product,
      )

    tied = config.tie_projections
    self.query_projection = into_heads(config.num_heads, config.d_k)
    self.key_projection = (
      self.query_projection if tied in ("qk", "qkv") else into_heads(config.num_kv_heads, config.d_k)
    )
    self.value_projection = (
      self.query_projection
      if tied in ("qv", "qkv")
      else self.key_projection
      if tied == "kv"
      else into_heads(config.num_kv_heads, config.d_v, self.scales.gain)
    )
    self.output_projection = nn.DenseGeneral(
      config.d_model,
      axis=(-2, -1),
      use_bias=config.attention_bias,
      dtype=config.dtype,
      kernel_init=matrix_initializer(config.init, self.scales.gain, self.scales.sublayers),
      dot_general=weight_product,
    )
    if config.qk_norm:
      self.query_norm, self.key_norm = norm(config), norm(config)
    if config.attention_scale == "learned":
      start = nn.initializers.constant(config.d_k**-0.5)
      self.scale_of_head = self.param("scale", start, (config.num_heads,))
    if self.self_attention and config.positions == "shaw":
      rows = 2 * config.shaw_clip + 1
      start = nn.initializers.normal(config.d_k**-0.5)
      self.distance_keys = self.param("distance_keys", start, (rows, config.d_k))
      self.distance_values = self.param("distance_values", start, (rows, config.d_v))

  def __call__(
    self,
    x: Float[Array, "batch queries d_model"],
    memory: Float[Array, "batch keys d_model"],
    visibility: Visibility,
    positions: Int[Array, "batch queries"] | None = None,
    bias: PositionBias | None = None,
    train: bool = False,
  ) -> Float[Array, "batch queries d_model"]:
    """Attends from x to memory (self-attention: the same array). Sows the weights when `intermediates` is mutable.

    Args:
      visibility: what each query may see.
      positions: of x in its pair, for rotary positions.
      bias: is added to the scores, from the places of queries and keys.
      train: whether attention weights are dropped.
    """
    query, (key, value) = self._queries(x, positions), self.project_memory(memory, positions)
    if self.config.kernel == "chunked" and not self._seen:
      heads = chunked_attention(query, key, value, visibility, bias, self._scale)
      return self.output_projection(heads)
    places = jnp.arange(query.shape[1]), jnp.arange(key.shape[1])
    mask = visibility.mask(query.shape[1], key.shape[1])
    return self.output_projection(self._attend(query, key, value, mask, places, bias, train))

  def project_memory(
    self, memory: Float[Array, "batch keys d_model"], positions: Int[Array, "batch keys"] | None = None
  ) -> tuple[Float[Array, "batch keys kv_heads d_k"], Float[Array, "batch keys kv_heads d_v"]]:
    """Returns the keys and values of what is attended to."""
    key = self.key_projection(memory)
    value = key if self.config.tie_projections == "kv" else self.value_projection(memory)
    if self.config.qk_norm:
      key = self.key_norm(key)
    return self._turned(key, positions), value

  def self_step(
    self,
    x: Float[Array, "batch beams d_model"],
    cache: LayerCache,
    position: Int[Array, ""],
    bias: PositionBias | None = None,
    window: int = 0,
  ) -> tuple[Float[Array, "batch beams d_model"], LayerCache]:
    """Self-attention of one new position to itself and all earlier ones, whose keys and values are in the cache."""
    positions = jnp.broadcast_to(position, x.shape[:2])
    query = self._queries(x, positions)  # [batch, beams, heads, d_k]
    new_key, new_value = self.project_memory(x, positions)
    key = jax.lax.dynamic_update_slice_in_dim(cache.key, new_key[:, :, None], position, axis=2)
    value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_value[:, :, None], position, axis=2)
    batch, beams, max_length = key.shape[:3]
    places = position[None], jnp.arange(max_length)
    mask = visible(*places, None, None, causal=True, window=window)  # [1, 1, 1, max_length]

    def flat(array):  # [batch, beams, ...] -> [batch * beams, ...]: each beam is a row of its own
      return array.reshape(batch * beams, *array.shape[2:])

    heads = self._attend(flat(query)[:, None], flat(key), flat(value), mask, places, bias, False)
    heads = heads.reshape(batch, beams, *heads.shape[2:])  # from [batch * beams, 1, heads, d_v]
    return self.output_projection(heads), LayerCache(key, value)

  def memory_step(
    self, x: Float[Array, "batch beams d_model"], memory: MemoryCache, memory_mask: Bool[Array, "batch source_length"]
  ) -> Float[Array, "batch beams d_model"]:
    """Attention of one new position to the source. The beams stand where the queries of a sentence stand otherwise."""
    query = self._queries(x, None)  # [batch, beams, heads, d_k]
    heads = attend(query, memory.key, memory.value, memory_mask[:, None, None, :], scale=self._scale)
    return self.output_projection(heads)

  def _queries(self, x: jax.Array, positions: jax.Array | None) -> jax.Array:
    query = self.query_projection(x)  # [batch, queries, heads, d_k]
    if self.config.qk_norm:
      query = self.query_norm(query)
    if self.config.attention_scale == "learned":
      query = query * self.scale_of_head[:, None].astype(query.dtype)
    return self._turned(query, positions)

  def _turned(self, x: jax.Array, positions: jax.Array | None) -> jax.Array:
    config = self.config
    if config.positions != "rotary" or not self.self_attention:
      return x
    assert positions is not None
    return rotate(x, positions, rotary_frequencies(config.d_k, config.rotary_scaling, config.rotary_factor))

  @property
  def _seen(self) -> bool:
    """Whether somebody wants to see the weights."""
    return self.is_mutable_collection("intermediates") and not self.is_initializing()

  @property
  def _scale(self) -> float | None:
    scales = {"d_k": None, "d_model": self.config.d_model**-0.5, "none": 1.0, "learned": 1.0}
    return scales[self.config.attention_scale]

  def _attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    places: tuple[jax.Array, jax.Array],
    bias: PositionBias | None,
    train: bool,
  ) -> jax.Array:
    """Attention by whichever function can do it: the weights are needed for dropout, for Shaw's values, and to be seen."""
    config = self.config
    shaw = self.self_attention and config.positions == "shaw"
    added = None if bias is None else bias(*places)[None]  # [1, heads, queries, keys]
    if shaw:
      rows = shaw_distances(*places, config.shaw_clip)  # [queries, keys]
      added = jnp.einsum("bqhd,qkd->bhqk", query, self.distance_keys.astype(query.dtype)[rows])
      added = added.astype(jnp.float32) * (config.d_k**-0.5 if self._scale is None else self._scale)
    dropped = train and config.attention_dropout
    if not (shaw or dropped or self._seen):
      return attend(query, key, value, mask, added, self._scale, config.kernel)
    key_of_dropout = self.make_rng("dropout") if dropped else None
    heads, weights = scaled_dot_product_attention(
      query, key, value, mask, added, self._scale, config.attention_dropout, key_of_dropout
    )
    if self._seen:
      self.sow("intermediates", "weights", weights)
    if shaw:
      heads = heads + jnp.einsum(
        "bhqk,qkd->bqhd", weights.astype(value.dtype), self.distance_values.astype(value.dtype)[rows]
      )
    return heads
