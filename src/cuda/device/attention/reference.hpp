// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// cuda:reference: attention forward and backward by its formula in float64, for tests and for what
// no other kernel of a GPU takes. The formula is that of cpu/reference/attention.cpp, on the same
// AttentionProblem and tensors, so that no size, stride, mask or piece of a rank is out of reach.
//
//   forward   a block has a query row: the maximum of its scores, their sum, then out
//   queries   the same for grad_query; leaves {maximum, sum, shift} of the row in the workspace
//   keys      a block has a key row of all query heads that share it: grad_key and grad_value
//   bias      a block has an element of grad_bias, or 128 of them where few scores read each
//
// Blocks take rows in turns. A thread has a key (or a query) of a chunk of 128 and computes its
// score, or a column of the result, which it sums over the chunk's weights in shared memory:
//
//   chunk of keys     0 .. 127   128 .. 255   ...       columns      0 .. 127
//   thread t          score t    score 128 + t          thread t     += weight[i] * value[i][t]
//
// Scores are computed again for every 128 columns: nothing has the size of the score matrix. Every
// sum has one order, which depends on the row alone. A masked key is skipped, never multiplied by
// 0. Lengths that kernels read are kept within the tensors. sm_80 and up.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/reference_arguments.hpp"
#include "cuda/device/element.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// use(pointer to the element), which has the tensor's type.
template <class Use>
__device__ __forceinline__ void with_element(const Tensor& tensor, int64_t offset, const Use& use) {
  if (tensor.dtype == DType::kF16) use(tensor.as<f16>() + offset);
  if (tensor.dtype == DType::kBF16) use(tensor.as<bf16>() + offset);
  if (tensor.dtype == DType::kF32) use(tensor.as<float>() + offset);
  if (tensor.dtype == DType::kF64) use(tensor.as<double>() + offset);
}
__device__ __forceinline__ double load(const Tensor& tensor, int64_t offset) {
  double value = 0;
  with_element(tensor, offset, [&](const auto* element) { value = convert<double>(*element); });
  return value;
}
template <class Element>
__device__ __forceinline__ void put(Element* to, double value) {
  *to = convert<Element>(value);
}
__device__ __forceinline__ void store_or_add(bool add, const Tensor& tensor, int64_t offset,
                                             double value) {
  with_element(tensor, offset, [&](auto* element) {
    put(element, add ? convert<double>(*element) + value : value);
  });
}

// D: of query, key and value.
template <DType D, class Tensors>
class Reference {
 public:
  __device__ __forceinline__ Reference(const ReferenceArguments<Tensors>& arguments,
                                       ReferenceShared& shared)
      : p_(arguments.problem),
        t_(arguments.tensors),
        sums_(arguments.sums),
        shared_(shared),
        dropout_(t_.dropout) {
    if (dropout_.numbers == nullptr) return;
    dropout_.seed = dropout_.numbers[0];
    dropout_.offset = static_cast<uint32_t>(dropout_.numbers[1]);
  }

  __device__ __forceinline__ void forward() {
    for_each_row([&](const Row& row, int64_t end) {
      const bool left_out = row.query >= row.sequence.q_len;  // by q_lens
      if (row.query >= end) return;
      const ReferenceSums sums = left_out ? ReferenceSums{minus_infinity(), 0, 0} : sums_of(row);
      const auto weight_at = [&](int64_t key) {
        const Cell cell = cell_of(row, key, sums);
        return Weight{cell.seen, cell.dropped};
      };
      const int64_t to = offset_of(t_.out, row.batch, row.head, row.position());
      add_up(
          row.keys.begin, left_out ? row.keys.begin : row.keys.end, p_.value_dim, weight_at,
          [&](int64_t key) { return value_row(row, key); },
          [&](int64_t column, double sum) {
            store_or_add(false, t_.out, to + column * last_stride(t_.out), sum);
          });
      if (!t_.lse.present() || threadIdx.x != 0) return;
      const double lse = is_empty(sums) ? minus_infinity() : sums.maximum + log(sums.sum);
      store_or_add(false, t_.lse, offset_of(t_.lse, row.batch, row.head, row.position()), lse);
    });
  }

