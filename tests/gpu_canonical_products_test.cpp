// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products in canonical order on GPUs: 1, 2, 4 and 8 ranks have the same bits, near those of
// float64. Those of sums over ranks are of the tree by its definition: eight plain products, added
// in pairs of neighbours.
#include "canonical_tree.hpp"
#include "gpu_collective_tools.hpp"

namespace {

using namespace canonical_tree;
using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Fusion;
using perseid::MatmulReduce;

constexpr auto kLeafDeadline = 10s;
constexpr const char *kFma = "cuda:fma", *kTensorCore = "cuda:tensor_core";

class GpuCanonicalProducts : public GpuRanksTest {};

std::string capability_of(const Context& context) {
  const std::string facts(context.facts()), field = "\"capability\": \"";
  const size_t at = facts.find(field) + field.size();
  return facts.substr(at, facts.find('"', at) - at);
}

double element(const Matrix& matrix, size_t i) {
  double wide = 0;
  if (matrix.dtype == perseid::f64)
    std::memcpy(&wide, matrix.bytes.data() + i * sizeof wide, sizeof wide);
  else
    wide = matrix.value(i);
  return wide;
}

// The first rows: near the product whose sums are in float64.
void expect_near_reference(const Matrix& all, const Matrix& all_a, const Matrix& b,
                           const Matrix* bias) {
  const int64_t rows = std::min<int64_t>(all_a.shape[all_a.shape.size() - 2], 40);
  const Matrix result = part_of(all, -2, 0, rows), a = part_of(all_a, -2, 0, rows);
  const bool batched = a.shape.size() == 3;
  const int64_t depth = a.shape.back(), n = b.shape.back();
  const perseid::Matmul matmul(Context::cpu(1), {.dtype = a.dtype,
                                                 .out_dtype = sums_of(a.dtype),
                                                 .batch = batched ? a.shape[0] : 1,
                                                 .m = rows,
                                                 .n = n,
                                                 .k = depth,
                                                 .implementation = "cpu:reference"});
  const Matrix exact(result.shape, sums_of(a.dtype));
  perseid::Workspace workspace;
  matmul.reserve(workspace);
  matmul.execute(nullptr, {.a = a.tensor(), .b = b.tensor(), .c = exact.tensor()}, workspace);
  const Matrix wanted = bias == nullptr ? exact : plus(exact, widened(*bias)),
               wide = widened(result);
  // Elements are below 1.
  const double of_sum = (a.dtype == perseid::f64 ? 1e-16 : 1e-7) * static_cast<double>(depth + 8);
  const double of_result = result.dtype == perseid::bf16 ? 0x1p-8 : 0;
  const size_t elements = wide.bytes.size() / static_cast<size_t>(bytes_of(wide.dtype));
  for (size_t i = 0; i < elements; ++i) {
    const double value = element(wide, i), reference = element(wanted, i);
    if (std::abs(value - reference) <= of_sum + of_result * std::abs(reference)) continue;
    ADD_FAILURE() << "element " << i << " is " << value << ", in float64 " << reference;
    return;
  }
}

// ---- Sums over ranks

struct LeafProblem {
  DType dtype = perseid::f32, out_dtype = perseid::f32;
  int64_t batch = 0, m = 0, n = 0, leaf = 0;  // batch 0: two dimensions
  bool bias = false;
  const char* kernels = nullptr;  // of a leaf's plain product; null: that of the default order
  const char* asked = nullptr;
  bool wild = false;  // a row and a column that halves of f16 cannot carry

