// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward in float64 by the tensor cores' warp products (DMMA), sm_80 and up: out =
// softmax(scale * query key^T, masked) value, and the logarithm of each row's sum.
//
// Warps, pipeline, raster order and hidden values that are not finite are those of forward.hpp: a
// block has a Q tile of one head, each of its four warps 16 rows of it, in registers with scores,
// weights and results; KV tiles come through two stages of shared memory.
//
//   Q 16 x key_dim (registers)   times  K keys x key_dim (shared), transposed  =  S 16 x keys
//   P 16 x keys (registers)      times  V keys x value_dim (shared)           +=  O 16 x value_dim
//
// Few queries and many keys: a block has a split of the keys, and another kernel combines the
// splits (attention/combine.hpp).
//
// Queries beyond dim 64 are read again from global memory, by way of the L1 cache, for each tile of
// keys.
//
// Limits: rows and columns count in 32 bits. Numerics: everything is float64. A row's bits do not
// depend on its batch.
#pragma once

#include "cuda/device/attention/combine.hpp"
#include "cuda/device/attention/query_tile.hpp"
#include "cuda/device/attention/row_fixup.hpp"
#include "cuda/device/portable/attention/float64_config.hpp"
#include "cuda/device/portable/attention/float64_products.hpp"
#include "cuda/device/portable/attention/rows_copy.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

template <Float64ForwardConfig C>
class Float64Forward {
 public:
  __device__ __forceinline__ Float64Forward(const Float64Arguments& arguments,
                                            unsigned char* memory)
      : a_(arguments),
        memory_(memory),
        address_(ptx::shared_address(memory)),
        own_(reinterpret_cast<QueryTile*>(memory + C.tile_bytes())[warp()]) {}

  __device__ __forceinline__ void run() {
    QueryTile tile{};
    if (!locate(tile)) return;
#pragma unroll 1
    for (bool clears = false;; clears = true) {
      mainloop(tile, clears);
      const bool nonfinite = C.masked() && sees_nonfinite_values(out_);
      if constexpr (C.split)
        store_split();
      else
        store();
      if (!C.masked() || clears || __syncthreads_or(nonfinite) == 0) {
        if (clears) fix_up();
        return;
      }
    }
  }

 private:
  static constexpr int kSteps = C.depth() / 16;
  static constexpr int kValues = 2 * C.key_bytes();  // offset in shared memory
  static constexpr int kEach = 2;                    // elements of a vector
  using KeyCopy = TileCopy<C.dtype, C.keys, C.depth(), C.threads>;
  using ValueCopy = TileCopy<C.dtype, C.keys, C.columns(), C.threads>;
  using Scores = double[C.keys / 2];
  using V = DoubleArithmetic;
  // Queries in registers are multiplied by the scale once, others' scores one by one.
  static constexpr bool kScalesQuery =
      C.query_in_registers() && Modifier<C.modifier, double>::kIdentity;

  // Read again each time: what follows from it takes no registers in between.
  static __device__ __forceinline__ int lane() { return ptx::thread_number() & 31; }
  static __device__ __forceinline__ int warp() {
    return static_cast<int>(static_cast<uint32_t>(ptx::thread_number()) / 32);
  }

  // ---- The block's Q tile, and the warp's rows of it ----

  // Returns whether the tile has rows.
  __device__ __forceinline__ bool locate(QueryTile& tile) {
    const auto number = static_cast<int32_t>(blockIdx.x);
    split_ = C.split ? number % a_.num_splits : 0;
    const int32_t block = C.split ? number / a_.num_splits : number;
    first_column_ = block % C.parts() * C.columns();
    if (!find_query_tile<C>(a_, block / C.parts(), tile)) return false;
    QueryTile own = tile;
    own.query += warp() * C.rows;
    if (own.query < own.q_len)
      find_kv_tiles<C>(own, min(own.query + C.rows, own.q_len) - 1);
    else
      own.first = 1;  // it visits none
    find_kv_tiles<C>(tile, min(tile.query + C.block_rows(), tile.q_len) - 1);
    if constexpr (C.split) {
      keep_split(a_, split_, own);
      keep_split(a_, split_, tile);
    }
    if (lane() == 0) own_ = own;
    __syncwarp();
    return true;
  }
  __device__ __forceinline__ int32_t entry() const { return entry_of<C.lengths>(a_, own_.batch); }
  // The thread's rows are r = 0 and 1; those behind the last have its elements.
  __device__ __forceinline__ int query_of(int r) const {
    return min(own_.query + 8 * r + lane() / 4, own_.q_len - 1);
  }

