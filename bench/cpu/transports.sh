#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# transports.sh BUILD: measures what carries the data of two ranks (transports.cpp) under OpenMPI
# and MPICH, and prints CSV for bench/results.
set -euo pipefail
build=$(realpath "$1")
header=$(date +%F),$(git rev-parse --short HEAD)
export PERSEID_ADDRESS=127.0.0.1 PERSEID_NUM_THREADS=1
echo "date,commit,ranks under,operation,bytes of a rank,transport,microseconds"
for mpi in openmpi mpich; do
  command=("mpirun.$mpi" -n 2)
  [[ $mpi == mpich ]] || command+=(--allow-run-as-root --oversubscribe --bind-to none)
  PERSEID_RENDEZVOUS=mpi:$mpi "${command[@]}" "$build/bench/cpu/transports" "$mpi" |
    sed "s/^/$header,/"
done
