"""Fields of a configuration that contradict each other; each contradiction is one line."""

from ml_collections import ConfigDict

from transformer_jax.errors import UserError


def check_combinations(config: ConfigDict) -> None:
  """Raises UserError where two fields contradict each other."""
  check_task(config)
  check_attention(config.model)
  check_positions(config)
  check_vocabulary(config)
  check_data(config)
  if not config.evaluation.metrics:
    raise UserError('evaluation.metrics names no metric; for exact matches alone it is ("exact_match",)')
  check_batch(config)
  check_training(config)


def check_task(config: ConfigDict) -> None:
  """What a task needs of the model, the batches and the search."""
  task = config.task
  if task != "translate" and config.model.kind != "transformer":
    raise UserError(f'task "{task}" needs model.kind "transformer", not "{config.model.kind}"')
  if task == "classify" and config.batch.packing:
    raise UserError('task "classify" needs batch.packing False: a label belongs to a row')
  vocabulary = config.vocabulary
  if task == "classify" and (vocabulary.shared or (vocabulary.target_kind or vocabulary.kind) != "words"):
    raise UserError(
      'task "classify" needs vocabulary.shared False and vocabulary.target_kind "words": a label is one word'
    )
  if task == "mlm" and config.data.test:
    raise UserError('task "mlm" has no test: data.test must be ()')
  if task == "lm" and config.data.weights:
    raise UserError('task "lm" reads its texts one after the other: data.weights must be ()')
  if task == "lm" and not config.batch.row_length:
    raise UserError('task "lm" needs batch.row_length, the pieces of a window')
  if task == "lm" and config.batch.row_length > config.batch.tokens:
    raise UserError(f"batch.row_length {config.batch.row_length} is more than batch.tokens {config.batch.tokens}")
  if task in ("lm", "mlm") and not vocabulary.shared:
    raise UserError(f'task "{task}" has one vocabulary: vocabulary.shared must be True')
  if task == "lm" and not config.model.causal_mask:
    raise UserError('task "lm" needs model.causal_mask: a piece that is seen need not be predicted')


