"""TensorBoard's writer, without loading PyTorch for it."""

import sys

# tensorboardX imports PyTorch where that is installed, for tensors that it might be given: seconds of every start.
_loaded = sys.modules.get("torch")
sys.modules["torch"] = None  # type: ignore[assignment]  # to import it now is an ImportError, which tensorboardX expects
try:
  from tensorboardX import SummaryWriter
finally:
  del sys.modules["torch"]
  if _loaded is not None:
    sys.modules["torch"] = _loaded

__all__ = ["SummaryWriter"]
