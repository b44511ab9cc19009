// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of long rows, spread over the whole chip: each element is read once and written once,
// and the next chunks are loaded while others wait for their rows. sm_90 and up.
//
// A row is cut into chunks, numbered through all rows. A grid that is resident as a whole (a
// cooperative launch) draws the numbers: a multiprocessor that is closer to memory does more.
//
//   row        0  0  0  0  1  1  1  1  2  2 ...      four chunks a row
//   chunk      0  1  2  3  4  5  6  7  8  9 ...
//   block      2  0  1  2  0  0  1  2  0  1 ...      three blocks
//
// A block has C.stages chunks in shared memory, from before they are read until they are written:
//
//   producer (a thread)    draws a chunk and issues its TMA load to a free stage
//   consumers (C.warps)    statistics of chunk i; then the results of chunk i - C.lag, for whose
//                          row they wait, to memory
//   merger (a warp)        merges the consumers' statistics and publishes them in the workspace;
//                          merges those of all chunks of a row, in their order, for the consumers
//
// Barriers, with one arrival a phase, or one of each warp of consumers:
//   full(stage)      producer, with the bytes    -> consumers: the chunk is loaded
//   empty(stage)     consumers                   -> producer: its results are written
//   measured[slot]   consumers                   -> merger: statistics of their parts are written
//   merged[slot]     merger's lanes              -> consumers: statistics of the row are written
// With C.lag + 1 slots: chunk i takes that of chunk i - C.lag - 1, which is written by then.
//
// No deadlock. A chunk is published once the one C.lag + 1 before it in its block is written, and
// that one belongs to an earlier row: a block draws only when all of that row has been drawn. So
// chunks wait only for chunks of earlier rows, and the first row is drawn whole, since a row has at
// most C.lag + 1 chunks for each block.
//
// What is published is a word of 64 bits that is its own flag: a kernel before this one has set all
// of them to kUnpublished, which is no result. Statistics are float32. In place: a chunk is written
// after it was read.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/softmax/chunk.hpp"

namespace perseid::internal::cuda {

inline constexpr uint64_t kUnpublished = ~uint64_t{0};

// The workspace: how many chunks have been drawn, and the statistics of each.
struct StreamWork {
  uint64_t drawn;
  uint64_t published[1];
};

// Every NaN as the same one, so that none is kUnpublished.
__device__ __forceinline__ uint64_t to_word(const Statistics<float>& statistics) {
  const auto plain = [](float value) {
    return value == value ? __float_as_uint(value) : 0x7fc00000u;
  };
  return uint64_t{plain(statistics.sum)} << 32 | plain(statistics.maximum);
}
__device__ __forceinline__ Statistics<float> from_word(uint64_t word) {
  return {__uint_as_float(static_cast<uint32_t>(word)),
          __uint_as_float(static_cast<uint32_t>(word >> 32))};
}

struct StreamChunk : StagedChunk {
  int64_t number;  // -1 after the last
  int64_t row;
};

template <SoftmaxConfig C, bool kBackward>
struct StreamShared {
  static constexpr int kSlots = C.lag + 1;
  struct alignas(128) Stage {
    ChunkVectors<C, kBackward> vectors;
    StreamChunk chunk;
  };
  Stage stage[C.stages];
  Statistics<float> part[kSlots][C.warps], whole[kSlots];
  alignas(8) unsigned char barriers[Pipeline<C.stages>::kBytes];
  uint64_t measured[kSlots], merged[kSlots];

  __device__ __forceinline__ Pipeline<C.stages> pipeline() const {
    return {ptx::shared_address(barriers)};
  }
};

// The stage and the slot of a chunk.
template <SoftmaxConfig C>
struct StreamState {
  PipelineCursor<C.stages> stage;
  PipelineCursor<C.lag + 1> slot;

  __device__ __forceinline__ void advance() {
    stage.advance();
    slot.advance();
  }
};

// ---- The producer ----

template <SoftmaxConfig C, bool kBackward>
class StreamProducer {
 public:
  __device__ __forceinline__ StreamProducer(const SoftmaxArguments& arguments,
                                            StreamShared<C, kBackward>& shared)
      : arguments_(arguments), shared_(shared) {}

