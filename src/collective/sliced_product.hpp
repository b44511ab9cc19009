// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The product of an all-gather + matmul on Hopper GPUs whose transfer takes about as long or
// longer. If the last shard arrived in rows, whole tiles would be left to compute behind its last
// byte. So it comes in slices of k: each of its tiles begins with the first slice and has only the
// last one left when that arrives. The rows of the other shards are products of their own before
// it, and so are the first rows of the last shard where its tiles are more than one wave: those of
// a second wave would begin when everything has arrived. The sums are in the order of k in any
// case, so the result has the same bits.
#pragma once

#include "collective/plan.hpp"

namespace perseid::internal::collective {

class SlicedProduct {
 public:
  // Whether the kernels take slices of a [rows, k].
  static bool may_take(const dispatch::Device& device, const perseid_matmul_desc& product,
                       const Shards& shards);
  // How many of the last rows of a shard come in slices.
  static int64_t sliced_rows(const dispatch::Device& device, int64_t n, int64_t rows);
  // `product`: of all rows, without chunks. The last shard has as many slices as chunks, where
  // some of its rows come before them one less. `rows`: that are sliced.
  static Status make(const op::DevicePointer& device, const perseid_matmul_desc& product,
                     const Shards& shards, const ShardChunks& chunks, int32_t rank, int64_t rows,
                     std::unique_ptr<const SlicedProduct>* sliced);

  // What the rank after this one, which wants so many rows in slices, gets of this rank's shard, a
  // row-major view.
  static void cut(const Shards& shards, const ShardChunks& chunks, int32_t rank, int64_t rows,
                  std::byte* gathered, const Tensor& shard, std::vector<SentPart>* parts);

  // What multiply() refuses before anything runs.
  Status check(const Tensor& a, const Tensor& c, const perseid_matmul_args& args,
               const op::Workspace& workspace) const;
  // a and c: [1, rows, columns], all rows. `args` has the rest. `arrival`: of all chunks.
  Status multiply(const Tensor& a, const Tensor& c, const perseid_matmul_args& args,
                  const perseid_arrival& arrival, const op::Workspace& workspace, void* stream,
                  const ChunkTimers& timers) const;
  template <class Body>
  void for_each_plan(const Body& body) const {
    for (const Rows& rows : rows_) body(*rows.plan);
  }

 private:
  struct Rows {
    int64_t from, to, first_chunk;
    std::vector<int64_t> begin;  // of chunks, from 0
    InnerPlan plan;
  };

  // Calls run(rows, args) with those of the rows.
  template <class Run>
  Status for_each_rows(const Tensor& a, const Tensor& c, const perseid_matmul_args& args,
                       const Run& run) const;
  explicit SlicedProduct(op::DevicePointer device) : device_(std::move(device)) {}
  Status add(const perseid_matmul_desc& product, int64_t from, int64_t to, int64_t first_chunk,
             std::vector<int64_t> begin, uint32_t dim);

  op::DevicePointer device_;
  std::vector<Rows> rows_;
};

}  // namespace perseid::internal::collective
