#!/usr/bin/env bash
# What the GPU figures of this project come from. On a machine with an NVIDIA GPU, from the project's root:
#   PYTHON=python3 benchmarks/gpu.sh [step...]
# Logs go to ${OUT:-benchmarks/logs}, results to experiments/. Steps, in this order by default:
set -uo pipefail
steps=(tests doctor check tune bench profile)
python=${PYTHON:-python3} out=${OUT:-benchmarks/logs}
mkdir -p "$out"

step() { # name, seconds, command...
  local name=$1 limit=$2 code
  shift 2
  SECONDS=0
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  tail -n "${TAIL:-40}" "$out/$name.log"
  echo "== $name: exit $code after $SECONDS s: $*"
}

yard() { "$python" -m kernelyard "$@"; }
export -f yard
export python

for one in "${@:-${steps[@]}}"; do
  case $one in
    tests) step tests 420 make test-gpu "PYTHON=$python" ;;
    doctor) step doctor 120 bash -c 'yard doctor' ;;
    check) for op in vector_add softmax rmsnorm; do step "check-$op" 240 bash -c "yard check $op"; done ;;
    tune) step tune 540 bash -c 'yard tune rmsnorm softmax vector_add --save tune-gpu' ;;
    bench) step bench 300 bash -c 'yard bench rmsnorm --seconds 1 --save bench-rmsnorm-gpu' ;;
    profile) step profile 400 bash -c 'yard profile --preset 1b --save profile-1b-gpu' ;;
    *) echo "no step '$one'; there are ${steps[*]}" >&2; exit 2 ;;
  esac
done
