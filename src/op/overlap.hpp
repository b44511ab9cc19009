// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Whether tensors share memory. Outputs must not share any with inputs or with one another, but
// may be interleaved with them, as slices of one packed buffer are.
#pragma once

#include "math/tensor.hpp"

namespace perseid::internal::op {

// Whether some dimension is 0. Unlike a product, safe for views whose strides of 0 repeat elements
// more often than 64 bits can count.
bool is_empty(const Tensor& tensor);

// [begin, end) of the addresses that a tensor's elements lie in; empty where it has none. False
// where it leaves the address space.
struct AddressRange {
  uint64_t begin = 0, end = 0;
};
bool address_range(const Tensor& tensor, AddressRange* range);

// Whether no two elements of the tensor, which lies in the address space, share memory. Exact, but
// for strides so entangled that the search is cut short and answers no.
bool elements_are_distinct(const Tensor& tensor);

// Same data, dtype, shape and strides.
bool is_same(const Tensor& a, const Tensor& b);

// Whether some element of one shares memory with some element of the other. Exact, but for
// strides so entangled that the search is cut short and answers yes.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace perseid::internal::op
