"""Sealed folders: the SHA-256 of every file, written last, tells a whole folder from a half-written or changed one.

A folder is written as `<name>.writing` and renamed when it is sealed; a deleted one is renamed to `<name>.deleting`
first. So what bears its bare name was complete once, at whatever moment the process was killed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.training.rundir import sync_folder, write_text_atomically

SEAL = "seal.json"
WRITING, DELETING = ".writing", ".deleting"


def find_problem(folder: Path) -> str | None:
  """Compares a folder with its seal, reading every file.

  Args:
    folder: e.g. `<workdir>/checkpoints/1200`.

  Returns:
    What is wrong, in a few words; None: every file is what was sealed, none is missing and none was added.
  """
  if not folder.is_dir():
    return "it is no folder" if os.path.lexists(folder) else "it does not exist"
  try:
    seal = (folder / SEAL).read_text()
    sealed = json.loads(seal)["files"]
    found = _hashes(folder)
    for name in sorted(sealed.keys() | found.keys()):
      if name not in found:
        return f"{name} is missing"
      if name not in sealed:
        return f"{name} was added"
      if sealed[name] != found[name]:
        return f"{name} was changed"
  except FileNotFoundError:
    return f"it is half-written (no {SEAL})"
  except (ValueError, KeyError, TypeError, AttributeError):
    return f"{SEAL} was changed"
  except OSError as error:
    return f"it cannot be read ({error.strerror})"
  # The very text, so that not even a changed space in the seal passes, nor a folder that was renamed.
  return None if seal == _seal_text(folder.name, found) else f"{SEAL} was changed or is another folder's"


def start_writing(folder: Path) -> Path:
  """Makes and returns an empty folder to write the content of `folder` to; `publish` gives it its name."""
  writing = writing_place(folder)
  _remove(writing)
  writing.mkdir(parents=True)
  return writing


def writing_place(folder: Path) -> Path:
  """Where `folder` is until it is sealed."""
  return folder.with_name(folder.name + WRITING)


def publish(folder: Path) -> None:
  """Seals what `start_writing` made and gives it its name; replaces, then deletes, a folder of that name."""
  writing = writing_place(folder)
  write_text_atomically(writing / SEAL, _seal_text(folder.name, _hashes(writing, sync=True)))
  old = folder.with_name(folder.name + DELETING)
  _remove(old)
  if os.path.lexists(folder):
    os.rename(folder, old)  # killed between the two renames: `clear_leftovers` does the second one
  os.rename(writing, folder)
  sync_folder(folder.parent)
  _remove(old)


def delete(folder: Path) -> None:
  """Deletes a folder. Renamed first: what is left of a half-deleted one bears no name that is looked for."""
  deleting = folder.with_name(folder.name + DELETING)
  _remove(deleting)
  os.rename(folder, deleting)
  _remove(deleting)


def clear_leftovers(directory: Path) -> None:
  """Removes what a killed process was writing or deleting; a folder that was sealed but not yet named gets its name."""
  for path in sorted(directory.glob("*" + WRITING)):
    folder = path.with_name(path.name.removesuffix(WRITING))
    if not os.path.lexists(folder) and _is_sealed_as(path, folder.name):
      os.rename(path, folder)
    else:
      _remove(path)
  for path in directory.glob("*" + DELETING):
    _remove(path)


def _is_sealed_as(path: Path, name: str) -> bool:
  try:
    return (path / SEAL).read_text() == _seal_text(name, _hashes(path))
  except (OSError, ValueError):
    return False


def _hashes(folder: Path, sync: bool = False) -> dict[str, str]:
  """SHA-256 of every file in a folder but its seal, by relative name; `sync` first writes them through to the disk."""
  hashes = {}
  for path in sorted(folder.rglob("*")):
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
      if sync:
        sync_folder(path)
    elif name != SEAL:
      with path.open("rb") as stream:
        if sync:
          os.fsync(stream.fileno())
        hashes[name] = hashlib.file_digest(stream, "sha256").hexdigest()
  return hashes


def _seal_text(name: str, hashes: Mapping[str, str]) -> str:
  return json.dumps({"name": name, "files": hashes}, indent=2, sort_keys=True) + "\n"


def _remove(path: Path) -> None:
  """Removes a folder or a file, or nothing."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)
