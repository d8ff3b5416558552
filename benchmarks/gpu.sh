#!/usr/bin/env bash
# What the GPU figures of this project come from. On a machine with an NVIDIA GPU, from the project's root:
#   PYTHON=python3 benchmarks/gpu.sh [step...]
# Logs go to ${OUT:-benchmarks/logs}, results to experiments/. Steps by default: right (tests, doctor, checks of every op), tune,
# bench, profile. Steps that prove the clock, when named: aa (a kernel against itself, 100 times), twice (the whole bench again:
# are its rows found again?), ncu (our times beside ncu's), host (what a call costs the host), sanitize (kernels under
# compute-sanitizer), memory (how that of attention grows with the length). OPS="rmsnorm softmax" is for some ops only. A CPU has its own A/A:
#   kernelyard bench rmsnorm --kernel cpp.onepass --shape 512x4096 --against-itself --repeat 100
# TRIALS is the number of trials for each kernel and workload (8).
set -uo pipefail
steps=(right tune bench profile)
python=${PYTHON:-python3} out=${OUT:-benchmarks/logs} trials=${TRIALS:-8}
read -ra ops <<<"${OPS:-rmsnorm softmax vector_add rmsnorm_backward add_rmsnorm add_rmsnorm_backward softmax_backward swiglu swiglu_backward rope matmul linear_swiglu attention attention_decode rmsnorm_linear rmsnorm_linear_swiglu rope_attention_decode}"
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PATH:/usr/local/cuda/bin"  # where toolkits put ncu and compute-sanitizer

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
  for op in "${ops[@]}"; do step "check-$op" 540 "$python" -m kernelyard check "$op" & done
  wait
}

sanitize() { # side by side, and on small shapes: nothing here is timed
  for op in "${ops[@]}"; do step "sanitize-$op" 150 "$python" -m kernelyard check "$op" --sanitize & done
  wait
}

twice() { # the second run finds what the first one compiled
  local run op lists=()
  for run in 1 2; do
    lists+=("$([ $run = 1 ] && echo --first || echo --second)")
    for op in "${ops[@]}"; do
      step "twice-$op-$run" 240 "$python" -m kernelyard bench "$op" --seconds 0.2 --save "bench-$op-gpu-$run"
      lists+=("$(sed -n 's/^saved //p' "$out/twice-$op-$run.log" | tail -n 1)/results.json")
    done
  done
  step twice 30 "$python" benchmarks/twice.py "${lists[@]}" --save twice-gpu
}

for one in "${@:-${steps[@]}}"; do
  case $one in
    right) right ;;
    tune) for op in "${ops[@]}"; do step "tune-$op" 540 "$python" -m kernelyard tune "$op" --trials "$trials" --save "tune-$op-gpu"; done ;;
    tune-*) step "$one" 540 "$python" -m kernelyard tune "${one#tune-}" --trials "$trials" --save "$one-gpu" ;;
    bench) step bench 300 "$python" -m kernelyard bench rmsnorm --seconds 1 --save bench-rmsnorm-gpu ;;
    aa) step aa 180 "$python" -m kernelyard bench rmsnorm --kernel triton.row --shape 4096x8192 --dtype bf16 --seconds 0.3 \
      --against-itself --repeat 100 --save aa-gpu ;;
    twice) twice ;;
    ncu) step ncu 240 "$python" benchmarks/against_ncu.py --save against-ncu ;;
    host) step host 60 "$python" benchmarks/host_time.py --device cuda --save host-time-gpu ;;
    sanitize) sanitize ;;
    memory) step memory 400 "$python" benchmarks/attention_memory.py --device cuda --save attention-memory-gpu --kernel gluon.specialized \
      --kernel triton.twoloop --kernel torch.plain --kernel torch.cudnn --kernel torch.flash --kernel torch.eager --kernel torch.math ;;
    profile) step profile 400 "$python" -m kernelyard profile --preset 1b --save profile-1b-gpu ;;
    *) echo "no step '$one'; there are ${steps[*]} aa twice ncu host sanitize memory" >&2; exit 2 ;;
  esac
done
