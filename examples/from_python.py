# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of NumPy arrays by the program perseid, held against NumPy in float64."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: NumPy is not installed")
    sys.exit(77)

program = sys.argv[1] if len(sys.argv) > 1 else "perseid"
batch, length, heads, dim = 2, 100, 4, 64
random = np.random.default_rng(0)
arrays = {
    name: random.standard_normal((batch, length, heads, dim), dtype=np.float32)
    for name in ("query", "key", "value")
}

with tempfile.TemporaryDirectory() as folder:
    command = [program, "run", "attention", "--causal", "bottom-right"]
    for name, array in arrays.items():
        path = os.path.join(folder, name + ".npy")
        np.save(path, array)
        command += ["--" + name, path]
    result = os.path.join(folder, "out.npy")
    subprocess.run(command + ["--out", result], check=True)
    out = np.load(result)

q, k, v = (array.astype(np.float64) for array in arrays.values())
scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(dim)
scores[..., np.triu(np.ones((length, length), dtype=bool), 1)] = -np.inf
weights = np.exp(scores - scores.max(-1, keepdims=True))
expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)

error = np.abs(out - expected).max()
print(f"out {out.shape} {out.dtype}, largest error {error:.1e}")
sys.exit(0 if error < 1e-5 else 1)
