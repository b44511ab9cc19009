// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensors of the host as a context's plans take them: themselves on the CPU, copies in the device's
// memory on a GPU.
#pragma once

#include <cstddef>
#include <deque>
#include <span>

#include "perseid/perseid.hpp"

namespace perseid::harness {

// From the first byte of a tensor's elements to the last one.
std::span<std::byte> bytes_of(const Tensor& view);

class Placement {
 public:
  explicit Placement(const Context& context) : context_(context), device_(context.device()) {}
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  bool on_host() const { return device_.device_type == kDLCPU; }
  // `bytes`: what is copied; all elements of the view lie in it. The same bytes are copied once.
  Tensor place(const Tensor& view, std::span<std::byte> bytes);
  // Copies the bytes that the elements span. An absent tensor stays absent.
  Tensor place(const Tensor& view);
  // Brings all copied bytes back, or those of the view.
  void fetch() const;
  void fetch(const Tensor& view) const;

 private:
  struct Copy {
    std::span<std::byte> host;
    Memory memory;
    std::byte* device;
  };
  const Copy& copy_of(std::span<std::byte> bytes);

  const Context& context_;
  DLDevice device_;
  std::deque<Copy> copies_;
};

}  // namespace perseid::harness
