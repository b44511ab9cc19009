# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""A problem of attention with random tensors in the layout [batch, length, heads, dim] (ragged:
[total, heads, dim]): calls of the library and of cuDNN, the work that they do, and their errors
against float64."""
import ctypes
import math

import torch
from binding import DTYPES

CAUSAL = 2  # bottom-right
GRADIENTS = ("query", "key", "value", "bias")


class Case:
    def __init__(self, library, *, batch, heads, length, dim, dtype="bf16", kv_heads=None,
                 keys=None, causal=False, window=None, bias=None, dropout=0.0, lengths=None,
                 deterministic=False, gradients=None):
        """bias: its shape. lengths: those of a ragged batch's sequences, both of queries and keys.
        gradients: names, all without it."""
        self.library, self.dtype = library, dtype
        self.batch, self.heads, self.dim = batch, heads, dim
        self.kv_heads, self.keys = kv_heads or heads, keys or length
        self.length, self.lengths = length, lengths
        self.causal, self.window = causal, window
        self.problem = dict(batch=batch, heads=heads, kv_heads=self.kv_heads, q_len=length,
                            kv_len=self.keys, head_dim=dim, dropout=dropout,
                            causal=CAUSAL if causal else 0, deterministic=int(deterministic))
        queries = (batch, length) if lengths is None else (sum(lengths),)
        places = (batch, self.keys) if lengths is None else queries
        self.q, self.grad_out = (self.draw(*queries, heads, dim) for _ in range(2))
        self.k, self.v = (self.draw(*places, self.kv_heads, dim) for _ in range(2))
        self.out = torch.full_like(self.q, math.nan)
        lse = (batch, heads, length) if lengths is None else (heads, sum(lengths))
        self.lse = torch.full(lse, math.nan, device="cuda",
                              dtype=torch.float64 if dtype == "f64" else torch.float32)
        self.inputs = dict(query=self.q, key=self.k, value=self.v)
        self.bias = self.draw(*bias) if bias else None
        self.wanted = [name for name in GRADIENTS[:4 if bias else 3]
                       if gradients is None or name in gradients]
        if bias:
            self.inputs["bias"] = self.bias
            self.problem.update(bias=1, bias_dtype=DTYPES[dtype][1],
                                bias_shape=(ctypes.c_int64 * 4)(*bias))
        if window:
            self.problem.update(window=1, window_left=window[0], window_right=window[1])
        if lengths is not None:
            starts = [sum(lengths[:i]) for i in range(batch + 1)]
            self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")
            self.inputs.update(cu_seqlens_q=self.starts, cu_seqlens_kv=self.starts)
            self.problem.update(ragged=1, total_q=starts[-1], total_kv=starts[-1])
        self.gradients = {}

    def draw(self, *shape):
        return torch.randn(*shape, device="cuda").to(DTYPES[self.dtype][0])

    # ---- Calls ----

    def call(self, backward):
        """Of the library. Backward reads what its forward left."""
        results = dict(out=self.out, lse=self.lse)
        if not backward:
            return self.library.attention(self.dtype, **self.problem).attention_call(
                0, **self.inputs, **results)
        wanted = sum(1 << GRADIENTS.index(name) for name in self.wanted)
        plan = self.library.attention(self.dtype, gradients=wanted, **self.problem)
        plan.attention_call(0, **self.inputs, **results)()
        self.gradients = {name: torch.full_like(self.inputs[name], math.nan)
                          for name in self.wanted}
        gradients = {"grad_" + name: tensor for name, tensor in self.gradients.items()}
        return plan.attention_call(1, **self.inputs, **results, grad_out=self.grad_out, **gradients)

    def peer(self, backward):
        views = [x.transpose(1, 2).detach() for x in (self.q, self.k, self.v)]
        if backward:
            for tensor in views:
                tensor.requires_grad_()

        def forward():
            return torch.nn.functional.scaled_dot_product_attention(
                *views, is_causal=self.causal, enable_gqa=self.heads != self.kv_heads)

        if not backward:
            forward()
            return forward
        out, grad_out = forward(), self.grad_out.transpose(1, 2)

        def gradients():
            return torch.autograd.grad(out, views, grad_out, retain_graph=True)

        gradients()
        return gradients

    # ---- Work ----

    def scores(self):
        """Pairs of a query and a key that it sees, of one head in the whole batch."""
        if self.lengths is not None:
            return sum(n * (n + 1) / 2 if self.causal else n * n for n in self.lengths)
        if self.window:
            left = self.window[0]
            return self.batch * (self.length * (left + 1) - left * (left + 1) / 2)
        if self.causal:
            return self.batch * self.length * (self.length + 1) / 2
        return self.batch * self.length * self.keys

    def work(self, backward, unit):
        """FLOPs, or bytes of keys and values."""
        if unit == "TB/s":
            return 2 * self.k.nbytes
        return (10 if backward else 4) * self.dim * self.heads * self.scores()

    # ---- Errors ----

    def sequence(self, tensor, head, count=1):
        """[count, length, dim] of the last sequence, whose heads from `head` on are meant."""
        if self.lengths is None:
            return tensor[-1, :, head:head + count].transpose(0, 1)
        return tensor[int(self.starts[-2]):, head:head + count].transpose(0, 1)

    def exact(self, backward):
        """Of the last sequence and the first key head, in float64: out over some rows; or the
        gradients of query (of the first head), key and value."""
        group = self.heads // self.kv_heads
        queries, grads = (self.sequence(x, 0, group).double() for x in (self.q, self.grad_out))
        keys, values = (self.sequence(x, 0)[0].double() for x in (self.k, self.v))
        positions = torch.arange(keys.shape[0], device="cuda")
        shift = keys.shape[0] - queries.shape[1]

        def weights_of(head, rows):
            scores = queries[head, rows] @ keys.T / math.sqrt(self.dim)
            if self.bias is not None:
                scores += self.bias[-1, head, rows].double()
            last = rows[:, None] + shift
            if self.causal:
                scores.masked_fill_(positions > last, -math.inf)
            if self.window:
                scores.masked_fill_(positions < last - self.window[0], -math.inf)
            return torch.softmax(scores, -1)

        rows = torch.arange(queries.shape[1], device="cuda")
        if not backward:
            some = rows[::max(1, len(rows) // 64)]
            return some, weights_of(0, some) @ values
        grad_query = torch.zeros_like(queries[0])
        grad_key, grad_value = torch.zeros_like(keys), torch.zeros_like(values)
        for head in range(group):
            for part in rows.split(2048):
                weights, grad = weights_of(head, part), grads[head, part]
                delta = ((weights @ values) * grad).sum(-1, keepdim=True)
                grad_value += weights.T @ grad
                grad_scores = weights * (grad @ values.T - delta) / math.sqrt(self.dim)
                if head == 0:
                    grad_query[part] = grad_scores @ keys
                grad_key += grad_scores.T @ queries[head, part]
        return dict(query=grad_query, key=grad_key, value=grad_value)

    def error(self, backward, call):
        """The largest of a call's results, NaN where one is; None where dropout hides it."""
        if self.problem["dropout"] > 0:
            return None
        found = call()  # a peer's call returns its results
        if not backward:
            rows, exact = self.exact(False)
            out = self.out if found is None else found.transpose(1, 2)
            return self.distance(out, self.sequence(out, 0)[0][rows], exact)
        exact = self.exact(True)
        if found is not None:
            found = dict(zip(exact, (gradient.transpose(1, 2) for gradient in found)))
        else:
            found = self.gradients
        return max((self.distance(found[name], self.sequence(found[name], 0)[0], exact[name])
                    for name in exact if name in found), key=lambda x: math.inf if x != x else x)

    @staticmethod
    def distance(whole, part, exact):
        if whole.isnan().any():
            return math.nan
        return ((part.double() - exact).norm() / exact.norm()).item()
