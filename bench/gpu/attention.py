# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU: the rate of the library and of cuDNN (through PyTorch) in one run, both ways:
single, one launch between two events after a rest; sustained, launches back to back.

    python3 attention.py LIBRARY [--dims 64,128,256] [--lengths 1024,4096,16384] [--dtype bf16]
                         [--masks full,causal] [--directions forward,backward] [--features]
                         [--csv FILE] [--no-peers]

batch * length is 16384 and heads * dim is 2048; rates count the FLOPs of visible scores, 4 and 10
for each and each element of the dims. Errors are |x - exact| / |exact| against float64: of out over
some rows, of the worst of the gradients over the first head. "ordered" is backward in deterministic
mode.
"""
import argparse
import ctypes
import math
import sys
import time

import torch
from softmax import DTYPES, Library, Tensor, view


class Description(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint32),
                ("layout", ctypes.c_uint32), ("causal", ctypes.c_uint32),
                ("batch", ctypes.c_int64), ("heads", ctypes.c_int64),
                ("kv_heads", ctypes.c_int64), ("q_len", ctypes.c_int64),
                ("kv_len", ctypes.c_int64), ("head_dim", ctypes.c_int64),
                ("value_dim", ctypes.c_int64), ("scale", ctypes.c_double),
                ("dropout", ctypes.c_double), ("window", ctypes.c_uint32),
                ("visible", ctypes.c_uint32), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("bias", ctypes.c_uint32),
                ("bias_dtype", ctypes.c_uint32), ("bias_shape", ctypes.c_int64 * 4),
                ("ragged", ctypes.c_uint32), ("kv_lens", ctypes.c_uint32),
                ("total_q", ctypes.c_int64), ("total_kv", ctypes.c_int64),
                ("gradients", ctypes.c_uint32), ("deterministic", ctypes.c_uint32),
                ("implementation", ctypes.c_char_p)]


FORWARD_TENSORS = ("query", "key", "value", "bias", "visible", "cu_seqlens_q", "cu_seqlens_kv",
                   "kv_lens", "out", "lse")


BACKWARD_TENSORS = FORWARD_TENSORS + ("grad_out", "grad_lse", "grad_query", "grad_key",
                                      "grad_value", "grad_bias")


class Forward(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] +
                [(name, ctypes.POINTER(Tensor)) for name in FORWARD_TENSORS] +
                [("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                 ("rng", ctypes.c_void_p)])


class Backward(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] +
                [(name, ctypes.POINTER(Tensor)) for name in BACKWARD_TENSORS] +
                [("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                 ("rng", ctypes.c_void_p)])


class Attention:
    """A plan for tensors in the layout [batch, length, heads, dim]."""

    def __init__(self, library, dtype, **problem):
        self.library, self.plan = library, ctypes.c_void_p()
        description = Description(struct_size=ctypes.sizeof(Description), dtype=DTYPES[dtype][1],
                                  **problem)
        begin = time.perf_counter()
        library.call("perseid_attention_plan_create", library.context, ctypes.byref(description),
                     ctypes.byref(self.plan))
        self.seconds = time.perf_counter() - begin

    def __del__(self):
        self.library.library.perseid_plan_destroy(self.plan)

    def forward(self, **tensors):
        return self.prepare(0, "perseid_attention_forward", Forward, tensors)

    def backward(self, **tensors):
        return self.prepare(1, "perseid_attention_backward", Backward, tensors)

    def prepare(self, direction, name, struct, tensors):
        """A call without arguments that executes, with a workspace of its own."""
        size = ctypes.c_size_t()
        self.library.call("perseid_plan_workspace_size", self.plan, direction, ctypes.byref(size))
        work = torch.randint(0, 256, (max(size.value, 1),), dtype=torch.uint8, device="cuda")
        views = {name: view(tensor) for name, tensor in tensors.items()}
        arguments = struct(struct_size=ctypes.sizeof(struct),
                           **{name: ctypes.pointer(each) for name, each in views.items()})
        return self.library.executable(name, self.plan, arguments, work, (views, self))


def milliseconds(call, launches, turns=9):
    """The median time of a launch, of so many between two events."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    if launches == 1:
        time.sleep(0.2)
        call()
        torch.cuda.synchronize()
    pairs = []
    for _ in range(turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(launches):
            call()
        end.record()
        if launches == 1:
            torch.cuda.synchronize()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return sorted(b.elapsed_time(e) for b, e in pairs)[turns // 2] / launches


def exact_rows(q, k, v, causal, rows):
    """Some rows of the first head, in float64."""
    queries, keys, values = (x[0, :, 0].double() for x in (q, k, v))
    scores = queries[rows] @ keys.T / math.sqrt(q.shape[-1])
    if causal:
        positions = torch.arange(keys.shape[0], device="cuda")
        scores.masked_fill_(positions[None] > rows[:, None], float("-inf"))
    return torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1)


def error_of(out, exact, rows):
    return ((out[0, rows, 0].double() - exact).norm() / exact.norm()).item()


def use_cudnn_alone():
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(True)


def rates_of(contenders, flops, sustained, options):
    """Rates in TFLOP/s by way and contender, and what a line of the table says of them; sustained:
    launches between two events."""
    rates, texts = {}, []
    for way, launches in (("single", 1), ("sustained", sustained)):
        for name, call in contenders.items():
            rates[way, name] = flops / milliseconds(call, launches) / 1e9
            texts.append(f"{rates[way, name]:.0f}")
        if options.peers:
            texts.append(f"{rates[way, 'own'] / rates[way, 'cudnn']:.3f}")
    return rates, texts


def bench(library, dim, length, causal, options):
    batch, heads = max(1, 16384 // length), 2048 // dim
    q, k, v = (torch.randn(batch, length, heads, dim, device="cuda").to(DTYPES[options.dtype][0])
               for _ in range(3))
    out = torch.full_like(q, float("nan"))
    lse = torch.full((batch, heads, length), float("nan"), device="cuda")
    plan = Attention(library, options.dtype, batch=batch, heads=heads, q_len=length, kv_len=length,
                     head_dim=dim, causal=2 if causal else 0)
    contenders = {"own": plan.forward(query=q, key=k, value=v, out=out, lse=lse)}
    if options.peers:
        views = [x.transpose(1, 2) for x in (q, k, v)]
        contenders["cudnn"] = lambda: torch.nn.functional.scaled_dot_product_attention(
            *views, is_causal=causal)
    contenders["own"]()
    rows = torch.arange(0, length, max(1, length // 64), device="cuda")
    exact, exact_lse = exact_rows(q, k, v, causal, rows)
    errors = {"own": error_of(out, exact, rows)}
    off = (lse[0, 0, rows].double() - exact_lse).abs().max().item()
    if out.isnan().any() or not off < 1e-4:
        print(f"WRONG: {out.isnan().sum().item()} NaN in out, lse off by {off}")
    if options.peers:
        errors["cudnn"] = error_of(contenders["cudnn"]().transpose(1, 2), exact, rows)
    scores = batch * heads * (length * (length + 1) / 2 if causal else length * length)
    rates, texts = rates_of(contenders, 4 * dim * scores, 4 if length > 8192 else 10, options)
    line = [dim, length, "causal" if causal else "full"] + texts
    line += [f"{error:.2e}" for error in errors.values()] + [f"{plan.seconds * 1e3:.0f}"]
    return line, rates


def exact_gradients(q, k, v, grad_out, causal):
    """Of the first head, in float64, a part of its rows at a time."""
    queries, keys, values, grads = (x[0, :, 0].double() for x in (q, k, v, grad_out))
    scale = 1 / math.sqrt(q.shape[-1])
    grad_query = torch.zeros_like(queries)
    grad_key, grad_value = torch.zeros_like(keys), torch.zeros_like(values)
    positions = torch.arange(keys.shape[0], device="cuda")
    for rows in positions.split(2048):
        scores = queries[rows] @ keys.T * scale
        if causal:
            scores.masked_fill_(positions[None] > rows[:, None], float("-inf"))
        weights = torch.softmax(scores, -1)
        delta = ((weights @ values) * grads[rows]).sum(-1, keepdim=True)
        grad_value += weights.T @ grads[rows]
        grad_scores = weights * (grads[rows] @ values.T - delta) * scale
        grad_query[rows] = grad_scores @ keys
        grad_key += grad_scores.T @ queries[rows]
    return grad_query, grad_key, grad_value


def bench_backward(library, dim, length, causal, options):
    batch, heads = max(1, 16384 // length), 2048 // dim
    q, k, v, grad_out = (torch.randn(batch, length, heads, dim,
                                     device="cuda").to(DTYPES[options.dtype][0]) for _ in range(4))
    out = torch.empty_like(q)
    lse = torch.empty((batch, heads, length), device="cuda")
    gradients = [torch.full_like(q, float("nan")) for _ in range(3)]
    problem = dict(batch=batch, heads=heads, q_len=length, kv_len=length, head_dim=dim,
                   causal=2 if causal else 0, gradients=7)
    tensors = dict(query=q, key=k, value=v, out=out, lse=lse)
    for name, gradient in zip(("grad_query", "grad_key", "grad_value"), gradients):
        tensors[name] = gradient
    plan = Attention(library, options.dtype, **problem)
    ordered = Attention(library, options.dtype, deterministic=1, **problem)
    plan.forward(query=q, key=k, value=v, out=out, lse=lse)()
    contenders = {"own": plan.backward(grad_out=grad_out, **tensors),
                  "ordered": ordered.backward(grad_out=grad_out, **tensors)}
    exact = exact_gradients(q, k, v, grad_out, causal)

    def error(found):
        if any(gradient.isnan().any() for gradient in found):
            return float("nan")
        return max(((gradient[0, :, 0].double() - want).norm() / want.norm()).item()
                   for gradient, want in zip(found, exact))

    errors = []
    for name in ("ordered", "own"):
        for gradient in gradients:
            gradient.fill_(float("nan"))
        contenders[name]()
        errors.append(error(gradients))
    if options.peers:
        views = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
        peer = torch.nn.functional.scaled_dot_product_attention(*views, is_causal=causal)
        contenders["cudnn"] = lambda: torch.autograd.grad(peer, views, grad_out.transpose(1, 2),
                                                          retain_graph=True)
        errors.append(error([gradient.transpose(1, 2) for gradient in contenders["cudnn"]()]))
    scores = batch * heads * (length * (length + 1) / 2 if causal else length * length)
    rates, texts = rates_of(contenders, 10 * dim * scores, 3 if length > 8192 else 6, options)
    line = [dim, length, "causal" if causal else "full"] + texts
    line += [f"{each:.2e}" for each in errors] + [f"{plan.seconds * 1e3:.0f}"]
    return line, rates


def features(library, options):
    """What is not in the table: the rate of each beside that of its peer or of its plain sibling."""

    def own_call(q, k, v, extra=None, **problem):
        out = torch.empty(*q.shape[:-1], v.shape[-1], device="cuda", dtype=q.dtype)
        lse = torch.empty(*([q.shape[0]] if q.ndim == 4 else []), q.shape[-2], q.shape[-3],
                          device="cuda")
        names = {torch.bfloat16: "bf16", torch.float16: "f16"}
        heads = {"heads": q.shape[-2], "kv_heads": k.shape[-2], "head_dim": q.shape[-1],
                 "value_dim": v.shape[-1]}
        if q.ndim == 4:
            heads.update(batch=q.shape[0], q_len=q.shape[1], kv_len=k.shape[1])
        plan = Attention(library, names[q.dtype], **heads, **problem)
        return plan.forward(query=q, key=k, value=v, out=out, lse=lse, **(extra or {}))

    def draw(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda").to(dtype)

    def cudnn(q, k, v, causal=False):
        views = [x.transpose(1, 2) for x in (q, k, v)]
        return lambda: torch.nn.functional.scaled_dot_product_attention(
            *views, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2])

    def report(name, work, unit, call, peer=None, launches=10):
        line = f"{name:>44} {work / milliseconds(call, launches):9.2f}"
        if peer is not None and options.peers:
            try:
                line += f" {work / milliseconds(peer, launches):9.2f}"
            except RuntimeError as failure:
                line += f" {str(failure).splitlines()[0][:40]}"
        print(line, unit, flush=True)

    print(f"{'feature':>44} {'own':>9} {'cuDNN':>9}")
    for length in (8192, 65536):
        q, k, v = draw(8, 1, 32, 128), draw(8, length, 32, 128), draw(8, length, 32, 128)
        report(f"decode, B 8, H 32, {length} keys", 2 * k.nbytes / 1e9, "TB/s", own_call(q, k, v),
               cudnn(q, k, v))
    q, k, v = draw(8, 1, 64, 128), draw(8, 32768, 8, 128), draw(8, 32768, 8, 128)
    report("decode, B 8, heads 64:8, 32768 keys", 2 * k.nbytes / 1e9, "TB/s", own_call(q, k, v),
           cudnn(q, k, v))
    del q, k, v
    for length in (2048, 8192, 32768):
        for causal in (False, True):
            q, k, v = draw(1, length, 64, 128), draw(1, length, 8, 128), draw(1, length, 8, 128)
            flops = 4 * 64 * 128 * length * length / (2 if causal else 1) / 1e9
            report(f"heads 64:8, S {length}, {'causal' if causal else 'full'}", flops, "TFLOP/s",
                   own_call(q, k, v, causal=2 if causal else 0), cudnn(q, k, v, causal),
                   2 if length > 8192 else 6)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (draw(4, 4096, 16, 128, dtype=dtype) for _ in range(3))
        report(f"{dtype}, D 128, S 4096", 4 * 64 * 128 * 4096**2 / 1e9, "TFLOP/s",
               own_call(q, k, v))
    q, k, v = (draw(1, 16384, 16, 128) for _ in range(3))
    pairs = 16384 * 1024 - 1023 * 1024 / 2
    report("window 1024, causal, S 16384, visible keys", 4 * 16 * 128 * pairs / 1e9, "TFLOP/s",
           own_call(q, k, v, causal=2, window=1, window_left=1023, window_right=-1))
    lengths = torch.linspace(128, 2048, 32).int()
    total = int(lengths.sum())
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()
    q, k, v = (draw(total, 16, 128) for _ in range(3))
    pairs = (lengths.double() * (lengths + 1) / 2).sum().item()
    report("ragged, 32 sequences of 128 to 2048, causal", 4 * 16 * 128 * pairs / 1e9, "TFLOP/s",
           own_call(q, k, v, {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}, batch=32,
                    q_len=2048, kv_len=2048, causal=2, ragged=1, total_q=total, total_kv=total))
    q, k, v = (draw(32, 1088, 16, 128) for _ in range(3))
    report("the same, all of 1088", 4 * 32 * 16 * 128 * 1088 * 1089 / 2 / 1e9, "TFLOP/s",
           own_call(q, k, v, causal=2))
    q, k, v = (draw(4, 2048, 16, 64) for _ in range(3))
    flops = 4 * 64 * 64 * 2048**2 / 1e9
    report("B 4, H 16, S 2048, D 64", flops, "TFLOP/s", own_call(q, k, v), cudnn(q, k, v))
    report("with dropout 0.1", flops, "TFLOP/s", own_call(q, k, v, dropout=0.1))
    for batch in (4, 1):
        bias = draw(batch, 16, 2048, 2048)
        shape = (ctypes.c_int64 * 4)(*bias.shape)
        report(f"with bias [{batch}, 16, 2048, 2048]", flops, "TFLOP/s",
               own_call(q, k, v, {"bias": bias}, bias=1, bias_dtype=2, bias_shape=shape))
    visible = torch.rand(1, 1, 2048, 2048, device="cuda") < 0.9
    report("with visible [1, 1, 2048, 2048]", flops, "TFLOP/s",
           own_call(q, k, v, {"visible": visible}, visible=1))
    for length, dim in ((1000, 128), (1024, 128), (2047, 128), (2048, 128), (4096, 40),
                        (4096, 64), (4096, 72), (4096, 80), (4096, 96), (4096, 160), (4096, 192)):
        q, k, v = (draw(16384 // length, length, 2048 // dim, dim) for _ in range(3))
        report(f"S {length}, D {dim}", 2 * q.numel() * 2 * length / 1e9, "TFLOP/s",
               own_call(q, k, v))


def check_graphs_and_streams(library):
    """Replays of a graph, and executions on several streams at once, all have the same bits."""
    q, k, v = (torch.randn(4, 1000, 16, 128, device="cuda").bfloat16() for _ in range(3))
    plan = Attention(library, "bf16", batch=4, heads=16, q_len=1000, kv_len=1000, head_dim=128,
                     causal=1)
    outs = [torch.zeros_like(q) for _ in range(4)]
    calls = [plan.forward(query=q, key=k, value=v, out=out) for out in outs]
    calls[0]()
    torch.cuda.synchronize()
    wrong = 0
    for call, out in zip(calls[1:], outs[1:]):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for _ in range(3):
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            wrong += int(not torch.equal(out, outs[0]))
    streams = [torch.cuda.Stream() for _ in calls]
    for _ in range(20):
        for out in outs[1:]:
            out.zero_()
        torch.cuda.synchronize()
        for stream, call in zip(streams, calls):
            with torch.cuda.stream(stream):
                call()
                call()
        torch.cuda.synchronize()
        wrong += sum(int(not torch.equal(out, outs[0])) for out in outs[1:])
    print(f"graph replays and four streams at once: {'same bits' if wrong == 0 else 'WRONG'}")


def table(library, direction, options):
    measure, own = {"forward": (bench, ["own"]),
                    "backward": (bench_backward, ["own", "ordered"])}[direction]
    names = own + (["cudnn", "ratio"] if options.peers else [])
    errors = [f"error_{name}" for name in (own[::-1] + ["cudnn"])[:len(names)] if name != "ratio"]
    header = ([direction, "length", "mask"] + ["single_" + name for name in names] + names +
              errors + ["plan_ms"])
    print(" ".join(f"{name:>14}" for name in header))
    lines, ratios = [header], {"single": [], "sustained": []}
    for dim in map(int, options.dims.split(",")):
        for mask in options.masks.split(","):
            for length in map(int, options.lengths.split(",")):
                line, rates = measure(library, dim, length, mask == "causal", options)
                lines.append(line)
                print(" ".join(f"{str(item):>14}" for item in line), flush=True)
                if options.peers:
                    for way, found in ratios.items():
                        found.append(rates[way, "own"] / rates[way, "cudnn"])
    for way, found in ratios.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            print(f"{way}: own / cudnn {mean:.3f} in the geometric mean, at least {min(found):.3f}")
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--features", action="store_true", help="and what is not in the table")
    parser.add_argument("--csv")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    options = parser.parse_args()
    library = Library(options.library)
    use_cudnn_alone()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}; {options.dtype}, TFLOP/s")
    lines = []
    for direction in options.directions.split(","):
        if direction == "forward":
            check_graphs_and_streams(library)
        lines += table(library, direction, options)
    if options.features:
        features(library, options)
    if options.csv:
        with open(options.csv, "w") as file:
            for line in lines:
                file.write(",".join(str(item) for item in line) + "\n")


if __name__ == "__main__":
    main()
