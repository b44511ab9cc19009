// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensors of the host whose chunks arrive while they are used: a thread copies one after the other
// to where the library reads them, in memory of the context's device, and sets their signals. What
// has not arrived is NaN.
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

// Tensors that are cut alike: chunk c of all of them has one signal.
class ArrivingTensors {
 public:
  struct Source {
    Tensor tensor;
    int32_t dim;  // that is cut, counted from the last, which is -1
  };
  ArrivingTensors(const std::vector<Source>& sources, Chunks chunks);
  ~ArrivingTensors() { stop(); }
  ArrivingTensors(const ArrivingTensors&) = delete;
  ArrivingTensors& operator=(const ArrivingTensors&) = delete;

  // Where the library reads it, after start().
  const Tensor& tensor(size_t index = 0) const {
    const Part& part = parts_[index];
    return part.device == nullptr ? part.arrived : part.on_device;
  }
  const Chunks& chunks() const { return chunks_; }
  // The arrival of the next epoch.
  Arrival arrival(int64_t first_chunk, std::chrono::nanoseconds deadline) const;
  // Takes everything back, and delivers in this order. Those that are left out never arrive. The
  // context outlives this object.
  void start(const Context& context, std::vector<Delivery> order);
  // Waits until all is delivered.
  void finish();
  // Ends the thread, also before all is delivered.
  void stop();

 private:
  struct Part {
    Tensor source, arrived, on_device;
    int32_t dim = -1;
    std::vector<std::byte> memory;
    std::unique_ptr<Memory> device;  // null on the CPU
  };
  static Part part_of(const Source& source);
  static void place(const Context& context, Part& part);
  void deliver(const std::vector<Delivery>& order);
  void copy(const Part& part, int64_t chunk);
  void set(int64_t chunk);

  const Context* context_ = nullptr;
  std::vector<Part> parts_;
  Chunks chunks_;
  std::vector<uint32_t> signals_;
  std::unique_ptr<Memory> device_signals_;  // null on the CPU
  uint32_t epoch_ = 1;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

// The operand of a product that arrives in chunks, if one does.
struct ArrivingOperand {
  std::unique_ptr<ArrivingTensors> matrix;  // null: none
  bool is_a = true;
  int64_t pivot = 0;
  std::chrono::nanoseconds deadline{0};

  // Cuts a or b along m, n or k. `count` is from 1 to the size of that dimension.
  static ArrivingOperand cut(const Tensor& a, const Tensor& b, bool is_a, ChunkDim dim,
                             int64_t count);

  explicit operator bool() const { return matrix != nullptr; }
  bool is(bool a) const { return matrix != nullptr && is_a == a; }
  ChunksView chunks_of(bool a) const { return is(a) ? ChunksView(matrix->chunks()) : ChunksView(); }
  Arrival arrival_of(bool a) const { return is(a) ? matrix->arrival(pivot, deadline) : Arrival{}; }
};

}  // namespace perseid::cli