  // ---- Mainloop ----

  __device__ __forceinline__ void mainloop(const QueryTile& tile, bool clears) {
    const int32_t kv_entry = key_entry_of<C.lengths>(a_, own_.batch);
    const KeyCopy key(a_.key_rows, kv_entry, tile.kv_head, tile.kv_begin, a_.head_dim, C.vectors);
    const ValueCopy value(a_.value_rows, kv_entry, tile.kv_head, tile.kv_begin, a_.value_dim,
                          C.vectors);
    const auto copy_key = [&](int n, int stage, int depth) {
      key.copy(memory_, address_, stage * C.key_bytes(), n * C.keys, tile.kv_len, depth);
    };
    const auto copy = [&](int n) {
      if constexpr (!C.streams()) copy_key(n, n % 2, 0);
      value.copy(memory_, address_, value_offset(n), n * C.keys, tile.kv_len, first_column_);
    };
#pragma unroll
    for (double& each : out_) each = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum_[r] = minus_infinity();
      sum_[r] = 0;
    }
    if (C.split && tile.first > tile.last) return;
    copy(tile.last);
    ptx::cp_async_commit();
    if constexpr (C.query_in_registers())
#pragma unroll
      for (int k = 0; k < kSteps; ++k) load_query(16 * k, query_[k]);
    const int first = own_.first, last = own_.last;
#pragma unroll 1
    for (int n = tile.last; n >= tile.first; --n) {
      ptx::cp_async_wait<0>();
      if (C.masked() && clears) value.clear_nonfinite(memory_ + value_offset(n));
      __syncthreads();
      if (n > tile.first) copy(n - 1);
      ptx::cp_async_commit();
      const bool visits = n >= first && n <= last;
      Scores scores = {};
      if constexpr (C.streams()) {
#pragma unroll 1
        for (int depth = 0; depth < C.key_dim; depth += C.depth()) {
          if (depth > 0) __syncthreads();  // all warps are done with the chunk before
          copy_key(n, 0, depth);
          ptx::cp_async_commit();
          ptx::cp_async_wait<0>();
          __syncthreads();
          if (visits) multiply_keys(0, depth, scores);
        }
      } else if (visits) {
        multiply_keys(n % 2, 0, scores);
      }
      if (visits) {
        finish_scores(n, scores);
        softmax(scores);
        if constexpr (C.dropout) drop(n, scores);
        multiply_values(n, scores);
      }
    }
  }
  static __device__ __forceinline__ int value_offset(int n) {
    return kValues + n % 2 * C.value_bytes();
  }

  // ---- Products ----

  // The thread's elements of 16 of its two rows from `depth` on, as a left operand.
  __device__ __forceinline__ void load_query(int depth, double (&fragment)[8]) const {
    const int first = depth + lane() % 4 * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* row =
          row_at<const double>(a_.query_rows, entry(), own_.head, own_.q_begin + query_of(r));
#pragma unroll
      for (int t = 0; t < 4; t += kEach) {
        double2 pair{0, 0};
        const int at = first + t;
        if constexpr (C.vectors) {
          if (at < a_.head_dim) pair = *reinterpret_cast<const double2*>(row + at);
        } else {
          if (at < a_.head_dim) pair.x = row[at * a_.query_rows.stride[3]];
          if (at + 1 < a_.head_dim) pair.y = row[(at + 1) * a_.query_rows.stride[3]];
        }
        fragment[2 * t + r] = kScalesQuery ? pair.x * a_.scale_log2_f64 : pair.x;
        fragment[2 * t + 2 + r] = kScalesQuery ? pair.y * a_.scale_log2_f64 : pair.y;
      }
    }
  }
  // S += Q K^T of a chunk from `depth` on.
  __device__ __forceinline__ void multiply_keys(int stage, int depth, Scores& scores) const {
    const Float64Lines<C.depth()> keys(memory_ + stage * C.key_bytes(), lane());
    multiply_lines(
        [&](int k, double(&left)[8]) {
          if constexpr (C.query_in_registers()) {
#pragma unroll
            for (int e = 0; e < 8; ++e) left[e] = query_[k][e];
          } else {
            load_query(depth + 16 * k, left);
          }
        },
        keys, scores);
  }
  // O += P V.
  __device__ __forceinline__ void multiply_values(int n, const Scores& weights) {
    multiply_weights<C.columns(), C.columns() / 8>(weights, memory_ + value_offset(n), lane(),
                                                   out_);
  }

  // ---- Softmax ----

  // use(element of the thread, its row r, its key)
  template <class Use>
  __device__ __forceinline__ void for_each_score(int n, const Use& use) const {
    const int first = n * C.keys + lane() % 4 * 2;
#pragma unroll
    for (int x = 0; x < C.keys / 2; ++x) use(x, x / 2 % 2, first + x / 4 * 8 + x % 2);
  }
  // Products to scores in units of log2; -inf where the query does not see the key.
  __device__ __forceinline__ void finish_scores(int n, Scores& scores) const {
    if constexpr (!kScalesQuery || C.bias != DType::kNone) {
      const Modifier<C.modifier, double> modifier{a_.modifier};
      const double scale = kScalesQuery ? 1 : a_.scale_log2_f64;
      for_each_score(n, [&](int x, int r, int key) {
        double bias = 0;
        if constexpr (C.bias != DType::kNone)
          if (key < own_.kv_len)
            bias = bias_log2<C.bias>(a_, own_.batch, own_.head,
                                     score_row_of<C>(a_, own_, query_of(r)), key);
        scores[x] = score_log2<V>(scores[x], scale, bias, modifier);
      });
    }
    if (n < own_.unmasked_first || n >= own_.unmasked_end) {
      int begin[2] = {}, end[2] = {own_.kv_len, own_.kv_len};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (C.left) begin[r] = query_of(r) + own_.left;
        if constexpr (C.right) end[r] = min(query_of(r) + own_.right, own_.kv_len);
      }
      for_each_score(n, [&](int x, int r, int key) {
        if (key < begin[r] || key >= end[r]) scores[x] = minus_infinity();
      });
    }
    if constexpr (C.visible)
      for_each_score(n, [&](int x, int r, int key) {
        if (key >= own_.kv_len || !is_seen<C>(a_, own_, own_.head, query_of(r), key))
          scores[x] = minus_infinity();
      });
  }
  // Scores to weights; rescales what was summed before.
  __device__ __forceinline__ void softmax(Scores& scores) {
    double largest[2] = {scores[0], scores[2]};
#pragma unroll
    for (int x = 1; x < C.keys / 2; ++x)
      if (x != 2) largest[x / 2 % 2] = larger(scores[x], largest[x / 2 % 2]);
    double now[2], top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = larger(quad_max(largest[r]), maximum_[r]);
      top[r] = now[r] == minus_infinity() ? 0 : now[r];
    }
    if (__any_sync(0xffffffffu, now[0] != maximum_[0] || now[1] != maximum_[1])) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const double factor = V::exp2(maximum_[r] - top[r]);
        maximum_[r] = now[r];
        sum_[r] *= factor;
