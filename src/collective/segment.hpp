// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of one host share. It has no name, so that nothing is left behind however a
// process ends, and goes with its last mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/descriptor.hpp"
#include "base/status.hpp"

namespace perseid::internal::collective {

// How a process of the same user on the same host finds the memory of another, where a descriptor
// cannot be sent: by the number of its descriptor. The rest says that it is the right one.
struct SegmentPlace {
  uint64_t process = 0, descriptor = 0, device = 0, inode = 0;

  static SegmentPlace of(const Descriptor& descriptor);
  // Closed where there is no such memory here.
  Descriptor open() const;
};

class Segment {
 public:
  // Zeroed memory, and the descriptor that another process maps it by.
  static Status make(size_t bytes, std::shared_ptr<Segment>* segment, Descriptor* descriptor);
  // Fails where the memory behind the descriptor is smaller.
  static Status map(const Descriptor& descriptor, size_t bytes, std::shared_ptr<Segment>* segment);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Segment(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  size_t bytes_;
};

}  // namespace perseid::internal::collective
