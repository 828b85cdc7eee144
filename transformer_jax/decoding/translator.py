"""Text in, text out: translates and scores lines with a finished run, in batches of a few fixed shapes.

The same code makes the sample translations during training, the test translations at its end and those of
`python -m transformer_jax.translate`.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from ml_collections import ConfigDict

from transformer_jax.data.batches import Batch
from transformer_jax.data.vocabulary import BOS, EOS, PAD, Vocabularies
from transformer_jax.decoding.batching import FEWEST_ROWS, batches_by_length, padded, positions_of
from transformer_jax.decoding.search import Hypotheses, SearchConfig, beams_needed, search
from transformer_jax.errors import UserError
from transformer_jax.model.cache import reorder


class Translation(NamedTuple):
  """One hypothesis for a line. For a blank line: ("", 0.0, 0.0, ()), a certainty."""

  text: str
  log_probability: float  # natural, summed over the pieces, end of sentence included
  score: float  # log_probability / ((5 + pieces) / 6)^length_penalty
  ids: tuple[int, ...]  # target pieces, end of sentence included


class Translator:
  """Translates with one model, one set of parameters and the search that `config.decoding` describes.

  Sentences of about the same length form a batch. Its shape is chosen by the sentence alone (its length, rounded up to
  a power of two), so what stands beside it changes nothing; the number of rows is one of a few, so few programs are
  compiled.

  Attributes:
    config: the whole configuration of the run.
    params: the model's parameters.
    vocabularies: source and target vocabulary.
    compiled: what has been compiled so far, one description each; shared with the translators made by `with_params`.
  """

  def __init__(self, model: nn.Module, params: PyTree, vocabularies: Vocabularies, config: ConfigDict):
    self.model = model
    self.params = params
    self.vocabularies = vocabularies
    self.config = config
    self.search_config = SearchConfig.of(config.decoding)
    self.compiled: list[str] = []
    self._search = jax.jit(self._search_batch, static_argnames=("n", "steps"))
    self._score = jax.jit(self._score_batch)

  @classmethod
  def load(cls, workdir: str | os.PathLike, changes: Mapping[str, Any] | None = None) -> "Translator":
    """Loads a finished run: its config.json, vocabulary and averaged final parameters.

    `changes`: fields that shall differ from the run's configuration, for example `{"decoding.beam_size": 8}`.

    Raises:
      UserError: no such run, an unfinished or damaged one, or a value that the field cannot have.
    """
    # Late: it needs orbax and the checks of a whole configuration, which translating with parameters in hand does not.
    from transformer_jax.loading import load_reader

    return load_reader(workdir, "translate", changes)

  def with_params(self, params: PyTree) -> "Translator":
    """The same translator with other parameters of the same shapes; nothing is compiled again."""
    other = copy.copy(self)
    other.params = params
    return other

  # ------------------------------------------------------------------------------------------------------- translating

  def translate(self, lines: Sequence[str]) -> list[str]:
    """Translates every line. A blank line (nothing but white space) gives ""; no translation holds a line break."""
    return [translations[0].text for translations in self.translate_n_best(lines, 1)]

  def translate_n_best(self, lines: Sequence[str], n: int) -> list[list[Translation]]:
    """The n best translations of every line, best first (for "sample": n draws, in their order).

    There can be fewer than n where a beam search finds fewer, and there is one for a blank line. A draw depends on
    `config.seed`, the line's place and its number.

    Raises:
      UserError: n is above the number of beams.
    """
    self.check_number(n)
    sources = self.encode_sources(lines)
    found = self.search_ids(sources, n)
    texts = iter(self.vocabularies.target.decode([list(h.ids) for hypotheses in found for h in hypotheses]))
    return [[h._replace(text=one_line(next(texts))) for h in hypotheses] for hypotheses in found]

  def check_number(self, n: int) -> None:
    """Raises UserError where the search cannot find n hypotheses a line."""
    if n < 1:
      raise UserError(f"n_best must be at least 1, not {n}")
    try:
      beams_needed(self.search_config, n)
    except ValueError as error:
      raise UserError(f"n_best {n} is not possible: {error}; raise decoding.beam_size") from None

  def search_ids(self, sources: Sequence[Sequence[int]], n: int = 1) -> list[list[Translation]]:
    """Searches for every source (ids with end of sentence; empty: nothing to translate); the texts are left empty."""
    found: list[list[Translation]] = [[Translation("", 0.0, 0.0, ())] for _ in sources]
    lengths = [len(source) for source in sources]
    # Every step costs as much as the cache is long, and few translations are much longer than their source: large batches
    # are searched with a short cache first, and what is not done at its end once more with the whole one. Where the short one
    # is no half shorter, and for small batches, that saves less than it takes to compile one more program.
    for steps_of in (self._usual_steps, self._most_steps):
      again = [0] * len(lengths)
      for length, rows, places in batches_by_length(lengths, self.config.decoding.batch_tokens):
        source = padded([sources[place] for place in places], rows, length)
        limits, numbers = np.zeros((2, rows), np.int32)
        limits[: len(places)] = [lengths[place] + self.search_config.max_extra for place in places]
        numbers[: len(places)] = places
        steps = self._most_steps(length) if rows == FEWEST_ROWS else steps_of(length)
        hypotheses, done = jax.device_get(self._search(self.params, source, limits, numbers, n, steps))
        for row, place in enumerate(places):
          if done[row]:
            found[place] = translations_of(hypotheses, row)
          else:
            again[place] = lengths[place]
      lengths = again
    return found

  def _most_steps(self, length: int) -> int:
    """The longest translation of a source that is padded to `length`."""
    return length + self.search_config.max_extra

  def _usual_steps(self, length: int) -> int:
    """What most translations need at most; the most that any can need where that is not at least twice as much."""
    usual, most = length + max(length // 4, 8), self._most_steps(length)
    return usual if usual <= most / 2 else most

  def encode_sources(self, lines: Sequence[str]) -> list[list[int]]:
    """Ids of every line, end of sentence included, cut to `data.max_length`; [] for a blank line."""
    sources = encode(self.vocabularies.source.encode, lines, self.config.data.max_length, "source line")
    # A line that the vocabulary normalises to nothing holds nothing to translate either.
    return [ids if line.strip() and len(ids) > 1 else [] for line, ids in zip(lines, sources, strict=True)]

  # ----------------------------------------------------------------------------------------------------------- scoring

  def score(self, sources: Sequence[str], targets: Sequence[str]) -> Float[np.ndarray, "pairs"]:
    """Log-probability of every target given its source (natural, summed over the target's pieces with end of sentence).

    A blank target of a blank source has 0: it is what `translate` always gives. The pieces of a target are those that
    the vocabulary makes of its text; a translation may consist of others, which `score_ids` takes as they are.

    Raises:
      UserError: not as many sources as targets.
    """
    if len(sources) != len(targets):
      raise UserError(
        f"{len(sources)} sources but {len(targets)} targets: line i of one belongs to line i of the other"
      )
    data, decoding = self.config.data, self.config.decoding
    target_ids = encode(self.vocabularies.target.encode, targets, data.max_length + decoding.max_extra, "target line")
    return self.score_ids(self.encode_sources(sources), target_ids)

  def score_ids(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Float[np.ndarray, "pairs"]:
    """`score` of pieces: ids with end of sentence; an empty source or target stands for a blank line."""
    scores = np.zeros(len(sources), np.float64)
    ids = [
      ([], []) if not source and len(target) <= 1 else (source or [EOS], target or [EOS])
      for source, target in zip(sources, targets, strict=True)
    ]
    lengths = [max(len(source), len(target)) for source, target in ids]
    for length, rows, places in batches_by_length(lengths, self.config.decoding.batch_tokens):
      source_ids, target_ids = ([ids[place][side] for place in places] for side in (0, 1))
      batch = self.pair_batch(source_ids, target_ids, length, length, rows)
      log_probabilities = jax.device_get(self._score(self.params, batch))  # [rows, length]
      scores[places] = log_probabilities.astype(np.float64).sum(axis=1)[: len(places)]
    return scores

  @staticmethod
  def pair_batch(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source_length: int,
    target_length: int,
    rows: int | None = None,
  ) -> Batch:
    """The batch of forced decoding with one pair (ids with end of sentence) in each of `rows` rows (None: as many)."""
    rows = len(sources) if rows is None else rows
    source, target = padded(sources, rows, source_length), padded(targets, rows, target_length)
    inputs = padded([[BOS, *ids[:-1]] for ids in targets], rows, target_length)
    source_segments, target_segments = (source != PAD).astype(np.int32), (target != PAD).astype(np.int32)
    positions = [np.broadcast_to(np.arange(n, dtype=np.int32), (rows, n)) for n in (source_length, target_length)]
    return Batch(source, positions[0], source_segments, inputs, target, positions[1], target_segments)

  # ----------------------------------------------------------------------------------------------------------- programs

  def _note_compilation(self, description: str) -> None:
    """Called while a function is traced, which happens once for every program that is compiled."""
    self.compiled.append(description)
    logging.info("compiling %s", description)

  def _search_batch(
    self,
    params: PyTree,
    source: Int[Array, "rows length"],
    limits: Int[Array, "rows"],
    numbers: Int[Array, "rows"],
    n: int,
    steps: int,
  ) -> tuple[Hypotheses, Bool[Array, "rows"]]:
    """Encodes a batch and searches; `numbers` are the sentences' places in the list, which random draws depend on."""
    rows, length = source.shape
    beams = beams_needed(self.search_config, n)
    self._note_compilation(
      f"{self.search_config.method} search: {rows} sources of {length} pieces, {beams} beams of {steps}"
    )
    segments = (source != PAD).astype(jnp.int32)
    memory = self._apply(params, "encode", source, positions_of(source), segments)
    cache = self._apply(params, "start_cache", memory, segments, beams, steps)
    return search(
      lambda tokens, cache: self._apply(params, "step", tokens, cache),
      reorder,
      cache,
      limits,
      self.search_config,
      self._most_steps(length),
      n,
      sentence_keys(self.config.seed, numbers),
      steps,
    )

  def _score_batch(self, params: PyTree, batch: Batch) -> Float[Array, "rows length"]:
    """Log-probability of every target piece in forced decoding; 0 at padding."""
    self._note_compilation(f"scoring: {batch.source.shape[0]} pairs of {batch.source.shape[1]} pieces")
    log_probabilities = jax.nn.log_softmax(self._apply(params, None, batch))  # [rows, length, vocabulary]
    chosen = jnp.take_along_axis(log_probabilities, batch.target_outputs[:, :, None], axis=-1)[:, :, 0]
    return jnp.where(batch.target_segments > 0, chosen, 0.0)

  def _apply(self, params: PyTree, method: str | None, *arguments: Any) -> Any:
    return self.model.apply({"params": params}, *arguments, method=method)


def translations_of(hypotheses: Hypotheses, row: int) -> list[Translation]:
  """One sentence's hypotheses, without their texts and without places that were left empty."""
  fields = zip(*(field[row].tolist() for field in hypotheses), strict=True)
  return [
    Translation("", log_probability, score, tuple(tokens[:length]))
    for tokens, length, log_probability, score in fields
    if length > 0
  ]


def sentence_keys(seed: int, numbers: Int[Array, "rows"]) -> Key[Array, "rows"]:
  """A random key for every sentence, from its number alone."""
  return jax.vmap(lambda number: jax.random.fold_in(jax.random.key(seed), number))(numbers)


def encode(
  encode_lines: Callable[[list[str]], list[list[int]]], lines: Sequence[str], max_length: int, name: str
) -> list[list[int]]:
  """Ids of every line with EOS, at most `max_length`; warns of each line that is cut, by `name` and number from 1."""
  encoded = []
  for number, ids in enumerate(encode_lines(list(lines)), start=1):
    if len(ids) + 1 > max_length:
      logging.warning("%s %d has %d pieces and is cut to the first %d", name, number, len(ids), max_length - 1)
    encoded.append([*ids[: max_length - 1], EOS])
  return encoded


def one_line(text: str) -> str:
  """The text with a space for each line break; only "\\n" ends a line (a byte-fallback piece could spell one)."""
  return text.replace("\n", " ")
