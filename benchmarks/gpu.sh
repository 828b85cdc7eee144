#!/usr/bin/env bash
# Measures one NVIDIA GPU in at most 5 minutes: see the head of gpu.py, and `bash benchmarks/gpu.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
# The package from this folder, also where it is not installed.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# XLA's own defaults are what is measured, so XLA_FLAGS stays as it is: a flag that a version does not know ends the process.
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-1}"
# Where no package index answers, pip gives up at once and synthetic ids take the corpus's place.
export PIP_RETRIES="${PIP_RETRIES:-0}" PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-5}"
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
