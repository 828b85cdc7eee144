"""translate, score and evaluate on a finished run whose model was never trained."""

import functools
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from helpers.runs import save_run

from transformer_jax import evaluate, score, translate
from transformer_jax.commands import run_command
from transformer_jax.data.sentencepiece_model import SentencePieceVocabulary
from transformer_jax.decoding.translator import Translator


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  return save_run(tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
  """Loading twice with the same changes gives the same translator, so that nothing is compiled twice here."""
  monkeypatch.setattr(Translator, "load", load)


original = Translator.load


@functools.cache
def load_hashable(workdir, changes):
  return original(workdir, dict(changes))


def load(workdir, changes=None):
  return load_hashable(str(workdir), tuple((changes or {}).items()))


def run(main, *arguments):
  """Runs a command and returns its exit status."""
  with pytest.raises(SystemExit) as end:
    run_command(main, [str(argument) for argument in arguments])
  return end.value.code


STRANGE = [
  "the house",
  "",
  "a\u2028small\x85house\x0b\x0c",
  "👩‍👩‍👧 日本語\u00a0ein\u3000Haus\t!",
  "   ",
  "it is\r",
  "\u2028",
  "small",
]


def test_lines_in_lines_out(workdir, tmp_path, capfdbinary, caplog):
  """Users hit 14: as many lines out as in, blank ones blank, a line of 5,000 words cut and named."""
  lines = [*STRANGE, " ".join(["house"] * 5000), "ein Haus"]
  (tmp_path / "in").write_bytes("\n".join(lines).encode())
  assert run(translate.main, f"--workdir={workdir}", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}") == 0
  content = (tmp_path / "out").read_bytes()
  translations = content.decode().split("\n")
  assert len(translations) == len(lines) + 1 and translations.pop() == ""
  assert [i for i, text in enumerate(translations) if not text] == [1, 4, 6]
  warnings = [record.getMessage() for record in caplog.records]
  assert [text.split(" has ")[0] for text in warnings] == ["source line 4", "source line 9"]  # bytes of an emoji count
  assert warnings[1] == "source line 9 has 5000 pieces and is cut to the first 31"
  assert run(translate.main, f"--workdir={workdir}", f"--input={tmp_path / 'in'}") == 0
  assert capfdbinary.readouterr().out == content
  assert translations == load(workdir).translate(lines)


def test_standard_input_in_a_process_of_its_own(workdir):
  """Users hit 14: byte 0xFF ends with status 2 and its line's number before anything is written."""
  command = [
    sys.executable,
    "-m",
    "transformer_jax.translate",
    f"--workdir={workdir}",
    "--beam_size=2",
    "--max_extra=1",
  ]
  bad = subprocess.run(command, input=b"the house\n\nhouse\xff\n", capture_output=True, check=False)
  assert (bad.returncode, bad.stdout) == (2, b"")
  assert bad.stderr.decode().splitlines()[-1] == (
    "error: standard input, line 3: byte 0xFF is not valid UTF-8; convert the file to UTF-8"
  )
  good = subprocess.run(command, input=b"the house\n\n" + b" ".join([b"house"] * 5000), capture_output=True, check=True)
  expected = load(workdir, {"decoding.beam_size": 2, "decoding.max_extra": 1}).translate(
    ["the house", "", " ".join(["house"] * 5000)]
  )
  assert "warning: source line 3 has 5000 pieces and is cut to the first 31" in good.stderr.decode().splitlines()
  assert good.stdout.decode() == "".join(f"{line}\n" for line in expected)


def test_n_best_prints_the_scores_of_forced_decoding(workdir, tmp_path, capfdbinary):
  """Users hit 10: every printed log-probability is that of forced decoding."""
  lines = ["the house", "", "it is small"]
  (tmp_path / "in").write_text("\n".join(lines) + "\n")
  assert run(translate.main, f"--workdir={workdir}", f"--input={tmp_path / 'in'}", "--n_best=3") == 0
  printed = [line.split(" ||| ") for line in capfdbinary.readouterr().out.decode().split("\n")[:-1]]
  assert [fields[0] for fields in printed] == ["0", "0", "0", "1", "2", "2", "2"]
  assert printed[3] == ["1", "", "0.000000", "0.000000"]
  translator = load(workdir)
  found = [h for hypotheses in translator.translate_n_best(lines, 3) for h in hypotheses]
  sources = [ids for ids, n in zip(translator.encode_sources(lines), (3, 1, 3), strict=True) for _ in range(n)]
  forced = translator.score_ids(sources, [list(h.ids) for h in found])
  np.testing.assert_allclose([float(fields[2]) for fields in printed], forced, atol=1e-4)
  lengths = [max(len(h.ids), 1) for h in found]
  penalties = ((5 + np.array(lengths)) / 6) ** 0.6
  np.testing.assert_allclose([float(fields[3]) for fields in printed], forced / penalties, atol=1e-4)
  assert [fields[1] for fields in printed] == [h.text for h in found]


def test_score_prints_one_log_probability_a_line(workdir, tmp_path, capfdbinary):
  sources, targets = ["the house", "", "small"], ["das Haus", "", "ein kleines Haus"]
  (tmp_path / "source").write_text("\n".join(sources) + "\n")
  (tmp_path / "target").write_text("\n".join(targets))
  files = (f"--source={tmp_path / 'source'}", f"--target={tmp_path / 'target'}")
  assert run(score.main, f"--workdir={workdir}", *files) == 0
  printed = [float(line) for line in capfdbinary.readouterr().out.split()]
  np.testing.assert_allclose(printed, load(workdir).score(sources, targets), atol=1e-5)
  assert printed[0] < -1 and printed[1] == 0.0


@pytest.mark.parametrize(("main", "second"), [(score.main, "target"), (evaluate.main, "reference")])
def test_files_of_different_length_are_refused(workdir, tmp_path, capfd, main, second):
  """Users hit 15: both counts are named."""
  (tmp_path / "a").write_text("one\ntwo\n\n")
  (tmp_path / "b").write_text("one\ntwo\n")
  assert run(main, f"--workdir={workdir}", f"--source={tmp_path / 'a'}", f"--{second}={tmp_path / 'b'}") == 2
  error = capfd.readouterr().err
  assert "a has 3 lines" in error and "b has 2" in error and error.count("\n") == 1


def test_evaluate_scores_all_sentences_against_untouched_references(workdir, tmp_path, capfdbinary, monkeypatch):
  """Users hit 17: references never pass through the vocabulary; signature and number of sentences; none dropped."""
  sources = ["the house", "", "it is small", "a house"]
  references = ["Das\u00a0Haus \u2581 ist", "Nicht leer.", "", "ein Haus"]
  (tmp_path / "source").write_text("\n".join(sources) + "\n")
  (tmp_path / "reference").write_text("\n".join(references) + "\n")
  encoded = []
  encode_lines = SentencePieceVocabulary.encode
  monkeypatch.setattr(
    SentencePieceVocabulary, "encode", lambda self, texts: encoded.extend(texts) or encode_lines(self, texts)
  )
  arguments = [
    f"--source={tmp_path / 'source'}",
    f"--reference={tmp_path / 'reference'}",
    f"--output={tmp_path / 'out'}",
  ]
  assert run(evaluate.main, f"--workdir={workdir}", *arguments, "--json") == 0
  scores = json.loads(capfdbinary.readouterr().out)
  assert encoded == sources
  translations = (tmp_path / "out").read_text().split("\n")[:-1]
  assert len(translations) == 4 and translations[1] == ""
  assert scores["bleu"] == sacrebleu.corpus_bleu(translations, [references]).score
  assert scores["chrf"] == sacrebleu.corpus_chrf(translations, [references]).score
  assert scores["sentences"] == 4 and "tok:13a" in scores["signature"]
  assert run(evaluate.main, f"--workdir={workdir}", *arguments) == 0
  printed = capfdbinary.readouterr().out.decode()
  assert scores["signature"] in printed and "sentences 4" in printed
  assert run(evaluate.main, f"--workdir={workdir}", *arguments, "--metrics=per,paper_bleu", "--json") == 0
  other = json.loads(capfdbinary.readouterr().out)
  assert list(other) == ["per", "paper_bleu", "paper_bleu_signature", "sentences", "exact_match"]
  assert run(evaluate.main, f"--workdir={workdir}", *arguments, "--metrics=bleu,pre") == 2
  assert b"not 'pre' (nearest: per)" in capfdbinary.readouterr().err


def test_evaluate_scores_a_file_of_translations_without_a_run(workdir, tmp_path, capfd):
  """Users hit 17: whatever system made them; the metrics named, with the tokenizer named."""
  hypotheses, references = ["k a t", "", "h u n t"], ["k a t", "d", "h ʊ n d"]
  (tmp_path / "hyp").write_text("\n".join(hypotheses) + "\n")
  (tmp_path / "ref").write_text("\n".join(references) + "\n")
  arguments = [f"--hypotheses={tmp_path / 'hyp'}", f"--reference={tmp_path / 'ref'}"]
  assert run(evaluate.main, *arguments, "--metrics=wer,per", "--json") == 0
  scores = json.loads(capfd.readouterr().out)
  assert scores == {"wer": 200 / 3, "per": 300 / 8, "sentences": 3, "exact_match": 100 / 3}  # 3 of 8 phonemes are wrong
  assert run(evaluate.main, *arguments, "--tokenize=char", "--json") == 0
  scores = json.loads(capfd.readouterr().out)
  assert scores["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="char").score
  assert list(scores) == ["bleu", "chrf", "signature", "chrf_signature", "sentences", "exact_match"]
  assert run(evaluate.main, f"--workdir={workdir}", *arguments, "--json") == 0
  assert json.loads(capfd.readouterr().out)["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
  for wrong, message in (
    (f"--source={tmp_path / 'ref'}", "--source is about translating"),
    ("--beam_size=2", "--beam_size is about translating"),
    ("--tokenize=14a", "nearest: 13a"),
    ("--metrics=per,web", "nearest: wer"),
    (f"--workdir={tmp_path / 'none'}", "none"),
  ):
    assert run(evaluate.main, *arguments, wrong) == 2
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--beam_size=0"], "decoding.beam_size must be at least 1, not 0"),
    (["--method=bean"], "nearest: beam"),
    (["--n_best=5"], "beam_size"),
    (["--n_best=0"], "--n_best must be at least 1"),
    (["--method=greedy", "--n_best=2"], "greedy search has 1"),
    (["--top_p=1.5"], "decoding.top_p"),
    (["--output=/nowhere/out"], "--output=/nowhere/out"),
    (["in.txt"], "stray argument"),
    (["--lenght_penalty=1"], "length_penalty"),
    (["--workdir=/nowhere/run"], "/nowhere/run: no such folder"),
    (["--workdir="], "--workdir is missing"),
  ],
)
def test_mistakes_end_in_one_line(workdir, capfd, monkeypatch, arguments, message):
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"house\n")))
  assert run(translate.main, f"--workdir={workdir}", *arguments) == 2
  captured = capfd.readouterr()
  assert captured.out == ""
  assert captured.err.startswith("error: ") and message in captured.err and captured.err.count("\n") == 1


def test_unfinished_and_damaged_runs_are_refused(workdir, tmp_path, capfd):
  unfinished = tmp_path / "unfinished"
  unfinished.mkdir()
  assert run(translate.main, f"--workdir={unfinished}") == 2
  assert "config.json" in capfd.readouterr().err
  for name in ("config.json", "vocabulary.model"):
    (unfinished / name).write_bytes((workdir / name).read_bytes())
  assert run(translate.main, f"--workdir={unfinished}") == 2
  assert "training is not finished" in capfd.readouterr().err
  (unfinished / "config.json").write_text("{")
  assert run(translate.main, f"--workdir={unfinished}") == 2
  assert "damaged" in capfd.readouterr().err
