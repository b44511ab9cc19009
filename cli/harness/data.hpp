// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of a problem in memory: every stride that a caller may have, guard zones around and
// between the elements, and seeded random content.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/problem.hpp"

namespace perseid::harness {

// Numbers by counting: the i-th of a seed is a pure function of both (SplitMix64).
uint64_t random_bits(uint64_t seed, uint64_t index);
// Standard normal, out of a table of 65,536 values.
double random_normal(uint64_t seed, uint64_t index);

// A tensor in memory of its own.
class Array {
 public:
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  // `strides` must be neither kRepeated nor kMixed for an output. Elements begin as NaN (all bits
  // set), so that one that is never written, or added to before it is, shows.
  Array(DType dtype, const Shape& shape, Strides strides = Strides::kPacked, int64_t misalign = 0,
        uint64_t seed = 0);

  const Tensor& tensor() const { return tensor_; }
  std::vector<double> values() const { return values_of(tensor_); }
  // From now on every byte must stay as it is: what inputs are held to.
  void seal() { sealed_ = bytes_; }
  // Bytes changed that nobody may change: outside the elements, or anywhere once sealed.
  bool damaged() const;
  // All of its memory, guards too.
  std::span<std::byte> bytes() const { return {memory_, bytes_.size()}; }

 private:
  std::vector<std::byte> bytes_;
  std::byte* memory_ = nullptr;  // of bytes_
  std::vector<std::byte> sealed_;
  Tensor tensor_;
  int64_t front_ = 0;  // of the bytes that elements may cover
  int64_t span_ = 0;
  bool dense_ = false;
};

struct OperandSpec {
  const char* name;
  DType dtype;
  Shape shape;
  bool output = false;
  bool backward = false;  // used by backward alone
};
// Every tensor of a problem, in the order of perseid.h. Empty where the problem's sizes cannot be
// those of tensors (negative ones).
std::vector<OperandSpec> operands_of(const Problem& problem);
// Bytes of all operands; infinity where there cannot be any.
double bytes_of(const Problem& problem);

// The tensors of one problem by name.
class Operands {
 public:
  // Random content by the problem's data seed. With `seal`, inputs show a write to them.
  explicit Operands(const Problem& problem, bool seal = true);
  // The float64 form of the same: equal values, packed, lengths and masks as they are.
  Operands(const Problem& problem, const Operands& values);

  // Those of `values`, row-major and packed; an input that is not among them stays unwritten.
  Operands(const Problem& problem, const std::map<std::string, std::vector<double>>& values);

  // Multiplies a and b, in their float64 form, by the scales that they have in `from`, and takes
  // over the scale of the result. `problem`: that of `from`.
  void take_scales(const Problem& problem, const Operands& from);

  // Null where the problem has no such tensor.
  Array* find(std::string_view name);
  const Array* find(std::string_view name) const;
  // The names of tensors that show a write where there may be none.
  std::string damaged() const;

 private:
  std::map<std::string, std::shared_ptr<Array>, std::less<>> arrays_;
};

// One sequence of an attention problem: where its rows begin in the packed tensors (0 unless
// ragged).
struct Span {
  int64_t q_begin, q_len, kv_begin, kv_len;
  int64_t q_rows;    // with those that q_lens leaves out
  int64_t kv_entry;  // of key and value
};
Span span_of(const Problem& problem, int64_t batch);
// Cumulative and key lengths are as many, as ordered and as large as perseid.h wants them.
bool lengths_fit(const Problem& problem);
// Causal, window and length alone; `visible` is asked besides.
bool sees(const Problem& problem, const Span& span, int64_t row, int64_t column);
// A shape of fewer than 4 dimensions with leading ones put before it.
Shape in_four_dims(Shape shape);
// Where an element lies in the row-major values of a tensor that broadcasts against
// [batch, heads, q_len, kv_len].
int64_t broadcast_index(const Shape& shape, int64_t batch, int64_t head, int64_t row,
                        int64_t column);

}  // namespace perseid::harness