  // cuda:sm90 takes sums that TMA stores.
  const char* kernels_on(const std::string& capability) const {
    const bool of_tensor_cores = kernels == kTensorCore && asked == nullptr;
    const bool on_hopper = of_tensor_cores && dtype != perseid::f64 && capability == "9.0";
    return on_hopper && n % 4 == 0 ? "cuda:sm90" : kernels;
  }
  int64_t k() const { return kLeafCount * leaf; }
  std::vector<int64_t> shape(int64_t rows, int64_t columns) const {
    return batch > 0 ? std::vector<int64_t>{batch, rows, columns}
                     : std::vector<int64_t>{rows, columns};
  }
};

// The first two are those of cuda:sm90 on Hopper: tiles of either number of consumers, with rows
// that overhang. f32 on either side of the size from which it is split; depths that whole steps do
// not divide, nor vectors, and rows that TMA does not load; what halves of f16 cannot carry. Ranks
// may share a GPU: the sums over them have fewer blocks than it holds at once.
std::vector<LeafProblem> leaf_problems() {
  using namespace perseid;
  return {
      {.dtype = bf16, .out_dtype = bf16, .m = 520, .n = 264, .leaf = 64, .bias = true},
      {.dtype = f16, .m = 100, .n = 72, .leaf = 192},
      {.m = 96, .n = 81, .leaf = 40, .bias = true, .kernels = kFma},
      {.m = 300, .n = 904, .leaf = 136, .kernels = kTensorCore},
      {.m = 260, .n = 1028, .leaf = 129, .bias = true, .kernels = kTensorCore, .wild = true},
      {.m = 300, .n = 902, .leaf = 136, .kernels = kTensorCore, .wild = true},
      {.batch = 2, .m = 90, .n = 70, .leaf = 33, .kernels = kFma, .asked = kFma},
      {.dtype = f64,
       .out_dtype = f64,
       .batch = 3,
       .m = 70,
       .n = 40,
       .leaf = 24,
       .kernels = kTensorCore},
      {.dtype = f64,
       .out_dtype = f64,
       .batch = 2,
       .m = 150,
       .n = 137,
       .leaf = 48,
       .kernels = kTensorCore},
      {.dtype = f64,
       .out_dtype = f64,
       .m = 130,
       .n = 71,
       .leaf = 5,
       .bias = true,
       .kernels = kTensorCore},
      {.dtype = bf16,
       .out_dtype = bf16,
       .m = 100,
       .n = 72,
       .leaf = 65,
       .bias = true,
       .kernels = kTensorCore},
      {.dtype = f16, .batch = 2, .m = 90, .n = 41, .leaf = 40, .kernels = kTensorCore},
      {.dtype = f16, .batch = 2, .m = 90, .n = 44, .leaf = 40, .kernels = kTensorCore},
      {.dtype = bf16, .batch = 2, .m = 90, .n = 48, .leaf = 72, .kernels = kTensorCore},
      {.dtype = bf16, .batch = 2, .m = 130, .n = 264, .leaf = 67, .kernels = kTensorCore},
      {.dtype = bf16, .m = 64, .n = 64, .leaf = 1, .kernels = kTensorCore},
      {.dtype = bf16, .m = 70, .n = 33, .leaf = 64, .kernels = kTensorCore, .asked = kTensorCore},
  };
}

void scale_line(Matrix& matrix, size_t first, size_t step, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) {
    const float scaled = factor * matrix.value(first + i * step);
    std::memcpy(matrix.at(first + i * step), &scaled, sizeof scaled);
  }
}

// With more rows and columns, which hold zeros, so that both are multiples.
Matrix padded(const Matrix& matrix, int64_t multiple) {
  std::vector<int64_t> shape = matrix.shape;
  const size_t last = shape.size() - 1;
  for (const size_t dim : {last - 1, last})
    shape[dim] = (shape[dim] + multiple - 1) / multiple * multiple;
  Matrix made(shape, matrix.dtype, 0);
  const int64_t rows = matrix.shape[last - 1], columns = matrix.shape[last];
  const int64_t entries = last == 2 ? shape[0] : 1;
  for (int64_t row = 0; row < entries * rows; ++row) {
    const int64_t to = row / rows * shape[last - 1] + row % rows;
    std::memcpy(made.at(static_cast<size_t>(to * shape[last])),
                matrix.bytes.data() + row * columns * bytes_of(matrix.dtype),
                static_cast<size_t>(columns * bytes_of(matrix.dtype)));
  }
  return made;
}

struct Operands {
  Matrix a, b, bias, wanted;

  Operands(const Context& context, const LeafProblem& problem)
      : a(Matrix::random(problem.shape(problem.m, problem.k()), problem.dtype, 1)),
        b(Matrix::random(problem.shape(problem.k(), problem.n), problem.dtype, 2)),
        bias(Matrix::random({problem.n}, problem.dtype, 3)),
        wanted({0}, problem.out_dtype) {
    const auto k = static_cast<size_t>(problem.k()), n = static_cast<size_t>(problem.n);
    if (problem.wild) {
      scale_line(a, 3 * k, 1, k, 0x1p70F);
      scale_line(b, 5, n, k, 0x1p-70F);
    }
    const Matrix sum = sum_of_leaves([&](int64_t i) {
      const int64_t begin = i * problem.leaf, end = begin + problem.leaf;
      // The plain product of 16 bits by cuda:sm90 is another where TMA takes no operands.
      const int64_t multiple = bytes_of(problem.dtype) == 2 ? 8 : 1;
      const Matrix product =
          gpu_product(context, padded(part_of(a, -1, begin, end), multiple),
                      padded(part_of(b, -2, begin, end), multiple), sums_of(problem.dtype), nullptr,
                      Layout::kSideBySide, problem.kernels_on(capability_of(context)));
      return part_of(part_of(product, -1, 0, problem.n), -2, 0, problem.m);
    });
    wanted = rounded(problem.bias ? plus(sum, widened(bias)) : sum, problem.out_dtype);
  }
};