  __device__ __forceinline__ void grad_queries() {
    for_each_row([&](const Row& row, int64_t end) {
      const bool left_out = row.query >= row.sequence.q_len;
      if (row.query >= end || (left_out && p_.accumulate_query)) return;
      ReferenceSums sums{};
      if (!left_out) {
        sums = sums_of(row);
        sums.shift = 0;
        double product = 0;
        for (int64_t key = row.keys.begin + thread(); key < row.keys.end; key += kThreads) {
          const Cell cell = cell_of(row, key, sums);
          if (cell.seen) product += cell.probability * cell.grad_probability;
        }
        sums.shift = -reduce(product, [](double a, double b) { return a + b; });
        if (t_.grad_lse.present())
          sums.shift +=
              load(t_.grad_lse, offset_of(t_.grad_lse, row.batch, row.head, row.position()));
        if (threadIdx.x == 0) sums_[sums_index(row)] = sums;
      }
      if (!t_.grad_query.present()) return;
      const auto weight_at = [&](int64_t key) {
        const Cell cell = cell_of(row, key, sums);
        return Weight{cell.seen, cell.grad_product};
      };
      const int64_t to = offset_of(t_.grad_query, row.batch, row.head, row.position());
      add_up(
          row.keys.begin, left_out ? row.keys.begin : row.keys.end, p_.head_dim, weight_at,
          [&](int64_t key) { return key_row(row, key); },
          [&](int64_t column, double sum) {
            store_or_add(p_.accumulate_query, t_.grad_query,
                         to + column * last_stride(t_.grad_query), p_.scale * sum);
          });
    });
  }

  __device__ __forceinline__ void grad_keys() {
    const int64_t rows = p_.batch * p_.kv_heads * p_.kv_len;
    for (int64_t task = blockIdx.x; task < rows; task += gridDim.x) {
      const int64_t key = task % p_.kv_len, kv_head = task / p_.kv_len % p_.kv_heads;
      const int64_t batch = task / p_.kv_len / p_.kv_heads;
      int64_t own_keys = 0;  // with those that kv_lens masks
      const Sequence sequence = sequence_at(batch, nullptr, &own_keys);
      if (key >= own_keys) continue;
      const int64_t queries = p_.group() * sequence.q_len;
      const auto row_of = [&](int64_t i) {
        return make_row(batch, kv_head * p_.group() + i / sequence.q_len, i % sequence.q_len,
                        sequence);
      };
      const auto sum_up = [&](const Tensor& gradient, int64_t dim, bool add, double factor,
                              const auto& number, const auto& vector_of) {
        if (!gradient.present()) return;
        const int64_t to = offset_of(gradient, batch, kv_head, sequence.kv_begin + key);
        const auto weight_at = [&](int64_t i) {
          const Row row = row_of(i);
          const bool within = key >= row.keys.begin && key < row.keys.end;
          const Cell cell = within ? cell_of(row, key, sums_[sums_index(row)]) : Cell{};
          return Weight{cell.seen, number(cell)};
        };
        add_up(
            0, queries, dim, weight_at, [&](int64_t i) { return vector_of(row_of(i)); },
            [&](int64_t column, double sum) {
              store_or_add(add, gradient, to + column * last_stride(gradient), factor * sum);
            });
      };
      sum_up(
          t_.grad_key, p_.head_dim, p_.accumulate_key, p_.scale,
          [](const Cell& cell) { return cell.grad_product; },
          [&](const Row& row) { return query_row(row); });
      sum_up(
          t_.grad_value, p_.value_dim, p_.accumulate_value, 1,
          [](const Cell& cell) { return cell.dropped; },
          [&](const Row& row) { return grad_out_row(row); });
    }
  }