  __device__ __forceinline__ void run() {
    auto& drawn = static_cast<StreamWork*>(arguments_.partial)->drawn;
    const int64_t count = arguments_.rows * arguments_.chunks;
    int64_t ends[C.lag + 1] = {};  // of the rows of the chunks drawn last, the oldest first
    int64_t known = 0;             // so many have been drawn, or more
    StreamState<C> state;
    for (bool more = true; more; state.advance()) {
      while (known < ends[0]) known = static_cast<int64_t>(ptx::load_relaxed(&drawn));
      const auto number =
          static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(&drawn), 1ull));
      known = number + 1;
      more = number < count;
      StreamChunk chunk{};
      chunk.number = -1;
      if (more) chunk = find(number);
#pragma unroll
      for (int i = 0; i < C.lag; ++i) ends[i] = ends[i + 1];
      ends[C.lag] = (chunk.row + 1) * arguments_.chunks;
      const auto pipeline = shared_.pipeline();
      pipeline.producer_acquire(state.stage);
      auto& stage = shared_.stage[state.stage.stage()];
      const ChunkCopy<C, kBackward> copy(chunk, stage.vectors);
      stage.chunk = chunk;
      copy.start(pipeline.full(state.stage.stage()));
    }
  }

 private:
  __device__ __forceinline__ StreamChunk find(int64_t number) const {
    const int64_t row = quotient(arguments_.chunks_of_row, number, number >> 31 != 0);
    return {find_chunk<C, kBackward>(arguments_, row, number - row * arguments_.chunks), number,
            row};
  }

  const SoftmaxArguments& arguments_;
  StreamShared<C, kBackward>& shared_;
};

// ---- The merger ----

template <SoftmaxConfig C, bool kBackward>
class StreamMerger {
 public:
  using Part = Statistics<float>;

  __device__ __forceinline__ StreamMerger(const SoftmaxArguments& arguments,
                                          StreamShared<C, kBackward>& shared)
      : arguments_(arguments),
        shared_(shared),
        published_(static_cast<StreamWork*>(arguments.partial)->published) {}

  __device__ __forceinline__ void run() {
    StreamState<C> measured, merged;
    int waiting = 0;  // chunks published and not merged
    for (bool more = true; more || waiting > 0;) {
      if (more && (waiting == 0 || has_ended(shared_.measured[measured.slot.stage()], measured))) {
        ptx::mbarrier_wait(ptx::shared_address(&shared_.measured[measured.slot.stage()]),
                           measured.slot.parity());
        more = publish(measured);
        if (more) ++waiting;
        measured.advance();
      }
      if (waiting == 0 || !gather(shared_.stage[merged.stage.stage()].chunk.row)) continue;
      finish(merged.slot.stage());
      merged.advance();
      --waiting;
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ Part none() { return kBackward ? Part{0, 0} : Part::nothing(); }
  static __device__ __forceinline__ Part merge(const Part& a, const Part& b) {
    return kBackward ? Part{0, a.sum + b.sum} : merge_two(a, b);
  }
  static __device__ __forceinline__ Part merge_all(const Part& own) {
    return kBackward ? Part{0, sum_of_lanes<32>(own.sum)} : merge_lanes<32>(own);
  }
  static __device__ __forceinline__ bool has_ended(const uint64_t& barrier,
                                                   const StreamState<C>& state) {
    return __any_sync(0xffffffffu,
                      ptx::mbarrier_test(ptx::shared_address(&barrier), state.slot.parity())) != 0;
  }

  // The chunk of a state; false if there is none.
  __device__ __forceinline__ bool publish(const StreamState<C>& state) const {
    shared_.pipeline().consumer_wait(state.stage);
    const int64_t number = shared_.stage[state.stage.stage()].chunk.number;
    if (number < 0) return false;
    Part own = none();
    if (lane() < C.warps) own = shared_.part[state.slot.stage()][lane()];
    own = merge_all(own);
    if (lane() == 0) ptx::store_relaxed(published_ + number, to_word(own));
    return true;
  }

  // Takes what has come of a row, each lane every 32nd chunk. Whether all has.
  __device__ __forceinline__ bool gather(int64_t row) {
    constexpr int kAtOnce = 4;
    const uint64_t* parts = published_ + row * arguments_.chunks;
    for (int taken = kAtOnce; taken == kAtOnce;) {
      uint64_t words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = lane() + 32 * (taken_ + i);
        words[i] = at < arguments_.chunks ? ptx::load_relaxed(parts + at) : kUnpublished;
      }
      taken = 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (taken != i || words[i] == kUnpublished) continue;
        whole_ = merge(whole_, from_word(words[i]));
        ++taken;
      }
      taken_ += taken;
    }
    return __all_sync(0xffffffffu, lane() + 32 * taken_ >= arguments_.chunks) != 0;
  }

  __device__ __forceinline__ void finish(int slot) {
    const Part whole = merge_all(whole_);
    if (lane() == 0) shared_.whole[slot] = whole;
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.merged[slot]));
    whole_ = none();
    taken_ = 0;
  }

  const SoftmaxArguments& arguments_;
  StreamShared<C, kBackward>& shared_;
  uint64_t* published_;
  Part whole_ = none();
  int taken_ = 0;
};

// ---- The consumers ----

