"""The whole configuration of a run: every field with its meaning, choices and default.

A config file (`configs/*.py`) calls `default_config()`, changes some fields and returns it. The dictionary is locked, so a
misspelt field fails where it is written; `check` (in `transformer_jax/checks.py`) then holds every value against its
type, range and the other fields. The defaults are the base model of "Attention Is All You Need" and its training recipe.
"""

from ml_collections import ConfigDict


def default_config() -> ConfigDict:
  """Returns the default configuration, locked: fields can be changed, not added."""
  config = ConfigDict()
  config.seed = 0  # of the initial parameters, the order of the data and the dropout masks
  # A finished run directory to start from (fine-tuning): its parameters and vocabulary, with a new optimizer. Empty: from scratch.
  config.init_from = ""
  # What is learnt: "translate": target from source; "classify": a label from a text; "lm": running text, piece by piece;
  # "mlm": masked pieces of a text, to start a classifier from.
  config.task = "translate"
  config.model = model_fields()
  config.vocabulary = vocabulary_fields()
  config.data = data_fields()
  config.batch = batch_fields()
  config.optimizer = optimizer_fields()
  config.training = training_fields()
  config.decoding = decoding_fields()
  config.evaluation = evaluation_fields()
  return config.lock()


def model_fields() -> ConfigDict:
  """The model (paper, section 3) and its variants, see docs/model.md."""
  model = ConfigDict()

  # "transformer", or the recurrent network that it replaced: "lstm", "gru". Of the fields below these share sizes, dropout,
  # embeddings, dtype and their own.
  model.kind = "transformer"
  # "lstm", "gru": what reads the source: "additive" (Bahdanau), "dot" (scaled), "none"
  model.recurrent_attention = "additive"
  model.pooling = "mean"  # task "classify": a text is the "mean" of its pieces, or its "first" one (BOS, put before it)
  # "lstm", "gru": width of the cells; 0: what gives as many parameters as the Transformer of the same fields
  model.recurrent_size = 0

  # Sizes.
  model.num_layers = 6  # N: layers of the encoder, and of the decoder unless num_decoder_layers says otherwise
  model.num_decoder_layers = 0  # layers of the decoder; 0: as many as num_layers
  model.d_model = 512  # width of the residual stream
  model.d_ff = 2048  # inner width of the position-wise feed-forward network
  model.num_heads = 8  # h: attention heads
  # heads of keys and values, each shared by a group of query heads (1: by all); 0: as many as num_heads
  model.num_kv_heads = 0
  model.d_k = 0  # width of a query and a key, per head; 0: d_model / num_heads
  model.d_v = 0  # width of a value, per head; 0: d_model / num_heads

  # What is dropped in training.
  model.dropout = 0.1  # P_drop on every sub-layer's output and on the sum of embedding and position
  model.attention_dropout = 0.0  # the same on the attention weights
  model.ffn_dropout = 0.0  # the same inside the feed-forward network, after its activation
  model.layer_drop = 0.0  # probability that a whole layer is passed over

  # Norms and residual connections.
  # Where the norm stands: "post" = Norm(x + Sublayer(x)), the paper; "pre" = x + Sublayer(Norm(x)), with a final norm;
  # "both" = x + Norm(Sublayer(Norm(x))), with a final norm (sandwich); "none".
  model.norm = "post"
  model.norm_kind = "layer"  # "layer": LayerNorm, "rms": RMSNorm
  # multiply x by DeepNorm's alpha in Norm(x + Sublayer(x)), for deep stacks; goes with init "deepnorm"
  model.deepnorm = False
  model.residual_self_attention = True  # the "x +" around self-attention
  model.residual_cross_attention = True  # around the attention to the source
  model.residual_feed_forward = True  # around the feed-forward network

  # Inside the sub-layers.
  # of the feed-forward network: "relu", "gelu", or gated, with a third matrix: "swiglu", "geglu"
  model.activation = "relu"
  # scores times 1/sqrt(d_k), the paper; "d_model": 1/sqrt(d_model); "none": 1; "learned": per head
  model.attention_scale = "d_k"
  model.qk_norm = False  # normalise queries and keys of each head
  # Which projections are one matrix: "none", "qk" (query and key), "qv", "kv", "qkv".
  model.tie_projections = "none"
  model.attention_bias = False  # biases in the projections of attention
  model.ffn_bias = True  # biases in the feed-forward network
  # Which matrices are one: "all" = source and target embedding and output layer (the paper; needs a shared vocabulary),
  # "target" = target embedding and output layer, "none".
  model.share_embeddings = "all"
  model.scale_embeddings = True  # embeddings times sqrt(d_model), the paper; GPT and BERT do without

  # Positions.
  # "sinusoidal" (the paper), "learned", "shaw" (relative, clipped), "t5" (bucketed bias), "rotary", "alibi", "none".
  model.positions = "sinusoidal"
  model.positions_in = "first"  # "sinusoidal" and "learned" are added before the "first" layer, or before "every" one
  model.max_positions = 512  # "learned": rows of the table
  # "learned", where data and search go beyond the table: "refuse", or "clip" to the last row
  model.beyond_positions = "refuse"
  model.rotary_scaling = "none"  # for inputs rotary_factor times as long as those trained on: "linear", "ntk"
  model.rotary_factor = 1.0  # how many times as long
  model.shaw_clip = 16  # distances beyond so many places are one
  model.t5_buckets = 32  # kinds of distances

  # What attention sees, and how it is computed.
  model.causal_mask = True  # hide what comes after a target piece from it; without it, decoding is not what was trained
  model.source_padding_mask = True  # in the encoder, hide padding and the other pairs of a packed row
  model.cross_padding_mask = True  # the same in the attention to the source
  model.local_window_size = 0  # self-attention sees so many places to either side; 0: all
  model.local_window_in = ("encoder", "decoder")  # where that holds
  # "xla": as XLA compiles it; "chunked": exact, with memory linear in the length; "cudnn": NVIDIA's fused kernel (a GPU and
  # bfloat16 only).
  model.kernel = "xla"

  # Initial matrices: "glorot" (uniform, variance 2 / (inputs + outputs)); "unit_scaling" (uniform, variance 1 / inputs);
  # "normal" (deviation 0.02, of the last matrix of each sub-layer 0.02 / sqrt(sub-layers), as GPT-2); "deepnorm".
  model.init = "glorot"
  # of the arithmetic: "float32" or "bfloat16"; parameters, softmax, norms and loss are float32
  model.dtype = "float32"
  return model