void expect_tree(const Group& group, const LeafProblem& problem) {
  const int32_t rank = group.rank(), ranks = group.size();
  const Context context = context_of(rank);
  const Operands with(context, problem);
  if (ranks == 1 && !problem.wild)
    expect_near_reference(with.wanted, with.a, with.b, problem.bias ? &with.bias : nullptr);
  const int64_t k = problem.k() / ranks;
  const OnGpu a(context, part_of(with.a, -1, rank * k, (rank + 1) * k)),
      b(context, part_of(with.b, -2, rank * k, (rank + 1) * k)), bias(context, with.bias);
  for (int kind = 0; kind < 3; ++kind) {
    SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", m " << problem.m
                                    << ", leaf " << problem.leaf << ", kind " << kind);
    const bool along_n = kind == 1, all = kind == 2;
    const MatmulReduce plan(context, group,
                            {.dtype = problem.dtype,
                             .out_dtype = problem.out_dtype,
                             .scatter_dim = along_n ? ChunkDim::kN : ChunkDim::kM,
                             .all_reduce = all,
                             .bias = problem.bias,
                             .batch = std::max<int64_t>(problem.batch, 1),
                             .m = problem.m,
                             .n = problem.n,
                             .k = k,
                             .implementation = problem.asked,
                             .fusion = kind == 1 ? Fusion::kUnfused : Fusion::kFused,
                             .canonical = true});
    if (const char* kernels = problem.kernels_on(capability_of(context)); kernels != nullptr) {
      EXPECT_NE(plan.explain().find(kernels), std::string::npos) << plan.explain();
    }
    const int64_t extent = along_n ? problem.n : problem.m;
    const Matrix wanted = all ? with.wanted
                              : part_of(with.wanted, along_n ? -1 : -2, rank * extent / ranks,
                                        (rank + 1) * extent / ranks);
    const OnGpu c(context, Matrix(wanted.shape, problem.out_dtype));
    const GpuWorkspace workspace(context, plan);
    for (int run = 0; run < (kind == 0 ? 2 : 1); ++run) {
      plan.execute({.a = a.tensor(),
                    .b = b.tensor(),
                    .bias = problem.bias ? bias.tensor() : Tensor(),
                    .c = c.tensor(),
                    .deadline = kLeafDeadline},
                   workspace.bytes());
      context.synchronize();
      EXPECT_TRUE(c.get().bytes == wanted.bytes) << "run " << run;
    }
  }
}

TEST_F(GpuCanonicalProducts, ReducedAreTheTree) {
  for (const int32_t ranks : rank_counts({1, 2, 4, 8}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      for (const LeafProblem& problem : leaf_problems()) expect_tree(group, problem);
    });
}

// In pairs of blocks.
constexpr LeafProblem kLargeLeaves{.dtype = perseid::bf16, .m = 4224, .n = 2048, .leaf = 128};

TEST_F(GpuCanonicalProducts, ReducedAreTheTreeInLargeTiles) {
  if (ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  for (const int32_t ranks : rank_counts({1, 2, 4}))
    on_gpu_ranks(ranks, [&](const Group& group) { expect_tree(group, kLargeLeaves); });
}

// ---- Gathered operands

struct GatherProblem {
  DType dtype = perseid::f32, out_dtype = perseid::f32;
  int64_t m = 0, k = 0, n = 0;
  bool bias = false;
  const char* asked = nullptr;
};

// Rows of a, or of its transpose, come from all ranks, columns of b are the rank's own.
Matrix gather(const Context& context, const Group& group, const GatherProblem& problem,
              const Matrix& a, const Matrix& b, const Matrix& bias, bool along_k,
              Layout layout = Layout::kSideBySide) {
  const int32_t rank = group.rank(), ranks = group.size();
  const int64_t extent = along_k ? problem.k : problem.m, n = b.shape[1];
  const int64_t begin = rank * extent / ranks, end = (rank + 1) * extent / ranks;
  const AllGatherMatmul plan(
      context, group,
      {.dtype = problem.dtype,
       .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
       .m = along_k ? problem.m : end - begin,
       .k = along_k ? end - begin : problem.k,
       .products = {{.n = n, .out_dtype = problem.out_dtype, .bias = problem.bias}},
       .chunks = 2,
       .implementation = problem.asked,
       .fusion = Fusion::kFused,
       .canonical = true});
  const OnGpu own_a(context, part_of(a, along_k ? -1 : -2, begin, end)), own_b(context, b),
      own_bias(context, bias);
  const ResultOnGpu c(context, {problem.m, n}, problem.out_dtype, layout);
  const GpuWorkspace workspace(context, plan);
  plan.execute({.a = own_a.tensor(),
                .b = {own_b.tensor()},
                .bias = {problem.bias ? own_bias.tensor() : Tensor()},
                .c = {c.tensor()},
                .deadline = kLeafDeadline},
               workspace.bytes());
  context.synchronize();
  return c.get();
}

// Each rank has some columns, fewer than those of products that are split by default; one rank has
// more. Any depth.
void expect_gathered(const Group& group, const GatherProblem& problem) {
  const int32_t rank = group.rank(), ranks = group.size();
  SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", m " << problem.m
                                  << ", k " << problem.k);
  const Context context = context_of(rank);
  const Matrix a = Matrix::random({problem.m, problem.k}, problem.dtype, 1),
               b = Matrix::random({problem.k, problem.n}, problem.dtype, 2),
               bias = Matrix::random({problem.n}, problem.dtype, 3);
  const Matrix alone =
      gather(context, Group::threads(1)[0], problem, a, b, bias, /*along_k=*/false);
  if (ranks == 2 && rank == 0) expect_near_reference(alone, a, b, problem.bias ? &bias : nullptr);
  const int64_t begin = rank * problem.n / ranks, end = (rank + 1) * problem.n / ranks;
  const Matrix wanted = part_of(alone, 1, begin, end), own = part_of(b, 1, begin, end),
               own_bias = part_of(bias, 0, begin, end);
  // TMA takes no such columns.
  const bool any_strides = problem.dtype == perseid::f32 || problem.dtype == perseid::f64 ||
                           problem.k % 8 != 0 || problem.asked != nullptr;
  for (const bool along_k : {false, true})
    for (const Layout layout : {Layout::kSideBySide, Layout::kByColumns}) {
      if (layout == Layout::kByColumns && !any_strides) continue;
      EXPECT_TRUE(gather(context, group, problem, a, own, own_bias, along_k, layout).bytes ==
                  wanted.bytes)
          << "along k " << along_k << ", layout " << static_cast<int>(layout);
    }
}

