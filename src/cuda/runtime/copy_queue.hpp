// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A stream of the library's own, for copy engines: copies, words that are written behind them and
// waits for words, in order. Nothing here needs a multiprocessor.
#pragma once

#include "cuda/runtime/gpu.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::cuda {

class CopyQueue {
 public:
  static Status make(std::shared_ptr<const Gpu> gpu, std::unique_ptr<CopyQueue>* queue);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // For all of these the context must be current.

  // What follows here waits for the work of the stream so far.
  Status follow(void* stream);
  // The two halves of follow(): for the work of the stream until the mark.
  Status mark(void* stream);
  Status follow_mark();
  // Another stream does what follow_mark() does.
  Status pass_mark(void* stream);
  // The stream waits for the work here so far.
  Status precede(void* stream);
  // Until the word has reached the epoch. Nothing else ends this wait.
  Status wait_word(const uint32_t* word, uint32_t epoch);
  // After the work before; all of it is visible to whoever sees the word.
  Status write_word(uint32_t* word, uint32_t epoch);
  // The same two, and copy(), but enqueued with what is enqueued here next, or by flush():
  // neighbours in one call of the driver. Copies that are neighbours may run in any order.
  Status defer_wait(const uint32_t* word, uint32_t epoch);
  Status defer_write(uint32_t* word, uint32_t epoch);
  Status defer_copy(const Tensor& from, const Tensor& to);
  Status flush();
  // Tensors of 3 dimensions of the same shape and type; may be of two GPUs.
  Status copy(const Tensor& from, const Tensor& to);
  Status synchronize();

  void* stream() const { return stream_; }

 private:
  Status defer(WordOperation::Type type, const uint32_t* word, uint32_t epoch);
  Status flush_words();
  Status flush_copies();
  CopyQueue(std::shared_ptr<const Gpu> gpu, const PeerDriver& driver)
      : gpu_(std::move(gpu)), driver_(driver) {}

  std::shared_ptr<const Gpu> gpu_;
  const PeerDriver& driver_;
  StreamHandle stream_ = nullptr;
  EventHandle mark_ = nullptr;  // in a stream that this one follows
  EventHandle end_ = nullptr;   // here, for a stream that this one precedes
  // Deferred operations, either words or copies.
  static constexpr size_t kMostDeferred = 64;
  size_t words_ = 0, copies_ = 0;
  WordOperation operations_[kMostDeferred];
  DeviceAddress to_[kMostDeferred], from_[kMostDeferred];
  size_t bytes_[kMostDeferred];
};

// Whether the stream is being captured in a graph.
Status find_capture(const Gpu& gpu, void* stream, bool* capturing);
// OK unless it is.
Status refuse_capture(const Gpu& gpu, const char* operation, void* stream);
// In the order of a stream; see CopyQueue::copy.
Status copy_tensor(const Gpu& gpu, const Tensor& from, const Tensor& to, void* stream);
// Whether copy engines take the tensor: its last dimension that is longer than 1 is contiguous.
bool is_copyable(const Tensor& tensor);

}  // namespace perseid::internal::cuda
