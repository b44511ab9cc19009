// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A matrix of the host whose chunks arrive while it is used: a thread copies one after the other to
// where the library reads it, in memory of the context's device, and sets their signals. What has
// not arrived is NaN.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::cli {

// A stream of the calling thread alone, where the device has streams: that of another thread does
// not wait for it.
Stream stream_of_thread(const Context& context);

struct Delivery {
  int64_t chunk;
  std::chrono::microseconds after;  // the delivery before it, or the start
};

class ArrivingMatrix {
 public:
  // `dim` is the dimension that is cut: -2 for rows, -1 for columns.
  ArrivingMatrix(const Tensor& source, int32_t dim, Chunks chunks);
  ~ArrivingMatrix() { stop(); }
  ArrivingMatrix(const ArrivingMatrix&) = delete;
  ArrivingMatrix& operator=(const ArrivingMatrix&) = delete;

  // Where the library reads it, after start().
  const Tensor& tensor() const { return device_ == nullptr ? arrived_ : on_device_; }
  const Chunks& chunks() const { return chunks_; }
  // Of the next epoch.
  Arrival arrival(int64_t first_chunk, std::chrono::nanoseconds deadline) const;
  // Takes everything back, and delivers in this order. Those that are left out never arrive. The
  // context outlives this object.
  void start(const Context& context, std::vector<Delivery> order);
  // Waits until all is delivered.
  void finish();
  // Ends the thread, also before all is delivered.
  void stop();

 private:
  void deliver(const std::vector<Delivery>& order);
  void copy(int64_t chunk);
  void set(int64_t chunk);

  const Context* context_ = nullptr;
  Tensor source_, arrived_, on_device_;
  int32_t dim_;
  Chunks chunks_;
  std::vector<std::byte> memory_;
  std::vector<uint32_t> signals_;
  std::unique_ptr<Memory> device_, device_signals_;  // null on the CPU
  uint32_t epoch_ = 1;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

// The operand of a product that arrives in chunks, if one does.
struct ArrivingOperand {
  std::unique_ptr<ArrivingMatrix> matrix;  // null: none
  bool is_a = true;
  int64_t pivot = 0;
  std::chrono::nanoseconds deadline{0};

  // Of a or b, cut along m, n or k. `count` is from 1 to the size of that dimension.
  static ArrivingOperand cut(const Tensor& a, const Tensor& b, bool is_a, ChunkDim dim,
                             int64_t count);

  explicit operator bool() const { return matrix != nullptr; }
  bool is(bool a) const { return matrix != nullptr && is_a == a; }
  ChunksView chunks_of(bool a) const { return is(a) ? ChunksView(matrix->chunks()) : ChunksView(); }
  Arrival arrival_of(bool a) const { return is(a) ? matrix->arrival(pivot, deadline) : Arrival{}; }
};

}  // namespace perseid::cli
