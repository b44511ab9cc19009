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

// Element by element, wherever they lie.
void copy_elements(const Tensor& from, const Tensor& to) {
  const int64_t bytes = bytes_of_element(from);
  if (from.ndim() == 1 && from.stride(0) == 1 && to.stride(0) == 1) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(from.elements() * bytes));
  } else if (from.ndim() == 0) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(bytes));
  } else if (from.ndim() > 1 && from.stride(0) == 1 && from.stride(1) != 1) {
    copy_elements(from.transposed(0, 1), to.transposed(0, 1));
  } else {
    for (int64_t i = 0; i < from.size(0); ++i) copy_elements(from.select(0, i), to.select(0, i));
  }
}

}  // namespace

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
  return {.signals = signals_.data(),
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

void ArrivingMatrix::start(std::vector<Delivery> order) {
  stop();
  ++epoch_;
  std::fill(memory_.begin(), memory_.end(), std::byte{0xff});
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
    set_signal(&signals_[static_cast<size_t>(chunk)], epoch_);
  }
}

void ArrivingMatrix::copy(int64_t chunk) {
  const auto c = static_cast<size_t>(chunk);
  const int64_t begin = chunks_.begin[c], end = chunks_.begin[c + 1];
  copy_elements(source_.slice(dim_, begin, end), arrived_.slice(dim_, begin, end));
}

}  // namespace perseid::cli
