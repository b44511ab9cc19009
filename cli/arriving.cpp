// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "arriving.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "harness/placement.hpp"

namespace perseid::cli {
namespace {

int64_t bytes_of_element(const Tensor& tensor) { return tensor.dl()->dtype.bits / 8; }

// Run by run, wherever the elements lie.
void copy_elements(const Tensor& from, const Tensor& to) {
  const int64_t bytes = bytes_of_element(from);
  if (from.ndim() == 0 || (from.ndim() == 1 && from.stride(0) == 1 && to.stride(0) == 1)) {
    const int64_t count = from.ndim() == 0 ? 1 : from.elements();
    std::memcpy(to.data(), from.data(), static_cast<size_t>(count * bytes));
  } else if (from.ndim() > 1 && from.stride(0) == 1 && from.stride(1) != 1) {
    copy_elements(from.transposed(0, 1), to.transposed(0, 1));
  } else {
    for (int64_t i = 0; i < from.size(0); ++i) copy_elements(from.select(0, i), to.select(0, i));
  }
}

}  // namespace

Stream stream_of_thread(const Context& context) {
  constexpr uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  return context.device().device_type == kDLCPU ? nullptr : reinterpret_cast<Stream>(kPerThread);
}

ArrivingTensors::ArrivingTensors(const std::vector<Source>& sources, Chunks chunks)
    : chunks_(std::move(chunks)) {
  for (const Source& source : sources) parts_.push_back(part_of(source));
  signals_.assign(static_cast<size_t>(chunks_.count()), epoch_);
}

ArrivingTensors::Part ArrivingTensors::part_of(const Source& source) {
  Part part;
  part.source = source.tensor;
  part.dim = source.dim;
  int64_t lowest = 0, highest = 0;
  std::vector<int64_t> strides;
  for (int32_t d = 0; d < part.source.ndim(); ++d) {
    strides.push_back(part.source.stride(d));
    const int64_t reach = std::max<int64_t>(part.source.size(d) - 1, 0) * strides.back();
    (reach < 0 ? lowest : highest) += reach;
  }
  const int64_t bytes = bytes_of_element(part.source);
  part.memory.resize(static_cast<size_t>((highest - lowest + 1) * bytes));
  part.arrived = Tensor(part.memory.data() - lowest * bytes, part.source.dtype(),
                        part.source.shape(), Dims(std::span<const int64_t>(strides)));
  return part;
}

Arrival ArrivingTensors::arrival(int64_t first_chunk, std::chrono::nanoseconds deadline) const {
  return {.signals = device_signals_ == nullptr
                         ? signals_.data()
                         : static_cast<const uint32_t*>(device_signals_->data()),
          .epoch = epoch_,
          .first_chunk = first_chunk,
          .deadline = deadline};
}

ArrivingOperand ArrivingOperand::cut(const Tensor& a, const Tensor& b, bool is_a, ChunkDim dim,
                                     int64_t count) {
  const Tensor& source = is_a ? a : b;
  const int32_t cut = dim == ChunkDim::kM || (dim == ChunkDim::kK && !is_a) ? -2 : -1;
  return {.matrix =
              std::make_unique<ArrivingTensors>(std::vector<ArrivingTensors::Source>{{source, cut}},
                                                Chunks::even(source.size(cut), count, dim)),
          .is_a = is_a};
}

void ArrivingTensors::place(const Context& context, Part& part) {
  if (part.device == nullptr) {
    part.device = std::make_unique<Memory>(context, part.memory.size());
    std::vector<int64_t> strides;
    for (int32_t d = 0; d < part.arrived.ndim(); ++d) strides.push_back(part.arrived.stride(d));
    const std::ptrdiff_t first = static_cast<std::byte*>(part.arrived.data()) - part.memory.data();
    part.on_device =
        Tensor(static_cast<std::byte*>(part.device->data()) + first, part.arrived.dtype(),
               part.arrived.shape(), Dims(std::span<const int64_t>(strides)), context.device());
  }
  context.copy(part.device->data(), part.memory.data(), part.memory.size());
}

void ArrivingTensors::start(const Context& context, std::vector<Delivery> order) {
  stop();
  context_ = &context;
  ++epoch_;
  const bool on_device = context.device().device_type != kDLCPU;
  for (Part& part : parts_) {
    std::fill(part.memory.begin(), part.memory.end(), std::byte{0xff});
    if (on_device) place(context, part);
  }
  if (on_device) {
    const size_t bytes = signals_.size() * sizeof(uint32_t);
    if (device_signals_ == nullptr) device_signals_ = std::make_unique<Memory>(context, bytes);
    std::fill(signals_.begin(), signals_.end(), epoch_ - 1);
    context.copy(device_signals_->data(), signals_.data(), bytes);
  }
  stopped_ = false;
  thread_ = std::thread([this, wanted = std::move(order)] { deliver(wanted); });
}

void ArrivingTensors::finish() {
  if (thread_.joinable()) thread_.join();
}

void ArrivingTensors::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  finish();
}

void ArrivingTensors::deliver(const std::vector<Delivery>& order) {
  for (const auto& [chunk, after] : order) {
    if (after.count() > 0) {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, after, [this] { return stopped_; })) return;
    }
    for (const Part& part : parts_) copy(part, chunk);
    set(chunk);
  }
}

void ArrivingTensors::copy(const Part& part, int64_t chunk) {
  const auto c = static_cast<size_t>(chunk);
  const int64_t begin = chunks_.begin[c], end = chunks_.begin[c + 1];
  const Tensor here = part.arrived.slice(part.dim, begin, end);
  copy_elements(part.source.slice(part.dim, begin, end), here);
  const std::span<std::byte> bytes = harness::bytes_of(here);
  if (part.device == nullptr || bytes.empty()) return;
  // One copy. What lies between the chunk's elements is on the device already.
  std::byte* const to = static_cast<std::byte*>(part.device->data());
  context_->copy(to + (bytes.data() - part.memory.data()), bytes.data(), bytes.size(),
                 stream_of_thread(*context_));
}

void ArrivingTensors::set(int64_t chunk) {
  if (device_signals_ == nullptr) {
    set_signal(&signals_[static_cast<size_t>(chunk)], epoch_);
  } else {
    set_signal(*context_, static_cast<uint32_t*>(device_signals_->data()) + chunk, epoch_,
               stream_of_thread(*context_));
  }
}

}  // namespace perseid::cli
