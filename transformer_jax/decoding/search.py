"""Search for a translation: beam search, greedy search and sampling, over any function that makes one step.

A search knows nothing of a model: it calls `step(tokens [batch, beams], cache) -> (logits [batch, beams, vocabulary],
cache)` and, when beams change places, `reorder(cache, beams [batch, beams]) -> cache`. Everything runs in one
`jax.lax.while_loop`, so a search is one compiled program per shape.

Rules that all methods share:
  * A hypothesis is a sequence of pieces that ends in EOS; its log-probability is the sum of the float32 log-softmax
    over the whole vocabulary, EOS included. PAD, BOS and UNK are never chosen (the others are not renormalised for it,
    so a search and forced decoding agree on every log-probability).
  * A sentence's limit is the largest number of pieces, EOS included. At the limit EOS is forced and counted like any
    piece.
  * The score of n pieces (EOS included) is log-probability / ((5 + n) / 6)^alpha (Wu et al. 2016, arXiv:1609.08144, eq.
    14).
  * Ties go to the candidate that comes first: the better beam, then the smaller id.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from ml_collections import ConfigDict

from transformer_jax.data.vocabulary import BOS, EOS, PAD, UNK
from transformer_jax.decoding.sampling import draw

Cache = Any  # any pytree: only `step` and `reorder` look inside
Step = Callable[[Array, Cache], tuple[Array, Cache]]
Reorder = Callable[[Cache, Array], Cache]


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """The fields of `config.decoding` that decide which translation is found (their meaning: config.py)."""

  method: str = "beam"
  beam_size: int = 4
  length_penalty: float = 0.6
  max_extra: int = 50
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0

  @classmethod
  def of(cls, decoding: ConfigDict) -> "SearchConfig":
    """Takes the fields out of `config.decoding`."""
    return cls(**{field.name: decoding[field.name] for field in dataclasses.fields(cls)})


class Hypotheses(NamedTuple):
  """The n hypotheses of every sentence: best score first, or in the order they were drawn ("sample").

  A beam search may end with fewer than n; the places left over have score -inf and length 0.
  """

  tokens: Int[Array, "batch n length"]  # EOS kept, PAD behind it
  lengths: Int[Array, "batch n"]  # pieces, EOS included
  log_probabilities: Float[Array, "batch n"]
  scores: Float[Array, "batch n"]


def length_penalties(alpha: float, max_length: int) -> Float[Array, "lengths"]:
  """((5 + n) / 6)^alpha for n = 0 … max_length; computed in float64, so that it stays monotone in float32."""
  return jnp.asarray(((5.0 + np.arange(max_length + 1)) / 6.0) ** alpha, jnp.float32)


def search(
  step: Step,
  reorder: Reorder,
  cache: Cache,
  limits: Int[Array, "batch"],
  config: SearchConfig,
  max_length: int,
  n: int = 1,
  keys: Key[Array, "batch"] | None = None,
  steps: int | None = None,
) -> tuple[Hypotheses, Bool[Array, "batch"]]:
  """Finds n hypotheses for every sentence with `config.method`; returns them and which sentences are done.

  `cache`: of `beams_needed` beams, with room for `steps` pieces.
  `limits`: the most pieces of each sentence, EOS included, at most `max_length`; 0 marks an empty row that is not
  searched.
  `keys`: a random key per sentence, for "sample" alone.
  `steps`: how far to search (None: to `max_length`, where all are done). A sentence that is not done by then has no
  result yet; one that is done has the same as without this bound.
  """
  steps = max_length if steps is None else min(steps, max_length)
  if config.method == "sample":
    if keys is None:
      raise ValueError("sampling needs a random key per sentence")
    return choose_stepwise(step, cache, limits, config, max_length, n, keys, steps)
  if beams_needed(config, n) == 1:
    return choose_stepwise(step, cache, limits, config, max_length, 1, None, steps)
  return beam_search(step, reorder, cache, limits, config, max_length, n, steps)


def beams_needed(config: SearchConfig, n: int) -> int:
  """How many beams `search` carries for n hypotheses. One beam is greedy search, whatever the length penalty."""
  if config.method == "sample":
    return n
  beams = config.beam_size if config.method == "beam" else 1
  if n > beams:
    raise ValueError(f"{n} hypotheses need as many beams, {config.method} search has {beams}")
  return beams


# --------------------------------------------------------------------------------------------------------- beam search


class BeamState(NamedTuple):
  """What one step of beam search hands to the next. Live beams are unfinished prefixes; -inf: there is none."""

  position: Int[Array, ""]  # pieces chosen so far
  cache: Cache
  live_tokens: Int[Array, "batch beams length"]
  live_log_probabilities: Float[Array, "batch beams"]
  finished: Hypotheses  # [batch, beams], best first; -inf where there is none yet
  done: Bool[Array, "batch"]


def beam_search(
  step: Step,
  reorder: Reorder,
  cache: Cache,
  limits: Int[Array, "batch"],
  config: SearchConfig,
  max_length: int,
  n: int,
  steps: int,
  early_stopping: bool = True,
) -> tuple[Hypotheses, Bool[Array, "batch"]]:
  """Beam search with `config.beam_size` live beams for the n best finished hypotheses; see `search`.

  In every step the 2 * beams likeliest extensions are taken. At most one extension per beam ends, so at least `beams`
  of them go on and the number of live beams never shrinks. An extension by EOS is a finished hypothesis if it is among
  the `beams` likeliest. A sentence is done once no live beam can still enter its n best; `early_stopping=False` runs on
  to the limit instead, with the same result.
  """
  batch, beams = limits.shape[0], config.beam_size
  penalties = length_penalties(config.length_penalty, max_length + 1)
  none = jnp.full((batch, beams), -jnp.inf, jnp.float32)
  tokens = jnp.full((batch, beams, steps), PAD, jnp.int32)
  state = BeamState(
    position=jnp.int32(0),
    cache=cache,
    live_tokens=tokens,
    # All beams begin alike, so one of them is enough; none in an empty row.
    live_log_probabilities=none.at[:, 0].set(jnp.where(limits > 0, 0.0, -jnp.inf)),
    finished=Hypotheses(tokens, jnp.zeros((batch, beams), jnp.int32), none, none),
    done=limits <= 0,
  )

  def unfinished(state: BeamState) -> Bool[Array, ""]:
    return (state.position < steps) & ~jnp.all(state.done)

  def advance(state: BeamState) -> BeamState:
    previous = jnp.where(
      state.position == 0,
      BOS,
      jax.lax.dynamic_index_in_dim(state.live_tokens, state.position - 1, axis=2, keepdims=False),
    )  # [batch, beams]
    logits, cache = step(previous, state.cache)
    length = state.position + 1
    candidates, parents, log_probabilities = extensions(logits, state.live_log_probabilities, length >= limits)
    prefixes = jnp.take_along_axis(state.live_tokens, parents[:, :, None], axis=1)  # [batch, 2 * beams, length]
    sequences = jax.lax.dynamic_update_index_in_dim(prefixes, candidates, state.position, axis=2)
    ends = candidates == EOS

    ended = jnp.where(ends, log_probabilities, -jnp.inf)[:, :beams]
    finished = best_of(
      state.finished,
      Hypotheses(sequences[:, :beams], jnp.full_like(ended, length, jnp.int32), ended, ended / penalties[length]),
    )
    live_log_probabilities, order = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probabilities), beams)  # [batch, beams]

    # The best score that a live beam can still reach: log-probabilities only fall, so it is today's, divided by the
    # penalty that is kindest: of the longest possible hypothesis (alpha > 0) or of the shortest (alpha < 0).
    reachable = jnp.maximum(
      live_log_probabilities / penalties[limits][:, None],
      live_log_probabilities / penalties[jnp.minimum(length + 1, limits)][:, None],
    )
    done = state.done | (length >= limits)
    if early_stopping:
      done |= finished.scores[:, n - 1] >= jnp.max(reachable, axis=1)
    return BeamState(
      position=length,
      cache=reorder(cache, jnp.take_along_axis(parents, order, axis=1)),
      live_tokens=jnp.take_along_axis(sequences, order[:, :, None], axis=1),
      # Without a live beam nothing is added to a sentence that is done, however long the others take.
      live_log_probabilities=jnp.where(done[:, None], -jnp.inf, live_log_probabilities),
      finished=finished,
      done=done,
    )

  state = jax.lax.while_loop(unfinished, advance, state)
  return Hypotheses(*(field[:, :n] for field in state.finished)), state.done


def extensions(
  logits: Float[Array, "batch beams vocabulary"],
  log_probabilities: Float[Array, "batch beams"],
  at_limit: Bool[Array, "batch"],
) -> tuple[Int[Array, "batch twice"], Int[Array, "batch twice"], Float[Array, "batch twice"]]:
  """The 2 * beams likeliest extensions of a sentence, likeliest first: pieces, parent beams, log-probabilities.

  The likeliest of each beam are found first and then the likeliest of these, which spares a sort over beams *
  vocabulary and the log-softmax of pieces that are not chosen.
  """
  batch, beams, vocabulary = logits.shape
  allowed = jnp.where(allowed_pieces(vocabulary, at_limit[:, None]), logits, -jnp.inf)
  values, pieces = jax.lax.top_k(allowed, min(2 * beams, vocabulary))  # [batch, beams, per_beam]
  highest, log_normaliser = softmax_terms(logits)
  totals = log_probabilities[:, :, None] + ((values - highest) - log_normaliser)
  totals, places = jax.lax.top_k(totals.reshape(batch, -1), 2 * beams)  # [batch, 2 * beams]
  return (
    jnp.take_along_axis(pieces.reshape(batch, -1), places, axis=1),
    (places // pieces.shape[2]).astype(jnp.int32),
    totals,
  )


def best_of(first: Hypotheses, second: Hypotheses) -> Hypotheses:
  """The best of two lists, as many as the first has; among equals the first list comes first."""
  scores, order = jax.lax.top_k(jnp.concatenate([first.scores, second.scores], axis=1), first.scores.shape[1])
  tokens = jnp.take_along_axis(jnp.concatenate([first.tokens, second.tokens], axis=1), order[:, :, None], axis=1)
  lengths = jnp.take_along_axis(jnp.concatenate([first.lengths, second.lengths], axis=1), order, axis=1)
  log_probabilities = jnp.concatenate([first.log_probabilities, second.log_probabilities], axis=1)
  return Hypotheses(tokens, lengths, jnp.take_along_axis(log_probabilities, order, axis=1), scores)


# -------------------------------------------------------------------------------------------------- greedy and sampling


class StepwiseState(NamedTuple):
  """What one step hands to the next when every step's choice is final."""

  position: Int[Array, ""]
  cache: Cache
  previous: Int[Array, "batch n"]
  tokens: Int[Array, "batch n length"]
  lengths: Int[Array, "batch n"]
  log_probabilities: Float[Array, "batch n"]
  done: Bool[Array, "batch n"]


