# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of attention's figures, a section for each kind of work: which problems are measured,
what the baseline of each is, and what each is to reach."""
from dataclasses import dataclass, field

# TFLOP/s of the fastest of the public kernels on the same device, 2026-11-20, single launches:
# (dim, length, causal) to forward and backward.
PEERS = "best of FlashAttention 2 and 3, cuDNN 9.19 and PyTorch 2.11 of 2026-11-20"
BEST = {
    (64, 1024, False): (405, 428), (64, 1024, True): (310, 300),
    (64, 4096, False): (515, 502), (64, 4096, True): (428, 469),
    (64, 16384, False): (527, 518), (64, 16384, True): (504, 555),
    (128, 1024, False): (541, 395), (128, 1024, True): (431, 340),
    (128, 4096, False): (650, 515), (128, 4096, True): (657, 559),
    (128, 16384, False): (685, 577), (128, 16384, True): (733, 581),
    (256, 1024, False): (574, 272), (256, 1024, True): (407, 224),
    (256, 4096, False): (710, 372), (256, 4096, True): (578, 354),
    (256, 16384, False): (744, 352), (256, 16384, True): (645, 395),
}

DIRECTIONS = ("forward", "backward")


@dataclass
class Row:
    section: str
    direction: str
    name: str
    problem: dict
    # "cudnn", the problem whose rate this one's is compared with, or None.
    baseline: object = None
    # At least: ratios `single` and `sustained`; `of_peers`, the ratio to `peers`; `rate`, sustained.
    wanted: dict = field(default_factory=dict)
    peers: float = None
    unit: str = "TFLOP/s"

    @property
    def backward(self):
        return self.direction == "backward"

    def text(self):
        return f"{self.section} {self.direction} {self.name}"


def regular(dim, length, **more):
    """As many rows and as wide a model as every cell of the table has."""
    return dict(batch=max(1, 16384 // length), heads=2048 // dim, length=length, dim=dim, **more)


def cells(options):
    for dim in map(int, options.dims.split(",")):
        for mask in options.masks.split(","):
            for length in map(int, options.lengths.split(",")):
                yield dim, length, mask == "causal", f"D {dim}, S {length}, {mask}"


def direction_rows(direction, options):
    for dim, length, causal, name in cells(options):
        best = BEST.get((dim, length, causal))
        yield Row(direction, direction, name,
                  regular(dim, length, causal=causal, dtype=options.dtype), "cudnn",
                  {"sustained": 1.05, "of_peers": 1.0},
                  best[DIRECTIONS.index(direction)] if best else None)


def forward(options):
    yield from direction_rows("forward", options)


def backward(options):
    yield from direction_rows("backward", options)


def deterministic(options):
    for dim, length, causal, name in cells(options):
        plain = regular(dim, length, causal=causal)
        yield Row("deterministic", "backward", name, dict(plain, deterministic=True), plain,
                  {"sustained": 0.9})


def f16(_):
    for direction in DIRECTIONS:
        for dim in (64, 128, 256):
            for causal in (False, True):
                plain = regular(dim, 4096, causal=causal)
                yield Row("f16", direction, f"D {dim}, S 4096{', causal' if causal else ''}",
                          dict(plain, dtype="f16"), plain, {"sustained": 0.97})


FEATURED = dict(batch=4, heads=16, length=2048, dim=64)


def bias(_):
    dense = dict(FEATURED, bias=(4, 16, 2048, 2048))
    shared = dict(FEATURED, bias=(1, 16, 2048, 2048))
    for direction, rate, best in zip(DIRECTIONS, (330, 300), (83.5, 76.9)):
        yield Row("bias", direction, "B 4, H 16, S 2048, D 64", dense, FEATURED, {"rate": rate},
                  best)
        yield Row("bias", direction, "the same for the whole batch", shared, dense,
                  {"sustained": 0.99})


def dropout(_):
    for direction, best in zip(DIRECTIONS, (62.1, 63.5)):
        yield Row("dropout", direction, "0.1, B 4, H 16, S 2048, D 64",
                  dict(FEATURED, dropout=0.1), FEATURED, {"rate": 250}, best)


def gqa(_):
    for direction in DIRECTIONS:
        for length in (2048, 4096, 8192, 16384, 32768):
            for causal in (False, True):
                yield Row("gqa", direction,
                          f"heads 64:8, S {length}, {'causal' if causal else 'full'}",
                          dict(batch=1, heads=64, kv_heads=8, length=length, dim=128,
                               causal=causal), "cudnn", {"sustained": 1.05})


def ragged(_):
    lengths = [128 + round(i * 1920 / 31) for i in range(32)]
    mean = sum(lengths) // 32
    for direction in DIRECTIONS:
        yield Row("ragged", direction, "32 of 128 to 2048, causal",
                  dict(batch=32, heads=16, length=2048, dim=128, causal=True, lengths=lengths),
                  dict(batch=32, heads=16, length=mean, dim=128, causal=True), {"sustained": 0.85})


def window(_):
    for direction in DIRECTIONS:
        for dim in (64, 128):
            plain = regular(dim, 16384)
            yield Row("window", direction, f"1024 of S 16384, D {dim}",
                      dict(plain, causal=True, window=(1023, -1)), plain, {"sustained": 0.85})


def decode(_):
    for keys in (8192, 65536):
        yield Row("decode", "forward", f"B 8, H 32, {keys} keys",
                  dict(batch=8, heads=32, length=1, keys=keys, dim=128), "cudnn",
                  {"single": 1.0, "sustained": 1.0}, 3.99 if keys == 8192 else 4.42, "TB/s")
    yield Row("decode", "forward", "B 8, heads 64:8, 32768 keys",
              dict(batch=8, heads=64, kv_heads=8, length=1, keys=32768, dim=128), "cudnn", {}, None,
              "TB/s")


def odd(_):
    """The baseline is the next shape that the tiles fit."""
    for direction in DIRECTIONS:
        for causal in (False, True):
            for length, dim, next_length, next_dim in (
                    (1000, 128, 1024, 128), (2047, 128, 2048, 128), (4096, 40, 4096, 64),
                    (4096, 72, 4096, 96), (4096, 80, 4096, 96), (4096, 160, 4096, 192)):
                yield Row("odd", direction, f"S {length}, D {dim}{', causal' if causal else ''}",
                          regular(dim, length, causal=causal),
                          regular(next_dim, next_length, causal=causal), {"sustained": 0.85})


def large(_):
    """Head dims beyond 256, which no peer has."""
    for dim in (320, 384, 512):
        for length in (1024, 4096, 16384):
            for causal in (False, True):
                asked = (dim, length, causal) == (512, 4096, False)
                yield Row("large", "forward",
                          f"D {dim}, S {length}{', causal' if causal else ''}",
                          regular(dim, length, causal=causal), None,
                          {"rate": 450} if asked else {})


SECTIONS = (forward, backward, deterministic, f16, bias, dropout, gqa, ragged, window, decode, odd,
            large)


def rows_of(options):
    """The rows of the sections that were asked for, in their order."""
    known = {section.__name__: section for section in SECTIONS}
    for name in options.sections.split(",") if options.sections else known:
        if name not in known:
            raise SystemExit(f"there is no section {name}, but {', '.join(known)}")
        yield from known[name](options)
