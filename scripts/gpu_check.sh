#!/usr/bin/env bash
# What only a card can show, on a machine with one NVIDIA card, in under 8 minutes, with nothing to download:
# the tests marked `gpu`, then every phase on random weights of 1 and of 7 billion parameters. Prints one page.
#
#   scripts/gpu_check.sh [MODEL ...]      default: random:tinyllama-1.1b random:llama2-7b
#   DEVICE=cpu scripts/gpu_check.sh tiny  tries the script itself, where there is no card
#   PYTHON=python3                        the interpreter; default: .venv/bin/python
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
status=0
timeout 150 "$PYTHON" -m pytest -q -m gpu -rs $(grep -rl 'mark\.gpu' --include='*.py' tests) 2>&1 | tail -n 15
[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
"$PYTHON" scripts/gpu_check.py --device "${DEVICE:-cuda}" --seconds 300 "$@" || status=1
exit $status
