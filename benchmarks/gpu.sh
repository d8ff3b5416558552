#!/usr/bin/env bash
# What the GPU figures of this project come from. On a machine with an NVIDIA GPU, from the project's root:
#   PYTHON=python3 benchmarks/gpu.sh [step...]
# Logs go to ${OUT:-benchmarks/logs}, results to experiments/. Steps: right (tests, doctor, checks of every op), tune, bench,
# profile. TRIALS is the number of trials for each kernel and workload (8).
set -uo pipefail
steps=(right tune bench profile)
python=${PYTHON:-python3} out=${OUT:-benchmarks/logs} trials=${TRIALS:-8}
ops=(rmsnorm softmax vector_add)
mkdir -p "$out"

step() { # name, seconds, command...
  local name=$1 limit=$2 code start=$SECONDS
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  { tail -n "${TAIL:-30}" "$out/$name.log"; echo "== $name: exit $code after $((SECONDS - start)) s: $*"; } >"$out/$name.tail"
  cat "$out/$name.tail"
}

right() { # side by side: nothing here is timed
  step tests 300 make test-gpu "PYTHON=$python" &
  step doctor 300 "$python" -m kernelyard doctor &
  for op in "${ops[@]}"; do step "check-$op" 300 "$python" -m kernelyard check "$op" & done
  wait
}

for one in "${@:-${steps[@]}}"; do
  case $one in
    right) right ;;
    tune) for op in "${ops[@]}"; do step "tune-$op" 540 "$python" -m kernelyard tune "$op" --trials "$trials" --save "tune-$op-gpu"; done ;;
    tune-*) step "$one" 540 "$python" -m kernelyard tune "${one#tune-}" --trials "$trials" --save "$one-gpu" ;;
    bench) step bench 300 "$python" -m kernelyard bench rmsnorm --seconds 1 --save bench-rmsnorm-gpu ;;
    profile) step profile 400 "$python" -m kernelyard profile --preset 1b --save profile-1b-gpu ;;
    *) echo "no step '$one'; there are ${steps[*]}" >&2; exit 2 ;;
  esac
done
