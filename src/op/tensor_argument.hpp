// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of one call: DLTensors checked against what the plan expects, as views that kernels
// can trust. A call that is right allocates nothing here.
#pragma once

#include <array>
#include <span>
#include <string>

#include "math/tensor.hpp"
#include "op/check.hpp"
#include "op/overlap.hpp"

namespace perseid::internal::op {

// A dimension that a tensor must have, by the name that sentences call it.
struct Extent {
  const char* name;
  int64_t size;
};
inline constexpr int64_t kAnySize = -1;

// One dtype, or either of two, or any that the library knows. uint8 counts as bool.
struct DTypes {
  DType first;
  DType second = DType::kNone;
  static DTypes any() { return DType::kNone; }
  DTypes(DType only) : first(only) {}
  DTypes(DType one, DType other) : first(one), second(other) {}
};

enum class Access { kRead, kWrite };

// An output that may be the same tensor as an input.
struct InPlace {
  const char* output = "";
  const char* input = "";
};

class ArgumentReader : public Check {
 public:
  // `device`: the one that tensors must be on. `owner`: whose it is, and whose shapes are expected.
  enum class Owner { kPlan, kContext };
  explicit ArgumentReader(const char* subject, DLDevice device = {kDLCPU, 0},
                          Owner owner = Owner::kPlan);

  // A tensor of exactly these extents.
  Tensor read(Access access, const char* name, const DLTensor* tensor, DTypes dtypes,
              std::span<const Extent> extents);
  // An input that broadcasts: dimensions may be 1, leading ones missing. The view has all of them.
  Tensor read_broadcast(const char* name, const DLTensor* tensor, DTypes dtypes,
                        std::span<const Extent> extents);
  // Fails if an argument that the plan does not use is given.
  void refuse(const char* name, const DLTensor* tensor, const char* field);
  // A number for the log.
  void note(const char* name, uint64_t value);
  // The arguments as text; "" if neither log nor trace wants them.
  const std::string& text() const { return log_; }

  // Fails if an output overlaps another tensor, except as `allowed`. Logs the call on success.
  Status finish(const InPlace& allowed = {});
  // The same without the log, for a call that is read again when it runs.
  Status verify(const InPlace& allowed = {});
  // Whether an output has elements.
  bool writes() const;
  // Fails if a tensor overlaps the first `bytes` of the workspace.
  Status check_workspace(void* data, size_t bytes);

 private:
  struct Argument {
    const char* name = "";
    Access access = Access::kRead;
    Tensor tensor;
    AddressRange range;
  };
  static constexpr size_t kMostArguments = 20;

  Tensor convert(const char* name, const DLTensor& from, DTypes dtypes);
  void set_data(const char* name, const DLTensor& from, Tensor* view);
  void record(Access access, const char* name, const Tensor& view);
  void check_overlap(const Argument& output, const Argument& other, const InPlace& allowed);

  bool check_device(const char* name, const DLDevice& device);
  const char* fit_shape() const;

  DLDevice device_;
  Owner owner_;
  std::array<Argument, kMostArguments> arguments_;
  size_t count_ = 0;
  bool logging_;
  std::string log_;
};

}  // namespace perseid::internal::op
