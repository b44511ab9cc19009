// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the model does between matmuls and attention, as plain loops over rows: each vectorises and
// is shared among threads. No result depends on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "threads.hpp"
#include "types.hpp"

namespace gpt {

// out[row] = table[tokens[row]], and the gradient of table: every row of grad_out added to the row
// of its token.
template <class R>
void embed(Threads& threads, const R* table, const uint8_t* tokens, int64_t rows, int64_t width,
           R* out);
template <class R>
void embed_backward(Threads& threads, const R* grad_out, const uint8_t* tokens, int64_t rows,
                    int64_t vocabulary, int64_t width, R* grad_table);

// RMSNorm without a gain (the matmul that follows can learn it): out = x * inverse_rms[row].
template <class T>
void norm(Threads& threads, const Real<T>* x, int64_t rows, int64_t width, T* out,
          Real<T>* inverse_rms);
// Adds the gradient of x to grad_x, and leaves the sum rounded to T in grad_x_rounded (which is
// grad_x itself where T is Real<T>).
template <class T>
void norm_backward(Threads& threads, const Real<T>* x, const Real<T>* inverse_rms,
                   const T* grad_out, int64_t rows, int64_t width, Real<T>* grad_x,
                   T* grad_x_rounded);

// GELU in its tanh form. Backward turns the gradient of the output into that of the input.
template <class T>
void gelu(Threads& threads, const T* x, int64_t count, T* out);
template <class T>
void gelu_backward(Threads& threads, const T* x, int64_t count, T* grad);

// Rotary positions (Su et al., arXiv:2104.09864), in place, on the first `heads` heads of every row
// of [rows, stride]. The position of a row is positions[row % length]. Backward turns the other
// way.
template <class R>
struct RotaryTable {
  RotaryTable(const std::vector<int64_t>& positions, int64_t head_dim);
  int64_t length, half;
  Buffer<R> cosine, sine;  // [length, half]
};
enum class Turn { kForward, kBackward };
template <class T>
void rotate(Threads& threads, const RotaryTable<Real<T>>& table, Turn turn, int64_t rows,
            int64_t heads, int64_t stride, T* x);

// sum += x
template <class From, class To>
void add(Threads& threads, const From* x, int64_t count, To* sum) {
  threads.for_ranges(count, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum[i] = static_cast<To>(sum[i] + x[i]);
  });
}

template <class From, class To>
void convert(Threads& threads, const From* from, int64_t count, To* to) {
  threads.for_ranges(count, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<To>(from[i]);
  });
}

}  // namespace gpt
