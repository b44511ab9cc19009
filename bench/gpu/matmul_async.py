# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous operand costs: the product whose rows of a come in chunks compared with
the plain one, on one GPU and in one run.

    python3 matmul_async.py LIBRARY [--shapes 4096x4096x4096,...] [--chunks 8,64] [--csv FILE]

all present: every signal is set before the launch, launches back to back; ratio of the plain time
    to this one, above 1 the plain product is slower.
arriving: the first chunk is present at launch, the c-th of N is signalled c * 0.9 / N of the plain
    time after it, by a thread on the GPU (deliver.cu); ratio of this time to the plain one, single
    launches. The GPU is kept busy while the host enqueues, so that host time does not count.
"""
import argparse
import ctypes
import math
import pathlib
import subprocess
import tempfile
import time

import torch
from binding import Arrival, AsyncOperand, Library, between_events, measure_in_turns, medians

SHAPES = "4096x4096x4096,8192x8192x8192,16384x16384x16384,8192x14336x8192,16384x7168x4096"


class Chunked:
    """The product over `count` chunks of the rows of a."""

    def __init__(self, library, a, b, c, count):
        m, k = a.shape
        self.begin = (ctypes.c_int64 * (count + 1))(*(i * m // count for i in range(count + 1)))
        self.operand = AsyncOperand(ctypes.sizeof(AsyncOperand), 0, count, self.begin)
        self.plan = library.matmul("bf16", m=m, n=b.shape[1], k=k,
                                   async_a=ctypes.addressof(self.operand))
        self.signals = torch.zeros(count, dtype=torch.int32, device="cuda")
        self.go = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.arrival = Arrival(struct_size=ctypes.sizeof(Arrival), signals=self.signals.data_ptr(),
                               epoch=1, deadline_ns=2_000_000_000)
        self.call = self.plan.matmul_call(arrival_a=self.arrival, a=a, b=b, c=c)


def compiled(folder):
    """deliver.cu."""
    source = pathlib.Path(__file__).with_name("deliver.cu")
    library = pathlib.Path(folder) / "deliver.so"
    major, minor = torch.cuda.get_device_capability()
    subprocess.run(["nvcc", "-std=c++17", "-shared", "-Xcompiler", "-fPIC",
                    f"-arch=sm_{major}{minor}", "-o", library, source], check=True)
    return ctypes.CDLL(str(library)).deliver


def single(call, before=lambda: None):
    """Events around one launch on a GPU that has rested, and then is busy while the host works."""
    torch.cuda.synchronize()
    time.sleep(0.015)
    torch.cuda._sleep(1_000_000)
    before()
    return between_events(call, 1)


def arriving(chunked, deliver, driver, streams, milliseconds, epoch):
    """Events around one launch whose chunks arrive while it runs."""
    count, go = len(chunked.signals), ctypes.c_uint64(chunked.go.data_ptr())
    main, side = (ctypes.c_void_p(stream.cuda_stream) for stream in streams)
    chunked.arrival.epoch = epoch
    chunked.signals[0] = epoch

    def begin():
        deliver(go, ctypes.c_void_p(chunked.signals.data_ptr()), ctypes.c_int(count),
                ctypes.c_uint(epoch), ctypes.c_double(0.9 / count * milliseconds * 1e6), side)
        driver.cuStreamWriteValue32_v2(main, go, ctypes.c_uint32(epoch), 0)

    return single(chunked.call, begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--chunks", default="8,64")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--csv")
    options = parser.parse_args()
    library, driver = Library(options.library), ctypes.CDLL("libcuda.so.1")
    streams = torch.cuda.current_stream(), torch.cuda.Stream()
    with tempfile.TemporaryDirectory() as folder:
        deliver = compiled(folder)
    torch.manual_seed(0)
    table = [("m", "n", "k", "chunks", "plain ms", "all present", "single ms", "arriving")]
    print(*(f"{cell:>11}" for cell in table[0]))
    for shape in options.shapes.split(","):
        m, n, k = map(int, shape.split("x"))
        a, b = (torch.randn(size, device="cuda").bfloat16() for size in ((m, k), (k, n)))
        plain_c, c = (torch.full((m, n), float("nan"), device="cuda").bfloat16() for _ in range(2))
        plan = library.matmul("bf16", m=m, n=n, k=k)
        plain = plan.matmul_call(a=a, b=b, c=plain_c)
        for count in map(int, options.chunks.split(",")):
            chunked = Chunked(library, a, b, c, count)
            chunked.signals.fill_(1)
            calls = {"plain": plain, "all present": chunked.call}
            alone = measure_in_turns(calls, 3)
            launches = {name: max(3, math.ceil(20 / ms)) for name, ms in alone.items()}
            times = measure_in_turns(calls, options.turns, launches)
            same = torch.equal(plain_c, c)
            pairs = {"plain": [], "arriving": []}
            for turn in range(options.turns):
                pairs["plain"].append(single(plain))
                milliseconds = medians({"plain": pairs["plain"]})["plain"]
                c.fill_(float("nan"))
                pairs["arriving"].append(arriving(chunked, deliver, driver, streams, milliseconds,
                                                2 + turn))
                torch.cuda.synchronize()
                same = same and torch.equal(plain_c, c)
            found = medians(pairs)
            row = (m, n, k, count, f"{times['plain']:.3f}",
                   f"{times['plain'] / times['all present']:.3f}", f"{found['plain']:.3f}",
                   f"{found['arriving'] / found['plain']:.3f}", "" if same else "DIFFERS")
            table.append(row)
            print(*(f"{cell:>11}" for cell in row), flush=True)
    if options.csv:
        with open(options.csv, "w") as file:
            file.writelines(",".join(map(str, cells)) + "\n" for cells in table)


if __name__ == "__main__":
    main()