def choose_stepwise(
  step: Step,
  cache: Cache,
  limits: Int[Array, "batch"],
  config: SearchConfig,
  max_length: int,
  n: int,
  keys: Key[Array, "batch"] | None,
  steps: int,
) -> tuple[Hypotheses, Bool[Array, "batch"]]:
  """Chooses one piece after the other: the likeliest (no `keys`: greedy search) or one that is drawn with `keys`.

  The n hypotheses of a sentence are n independent draws. What is drawn depends on the sentence's key, not on the batch
  around it. The log-probabilities are the model's own: temperature, top-k and
  top-p decide what is drawn, not how it is scored.
  """
  batch = limits.shape[0]
  state = StepwiseState(
    position=jnp.int32(0),
    cache=cache,
    previous=jnp.full((batch, n), BOS, jnp.int32),
    tokens=jnp.full((batch, n, steps), PAD, jnp.int32),
    lengths=jnp.zeros((batch, n), jnp.int32),
    log_probabilities=jnp.zeros((batch, n), jnp.float32),
    done=jnp.broadcast_to(limits[:, None] <= 0, (batch, n)),
  )

  def unfinished(state: StepwiseState) -> Bool[Array, ""]:
    return (state.position < steps) & ~jnp.all(state.done)

  def advance(state: StepwiseState) -> StepwiseState:
    logits, cache = step(state.previous, state.cache)  # [batch, n, vocabulary]
    length = state.position + 1
    allowed = jnp.where(allowed_pieces(logits.shape[-1], (length >= limits)[:, None]), logits, -jnp.inf)
    if keys is None:
      chosen = jnp.argmax(allowed, axis=-1).astype(jnp.int32)
    else:
      step_keys = jax.vmap(lambda key: jax.random.fold_in(key, state.position))(keys)
      chosen = draw(step_keys, allowed, config.temperature, config.top_k, config.top_p)
    highest, log_normaliser = softmax_terms(logits)
    value = jnp.take_along_axis(logits, chosen[:, :, None], axis=2)
    gain = ((value - highest) - log_normaliser)[:, :, 0]
    chosen = jnp.where(state.done, PAD, chosen)
    return StepwiseState(
      position=length,
      cache=cache,
      previous=chosen,
      tokens=jax.lax.dynamic_update_index_in_dim(state.tokens, chosen, state.position, axis=2),
      lengths=jnp.where(state.done, state.lengths, length),
      log_probabilities=jnp.where(state.done, state.log_probabilities, state.log_probabilities + gain),
      done=state.done | (chosen == EOS),
    )

  state = jax.lax.while_loop(unfinished, advance, state)
  scores = state.log_probabilities / length_penalties(config.length_penalty, max_length)[state.lengths]
  return Hypotheses(state.tokens, state.lengths, state.log_probabilities, scores), jnp.all(state.done, axis=1)


# --------------------------------------------------------------------------------------------------------------- shared


def allowed_pieces(vocabulary: int, at_limit: Bool[Array, "*batch"]) -> Bool[Array, "*batch vocabulary"]:
  """Which pieces may be chosen: all but PAD, BOS and UNK; at the limit EOS alone."""
  pieces = jnp.arange(vocabulary)
  text = (pieces != PAD) & (pieces != BOS) & (pieces != UNK)
  return jnp.where(at_limit[..., None], pieces == EOS, text)


def softmax_terms(
  logits: Float[Array, "batch beams vocabulary"],
) -> tuple[Float[Array, "batch beams 1"], Float[Array, "batch beams 1"]]:
  """The two terms of a stable log-softmax, (logit - highest) - log_normaliser, which is never above 0 in this order."""
  highest = jnp.max(logits, axis=-1, keepdims=True)
  return highest, jnp.log(jnp.sum(jnp.exp(logits - highest), axis=-1, keepdims=True))
