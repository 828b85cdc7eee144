"""The encoder-decoder once more, in float64 NumPy, sentence by sentence, written from the paper's equations.

It shares no code with the package and knows nothing of batches, packing, padding or masks as arrays.
"""

import numpy as np


def positional_encoding(length, d_model):
  """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same), element by element."""
  encoding = np.zeros((length, d_model))
  for pos in range(length):
    for feature in range(d_model):
      i = feature // 2
      angle = pos / 10000 ** (2 * i / d_model)
      encoding[pos, feature] = np.sin(angle) if feature % 2 == 0 else np.cos(angle)
  return encoding


def layer_norm(x, parameters):
  mean = x.mean(axis=-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + 1e-6) * parameters["scale"] + parameters["bias"]


def attention(q, k, v, causal):
  """Equation 1; q [n, d_k], k [m, d_k], v [m, d_v]."""
  scores = q @ k.T / np.sqrt(q.shape[-1])
  if causal:
    for query in range(scores.shape[0]):
      scores[query, query + 1 :] = -np.inf
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return weights @ v


def multi_head(x, memory, parameters, causal):
  """Concat(head_1 … head_h) W^O, head by head."""
  w_q, w_k, w_v = (parameters[f"{role}_projection"]["kernel"] for role in ("query", "key", "value"))  # [d_model, h, d]
  w_o = parameters["output_projection"]["kernel"]  # [h, d_v, d_model]
  heads = [attention(x @ w_q[:, h], memory @ w_k[:, h], memory @ w_v[:, h], causal) for h in range(w_q.shape[1])]
  return np.concatenate(heads, axis=-1) @ w_o.reshape(-1, w_o.shape[-1])


def feed_forward(x, parameters):
  inner = np.maximum(0, x @ parameters["inner"]["kernel"] + parameters["inner"]["bias"])
  return inner @ parameters["outer"]["kernel"] + parameters["outer"]["bias"]


def residual(x, sublayer, parameters, norm):
  if norm == "post":
    return layer_norm(x + sublayer(x), parameters["norm"])
  return x + sublayer(layer_norm(x, parameters["norm"]))


def stack(x, parameters, norm, memory=None):
  for index in range(sum(name.startswith("layer_") for name in parameters)):
    layer = parameters[f"layer_{index}"]
    decoder = memory is not None

    def self_attention(y, layer=layer, decoder=decoder):
      return multi_head(y, y, layer["self_attention"], causal=decoder)

    x = residual(x, self_attention, layer["self_attention_residual"], norm)
    if decoder:
      x = residual(
        x,
        lambda y, layer=layer: multi_head(y, memory, layer["cross_attention"], causal=False),
        layer["cross_attention_residual"],
        norm,
      )
    x = residual(x, lambda y, layer=layer: feed_forward(y, layer["feed_forward"]), layer["feed_forward_residual"], norm)
  return layer_norm(x, parameters["norm"]) if norm == "pre" else x


def logits(parameters, source, target_inputs, norm, share):
  """Logits [len(target_inputs), vocabulary] of one pair of id lists."""
  target_embedding = parameters["target_embedding"]
  source_embedding = target_embedding if share == "all" else parameters["source_embedding"]
  output = parameters["output_layer"] if share == "none" else target_embedding
  d_model = target_embedding.shape[1]

  def embed(ids, table):
    return table[ids] * np.sqrt(d_model) + positional_encoding(len(ids), d_model)

  memory = stack(embed(source, source_embedding), parameters["encoder"], norm)
  x = stack(embed(target_inputs, target_embedding), parameters["decoder"], norm, memory)
  return x @ output.T