def check_attention(model: ConfigDict) -> None:
  """Heads, widths, kernels and norms."""
  if model.d_model % model.num_heads and not (model.d_k and model.d_v):
    raise UserError(
      f"model.d_model {model.d_model} is not divisible by model.num_heads {model.num_heads}: set model.d_k and model.d_v"
    )
  d_k, d_v = (width or model.d_model // model.num_heads for width in (model.d_k, model.d_v))
  kv_heads = model.num_kv_heads or model.num_heads
  if model.num_heads % kv_heads:
    raise UserError(
      f"model.num_heads {model.num_heads} is not divisible by model.num_kv_heads {kv_heads}: the groups would differ in size"
    )
  tied = model.tie_projections
  if tied != "none" and "v" in tied and d_k != d_v:
    raise UserError(f'model.tie_projections "{tied}" needs model.d_k {d_k} equal to model.d_v {d_v}')
  if "q" in tied and kv_heads != model.num_heads:
    raise UserError(
      f'model.tie_projections "{tied}" needs as many key and value heads ({kv_heads}) as query heads ({model.num_heads})'
    )
  if model.kernel == "cudnn" and (model.dtype != "bfloat16" or d_k != d_v):
    raise UserError("model.kernel cudnn needs model.dtype bfloat16 and model.d_k equal to model.d_v; use xla")
  if model.kernel != "xla":
    for name, value in (("attention_dropout", model.attention_dropout), ("positions", model.positions == "shaw")):
      if value:
        raise UserError(
          f'model.kernel "{model.kernel}" never holds the attention weights, which model.{name} {model[name]} needs; use xla'
        )
  if model.deepnorm and model.norm != "post":
    raise UserError(f'model.deepnorm needs model.norm "post", not "{model.norm}"')
  if model.deepnorm and not (
    model.residual_self_attention and model.residual_cross_attention and model.residual_feed_forward
  ):
    raise UserError("model.deepnorm scales residual connections: leave all of model.residual_… True")


def check_positions(config: ConfigDict) -> None:
  """Position encodings and windows."""
  model = config.model
  d_k = model.d_k or model.d_model // model.num_heads
  if model.positions == "rotary" and d_k % 2:
    raise UserError(f'model.positions "rotary" turns pairs of features: model.d_k must be even, not {d_k}')
  if model.rotary_scaling != "none" and model.positions != "rotary":
    raise UserError(f'model.rotary_scaling "{model.rotary_scaling}" needs model.positions "rotary"')
  if (model.rotary_scaling == "none") != (model.rotary_factor == 1.0):
    raise UserError(
      f'model.rotary_factor {model.rotary_factor} and model.rotary_scaling "{model.rotary_scaling}" do not go together: '
      "set both, or neither"
    )
  if model.positions_in == "every" and model.positions not in ("sinusoidal", "learned"):
    raise UserError(
      f'model.positions_in "every" needs model.positions "sinusoidal" or "learned": "{model.positions}" adds nothing to a '
      "layer's input"
    )
  if model.positions == "t5" and model.t5_buckets % 4:
    raise UserError(f"model.t5_buckets must be divisible by 4 (two sides, narrow and wide), not {model.t5_buckets}")
  longest, fields = {
    "translate": (config.data.max_length + config.decoding.max_extra, "data.max_length and decoding.max_extra"),
    "classify": (config.data.max_length + (model.pooling == "first"), "data.max_length"),
    "mlm": (config.data.max_length, "data.max_length"),
    "lm": (config.batch.row_length, "batch.row_length"),
  }[config.task]
  if model.positions == "learned" and model.beyond_positions == "refuse" and longest > model.max_positions:
    raise UserError(
      f"model.max_positions {model.max_positions} is less than the {longest} positions that {fields} allow, and learned "
      'positions know no others; model.beyond_positions "clip" uses the last one for all beyond'
    )
  places = ("encoder", "decoder")
  for place in model.local_window_in:
    if place == "cross":
      raise UserError(
        'model.local_window_in cannot name "cross": source and target have no places in common to measure a window on'
      )
    if place not in places:
      raise UserError(f'model.local_window_in must be among "encoder" and "decoder", not {place!r}')


def check_vocabulary(config: ConfigDict) -> None:
  """One vocabulary or two."""
  model, vocabulary = config.model, config.vocabulary
  if config.task == "translate" and model.share_embeddings == "all" and not vocabulary.shared:
    raise UserError(
      'model.share_embeddings "all" needs vocabulary.shared True; with two vocabularies use "target" or "none"'
    )
  if vocabulary.shared and (vocabulary.target_kind or vocabulary.target_size or vocabulary.target_file):
    raise UserError("vocabulary.target_kind, target_size and target_file need vocabulary.shared False")


def check_data(config: ConfigDict) -> None:
  """Corpora and their weights."""
  data = config.data
  if not data.train:
    raise UserError("data.train names no corpus")
  if not data.valid:
    raise UserError("data.valid names no corpus")
  if data.weights and len(data.weights) != len(data.train):
    raise UserError(f"data.weights has {len(data.weights)} values for {len(data.train)} corpora in data.train")
  if any(weight <= 0 for weight in data.weights):
    raise UserError(f"data.weights must be above 0, not {data.weights}")
  if data.max_ratio and data.max_ratio < 1:
    raise UserError(f"data.max_ratio must be 0 (off) or at least 1, not {data.max_ratio}")


def check_batch(config: ConfigDict) -> None:
  """Row lengths and the token budget."""
  batch, data = config.batch, config.data
  if config.task == "lm":
    return  # windows have no buckets, and data.max_length means nothing to them
  if batch.tokens < data.max_length:
    raise UserError(
      f"batch.tokens {batch.tokens} is less than data.max_length {data.max_length}: the longest pair would not fit"
    )
  if batch.row_length and batch.row_length < data.max_length:
    raise UserError(f"batch.row_length {batch.row_length} is less than data.max_length {data.max_length}")
  if batch.row_length > batch.tokens:
    raise UserError(f"batch.row_length {batch.row_length} is more than batch.tokens {batch.tokens}")
  if batch.row_length and not batch.packing:
    raise UserError("batch.row_length needs batch.packing True; without packing use batch.buckets")
  if batch.buckets:
    if batch.packing:
      raise UserError("batch.buckets needs batch.packing False")
    if list(batch.buckets) != sorted(set(batch.buckets)) or batch.buckets[0] < 1:
      raise UserError(f"batch.buckets must rise, not {batch.buckets}")
    if batch.buckets[-1] != data.max_length:
      raise UserError(f"the last of batch.buckets must be data.max_length {data.max_length}, not {batch.buckets[-1]}")


def check_training(config: ConfigDict) -> None:
  """Optimizer and schedule, early stopping."""
  optimizer, training = config.optimizer, config.training
  if optimizer.schedule == "paper" and optimizer.learning_rate:
    raise UserError('optimizer.learning_rate must be 0 with optimizer.schedule "paper", which sets the rate by itself')
  if optimizer.schedule != "paper" and not optimizer.learning_rate:
    raise UserError(f'optimizer.learning_rate is missing: optimizer.schedule "{optimizer.schedule}" needs its peak')
  if optimizer.schedule in ("paper", "inverse_sqrt") and not optimizer.warmup_steps:
    raise UserError(f'optimizer.warmup_steps must be at least 1 with optimizer.schedule "{optimizer.schedule}"')
  if optimizer.weight_decay and optimizer.name == "adam":
    raise UserError('optimizer.weight_decay needs optimizer.name "adamw", "muon", "lion" or "adafactor", not "adam"')
  if training.patience and not training.keep_best:
    raise UserError("training.patience needs training.keep_best of at least 1, so that the best checkpoint is kept")
