// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "arriving.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace perseid::cli {
namespace {

int64_t bytes_of_element(const Tensor& tensor) { return tensor.dl()->dtype.bits / 8; }

// Run by run, wherever the elements lie: copy(to, from, bytes).
template <class Copy>
void copy_elements(const Tensor& from, const Tensor& to, const Copy& copy) {
  const int64_t bytes = bytes_of_element(from);
  if (from.ndim() == 0 || (from.ndim() == 1 && from.stride(0) == 1 && to.stride(0) == 1)) {
    const int64_t count = from.ndim() == 0 ? 1 : from.elements();
    copy(to.data(), from.data(), static_cast<size_t>(count * bytes));
  } else if (from.ndim() > 1 && from.stride(0) == 1 && from.stride(1) != 1) {
    copy_elements(from.transposed(0, 1), to.transposed(0, 1), copy);
  } else {
    for (int64_t i = 0; i < from.size(0); ++i)
      copy_elements(from.select(0, i), to.select(0, i), copy);
  }
}

}  // namespace

Stream stream_of_thread(const Context& context) {
  constexpr uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  return context.device().device_type == kDLCPU ? nullptr : reinterpret_cast<Stream>(kPerThread);
}

ArrivingMatrix::ArrivingMatrix(const Tensor& source, int32_t dim, Chunks chunks)
    : source_(source), dim_(dim), chunks_(std::move(chunks)) {
  int64_t lowest = 0, highest = 0;
  std::vector<int64_t> strides;
  for (int32_t d = 0; d < source.ndim(); ++d) {
    strides.push_back(source.stride(d));
    const int64_t reach = std::max<int64_t>(source.size(d) - 1, 0) * source.stride(d);
    (reach < 0 ? lowest : highest) += reach;
  }
  const int64_t bytes = bytes_of_element(source);
  memory_.resize(static_cast<size_t>((highest - lowest + 1) * bytes));
  arrived_ = Tensor(memory_.data() - lowest * bytes, source.dtype(), source.shape(),
                    Dims(std::span<const int64_t>(strides)));
  signals_.assign(static_cast<size_t>(chunks_.count()), epoch_);
}

Arrival ArrivingMatrix::arrival(int64_t first_chunk, std::chrono::nanoseconds deadline) const {
  return {.signals = device_ == nullptr ? signals_.data()
                                        : static_cast<const uint32_t*>(device_signals_->data()),
          .epoch = epoch_,
          .first_chunk = first_chunk,
          .deadline = deadline};
}

ArrivingOperand ArrivingOperand::cut(const Tensor& a, const Tensor& b, bool is_a, ChunkDim dim,
                                     int64_t count) {
  const Tensor& source = is_a ? a : b;
  const int32_t cut = dim == ChunkDim::kM || (dim == ChunkDim::kK && !is_a) ? -2 : -1;
  return {.matrix = std::make_unique<ArrivingMatrix>(source, cut,
                                                     Chunks::even(source.size(cut), count, dim)),
          .is_a = is_a};
}

void ArrivingMatrix::start(const Context& context, std::vector<Delivery> order) {
  stop();
  context_ = &context;
  ++epoch_;
  std::fill(memory_.begin(), memory_.end(), std::byte{0xff});
  if (context.device().device_type != kDLCPU) {
    const size_t bytes = signals_.size() * sizeof(uint32_t);
    if (device_ == nullptr) {
      device_ = std::make_unique<Memory>(context, memory_.size());
      device_signals_ = std::make_unique<Memory>(context, bytes);
      std::vector<int64_t> strides;
      for (int32_t d = 0; d < arrived_.ndim(); ++d) strides.push_back(arrived_.stride(d));
      const std::ptrdiff_t first = static_cast<std::byte*>(arrived_.data()) - memory_.data();
      on_device_ =
          Tensor(static_cast<std::byte*>(device_->data()) + first, arrived_.dtype(),
                 arrived_.shape(), Dims(std::span<const int64_t>(strides)), context.device());
    }
    std::fill(signals_.begin(), signals_.end(), epoch_ - 1);
    context.copy(device_->data(), memory_.data(), memory_.size());
    context.copy(device_signals_->data(), signals_.data(), bytes);
  }
  stopped_ = false;
  thread_ = std::thread([this, wanted = std::move(order)] { deliver(wanted); });
}

void ArrivingMatrix::finish() {
  if (thread_.joinable()) thread_.join();
}

void ArrivingMatrix::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  finish();
}

void ArrivingMatrix::deliver(const std::vector<Delivery>& order) {
  for (const auto& [chunk, after] : order) {
    if (after.count() > 0) {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, after, [this] { return stopped_; })) return;
    }
    copy(chunk);
    set(chunk);
  }
}

void ArrivingMatrix::copy(int64_t chunk) {
  const auto c = static_cast<size_t>(chunk);
  const int64_t begin = chunks_.begin[c], end = chunks_.begin[c + 1];
  const Tensor here = arrived_.slice(dim_, begin, end);
  copy_elements(source_.slice(dim_, begin, end), here, std::memcpy);
  if (device_ == nullptr) return;
  const Stream stream = stream_of_thread(*context_);
  copy_elements(
      here, on_device_.slice(dim_, begin, end),
      [&](void* to, const void* from, size_t bytes) { context_->copy(to, from, bytes, stream); });
}

void ArrivingMatrix::set(int64_t chunk) {
  if (device_ == nullptr) {
    set_signal(&signals_[static_cast<size_t>(chunk)], epoch_);
  } else {
    set_signal(*context_, static_cast<uint32_t*>(device_signals_->data()) + chunk, epoch_,
               stream_of_thread(*context_));
  }
}

}  // namespace perseid::cli
