// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul whose operands arrive in chunks while it runs, and whose result is signalled by chunks.
//
// The blocks of C are those of the plain product, and so is the arithmetic of each: results are the
// same bits. What differs is when a block runs and when its operands are packed:
//
//   - Workers draw blocks from one counter, in the order of math/tile_order.hpp, which begins with
//     the pivot chunk. Executors may call tasks in any order, so a task's own number is not used.
//   - An operand that is present is packed ahead. Of one that arrives, the first worker that needs
//     a part (of a block at a block of the depth) packs it after its chunks have arrived; the
//     others wait until it is packed.
//   - With chunks along the depth, a worker that needs a missing chunk parks the sums of its block
//     in the workspace and draws another block, so that all blocks use the chunks that are present.
//     Every block is drawn as often as the depth has blocks; each draw but those of a finished
//     block advances by one or more, and waits for that one alone. Sums are added in the order of
//     the depth, whichever worker adds them.
//   - Each chunk of the output counts its unwritten elements; the worker that counts down to 0 sets
//     the signal. The countdown is acquire and release, so the signal publishes the writes of all
//     workers.
#pragma once

#include <atomic>

#include "cpu/simd/matmul.hpp"
#include "cpu/waits.hpp"
#include "math/tile_order.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class ChunkedMatmulKernel : MatmulKernel<Dot, T> {
  using Base = MatmulKernel<Dot, T>;
  using typename Base::Ahead;
  using typename Base::Blocking;
  using typename Base::Scalar;
  using typename Base::Scratch;

  // What all workers share besides packed operands.
  struct Shared {
    uint32_t* a_parts = nullptr;  // [entries, down, depths]: claims of A's packed parts
    uint32_t* b_parts = nullptr;  // [entries, across, depths]
    uint32_t* c_parts = nullptr;  // [batch, down, across]: claims of blocks that may be parked
    int64_t* reached = nullptr;   // [batch, down, across]: blocks of the depth that are summed
    Scalar* parked = nullptr;     // [batch, down, across, buffers, rows, columns]
    int64_t* elements = nullptr;  // [chunks of C]: that are not written yet
    int64_t a_count = 0, b_count = 0, c_count = 0;

    Shared(const MatmulProblem& problem, const Blocking& blocking, Arena& arena) {
      if (blocking.ahead) {
        a_count = blocking.entries * blocking.down * blocking.depths();
        b_count = blocking.entries * blocking.across * blocking.depths();
        a_parts = arena.take<uint32_t>(a_count);
        b_parts = arena.take<uint32_t>(b_count);
      }
      if (may_park(problem, blocking)) {
        c_count = problem.batch * blocking.down * blocking.across;
        c_parts = arena.take<uint32_t>(c_count);
        reached = arena.take<int64_t>(c_count);
        parked = arena.take<Scalar>(c_count * blocking.buffers() * blocking.buffer());
      }
      elements = arena.take<int64_t>(problem.chunks_c.count);
    }

    void clear(const MatmulProblem& problem) const {
      for (int64_t i = 0; i < a_count; ++i) a_parts[i] = 0;
      for (int64_t i = 0; i < b_count; ++i) b_parts[i] = 0;
      for (int64_t i = 0; i < c_count; ++i) c_parts[i] = 0, reached[i] = 0;
      const ChunkCut& cut = problem.chunks_c;
      const int64_t across = cut.dim == ChunkDim::kM ? problem.n : problem.m;
      for (int64_t c = 0; c < cut.count; ++c)
        elements[c] = problem.batch * (cut.begin[c + 1] - cut.begin[c]) * across;
    }
  };

  static bool may_park(const MatmulProblem& problem, const Blocking& blocking) {
    const bool along_depth =
        problem.chunks_a.dim == ChunkDim::kK || problem.chunks_b.dim == ChunkDim::kK;
    return along_depth && !blocking.few_rows && blocking.depths() > 1;
  }

  static size_t shared_bytes(const MatmulProblem& problem, const Blocking& blocking) {
    Arena arena(nullptr);
    Ahead(blocking, arena);
    Shared(problem, blocking, arena);
    return arena.bytes();
  }

  // An operand as the kernel sees it: A, or B.
  struct Side {
    int operand;                // of Waits
    ChunkTable<int64_t> outer;  // chunks of A's rows, or of B's columns
    ChunkTable<int64_t> depth;

    Side(const Waits& waits, int operand_, bool read)
        : operand(operand_),
          outer(waits.chunks(operand_, operand_ == 0 ? ChunkDim::kM : ChunkDim::kN)),
          depth(waits.chunks(operand_, ChunkDim::kK)) {
      if (!read) outer = depth = {};
    }
    bool arrives() const { return outer.present() || depth.present(); }
    // Chunks that a part needs: rows or columns [begin, begin + size) at depths [k, k + count).
    ChunkRange<int64_t> needed(int64_t begin, int64_t size, int64_t k, int64_t count) const {
      return depth.present() ? depth.covering(k, k + count) : outer.covering(begin, begin + size);
    }
  };

 public:
  static size_t workspace(const MatmulProblem& problem, int32_t workers) {
    return Base::workspace(problem, workers, [&](const Blocking& blocking) {
      return shared_bytes(problem, blocking);
    });
  }

  ChunkedMatmulKernel(const MatmulProblem& problem, const MatmulArguments& arguments,
                      const Execution& execution)
      : Base(problem, arguments, execution.workspace),
        executor_(execution.executor),
        waits_(*execution.waits),
        side_a_(waits_, this->transposed_ ? 1 : 0, problem.k > 0),
        side_b_(waits_, this->transposed_ ? 0 : 1, problem.k > 0),
        rows_of_c_(waits_.chunks_of_output(this->transposed_ ? ChunkDim::kN : ChunkDim::kM)),
        columns_of_c_(waits_.chunks_of_output(this->transposed_ ? ChunkDim::kM : ChunkDim::kN)),
        parks_(may_park(problem, this->blocking_)) {
    this->shared_bytes_ = shared_bytes(problem, this->blocking_);
  }

  void run() const {
    Executor& executor = executor_;
    const Blocking& blocking = this->blocking_;
    const MatmulProblem& problem = this->problem_;
    Arena arena(this->workspace_);
    const Ahead ahead(blocking, arena);
    const Shared shared(problem, blocking, arena);
    shared.clear(problem);
    if (blocking.ahead) {
      const auto entries = [&](bool one) { return one ? int64_t{1} : problem.batch; };
      if (!this->direct_a_ && !side_a_.arrives())
        this->pack_ahead(executor, 0, entries(this->one_a()), true, false);
      if (!side_b_.arrives()) this->pack_ahead(executor, 0, entries(this->one_b()), false, true);
    }

    TileGrid<int64_t> grid{.batch = problem.batch,
                           .m = this->m_,
                           .n = this->n_,
                           .tile_m = blocking.rows,
                           .tile_n = blocking.columns,
                           .raster = Raster::kAlongM,
                           .rows = side_a_.outer,
                           .columns = side_b_.outer};
    if (!side_a_.outer.present() && !side_b_.outer.present()) {
      grid.rows = rows_of_c_;
      grid.columns = columns_of_c_;
    }
    const TileOrder<int64_t> order(grid);
    const int64_t blocks = order.clusters(), rounds = parks_ ? blocking.depths() : 1;
    std::atomic<int64_t> next{0};
    for_each_task(executor, blocks * rounds, [&](int64_t, int32_t worker) {
      if (waits_.ended()) return;
      const TilePosition<int64_t> tile =
          order.tile(next.fetch_add(1, std::memory_order_relaxed) % blocks, 0);
      const MatmulPart block = this->block_at(tile.batch, tile.row, tile.column);
      waits_.work_on(rows_of_c_.covering(block.i, block.i + block.rows));
      waits_.work_on(columns_of_c_.covering(block.j, block.j + block.columns));
      compute(block, ahead, shared, this->scratch_of(worker));
      waits_.rest();
    });
  }

 private:
  void compute(const MatmulPart& block, const Ahead& ahead, const Shared& shared,
               const Scratch& scratch) const {
    this->output_.read_bias(block, scratch.bias);
    if constexpr (!Base::kFloat8) {
      if (this->blocking_.few_rows) {
        const bool done = this->multiply_few(block, scratch, [&](int64_t k, int64_t count) {
          return !executor_.stopped() &&
                 waits_.await(side_a_.operand, side_a_.needed(block.i, block.rows, k, count)) &&
                 waits_.await(side_b_.operand, side_b_.needed(block.j, block.columns, k, count));
        });
        if (done) depart(block, shared);
        return;
      }
    }
    if (parks_) {
      compute_parked(block, ahead, shared, scratch);
    } else {
      const int64_t depths = this->multiply(
          block, ahead, scratch, 0, [&](int64_t d) { return provide(block, ahead, shared, d); });
      if (depths == this->blocking_.depths()) depart(block, shared);
    }
  }

  void compute_parked(const MatmulPart& block, const Ahead& ahead, const Shared& shared,
                      const Scratch& scratch) const {
    const Blocking& blocking = this->blocking_;
    const int64_t number =
        (block.batch * blocking.down + block.i / blocking.rows) * blocking.across +
        block.j / blocking.columns;
    uint32_t* part = shared.c_parts + number;
    if (waits_.claim(part) != Claim::kMine) return;
    Scalar* parked = shared.parked + number * blocking.buffers() * blocking.buffer();
    // Before block d of the depth. The rows of the last buffer are the block's.
    const auto bytes_at = [&](int64_t d) {
      return static_cast<size_t>(buffer_of_leaf(blocking.leaf_of(d)) * blocking.buffer() +
                                 block.rows * blocking.columns) *
             sizeof(Scalar);
    };
    const int64_t first = shared.reached[number];
    if (first > 0) __builtin_memcpy(scratch.sums, parked, bytes_at(first));
    const int64_t reached = this->multiply(block, ahead, scratch, first, [&](int64_t d) {
      return (d == first || is_here(block, d)) && provide(block, ahead, shared, d);
    });
    const bool done = reached == blocking.depths();
    if (done) {
      depart(block, shared);
    } else {
      __builtin_memcpy(parked, scratch.sums, bytes_at(reached));
      shared.reached[number] = reached;
    }
    waits_.release(part, done);
  }

  ChunkRange<int64_t> needed_of_a(const MatmulPart& block, int64_t d) const {
    return side_a_.needed(block.i, block.rows, this->blocking_.k_of(d),
                          this->blocking_.depth_of(d));
  }
  ChunkRange<int64_t> needed_of_b(const MatmulPart& block, int64_t d) const {
    return side_b_.needed(block.j, block.columns, this->blocking_.k_of(d),
                          this->blocking_.depth_of(d));
  }
  bool is_here(const MatmulPart& block, int64_t d) const {
    return waits_.are_here(side_a_.operand, needed_of_a(block, d)) &&
           waits_.are_here(side_b_.operand, needed_of_b(block, d));
  }

  // Makes block d of the depth readable. False: drain.
  bool provide(const MatmulPart& block, const Ahead& ahead, const Shared& shared, int64_t d) const {
    const Blocking& blocking = this->blocking_;
    if (executor_.stopped()) return false;
    if (side_a_.arrives()) {
      if (!waits_.await(side_a_.operand, needed_of_a(block, d))) return false;
      const int64_t row = this->a_entry(block.batch) * blocking.down + block.i / blocking.rows;
      if (blocking.ahead && !this->direct_a_ &&
          !make(shared.a_parts + row * blocking.depths() + d,
                [&] { this->pack_a(block, d, this->ahead_a(ahead, block, d)); }))
        return false;
    }
    if (side_b_.arrives()) {
      if (!waits_.await(side_b_.operand, needed_of_b(block, d))) return false;
      const int64_t column =
          this->b_entry(block.batch) * blocking.across + block.j / blocking.columns;
      if (blocking.ahead && !make(shared.b_parts + column * blocking.depths() + d, [&] {
            for (int64_t j = 0; j < block.columns; j += Base::kPanel)
              this->pack_b(block, j, d, this->ahead_b(ahead, block, j, d));
          }))
        return false;
    }
    return true;
  }

  template <class Body>
  bool make(uint32_t* part, const Body& body) const {
    const Claim claim = waits_.claim(part);
    if (claim != Claim::kMine) return claim == Claim::kDone;
    body();
    waits_.release(part, true);
    return true;
  }

  // The block is written.
  void depart(const MatmulPart& block, const Shared& shared) const {
    depart(rows_of_c_, block.i, block.rows, block.columns, shared);
    depart(columns_of_c_, block.j, block.columns, block.rows, shared);
  }
  void depart(const ChunkTable<int64_t>& chunks, int64_t first, int64_t size, int64_t across,
              const Shared& shared) const {
    const ChunkRange<int64_t> range = chunks.covering(first, first + size);
    for (int64_t c = range.first; c <= range.last; ++c) {
      const int64_t begin = max(first, chunks.begin[c]);
      const int64_t end = min(first + size, chunks.begin[c + 1]);
      if (__atomic_sub_fetch(shared.elements + c, (end - begin) * across, __ATOMIC_ACQ_REL) == 0)
        waits_.depart(c);
    }
  }

  Executor& executor_;
  Waits& waits_;
  const Side side_a_, side_b_;
  const ChunkTable<int64_t> rows_of_c_, columns_of_c_;
  const bool parks_;
};

