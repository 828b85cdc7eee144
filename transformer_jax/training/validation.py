"""The validation loss: on the whole set, without dropout, whatever the batches and the devices."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from transformer_jax.data.batches import Plan
from transformer_jax.training.objective import Sums
from transformer_jax.training.step import process_share, put_batch


def mean_loss(eval_step: Callable[[PyTree, object], Sums], params: PyTree, plan: Plan, mesh: Mesh) -> dict[str, float]:
  """Returns `nll` and `loss` (smoothed), means over all target pieces in nats, and `pieces`, their number.

  The last, incomplete batch counts in full, and the sums are added up in float64. All processes with devices in the mesh
  must call it, and get the same.
  """
  order = plan.epoch(0)
  share = process_share(mesh)
  # The results stay on the devices until all batches are under way.
  sums = [eval_step(params, put_batch(order.rows(i, *share), mesh)) for i in range(len(order))]
  loss, nll, pieces = np.sum(np.array(jax.device_get(sums), np.float64), axis=0)
  return {"nll": float(nll / pieces), "loss": float(loss / pieces), "pieces": int(pieces)}
