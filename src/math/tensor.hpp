// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A strided view of memory that it does not own. Checked at the API; trusted below it.
#pragma once

#include "math/dtype.hpp"

namespace perseid::internal {

inline constexpr int kMaxDims = 8;

struct Tensor {
  void* data = nullptr;  // of the first element; null where an optional tensor is absent
  DType dtype = DType::kNone;
  int32_t rank = 0;
  int64_t shape[kMaxDims] = {};
  int64_t stride[kMaxDims] = {};  // in elements; 0 repeats, negative runs backwards

  PERSEID_INLINE bool present() const { return dtype != DType::kNone; }
  PERSEID_INLINE bool empty() const { return !present() || elements() == 0; }
  template <class T>
  PERSEID_INLINE T* as() const {
    return static_cast<T*>(data);
  }
  PERSEID_INLINE int64_t elements() const {
    int64_t count = 1;
    for (int32_t i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
};

// Reads an element of a vector of int32 or int64.
PERSEID_INLINE int64_t read_length(const Tensor& lengths, int64_t index) {
  return lengths.dtype == DType::kI32 ? int64_t{lengths.as<int32_t>()[index * lengths.stride[0]]}
                                      : lengths.as<int64_t>()[index * lengths.stride[0]];
}

}  // namespace perseid::internal
