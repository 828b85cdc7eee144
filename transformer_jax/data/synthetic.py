"""Synthetic tasks that a small model learns in under a minute: copy a string of symbols, or reverse it."""

import difflib
import hashlib
import math
from collections.abc import Iterator

import numpy as np

from transformer_jax.data.corpora import Corpus, Pair
from transformer_jax.errors import UserError

DEFAULTS = {"symbols": 20, "length": 10, "pairs": 10_000, "heldout": 500}
# A string belongs to the role that its hash falls to, so the roles never share one, whatever is asked for.
_SHARES = {"validation": range(0, 2), "test": range(2, 4), "train": range(4, 16)}
_MAX_MISSES = 100_000  # strings that may fall to other roles, or be there already, in a row


class SyntheticCorpus(Corpus):
  """Strings of symbols separated by spaces, and their copies or reversals.

  Lengths are drawn evenly from 1 to `length`, symbols evenly from `symbols` words ("a", "b", … or "s0", "s1", …).
  Validation and test strings are all different, and never among the training strings.
  """

  def __init__(self, name: str, reverse: bool, role: str, seed: int, symbols: int, length: int, pairs: int):
    self.name, self._reverse, self._role, self._seed = name, reverse, role, seed
    self._length, self._pairs = length, pairs
    letters = "abcdefghijklmnopqrstuvwxyz"
    self._symbols = list(letters[:symbols]) if symbols <= len(letters) else [f"s{number}" for number in range(symbols)]

  @property
  def fingerprint(self) -> str:
    task = "reverse" if self._reverse else "copy"
    return f"{task} 1 {self._role} {self._seed} {len(self._symbols)} {self._length} {self._pairs}"

  def __len__(self) -> int:
    return self._pairs

  def __iter__(self) -> Iterator[Pair]:
    bits = np.random.PCG64(np.random.SeedSequence([self._seed, list(_SHARES).index(self._role)]))
    seen: set[str] = set()
    made = misses = 0
    while made < self._pairs:
      if misses == _MAX_MISSES:
        raise UserError(f"{self.name!r}: too few different strings for {self._pairs} {self._role} pairs; lower heldout")
      length = 1 + int(bits.random_raw()) % self._length
      words = [self._symbols[int(number) % len(self._symbols)] for number in bits.random_raw(length)]
      source = " ".join(words)
      if _hash(source) not in _SHARES[self._role] or source in seen:
        misses += 1
        continue
      misses = 0
      if self._role != "train":
        seen.add(source)
      made += 1
      yield Pair(source, " ".join(reversed(words)) if self._reverse else source)


def _hash(text: str) -> int:
  return hashlib.sha256(text.encode()).digest()[0] % 16


def open_synthetic(spec: str, role: str, seed: int) -> SyntheticCorpus:
  """Opens `reverse` or `copy`, with sizes like `reverse:symbols=20,length=10,pairs=10000,heldout=500`.

  `pairs` is the number of training pairs (an epoch), `heldout` that of the validation and of the test pairs.
  """
  task, _, rest = spec.partition(":")
  sizes = dict(DEFAULTS)
  for part in rest.split(",") if rest else []:
    key, _, value = part.partition("=")
    if key not in sizes:
      near = difflib.get_close_matches(key, sizes, n=1)
      hint = f"; did you mean {near[0]!r}?" if near else ""
      raise UserError(f"{spec!r}: there is no size {key!r}, only {', '.join(sizes)}{hint}")
    if not value.isdecimal() or int(value) < 1:
      raise UserError(f"{spec!r}: {key} must be a whole number of at least 1, not {value!r}")
    sizes[key] = int(value)
  strings = sum(sizes["symbols"] ** length for length in range(1, min(sizes["length"], 30) + 1))
  if strings < 32 * sizes["heldout"]:
    raise UserError(
      f"{spec!r}: {sizes['symbols']} symbols and lengths up to {sizes['length']} make {strings} different strings, "
      f"too few to hold {sizes['heldout']} out for validation and as many for the test; "
      f"heldout may be at most {math.floor(strings / 32)}"
    )
  pairs = sizes["pairs"] if role == "train" else sizes["heldout"]
  return SyntheticCorpus(spec, task == "reverse", role, seed, sizes["symbols"], sizes["length"], pairs)
