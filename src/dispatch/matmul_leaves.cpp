// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/matmul_leaves.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "cuda/copy_rows.hpp"
#include "cuda/rank_sum.hpp"
#include "cuda/sm90/matmul_launch.hpp"
#include "math/leaf_tree.hpp"

namespace perseid::internal::dispatch {
namespace {

constexpr int64_t kAlignment = 256;

DType sums_of(const MatmulProblem& problem) {
  return problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

class LeafProducts final : public Executable<Matmul> {
 public:
  LeafProducts(const MatmulProblem& problem, int64_t at_once)
      : problem_(problem), products_(problem.leaves / at_once) {}

  Status make(const Device& device, MakeMatmul make_leaf) {
    MatmulProblem leaf = problem_;
    leaf.k /= products_;
    leaf.leaves /= products_;
    Status status = make_leaf(leaf, device, &first_);
    leaf.beta = 1;
    if (status.ok()) status = make_leaf(leaf, device, &second_);
    if (status.ok() && pairs() > 1)
      status = cuda::RankSum::make(
          {.in = sums_of(problem_), .out = sums_of(problem_), .in_pairs = true}, device.gpu, &sum_);
    return status;
  }

  size_t workspace(Direction) const override {
    // The first pair is summed in c.
    return sums_at() + static_cast<size_t>((pairs() - 1) * bytes_of_sums());
  }
  Status forward(const MatmulArguments& arguments, std::byte* workspace,
                 void* stream) const override {
    Tensor sums[kLeaves / 2];
    for (int64_t pair = 0; pair < pairs(); ++pair) {
      sums[pair] = arguments.c;
      if (pair == 0) continue;
      sums[pair].data = workspace + sums_at() + (pair - 1) * bytes_of_sums();
      sums[pair].stride[0] = problem_.m * problem_.n;
      sums[pair].stride[1] = problem_.n;
      sums[pair].stride[2] = 1;
    }
    Status status;
    for (int64_t leaf = 0; leaf < products_ && status.ok(); ++leaf) {
      MatmulArguments of_leaf = arguments;
      of_leaf.a = part_of(arguments.a, 2, leaf);
      of_leaf.b = part_of(arguments.b, 1, leaf);
      of_leaf.c = of_leaf.c0 = sums[leaf / 2];
      status = (leaf % 2 == 0 ? first_ : second_)->forward(of_leaf, workspace, stream);
    }
    if (!status.ok() || pairs() == 1) return status;
    return sum_->run({.operation = "matmul",
                      .parts = std::span(std::as_const(sums)).first(static_cast<size_t>(pairs())),
                      .out = arguments.c},
                     stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override {
    return concatenate(problem_.leaves, " leaves in ", products_, " products: ", first_->kernels());
  }

 private:
  int64_t pairs() const { return products_ / 2; }
  int64_t bytes_of_sums() const {
    return round_up(problem_.batch * problem_.m * problem_.n * size_of(sums_of(problem_)),
                    kAlignment);
  }
  size_t sums_at() const {
    const size_t bytes =
        std::max(first_->workspace(Direction::kForward), second_->workspace(Direction::kForward));
    return static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kAlignment));
  }
  Tensor part_of(Tensor operand, int depth, int64_t leaf) const {
    operand.shape[depth] = problem_.k / products_;
    operand.data = operand.as<std::byte>() +
                   leaf * operand.shape[depth] * operand.stride[depth] * size_of(operand.dtype);
    return operand;
  }

  MatmulProblem problem_;
  int64_t products_;
  MadeMatmul first_, second_;
  std::unique_ptr<cuda::RankSum> sum_;
};

class StoredByTma final : public Executable<Matmul> {
 public:
  explicit StoredByTma(const MatmulProblem& problem) : problem_(problem) {}

  Status make(const Device& device, MakeMatmul make_product) {
    MatmulProblem padded = problem_;
    padded.padded_rows = true;
    Status status = make_product(padded, device, &product_);
    if (status.ok())
      status = cuda::RankSum::make({.in = problem_.out_dtype, .out = problem_.out_dtype},
                                   device.gpu, &copy_);
    return status;
  }

  size_t workspace(Direction) const override {
    return result_at() +
           static_cast<size_t>(problem_.batch * problem_.m * row() * size_of(problem_.out_dtype));
  }
  Status forward(const MatmulArguments& arguments, std::byte* workspace,
                 void* stream) const override {
    if (is_storable(arguments.c)) return product_->forward(arguments, workspace, stream);
    MatmulArguments in_workspace = arguments;
    in_workspace.c.data = workspace + result_at();
    in_workspace.c.stride[0] = problem_.m * row();
    in_workspace.c.stride[1] = row();
    in_workspace.c.stride[2] = 1;
    in_workspace.c0 = in_workspace.c;
    Status status = product_->forward(in_workspace, workspace, stream);
    if (!status.ok()) return status;
    return copy_->run(
        {.operation = "matmul", .parts = std::span(&in_workspace.c, 1), .out = arguments.c},
        stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return product_->kernels(); }

 private:
  static constexpr int64_t kWord = 16;  // bytes

  int64_t vector() const { return kWord / size_of(problem_.out_dtype); }
  int64_t row() const { return round_up(problem_.n, vector()); }
  bool is_storable(const Tensor& c) const {
    const cuda::BoxedTensor rows = cuda::boxed_rows(c.data, c.dtype, c.shape[2], c.shape[1],
                                                    c.shape[0], c.stride[1], c.stride[0], 1);
    return c.shape[2] % vector() == 0 && c.stride[2] == 1 && cuda::is_mappable(rows);
  }
  size_t result_at() const {
    return static_cast<size_t>(
        round_up(static_cast<int64_t>(product_->workspace(Direction::kForward)), kAlignment));
  }

  MatmulProblem problem_;
  MadeMatmul product_;
  std::unique_ptr<cuda::RankSum> copy_;
};

class LoadedByTma final : public Executable<Matmul> {
 public:
  LoadedByTma(const MatmulProblem& problem, const Device& device, MadeMatmul product)
      : problem_(problem),
        leaves_(max(problem.leaves, int64_t{1})),
        leaf_(problem.k / leaves_),
        gpu_(device.gpu),
        product_(std::move(product)) {}

  Status prepare() const { return cuda::load_copy_rows(*gpu_); }
  size_t workspace(Direction direction) const override {
    return copies_at(direction) + bytes_of(problem_.m) + bytes_of(problem_.n);
  }
  Status forward(const MatmulArguments& arguments, std::byte* workspace,
                 void* stream) const override {
    MatmulArguments loadable = arguments;
    std::byte* const memory = workspace + copies_at(Direction::kForward);
    Status status = make_loadable(&loadable.a, {.line = 1, .depth = 2}, memory, stream);
    if (status.ok())
      status = make_loadable(&loadable.b, {.line = 2, .depth = 1}, memory + bytes_of(problem_.m),
                             stream);
    return status.ok() ? product_->forward(loadable, workspace, stream) : status;
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return product_->kernels(); }

 private:
  static constexpr int64_t kVector = 8, kSegment = 64;  // elements: 16 and 128 bytes
  // A tile whose rows begin between segments takes TMA longer. With so many lines of the other
  // operand that costs more than a copy: a third of the product's time.
  static constexpr int64_t kManyLines = 2048;
  struct Dims {
    int line, depth;
  };

  // Whichever dimension lies side by side.
  size_t bytes_of(int64_t lines) const {
    const int64_t along = lines * leaves_ * round_up(leaf_, kSegment);
    const int64_t across = problem_.k * round_up(lines, kVector);
    return static_cast<size_t>(
        round_up(problem_.batch * max(along, across) * size_of(problem_.dtype), kAlignment));
  }
  size_t copies_at(Direction direction) const {
    return static_cast<size_t>(
        round_up(static_cast<int64_t>(product_->workspace(direction)), kAlignment));
  }
  bool is_loadable(const Tensor& operand, Dims dims) const {
    const auto is_whole = [&](int dim) {
      return operand.shape[dim] <= 1 ||
             (operand.stride[dim] >= 0 && operand.stride[dim] % kVector == 0);
    };
    const bool begins = reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 && is_whole(0);
    if (operand.stride[dims.depth] == 1) {
      const bool many = (dims.line == 1 ? problem_.n : problem_.m) >= kManyLines;
      const int64_t unit = many ? kSegment : kVector;
      return begins && is_whole(dims.line) && (leaves_ == 1 || leaf_ % unit == 0) &&
             (!many || operand.stride[dims.line] % unit == 0);
    }
    return begins && operand.shape[dims.line] > 1 && operand.stride[dims.line] == 1 &&
           is_whole(dims.depth);
  }
  Status make_loadable(Tensor* operand, Dims dims, std::byte* memory, void* stream) const {
    if (is_loadable(*operand, dims)) return {};
    const int64_t lines = operand->shape[dims.line];
    const bool across =
        lines > 1 && operand->stride[dims.line] == 1 && operand->stride[dims.depth] != 1;
    const int64_t leaf = across ? leaf_ : round_up(leaf_, kSegment);
    Tensor made = *operand;
    made.data = memory;
    made.shape[dims.depth] = leaves_ * leaf;
    made.stride[dims.line] = across ? 1 : made.shape[dims.depth];
    made.stride[dims.depth] = across ? round_up(lines, kVector) : 1;
    const bool one_for_all = operand->stride[0] == 0;
    made.stride[0] = one_for_all ? 0
                     : across    ? problem_.k * made.stride[dims.depth]
                                 : lines * made.shape[dims.depth];
    Status status;
    for (int64_t entry = 0; entry < (one_for_all ? 1 : problem_.batch) && status.ok(); ++entry)
      status = copy(entry_of(*operand, entry), entry_of(made, entry), dims, across, leaf, stream);
    *operand = made;
    return status;
  }
  static Tensor entry_of(Tensor operand, int64_t entry) {
    operand.data = operand.as<std::byte>() + entry * operand.stride[0] * size_of(operand.dtype);
    return operand;
  }
  // An entry of the batch. `leaf`: elements along k from one leaf to the next in `to`.
  Status copy(const Tensor& from, const Tensor& to, Dims dims, bool across, int64_t leaf,
              void* stream) const {
    const int64_t lines = from.shape[dims.line];
    const auto view = [](const Tensor& of, int64_t first, std::array<int64_t, 3> shape,
                         std::array<int64_t, 3> stride) {
      Tensor tensor = of;
      tensor.data = of.as<std::byte>() + first * size_of(of.dtype);
      std::copy_n(shape.begin(), 3, tensor.shape);
      std::copy_n(stride.begin(), 3, tensor.stride);
      return tensor;
    };
    const int64_t from_line = from.stride[dims.line], from_depth = from.stride[dims.depth];
    const int64_t to_line = to.stride[dims.line], to_depth = to.stride[dims.depth];
    std::array<cuda::TensorCopy, kLeaves> copies;
    size_t count = 0;
    if (across) {
      const std::array<int64_t, 3> shape{1, problem_.k, lines};
      copies[count++] = {view(from, 0, shape, {0, from_depth, 1}),
                         view(to, 0, shape, {0, to_depth, 1}), true};
    } else if (from_depth == 1) {
      const std::array<int64_t, 3> shape{lines, leaves_, leaf_};
      copies[count++] = {view(from, 0, shape, {from_line, leaf_, 1}),
                         view(to, 0, shape, {to_line, leaf, 1}), true};
    } else {
      const std::array<int64_t, 3> shape{lines, leaf_, 1};
      for (int64_t i = 0; i < leaves_; ++i)
        copies[count++] = {view(from, i * leaf_ * from_depth, shape, {from_line, from_depth, 1}),
                           view(to, i * leaf, shape, {to_line, 1, 1})};
    }
    return cuda::copy_rows(*gpu_, std::span(std::as_const(copies)).first(count), stream);
  }

  MatmulProblem problem_;
  int64_t leaves_, leaf_;  // how many, and their depth
  std::shared_ptr<cuda::Gpu> gpu_;
  MadeMatmul product_;
};

}  // namespace

MatmulProblem leaf_of(MatmulProblem problem) {
  if (problem.leaves > 1) problem.k /= problem.leaves;
  problem.leaves = min(problem.leaves, int64_t{1});
  return problem;
}

std::string refuse_leaf_products(const MatmulProblem& problem) {
  if (problem.leaves <= 1) return "";
  if (problem.async())
    return "sums leaves when all operands have arrived, and signals no chunks of c";
  const bool plain = problem.beta == 0 && !problem.bias && !problem.has_epilogue();
  if (!plain || problem.out_dtype != sums_of(problem))
    return "sums leaves without bias, beta and activation, in float32 (f64 in float64)";
  return "";
}

Status make_stored_by_tma(const MatmulProblem& problem, const Device& device, MakeMatmul make,
                          MadeMatmul* made) {
  auto product = std::make_unique<StoredByTma>(problem);
  Status status = product->make(device, make);
  if (status.ok()) *made = std::move(product);
  return status;
}

bool may_need_copies(const MatmulProblem& problem) {
  constexpr int64_t kStep = 64;
  return problem.shared_depth && problem.k % (max(problem.leaves, int64_t{1}) * kStep) != 0;
}

std::string refuse_copies(const MatmulProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;  // elements of a leaf, which may be copied one by one
  const int64_t leaves = max(problem.leaves, int64_t{1}), leaf = problem.k / leaves;
  const int64_t lines = max(problem.m, problem.n);
  if (!may_need_copies(problem) || lines * max(leaves, leaf) < kMost) return "";
  return concatenate("copies leaves that are no multiple of 64 long, of fewer than ", kMost,
                     " elements; got ", lines, " times ", leaf);
}

Status make_loaded_by_tma(const MatmulProblem& problem, const Device& device, MadeMatmul product,
                          MadeMatmul* made) {
  auto loaded = std::make_unique<LoadedByTma>(problem, device, std::move(product));
  Status status = loaded->prepare();
  if (status.ok()) *made = std::move(loaded);
  return status;
}

Status make_leaf_products(const MatmulProblem& problem, int64_t at_once, const Device& device,
                          MakeMatmul make_leaf, MadeMatmul* made) {
  auto products = std::make_unique<LeafProducts>(problem, at_once);
  Status status = products->make(device, make_leaf);
  if (status.ok()) *made = std::move(products);
  return status;
}

}  // namespace perseid::internal::dispatch
