# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention forward on a GPU, bf16, beside FlashAttention-3 and cuDNN in one run, in TFLOP/s of visible
scores: single launches, and launches back to back.

    python3 flash_attention_3.py libperseid.so flash_attention_3_128_causal.so...

Each further library is one kernel that flash_attention_3.cu was compiled to; its name says the dim
and the mask. A window is one of 1024 keys, which cuDNN does not take through PyTorch.
"""
import ctypes
import math
import pathlib
import re
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "gpu"))
from attention import use_cudnn_alone  # noqa: E402
from attention_case import Case  # noqa: E402
from attention_rows import regular  # noqa: E402
from binding import Library, measure_in_turns, measure_single  # noqa: E402

MASKS = dict(full={}, causal=dict(causal=True), window=dict(causal=True, window=(1023, -1)))


def flash_call(function, case, out):
    lse = torch.empty_like(case.lse)
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (case.q, case.k, case.v, out, lse)]
    count = torch.cuda.get_device_properties(0).multi_processor_count
    window = case.window[0] if case.window else -1
    arguments = (*pointers, case.batch, case.length, case.heads, count, window,
                 ctypes.c_void_p(counter.data_ptr()))

    def call():
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if function(*arguments, stream) != 0:
            raise RuntimeError("FlashAttention-3 did not launch")

    call.keep = (lse, counter)
    return call


def measure(library, function, dim, length, mask):
    case = Case(library, **regular(dim, length, **MASKS[mask]))
    out = torch.full_like(case.q, math.nan)
    calls = {"own": case.call(False), "FA3": flash_call(function, case, out)}
    if mask != "window":
        calls["cuDNN"] = case.peer(False)
    calls["own"](), calls["FA3"]()
    rows, exact = case.exact(False)
    errors = [case.distance(x, case.sequence(x, 0)[0][rows], exact) for x in (case.out, out)]
    launches = {name: min(100, max(3, math.ceil(20 / ms)))
                for name, ms in measure_in_turns(calls, 3).items()}
    work = case.work(False, "TFLOP/s")
    ways = (measure_single(calls, 9, 0.1), measure_in_turns(calls, 7, launches))
    rates = [" / ".join(f"{work / ms / 1e9:.0f}" for ms in way.values()) for way in ways]
    print(f"| {dim} | {length} | {mask} | {rates[0]} | {rates[1]} | "
          f"{errors[0]:.2e} / {errors[1]:.2e} |", flush=True)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    library = Library(sys.argv[1])
    use_cudnn_alone()
    print("| dim | length | mask | single, own / FA3 / cuDNN | sustained | error, own / FA3 |")
    print("|---|---|---|---|---|---|")
    for path in sys.argv[2:]:
        name = re.fullmatch(r"flash_attention_3_(\d+)_(causal|full|window)",
                            pathlib.Path(path).stem)
        if not name:
            raise SystemExit("expected flash_attention_3_DIM_causal.so, _full.so or _window.so, "
                             f"got {path}")
        function = ctypes.CDLL(str(pathlib.Path(path).resolve())).flash_attention_3
        for length in (1024, 4096, 16384):
            measure(library, function, int(name[1]), length, name[2])
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