  __device__ __forceinline__ void grad_bias() {
    const int64_t size[4] = {p_.batch, p_.heads, p_.q_len, p_.kv_len};
    int64_t elements = 1, summed[4], scores = 1;  // that read an element
    for (int d = 0; d < 4; ++d) {
      elements *= p_.bias_shape[d];
      summed[d] = p_.bias_shape[d] == 1 ? size[d] : 1;
      scores *= summed[d];
    }
    const bool alone = scores < kThreads / 4;  // a thread has an element
    const int64_t first = alone ? int64_t{blockIdx.x} * kThreads + thread() : blockIdx.x;
    const int64_t step = alone ? int64_t{gridDim.x} * kThreads : gridDim.x;
    for (int64_t element = first; element < elements; element += step) {
      int64_t at[4], to = 0;
      for (int64_t d = 3, rest = element; d >= 0; rest /= p_.bias_shape[d], --d) {
        at[d] = rest % p_.bias_shape[d];
        to += at[d] * t_.grad_bias.stride[d];
      }
      double sum = 0;
      for (int64_t i = alone ? 0 : thread(); i < scores; i += alone ? 1 : kThreads) {
        int64_t score[4];
        for (int64_t d = 3, rest = i; d >= 0; rest /= summed[d], --d)
          score[d] = at[d] + rest % summed[d];
        const Sequence sequence = sequence_at(score[0]);
        if (score[2] >= sequence.q_len) continue;
        const Row row = make_row(score[0], score[1], score[2], sequence);
        if (score[3] < row.keys.begin || score[3] >= row.keys.end) continue;
        const Cell cell = cell_of(row, score[3], sums_[sums_index(row)]);
        if (cell.seen) sum += cell.grad_score;
      }
      if (!alone) sum = reduce(sum, [](double a, double b) { return a + b; });
      if (alone || threadIdx.x == 0) store_or_add(p_.accumulate_bias, t_.grad_bias, to, sum);
    }
  }

 private:
  static constexpr int kThreads = kReferenceThreads;
  using Element = typename ElementOf<D>::Type;
  using V = DoubleArithmetic;
  static constexpr bool kBackward = requires(Tensors tensors) { tensors.grad_out; };

  // A row of a head of a tensor.
  struct Vector {
    const Element* first;
    int64_t stride;
    __device__ __forceinline__ double operator[](int64_t i) const {
      return static_cast<double>(widen(first[i * stride]));
    }
  };
  // A query of a sequence, and the keys that it may see before `visible` is asked.
  struct Row {
    int64_t batch, head, query;
    Sequence sequence;
    KeyRange keys;
    __device__ __forceinline__ int64_t position() const { return sequence.q_begin + query; }
  };
  // A query with a key that it sees. dropped: the probability after dropout.
  struct Cell {
    bool seen;
    double probability, dropped;
    double grad_probability, grad_score, grad_product;  // backward
  };
  struct Weight {
    bool seen;
    double number;
  };

  static __device__ __forceinline__ int64_t thread() { return threadIdx.x; }

  // ---- Where things lie ----

  __device__ __forceinline__ int64_t offset_of(const Tensor& tensor, int64_t entry, int64_t head,
                                               int64_t row) const {
    const int64_t* const stride = tensor.stride + (p_.ragged ? 0 : 1);
    return (p_.ragged ? 0 : entry * tensor.stride[0]) + head * stride[0] + row * stride[1];
  }
  static __device__ __forceinline__ int64_t last_stride(const Tensor& tensor) {
    return tensor.stride[tensor.rank - 1];
  }
  __device__ __forceinline__ Vector vector(const Tensor& tensor, int64_t entry, int64_t head,
                                           int64_t row) const {
    return {tensor.as<Element>() + offset_of(tensor, entry, head, row), last_stride(tensor)};
  }
  __device__ __forceinline__ Vector query_row(const Row& row) const {
    return vector(t_.query, row.batch, row.head, row.position());
  }
  __device__ __forceinline__ Vector grad_out_row(const Row& row) const {
    return vector(t_.grad_out, row.batch, row.head, row.position());
  }
  __device__ __forceinline__ Vector key_row(const Row& row, int64_t key) const {
    return vector(t_.key, row.sequence.kv_entry, row.head / p_.group(),
                  row.sequence.kv_begin + key);
  }
  __device__ __forceinline__ Vector value_row(const Row& row, int64_t key) const {
    return vector(t_.value, row.sequence.kv_entry, row.head / p_.group(),
                  row.sequence.kv_begin + key);
  }
  // Of bias or visible.
  static __device__ __forceinline__ int64_t score_offset(const Tensor& tensor, const Row& row,
                                                         int64_t key) {
    return row.batch * tensor.stride[0] + row.head * tensor.stride[1] +
           row.query * tensor.stride[2] + key * tensor.stride[3];
  }
  __device__ __forceinline__ int64_t sums_index(const Row& row) const {
    return p_.ragged ? row.head * p_.total_q + row.position()
                     : (row.batch * p_.heads + row.head) * p_.q_len + row.query;
  }