TEST_F(GpuCanonicalProducts, GatheredAreThoseOfOneGpu) {
  using namespace perseid;
  const std::vector<GatherProblem> problems = {
      {.dtype = bf16, .out_dtype = bf16, .m = 130, .k = 512, .n = 128, .bias = true},
      {.m = 90, .k = 1100, .n = 520, .bias = true},
      {.m = 40, .k = 333, .n = 40},
      {.m = 40, .k = 333, .n = 40, .asked = kFma},
      {.dtype = f64, .out_dtype = f64, .m = 100, .k = 77, .n = 24, .bias = true},
      {.dtype = bf16, .out_dtype = bf16, .m = 100, .k = 45, .n = 80, .bias = true},
      {.dtype = f16, .m = 130, .k = 131, .n = 40},
      {.dtype = f16, .m = 70, .k = 64, .n = 24, .asked = kTensorCore},
  };
  for (const int32_t ranks : rank_counts({2, 4, 8}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      for (const GatherProblem& problem : problems) expect_gathered(group, problem);
    });
}

// The plain product, of so many rows that it does not split the depth.
TEST_F(GpuCanonicalProducts, GatheredAreThePlainProductInLargeTiles) {
  if (ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  const GatherProblem problem{.dtype = perseid::bf16, .m = 4224, .k = 1024, .n = 2048};
  for (const int32_t ranks : rank_counts({2, 4}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      const Context context = context_of(group.rank());
      const Matrix a = Matrix::random({problem.m, problem.k}, problem.dtype, 1),
                   b = Matrix::random({problem.k, problem.n}, problem.dtype, 2),
                   bias({problem.n}, problem.dtype);
      const Matrix wanted = gpu_product(context, a, b, problem.out_dtype);
      for (const bool along_k : {false, true})
        EXPECT_TRUE(gather(context, group, problem, a, b, bias, along_k).bytes == wanted.bytes)
            << "rank " << group.rank() << ", along k " << along_k;
    });
}

TEST_F(GpuCanonicalProducts, AreRefusedWhereTmaTakesNoTensors) {
  on_gpu_ranks(2, [&](const Group& group) {
    const Context context = context_of(group.rank());
    if (capability_of(context) != "9.0") return;
    const MatmulReduce plan(
        context, group, {.dtype = perseid::bf16, .m = 64, .n = 36, .k = 256, .canonical = true});
    const OnGpu a(context, Matrix({64, 256}, perseid::bf16)),
        b(context, Matrix({256, 36}, perseid::bf16)), c(context, Matrix({32, 36}, perseid::bf16));
    const GpuWorkspace workspace(context, plan);
    const Ended end = ended([&] {
      plan.execute({.a = a.tensor(), .b = b.tensor(), .c = c.tensor(), .deadline = kLeafDeadline},
                   workspace.bytes());
      context.synchronize();
    });
    EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
    EXPECT_NE(end.sentence.find("ask for cuda:tensor_core for others"), std::string::npos)
        << end.sentence;
  });
}

}  // namespace
