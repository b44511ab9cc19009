// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Operands that arrive in chunks while an operation runs, and outputs that leave in chunks: see
/// async.h. Included by perseid.hpp.
#ifndef PERSEID_CHUNKS_HPP_
#define PERSEID_CHUNKS_HPP_

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "perseid/context.hpp"
#include "perseid/perseid.h"
#include "perseid/tensor.hpp"

namespace perseid {
inline namespace v0 {

/// Which dimension is cut, of c[m, n] = a[m, k] b[k, n] or of attention.
enum class ChunkDim {
  kDefault = PERSEID_CHUNK_DEFAULT,  ///< m of a and c, n of b; rows of key and value
  kM = PERSEID_CHUNK_M,              ///< rows of a, or of c
  kN = PERSEID_CHUNK_N,              ///< columns of b, or of c
  kK = PERSEID_CHUNK_K,              ///< depth of a, or of b; the first chunk is chunk 0
  kKv = PERSEID_CHUNK_KV,            ///< rows of key and value: kv_len, where ragged total_kv
};

/// The chunks of an operand. Without boundaries there are none: the operand is all there.
/// \snippet snippets.cpp chunks
struct Chunks {
  std::vector<int64_t> begin = {};    ///< chunk c is [begin[c], begin[c + 1])
  ChunkDim dim = ChunkDim::kDefault;  ///< what they cut

  /// `count` chunks of nearly equal size: chunk c is [c * size / count, (c + 1) * size / count).
  /// \snippet snippets.cpp chunks
  static Chunks even(int64_t size, int64_t count, ChunkDim dim = ChunkDim::kDefault) {
    detail::require(1 <= count && count <= size && count <= PERSEID_MAX_CHUNKS,
                    "a dimension has from 1 chunk to as many as its size");
    Chunks chunks{{}, dim};
    for (int64_t c = 0; c <= count; ++c) chunks.begin.push_back(c * size / count);
    return chunks;
  }
  /// Whether there are any.
  bool present() const { return !begin.empty(); }
  /// How many there are.
  int64_t count() const { return present() ? static_cast<int64_t>(begin.size()) - 1 : 0; }
};

/// Chunks that somebody else owns, which must live until the plan is made; none where it is
/// default-constructed.
class ChunksView {
 public:
  ChunksView() = default;  ///< none
  /// All of `chunks`.
  ChunksView(const Chunks& chunks) : begin_(chunks.begin), dim_(chunks.dim) {}
  /// Not of a temporary, which would be gone when the plan is made.
  ChunksView(const Chunks&& chunks) = delete;
  std::span<const int64_t> begin() const { return begin_; }  ///< the boundaries
  ChunkDim dim() const { return dim_; }                      ///< what they cut

 private:
  std::span<const int64_t> begin_;
  ChunkDim dim_ = ChunkDim::kDefault;
};

/// The arrival of an operand in one execution.
struct Arrival {
  const uint32_t* signals = nullptr;      ///< one for each chunk, in memory of the device
  uint32_t epoch = 0;                     ///< that signals must have reached
  const uint32_t* epoch_ptr = nullptr;    ///< where the epoch is, if not nullptr
  int64_t first_chunk = 0;                ///< visited first; 0 for chunks of k
  std::chrono::nanoseconds deadline{0};   ///< of every wait, from the start of the work; 0: 30 s
  const uint32_t* abort = nullptr;        ///< a word of the host: not 0 ends every wait
  perseid_wait_record* record = nullptr;  ///< how the waits ended
};

/// The departure of an output in one execution.
struct Departure {
  uint32_t* signals = nullptr;          ///< one for each chunk, in memory of the device
  uint32_t epoch = 0;                   ///< that signals are set to
  const uint32_t* epoch_ptr = nullptr;  ///< where the epoch is, if not nullptr
  int64_t first_chunk = 0;              ///< computed first, where no arrival says otherwise
};

/// Stores the epoch into a signal of the host with release order, and wakes who waits for it.
/// \snippet snippets.cpp chunks
inline void set_signal(uint32_t* signal, uint32_t epoch) {
  detail::check(perseid_signal_set(signal, epoch));
}
/// Waits for a signal of the host, with acquire order. Throws Error (TIMEOUT, PEER_LOST).
/// \snippet snippets.cpp chunks
inline void wait_for_signal(const uint32_t* signal, uint32_t epoch,
                            std::chrono::nanoseconds deadline = {},
                            const uint32_t* abort = nullptr) {
  detail::require(deadline.count() >= 0, "a deadline is not negative");
  detail::check(perseid_signal_wait(signal, epoch, static_cast<uint64_t>(deadline.count()), abort));
}

namespace detail {

// The structs of the C interface; a pointer to one, or to nothing where it is not wanted.
class AsyncOperand {
 public:
  explicit AsyncOperand(const ChunksView& chunks) : value_(sized<perseid_async_operand>()) {
    value_.dim = static_cast<uint32_t>(chunks.dim());
    value_.count = static_cast<int64_t>(chunks.begin().size()) - 1;
    value_.begin = chunks.begin().data();
    wanted_ = !chunks.begin().empty();
  }
  const perseid_async_operand* get() const { return wanted_ ? &value_ : nullptr; }

 private:
  perseid_async_operand value_;
  bool wanted_;
};

class ArrivalArgument {
 public:
  explicit ArrivalArgument(const Arrival& arrival) : value_(sized<perseid_arrival>()) {
    require(arrival.deadline.count() >= 0, "a deadline is not negative");
    value_.signals = arrival.signals;
    value_.epoch = arrival.epoch;
    value_.epoch_ptr = arrival.epoch_ptr;
    value_.first_chunk = arrival.first_chunk;
    value_.deadline_ns = static_cast<uint64_t>(arrival.deadline.count());
    value_.abort = arrival.abort;
    value_.record = arrival.record;
  }
  const perseid_arrival* get() const { return value_.signals != nullptr ? &value_ : nullptr; }

 private:
  perseid_arrival value_;
};

class DepartureArgument {
 public:
  explicit DepartureArgument(const Departure& departure) : value_(sized<perseid_chunk_sink>()) {
    value_.signals = departure.signals;
    value_.epoch = departure.epoch;
    value_.epoch_ptr = departure.epoch_ptr;
    value_.first_chunk = departure.first_chunk;
  }
  const perseid_chunk_sink* get() const { return value_.signals != nullptr ? &value_ : nullptr; }

 private:
  perseid_chunk_sink value_;
};

}  // namespace detail

/// Stores the epoch into a signal after the work queued on the stream; on the CPU at once.
/// \snippet snippets.cpp chunks
inline void set_signal(const Context& context, uint32_t* signal, uint32_t epoch,
                       Stream stream = nullptr) {
  detail::check(perseid_stream_signal_set(context.get(), signal, epoch, stream));
}
/// The work queued later on the stream waits for the one signal of `arrival`. Throws Error on the
/// CPU (TIMEOUT, PEER_LOST); on a GPU the next synchronisation does.
/// \snippet snippets.cpp chunks
inline void wait_for_signal(const Context& context, const Arrival& arrival,
                            Stream stream = nullptr) {
  detail::check(
      perseid_stream_signal_wait(context.get(), detail::ArrivalArgument(arrival).get(), stream));
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_CHUNKS_HPP_