def vocabulary_fields() -> ConfigDict:
  """How text becomes pieces. Trained once on the training side and kept in the run directory."""
  vocabulary = ConfigDict()
  # "bpe", "unigram": SentencePiece with byte fallback, on raw text. For text that is already split by spaces: "subwords"
  # (`@@ ` joins a piece to the next one), "words" (joined by spaces). "characters": every character is a piece.
  vocabulary.kind = "bpe"
  vocabulary.target_kind = ""  # the same for the target side, where it differs; empty: as kind
  vocabulary.shared = True  # one vocabulary for both sides, or one each
  # pieces, the 256 bytes and the special ones included; "subwords", "words", "characters": at most
  vocabulary.size = 37_000
  vocabulary.target_size = 0  # the same for a separate target vocabulary; 0: as size
  vocabulary.file = ""  # an existing SentencePiece model (or piece list) to use instead of training one
  vocabulary.target_file = ""  # the same for a separate target vocabulary
  # share of the characters that get a piece of their own; the rest is spelled in bytes
  vocabulary.character_coverage = 0.9995
  # SentencePiece is trained on at most so many pairs, drawn evenly from the corpus
  vocabulary.training_pairs = 1_000_000
  return vocabulary


def data_fields() -> ConfigDict:
  """Which text. A corpus is named by one string:

  `tfds:wmt14_translate/de-en`     a TFDS translation set; `tfds:...@split` names a split other than the field's own
  `text:train.en,train.de`         two line-aligned files, plain, .gz or .xz
  `tsv:train.tsv`                  one pair a line, source TAB target; plain, .gz or .xz
  `labelled:train.tsv`             task "classify": label TAB text, or label SPACE text
  `lines:train.txt`                task "mlm": a text a line
  `stream:book.txt@0:0.9`          task "lm": running text, the whole file or a part of its characters
  `tsv:train.tsv@0:0.9`            of any of these files a part, by its lines: here the first nine tenths
  `tsv:train.tsv@shuffled:0:0.9`   the same of its lines after a fixed shuffle, for a file that is sorted
  `reverse`, `copy`                synthetic strings of symbols; `reverse:symbols=20,length=10,pairs=10000` sets their sizes
  """
  data = ConfigDict()
  data.train = ("tfds:wmt14_translate/de-en",)  # one corpus or several, mixed
  data.weights = ()  # how often each training corpus is passed over in an epoch (2.0: twice, 0.5: half of it); (): once each
  data.valid = "tfds:wmt14_translate/de-en"  # perplexity, early stopping and every choice
  data.test = ("newstest2014=tfds:wmt14_translate/de-en",)  # test sets as "name=corpus"; the first is the main one
  data.source_language = "en"  # which language of a TFDS set is the source
  data.target_language = "de"  # and which the target
  data.folder = ""  # relative file names in the fields above start here; empty: the current directory
  data.max_length = 256  # pieces, end of sentence included: longer pairs are not trained on, longer inputs are cut
  # pairs whose longer side has over max_ratio times the pieces of the shorter are not trained on; 0: all are
  data.max_ratio = 0.0
  data.cache = "~/.cache/transformer_jax"  # downloads, prepared TFDS sets and encoded corpora, shared by all runs
  return data