template <SoftmaxConfig C, bool kBackward>
class StreamConsumer {
 public:
  using Shared = StreamShared<C, kBackward>;
  using Reader = ChunkReader<C, kBackward>;
  using Held = Elements<C, kBackward>;

  __device__ __forceinline__ StreamConsumer(const SoftmaxArguments& arguments, Shared& shared)
      : arguments_(arguments), shared_(shared) {}

  __device__ __forceinline__ void run() {
    StreamState<C> in, out;
    int waiting = 0;  // chunks measured and not written
    for (bool more = true; more || waiting > 0;) {
      if (more) {
        more = measure(in);
        if (more) ++waiting;
        in.advance();
      }
      if (waiting > (more ? C.lag : 0)) {
        write(out);
        out.advance();
        --waiting;
      }
    }
  }

 private:
  // False after the last chunk.
  __device__ __forceinline__ bool measure(const StreamState<C>& state) {
    auto& stage = shared_.stage[state.stage.stage()];
    shared_.pipeline().consumer_wait(state.stage);
    const bool more = stage.chunk.number >= 0;
    Statistics<float> own{0, 0};
    if (more) {
      const Reader reader(stage.chunk, stage.vectors, arguments_.scale);
      Held held;
      reader.fix_up(0);
      reader.take(0, held);
      if constexpr (kBackward) {
        own.sum = sum_of_lanes<32>(gradient_sum_of<C>(held));
      } else {
        own = merge_lanes<32>(
            statistics_of<C>(held, static_cast<float>(arguments_.scale), [](int, int, float) {}));
      }
    }
    if (threadIdx.x % 32 == 0) {
      shared_.part[state.slot.stage()][threadIdx.x / 32] = own;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.measured[state.slot.stage()]));
    }
    return more;
  }

  __device__ __forceinline__ void write(const StreamState<C>& state) {
    auto& stage = shared_.stage[state.stage.stage()];
    const StreamChunk& chunk = stage.chunk;
    const Reader reader(chunk, stage.vectors, arguments_.scale);
    Held held;
    reader.take(0, held);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.merged[state.slot.stage()]),
                       state.slot.parity());
    const Statistics<float> whole = shared_.whole[state.slot.stage()];
    if constexpr (kBackward) {
      store_backward(held, chunk.rows.result, reader.begin_of(0), Reader::kBetween, chunk.end,
                     whole.sum, static_cast<float>(arguments_.scale));
    } else {
      const ForwardRow<C, float> row(arguments_, whole);
      if (threadIdx.x == 0 && chunk.begin <= 0 && arguments_.lse.data != nullptr)
        static_cast<float*>(arguments_.lse.data)[chunk.rows.lse] = row.lse(whole);
      store_forward(held, chunk.rows.result, reader.begin_of(0), Reader::kBetween, chunk.end, row);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.pipeline().consumer_release(state.stage);
  }

  const SoftmaxArguments& arguments_;
  Shared& shared_;
};

// ---- Kernels ----

// Makes the workspace ready.
template <SoftmaxConfig C>
__global__ void __launch_bounds__(1024)
    softmax_stream_clear(const __grid_constant__ SoftmaxArguments arguments) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  auto& work = *static_cast<StreamWork*>(arguments.partial);
  const int64_t chunks = arguments.rows * arguments.chunks;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < chunks; i += int64_t{gridDim.x} * blockDim.x)
    work.published[i] = kUnpublished;
  if (first == 0) work.drawn = 0;
}

template <SoftmaxConfig C, bool kBackward>
__device__ __forceinline__ void stream_rows(const SoftmaxArguments& arguments) {
  using Shared = StreamShared<C, kBackward>;
  static_assert(sizeof(Shared) <= C.stream_bytes(kBackward) && !C.doubles());
  alignas(128) extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.pipeline().init(1, C.warps);
    for (int slot = 0; slot < Shared::kSlots; ++slot) {
      ptx::mbarrier_init(ptx::shared_address(&shared.measured[slot]), C.warps);
      ptx::mbarrier_init(ptx::shared_address(&shared.merged[slot]), 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < C.warps) {
    StreamConsumer<C, kBackward>(arguments, shared).run();
  } else if (warp == C.warps) {
    if (threadIdx.x % 32 == 0) StreamProducer<C, kBackward>(arguments, shared).run();
  } else {
    StreamMerger<C, kBackward>(arguments, shared).run();
  }
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.stream_threads(), C.stream_resident(false))
    softmax_stream_forward(const __grid_constant__ SoftmaxArguments arguments) {
  stream_rows<C, false>(arguments);
}
template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.stream_threads(), C.stream_resident(true))
    softmax_stream_backward(const __grid_constant__ SoftmaxArguments arguments) {
  stream_rows<C, true>(arguments);
}

}  // namespace perseid::internal::cuda
