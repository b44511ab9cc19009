// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/placement.hpp"

#include "harness/element.hpp"

namespace perseid::harness {
namespace {

// A copy begins where the original does, counted from a multiple of this.
constexpr size_t kAlignment = 256;

}  // namespace

std::span<std::byte> bytes_of(const Tensor& view) {
  if (view.elements() == 0) return {};
  int64_t least = 0, most = 0;
  for (int32_t d = 0; d < view.ndim(); ++d)
    (view.stride(d) < 0 ? least : most) += (view.size(d) - 1) * view.stride(d);
  const int64_t size = size_of(view.dtype());
  return {view.data<std::byte>() + least * size, static_cast<size_t>((most - least + 1) * size)};
}

const Placement::Copy& Placement::copy_of(std::span<std::byte> bytes) {
  for (const Copy& copy : copies_)
    if (copy.host.data() == bytes.data() && copy.host.size() == bytes.size()) return copy;
  Memory memory(context_, bytes.size() + 2 * kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const size_t shift = (reinterpret_cast<uintptr_t>(bytes.data()) - address) % kAlignment;
  std::byte* device = static_cast<std::byte*>(memory.data()) + shift;
  context_.copy(device, bytes.data(), bytes.size());
  return copies_.emplace_back(Copy{bytes, std::move(memory), device});
}

Tensor Placement::place(const Tensor& view, std::span<std::byte> bytes) {
  if (on_host()) return view;
  DLTensor placed = *view.dl();
  placed.device = device_;
  if (!bytes.empty())
    placed.data = copy_of(bytes).device + (static_cast<std::byte*>(placed.data) - bytes.data());
  return Tensor(placed);
}

Tensor Placement::place(const Tensor& view) {
  return view.present() ? place(view, bytes_of(view)) : view;
}

void Placement::fetch() const {
  for (const Copy& copy : copies_) context_.copy(copy.host.data(), copy.device, copy.host.size());
}

void Placement::fetch(const Tensor& view) const {
  if (on_host()) return;
  const std::span<std::byte> bytes = bytes_of(view);
  for (const Copy& copy : copies_)
    if (copy.host.data() == bytes.data() && copy.host.size() == bytes.size())
      context_.copy(bytes.data(), copy.device, bytes.size());
}

}  // namespace perseid::harness