  // own_queries, own_keys: with those that q_lens and kv_lens leave out.
  __device__ __forceinline__ Sequence sequence_at(int64_t batch, int64_t* own_queries = nullptr,
                                                  int64_t* own_keys = nullptr) const {
    AttentionProblem whole = p_;
    whole.q_lens = whole.kv_lens = false;
    const auto clamped = [&](Sequence found) {
      const int64_t zero = 0;
      found.q_begin = clamp(found.q_begin, zero, p_.total_q);
      found.kv_begin = clamp(found.kv_begin, zero, p_.total_kv);
      const int64_t queries = p_.ragged ? p_.total_q - found.q_begin : p_.q_len;
      const int64_t keys = p_.ragged ? p_.total_kv - found.kv_begin : p_.kv_len;
      found.q_len = clamp(found.q_len, zero, min(queries, p_.q_len));
      found.kv_len = clamp(found.kv_len, zero, min(keys, p_.kv_len));
      if (p_.kv_index) found.kv_entry = clamp(found.kv_entry, zero, p_.kv_batch - 1);
      return found;
    };
    if (own_queries != nullptr) *own_queries = clamped(sequence_of(whole, t_, batch)).q_len;
    if (own_keys != nullptr) *own_keys = clamped(sequence_of(whole, t_, batch)).kv_len;
    return clamped(sequence_of(p_, t_, batch));
  }
  __device__ __forceinline__ Row make_row(int64_t batch, int64_t head, int64_t query,
                                          const Sequence& sequence) const {
    return {batch, head, query, sequence, visible_keys(p_, query, sequence.q_len, sequence.kv_len)};
  }
  // use(row, queries of its sequence, with those that q_lens leaves out), by the whole block.
  template <class Use>
  __device__ __forceinline__ void for_each_row(const Use& use) const {
    const int64_t rows = p_.batch * p_.heads * p_.q_len;
    for (int64_t task = blockIdx.x; task < rows; task += gridDim.x) {
      int64_t own_queries = 0;
      const int64_t batch = task / p_.q_len / p_.heads;
      const Sequence sequence = sequence_at(batch, &own_queries);
      // Rows beyond those of a rank's piece are the next piece's.
      if (!p_.rows.all()) own_queries = sequence.q_len;
      use(make_row(batch, task / p_.q_len % p_.heads, task % p_.q_len, sequence), own_queries);
    }
  }

  // ---- Scores ----

  static __device__ __forceinline__ double dot(const Vector& a, const Vector& b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum = V::fma(a[i], b[i], sum);
    return sum;
  }
  struct Score {
    bool seen;
    double score, slope;  // slope: M'
  };
  __device__ __forceinline__ Score score_of(const Row& row, int64_t key) const {
    if (p_.visible && t_.visible.template as<uint8_t>()[score_offset(t_.visible, row, key)] == 0)
      return {};
    const double product = dot(query_row(row), key_row(row, key), p_.head_dim);
    Score found{true, 0, 1};
    with_modifier<double>(p_.modifier, [&](const auto& modifier) {
      found.score = score<V>(product, p_.scale, 0.0, modifier);
      found.slope = modifier.template derivative<V>(found.score);
    });
    if (p_.bias) found.score += load(t_.bias, score_offset(t_.bias, row, key));
    return found;
  }
  // A row whose scores are all -inf, or count as that, sees nothing.
  __device__ __forceinline__ bool is_empty(const ReferenceSums& sums) const {
    return sums.maximum <= (p_.dtype == DType::kF64 ? minus_infinity() : kLeastScore);
  }
  // In all threads, without the shift.
  __device__ __forceinline__ ReferenceSums sums_of(const Row& row) {
    const auto larger = [](double a, double b) { return a > b || a != a ? a : b; };  // NaN stays
    const auto sum = [](double a, double b) { return a + b; };
    ReferenceSums sums{minus_infinity(), 0, 0};
    for (int64_t key = row.keys.begin + thread(); key < row.keys.end; key += kThreads) {
      const Score found = score_of(row, key);
      if (found.seen) sums.maximum = larger(found.score, sums.maximum);
    }
    sums.maximum = reduce(sums.maximum, larger);
    for (int64_t key = row.keys.begin + thread(); key < row.keys.end; key += kThreads) {
      const Score found = score_of(row, key);
      if (found.seen) sums.sum += exp(found.score - sums.maximum);
    }
    sums.sum = reduce(sums.sum, sum);
    return sums;
  }
  // Gradients are right once the row's shift is known.
  __device__ __forceinline__ Cell cell_of(const Row& row, int64_t key,
                                          const ReferenceSums& sums) const {
    if (is_empty(sums)) return {};
    const Score found = score_of(row, key);
    if (!found.seen) return {};
    Cell cell{true, exp(found.score - sums.maximum) / sums.sum, 0, 0, 0, 0};
    double factor = 1;
    if (dropout_.enabled())
      factor = dropout_keeps(dropout_, row.batch * p_.heads + row.head,
                             p_.rows.position(row.query, row.sequence.q_len), key)
                   ? dropout_.rescale()
                   : 0;
    cell.dropped = cell.probability * factor;
    if constexpr (kBackward) {
      cell.grad_probability = factor * dot(grad_out_row(row), value_row(row, key), p_.value_dim);
      cell.grad_score = cell.probability * (cell.grad_probability + sums.shift);
      cell.grad_product = found.slope * cell.grad_score;
    }
    return cell;
  }