#pragma unroll
        for (int j = 0; j < C.columns() / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) out_[4 * j + 2 * r + e] *= factor;
      }
    }
#pragma unroll
    for (int x = 0; x < C.keys / 2; ++x) {
      scores[x] = V::exp2(scores[x] - top[x / 2 % 2]);
      sum_[x / 2 % 2] += scores[x];
    }
  }
  static __device__ __forceinline__ double quad_max(double x) {
    x = larger(__shfl_xor_sync(0xffffffffu, x, 1), x);
    return larger(__shfl_xor_sync(0xffffffffu, x, 2), x);
  }
  // Fewer instructions than fmax, which has rules for NaN.
  static __device__ __forceinline__ double larger(double x, double than) {
    return x > than ? x : than;
  }
  // Row sums include the weights that are dropped.
  __device__ __forceinline__ void drop(int n, Scores& weights) const {
    for_each_score(n, [&](int x, int r, int key) {
      const int32_t query = whole_row<C>(a_, own_, query_of(r));
      if (!is_kept<true>(a_, own_.batch, own_.head, query, key)) weights[x] = 0;
    });
  }

  // ---- Epilogue ----

  // Divides the results by their row sums. The four lanes of a row store 64 bytes side by side.
  __device__ __forceinline__ void store() const {
    const int own = lane();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = own_.query + 8 * r + own / 4;
      const double sum = quad_sum(sum_[r]);
      if (query >= own_.q_len) continue;
      const bool empty = sum == 0;
      if (a_.lse != nullptr && first_column_ == 0 && own % 4 == 0)
        *lse_of<C>(a_, own_, own_.head, query) =
            empty ? minus_infinity() : maximum_[r] * internal::kLn2 + log(sum);
      const double factor = empty ? 0 : dropout_factor<C.dropout, double>(a_) / sum;
      auto* const to = row_at<double>(a_.out_rows, entry(), own_.head, own_.q_begin + query);
#pragma unroll
      for (int j = 0; j < C.columns() / 8; ++j) {
        const int column = first_column_ + 8 * j + own % 4 * 2;
        const double x = empty ? 0 : out_[4 * j + 2 * r] * factor;
        const double y = empty ? 0 : out_[4 * j + 2 * r + 1] * factor;
        if constexpr (C.vectors) {
          if (column < a_.value_dim) *reinterpret_cast<double2*>(to + column) = {x, y};
        } else {
          if (column < a_.value_dim) to[column * a_.out_rows.stride[3]] = x;
          if (column + 1 < a_.value_dim) to[(column + 1) * a_.out_rows.stride[3]] = y;
        }
      }
    }
  }
  // A split's results, and its row sums as 2^maximum times a number.
  __device__ __forceinline__ void store_split() const {
    const int own = lane();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = own_.query + 8 * r + own / 4;
      const double sum = quad_sum(sum_[r]);
      if (query >= own_.q_len) continue;
      const int64_t length = C.lengths && a_.ragged ? a_.total_q : a_.q_len;
      const int64_t head = int64_t{entry()} * a_.heads + own_.head;
      const int64_t row = split_ * a_.rows + head * length + own_.q_begin + query;
      if (own % 4 == 0 && first_column_ == 0) {
        // A split whose scores are all NaN has a sum of NaN and no maximum.
        a_.split_sums[row] = sum == 0 ? minus_infinity() : sum != sum ? 0 : maximum_[r];
        a_.split_weights[row] = sum;
      }
      const double factor = sum == 0 ? 0 : dropout_factor<C.dropout, double>(a_) / sum;
#pragma unroll
      for (int j = 0; j < C.columns() / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = first_column_ + 8 * j + own % 4 * 2 + e;
          if (column < a_.value_dim)
            a_.split_results[row * a_.value_dim + column] =
                sum == 0 ? 0 : out_[4 * j + 2 * r + e] * factor;
        }
    }
  }
  // After the results with cleared values were stored.
  __device__ __forceinline__ void fix_up() const {
    if constexpr (C.split) {
      if (threadIdx.x == 0) *a_.nonfinite = a_.launch;
      return;
    }
    __syncwarp();
#pragma unroll 1
    for (int query = own_.query; query < min(own_.query + C.rows, own_.q_len); ++query)
      fixup_row<C>(a_, own_, own_.head, query);
  }

  const Float64Arguments& a_;
  unsigned char* const memory_;
  const uint32_t address_;
  QueryTile& own_;  // the warp's rows, in shared memory
  int32_t first_column_ = 0, split_ = 0;
  double out_[C.columns() / 2];
  double maximum_[2], sum_[2];  // of the thread's rows; sums: of its own columns
  double query_[C.query_in_registers() ? kSteps : 1][8];
};

template <Float64ForwardConfig C>
__global__ void __launch_bounds__(C.threads, C.resident)
    float64_attention_forward(const __grid_constant__ Float64Arguments arguments) {
  extern __shared__ __align__(128) unsigned char memory[];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  Float64Forward<C>(arguments, memory).run();
}

// After a launch with splits.
template <Float64ForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    float64_attention_combine(const __grid_constant__ Float64Arguments arguments) {
  combine_splits<C.dtype>(arguments, arguments.out_rows.stride[3]);
}
template <Float64ForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    float64_attention_fixup(const __grid_constant__ Float64Arguments arguments) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (*arguments.nonfinite == arguments.launch) fixup_rows<C, kRowWarps>(arguments);
}

}  // namespace perseid::internal::cuda
