// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid check collective`: products over ranks that are threads of this process, with random
// shapes, shards and delays, against the plain products, in canonical order against those of one
// rank, bit for bit; and a rank that is silent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common.hpp"
#include "harness/element.hpp"
#include "perseid/collective.hpp"

namespace perseid::cli {

// With `ranks` ranks; none given: with 2, 3 and 5, in canonical order with 2, 4 and 8. The exit
// code.
int check_collective(const Common& common, std::optional<int64_t> ranks, uint64_t seed,
                     bool canonical);

// ---- What its parts share ----

using RandomNumbers = std::mt19937_64;
inline int64_t from(RandomNumbers& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// A tensor with its memory.
struct Array {
  std::vector<std::byte> bytes;
  Tensor tensor;

  Array(DType dtype, const harness::Shape& shape)
      : bytes(static_cast<size_t>(harness::elements_of(shape) * harness::size_of(dtype))),
        tensor(bytes.data(), dtype, Dims(shape)) {}
  Array(DType dtype, const harness::Shape& shape, uint64_t seed) : Array(dtype, shape) {
    RandomNumbers random(seed);
    std::uniform_real_distribution<double> values(-1, 1);
    harness::for_each_element(tensor,
                              [&](std::byte* at) { harness::store(dtype, at, values(random)); });
  }
  Array(Array&&) = default;  // the memory stays where it is
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
};

// body(group) on a thread for every rank; the first complaint, with its rank.
std::string on_ranks(int32_t ranks, const std::function<std::string(const Group&)>& body);

// Attention over ranks, of a random problem, near to that of one rank on the CPU; in canonical
// order bit for bit that of one rank, on GPUs forward alone. `contexts`: one for all ranks on the
// CPU, or a GPU for each. What is wrong; "" where nothing is.
std::string check_context_attention(std::span<const Context> contexts, DType dtype, int32_t ranks,
                                    uint64_t seed, bool canonical);

}  // namespace perseid::cli