  // ---- Sums of a block ----

  template <class Combine>
  __device__ __forceinline__ double reduce(double own, const Combine& combine) {
    __syncthreads();
    shared_.number[threadIdx.x] = own;
    for (int width = kThreads / 2; width > 0; width /= 2) {
      __syncthreads();
      if (threadIdx.x < width)
        shared_.number[threadIdx.x] =
            combine(shared_.number[threadIdx.x], shared_.number[threadIdx.x + width]);
    }
    __syncthreads();
    return shared_.number[0];
  }
  // store(column, sum of weight_at(i) * vector_of(i)[column] over i of [begin, end)) for all
  // columns.
  template <class WeightAt, class VectorOf, class Store>
  __device__ __forceinline__ void add_up(int64_t begin, int64_t end, int64_t columns,
                                         const WeightAt& weight_at, const VectorOf& vector_of,
                                         const Store& store) {
    for (int64_t first = 0; first < columns; first += kThreads) {
      const int64_t column = first + thread();
      double sum = 0;
      for (int64_t chunk = begin; chunk < end; chunk += kThreads) {
        const int64_t own = chunk + thread();
        const Weight weight = own < end ? weight_at(own) : Weight{};
        __syncthreads();
        shared_.number[threadIdx.x] = weight.number;
        shared_.seen[threadIdx.x] = weight.seen;
        __syncthreads();
        if (column >= columns) continue;
        const int64_t count = min(int64_t{kThreads}, end - chunk);
        for (int64_t i = 0; i < count; ++i)
          if (shared_.seen[i]) sum = V::fma(shared_.number[i], vector_of(chunk + i)[column], sum);
      }
      if (column < columns) store(column, sum);
    }
  }

  const AttentionProblem& p_;
  const Tensors& t_;
  ReferenceSums* const sums_;
  ReferenceShared& shared_;
  Dropout dropout_;
};

template <DType D>
__global__ void __launch_bounds__(kReferenceThreads) reference_attention_forward(
    const __grid_constant__ ReferenceArguments<AttentionForward> arguments) {
  __shared__ ReferenceShared shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  Reference<D, AttentionForward>(arguments, shared).forward();
}
template <DType D>
__global__ void __launch_bounds__(kReferenceThreads) reference_attention_grad_queries(
    const __grid_constant__ ReferenceArguments<AttentionBackward> arguments) {
  __shared__ ReferenceShared shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  Reference<D, AttentionBackward>(arguments, shared).grad_queries();
}
template <DType D>
__global__ void __launch_bounds__(kReferenceThreads) reference_attention_grad_keys(
    const __grid_constant__ ReferenceArguments<AttentionBackward> arguments) {
  __shared__ ReferenceShared shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  Reference<D, AttentionBackward>(arguments, shared).grad_keys();
}
template <DType D>
__global__ void __launch_bounds__(kReferenceThreads) reference_attention_grad_bias(
    const __grid_constant__ ReferenceArguments<AttentionBackward> arguments) {
  __shared__ ReferenceShared shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  Reference<D, AttentionBackward>(arguments, shared).grad_bias();
}

}  // namespace perseid::internal::cuda