// The problem without the products that alpha = 0 takes out of it.
inline MatmulProblem without_products_of_zero(MatmulProblem problem) {
  problem.k = problem.depth();
  return problem;
}

// As with_dot(), of operands of 8 bits too.
template <class Body>
PERSEID_INLINE void with_product(DType dtype, const Body& body) {
  if (is_float8(dtype)) return body.template operator()<F32Dot, Float8>();
  with_dot(dtype, body);
}

size_t matmul_workspace(const MatmulProblem& given, int32_t workers) {
  const MatmulProblem problem = without_products_of_zero(given);
  size_t bytes = 0;
  with_product(problem.dtype, [&]<class Dot, class T>() {
    bytes = problem.async() ? ChunkedMatmulKernel<Dot, T>::workspace(problem, workers)
                            : MatmulKernel<Dot, T>::workspace(problem, workers);
  });
  return bytes;
}

void matmul(const MatmulProblem& given, const MatmulArguments& arguments,
            const Execution& execution) {
  const MatmulProblem problem = without_products_of_zero(given);
  with_product(problem.dtype, [&]<class Dot, class T>() {
    MatmulOutput<typename Dot::Vector>::clear_amax(problem, arguments);
    if (problem.async()) {
      ChunkedMatmulKernel<Dot, T>(problem, arguments, execution).run();
    } else {
      MatmulKernel<Dot, T>(problem, arguments, execution.workspace).run(execution.executor);
    }
  });
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