def batch_fields() -> ConfigDict:
  """What one step sees."""
  batch = ConfigDict()
  batch.tokens = 25_000  # at most so many source and so many target pieces a step, padding included, over all devices
  # several pairs in one row, attention kept inside each pair; False: a pair a row, in length buckets
  batch.packing = True
  # target pieces in a packed row (source rows follow the corpus); 0: data.max_length, or a little more
  batch.row_length = 0
  batch.buckets = ()  # without packing: the row lengths that are compiled, e.g. (16, 32, 64); (): chosen from the corpus
  return batch


def optimizer_fields() -> ConfigDict:
  """Adam and its learning rate (paper, section 5.3)."""
  optimizer = ConfigDict()
  # "adam"; "adamw" with weight_decay; "muon": orthogonal updates for the matrices of the layers, Adam for the rest, which
  # learns faster per step from small corpora, at one learning rate for both; "lion": signs of a running mean (a rate of a
  # third to a tenth of Adam's); "adafactor": second moments by row and column, to save memory (a rate relative to the parameters).
  optimizer.name = "adam"
  optimizer.beta1 = 0.9  # how much of Adam's running mean of the gradients stays at each update
  optimizer.beta2 = 0.98  # and of its running mean of their squares
  optimizer.epsilon = 1e-9  # is added to the square root that Adam divides by
  optimizer.weight_decay = 0.0  # decoupled, on matrices only (not on biases and norms); not with "adam"
  optimizer.clip_norm = 0.0  # gradients whose global norm is larger are scaled to it; 0: never
  # "paper": d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). All others rise linearly to learning_rate over
  # warmup_steps, then: "constant", "linear" and "cosine" fall to learning_rate * final_fraction at the last step, "inverse_sqrt".
  optimizer.schedule = "paper"
  optimizer.learning_rate = 0.0  # the peak; the "paper" schedule has its own and needs 0
  optimizer.warmup_steps = 4_000  # updates over which the rate rises
  optimizer.final_fraction = 0.0  # "linear" and "cosine": the last rate as a share of the peak
  return optimizer


def training_fields() -> ConfigDict:
  """The run: how long, how often it is looked at, what is kept."""
  training = ConfigDict()
  training.steps = 100_000  # updates; a run ends by steps, never by the clock
  training.label_smoothing = 0.1  # probability mass spread evenly over the wrong pieces
  training.accumulate = 1  # parts that a batch is split into to save memory; the update is the same
  training.fsdp = False  # shard parameters and optimizer state over the devices instead of copying them
  training.log_every = 1  # updates between two lines of metrics.jsonl; 1: every update leaves one
  training.evaluate_every = 1_000  # steps between two validations, each with a checkpoint; 0: once an epoch
  training.checkpoint_every = 0  # steps between further checkpoints; 0: only at validations
  training.keep = 5  # the newest checkpoints that are kept (never fewer than `average`)
  training.keep_best = 1  # and those with the lowest validation loss
  training.average = 5  # the final parameters are the mean of the last so many checkpoints; 1: the last one
  training.patience = 0  # end after so many validations in a row without a new lowest loss; 0: never
  training.max_nonfinite = 10  # end with an error after so many skipped (non-finite) updates in a row
  training.compilation_cache = True  # keep compiled programs under data.cache for the next run
  return training


def decoding_fields() -> ConfigDict:
  """How translations are searched, in validation, in testing and in `translate` alike (paper, section 6.1)."""
  decoding = ConfigDict()
  decoding.method = "beam"  # "beam", "greedy" or "sample"
  decoding.beam_size = 4  # hypotheses that "beam" keeps at each step
  decoding.length_penalty = 0.6  # alpha in ((5 + n) / 6)^alpha, which divides the log-probability of n pieces
  decoding.max_extra = 50  # a translation has at most so many pieces more than its source
  decoding.temperature = 1.0  # "sample": logits are divided by it
  decoding.top_k = 0  # "sample": among the so many likeliest pieces; 0: among all
  decoding.top_p = 1.0  # "sample": among the likeliest pieces that together have this probability
  decoding.batch_tokens = 4_096  # source pieces translated at a time
  return decoding


def evaluation_fields() -> ConfigDict:
  """How test translations are scored, see docs/metrics.md."""
  evaluation = ConfigDict()
  # Figures of every test set, the one to look at first: "bleu", "chrf" (sacreBLEU), "paper_bleu" (tokenised, compounds split),
  # "wer", "per" (words and phonemes that are wrong, for g2p), "exact_match" (which is always there).
  evaluation.metrics = ("bleu", "chrf")
  evaluation.tokenize = "13a"  # sacreBLEU's tokenizer for BLEU: "13a", "zh", "ja-mecab", "intl", "char", "none"
  evaluation.lowercase = False  # BLEU and chrF without case
  evaluation.samples = 3  # validation sentences translated at every validation
  evaluation.attention_figure = True  # draw the attention of a test sentence at the end (task translate)
  return evaluation
