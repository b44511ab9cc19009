// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the model runs on: the threads of the example's own loops, and the device of the library's
// plans, which is the same CPU or a GPU. And the arrays that the two take turns at.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "threads.hpp"
#include "types.hpp"

namespace gpt {

class Machine {
 public:
  // `gpu`: which one the plans run on, as the driver counts; none: the CPU, by the same threads.
  explicit Machine(int32_t thread_count, std::optional<int32_t> gpu = {})
      : threads(thread_count),
        context(gpu ? perseid::Context::cuda(*gpu) : perseid::Context::cpu(threads)),
        device(context.device()) {}

  bool on_gpu() const { return device.device_type != kDLCPU; }
  // Grows the workspace, one for all plans in turn.
  void reserve(const perseid::Plan& plan, std::initializer_list<perseid::Direction> directions) {
    for (const auto direction : directions) {
      const size_t bytes = plan.workspace_size(direction);
      if (!workspace_ || workspace_->size() < bytes) workspace_.emplace(context, bytes);
    }
  }
  std::span<std::byte> workspace() const { return *workspace_; }

  Threads threads;
  perseid::Context context;
  DLDevice device;

 private:
  std::optional<perseid::Memory> workspace_;
};

// An array that loops and plans take turns at. On the CPU both see the same memory. With a GPU
// each side has its own; the array knows which one was written last, and copies it over when the
// other side asks for it. The copy waits for the plans that are still at work.
//
// For each side: to read what is there, to write (what was there is lost), or to change some of it.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(const Machine& machine, int64_t size) : machine_(&machine), host_(size) {
    if (machine.on_gpu()) device_.emplace(machine.context, bytes());
  }
  int64_t size() const { return host_.size(); }

  // For loops.
  const T* read() const {
    if (device_ && latest_ == Side::kDevice) {
      machine_->context.copy(host_.data(), device_->data(), bytes());
      latest_ = Side::kBoth;
    }
    return host_.data();
  }
  T* write() {
    latest_ = Side::kHost;
    return host_.data();
  }
  T* change() {
    read();
    return write();
  }

  // For plans: views of the array from element `offset` on, row-major without strides.
  perseid::Tensor reading(const perseid::Dims& shape, int64_t offset = 0,
                          const perseid::Dims& strides = {}) const {
    if (device_ && latest_ == Side::kHost) {
      machine_->context.copy(device_->data(), host_.data(), bytes());
      latest_ = Side::kBoth;
    }
    return view(shape, offset, strides);
  }
  // Several plans may each write a part of what is written anew.
  perseid::Tensor writing(const perseid::Dims& shape, int64_t offset = 0,
                          const perseid::Dims& strides = {}) {
    if (device_) latest_ = Side::kDevice;
    return view(shape, offset, strides);
  }

 private:
  enum class Side { kHost, kDevice, kBoth };

  size_t bytes() const { return static_cast<size_t>(size()) * sizeof(T); }
  perseid::Tensor view(const perseid::Dims& shape, int64_t offset,
                       const perseid::Dims& strides) const {
    const T* data = device_ ? static_cast<const T*>(device_->data()) : host_.data();
    return {data + offset, perseid::dtype_of<T>, shape, strides, machine_->device};
  }

  const Machine* machine_ = nullptr;
  Buffer<T> host_;
  std::optional<perseid::Memory> device_;  // none: plans use the host's memory
  mutable Side latest_ = Side::kHost;
};

}  // namespace gpt
