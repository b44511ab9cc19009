// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of matmul, best first.
#include "base/missing_chunk.hpp"
#include "cpu/reference/reference.hpp"
#include "cpu/waits.hpp"
#include "cuda/matmul/arguments.hpp"
#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/tensor_core.hpp"
#include "cuda/matmul/tensor_core_f32.hpp"
#include "cuda/matmul/whole_chunks.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "cuda/sm90/matmul_f8.hpp"
#include "dispatch/matmul_leaves.hpp"

namespace perseid::internal::dispatch {
namespace {

using Made = MadeMatmul;

// The kernels of a class of cuda/ for plans.
template <class Kernels>
class MatmulExecutable final : public Executable<Matmul> {
 public:
  static Status make(const MatmulProblem& problem, const Device& device, Made* made) {
    auto matmul = std::make_unique<MatmulExecutable>();
    Status status = Kernels::make(problem, *device.gpu, &matmul->kernels_);
    if (status.ok()) *made = std::move(matmul);
    return status;
  }
  size_t workspace(Direction) const override { return 0; }
  Status forward(const MatmulArguments& arguments, std::byte*, void* stream) const override {
    return kernels_->run(arguments, stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return kernels_->description(); }

 private:
  std::unique_ptr<Kernels> kernels_;
};

// The same with a workspace: planes of f16, or the progress of chunks.
template <class Kernels>
class MatmulInWorkspace final : public Executable<Matmul> {
 public:
  // `origin`: of the configuration, for explain.
  MatmulInWorkspace(std::unique_ptr<Kernels> matmul, std::string origin)
      : matmul_(std::move(matmul)), origin_(std::move(origin)) {}
  static Status make(const MatmulProblem& problem, const Device& device, Made* made) {
    std::unique_ptr<Kernels> matmul;
    Status status = Kernels::make(problem, *device.gpu, &matmul);
    if (status.ok()) *made = std::make_unique<MatmulInWorkspace>(std::move(matmul), "");
    return status;
  }
  size_t workspace(Direction) const override { return matmul_->workspace(); }
  Status forward(const MatmulArguments& arguments, std::byte* workspace,
                 void* stream) const override {
    return matmul_->run(arguments, workspace, stream);
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return matmul_->description() + origin_; }

 private:
  std::unique_ptr<Kernels> matmul_;
  std::string origin_;
};

// A product in chunks by kernels that know nothing of them.
class MatmulBetweenSignals final : public Executable<Matmul> {
 public:
  static Status make(const MatmulProblem& problem, const Device& device, MakeMatmul make_whole,
                     Made* made) {
    if (!problem.async()) return make_whole(problem, device, made);
    auto product = std::make_unique<MatmulBetweenSignals>(*device.gpu);
    MatmulProblem whole = problem;
    whole.chunks_a = whole.chunks_b = whole.chunks_c = {};
    Status status = make_whole(whole, device, &product->whole_);
    if (status.ok()) status = product->chunks_.prepare(problem);
    if (status.ok()) *made = std::move(product);
    return status;
  }
  explicit MatmulBetweenSignals(cuda::Gpu& gpu) : chunks_(gpu) {}

  size_t workspace(Direction) const override { return chunks_at() + chunks_.workspace(); }
  Status forward(const MatmulArguments& arguments, std::byte* workspace,
                 void* stream) const override {
    return chunks_.run(arguments, workspace + chunks_at(), stream,
                       [&] { return whole_->forward(arguments, workspace, stream); });
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }
  std::string kernels() const override { return whole_->kernels() + ", after all chunks"; }

 private:
  size_t chunks_at() const {
    return round_up(whole_->workspace(Direction::kForward), alignof(uint64_t));
  }

  Made whole_;
  cuda::WholeChunks chunks_;
};

// ---- cuda:sm90: its configurations ----

constexpr const char* kSm90Name = "cuda:sm90";

std::vector<cuda::Sm90MatmulConfig> candidates(const MatmulProblem& problem, const Device& device) {
  return cuda::sm90_matmul_candidates(problem, device.gpu->facts().multiprocessors);
}

Status make_sm90(const MatmulProblem& problem, const cuda::Sm90MatmulConfig& config,
                 const char* origin, const Device& device, Made* made) {
  std::unique_ptr<cuda::Sm90Matmul> matmul;
  Status status = cuda::Sm90Matmul::make(problem, config, *device.gpu, &matmul);
  if (!status.ok()) return status;
  Made product = std::make_unique<MatmulInWorkspace<cuda::Sm90Matmul>>(std::move(matmul), origin);
  if (may_need_copies(problem))
    return make_loaded_by_tma(problem, device, std::move(product), made);
  *made = std::move(product);
  return status;
}

// Takes the tuned configuration where there is one and it is still among the candidates.
Status make_sm90(const MatmulProblem& problem, const Device& device, Made* made) {
  const std::vector<cuda::Sm90MatmulConfig> configs = candidates(problem, device);
  const std::string tuned =
      device.tuning == nullptr ? "" : device.tuning->find(problem_key(kSm90Name, problem));
  for (const cuda::Sm90MatmulConfig& config : configs)
    if (!tuned.empty() && config_name(config) == tuned)
      return make_sm90(problem, config, ", tuned on this device", device, made);
  return make_sm90(problem, configs.front(), ", by the built-in table", device, made);
}

std::vector<std::string> sm90_configurations(const MatmulProblem& problem, const Device& device) {
  std::vector<std::string> names;
  if (problem.dtype == DType::kF32 || is_float8(problem.dtype)) return names;
  for (const cuda::Sm90MatmulConfig& config : candidates(problem, device))
    names.push_back(config_name(config));
  return names;
}

Status make_sm90_with(const MatmulProblem& problem, const Device& device,
                      const std::string& configuration, Made* made) {
  for (const cuda::Sm90MatmulConfig& config : candidates(problem, device))
    if (config_name(config) == configuration) return make_sm90(problem, config, "", device, made);
  return Status::error(PERSEID_INTERNAL, "no configuration is called ", configuration);
}

// A product whose operands or result are cut into chunks, on the CPU.
class ChunkedCpuMatmul final : public Executable<Matmul> {
 public:
  ChunkedCpuMatmul(const MatmulProblem& problem, const Device& device,
                   const CpuKernels<Matmul>& kernels, bool whole)
      : problem_(problem), executor_(*device.executor), kernels_(kernels), whole_(whole) {}

  size_t workspace(Direction) const override { return kernels_.forward_workspace; }
  Status forward(const MatmulArguments& arguments, std::byte* workspace, void*) const override {
    cpu::Waits waits(problem_.chunks_a, arguments.arrival_a, problem_.chunks_b, arguments.arrival_b,
                     problem_.chunks_c, arguments.departure_c);
    const bool reads = problem_.depth() > 0;
    if (!whole_ || !reads || waits.await_all())
      kernels_.forward(problem_, arguments, {executor_, workspace, &waits});
    waits.rest();
    *arguments.missing = waits.missing();
    if (arguments.missing->end != WaitEnd::kArrived)
      return status_of(*arguments.missing, arguments);
    if (whole_) waits.depart_all();
    return {};
  }
  Status backward(const NoArguments&, std::byte*, void*) const override { return {}; }

 private:
  static Status status_of(const Missing& missing, const MatmulArguments& arguments) {
    const bool of_a = missing.operand == 0;
    return internal::status_of(
        {.operation = "matmul",
         .operand = of_a ? "a" : "b",
         .chunk = missing.chunk,
         .expected = missing.expected,
         .seen = missing.seen,
         .aborted = missing.end == WaitEnd::kAborted,
         .deadline_ns = (of_a ? arguments.arrival_a : arguments.arrival_b).deadline_ns});
  }

  MatmulProblem problem_;
  cpu::Executor& executor_;
  CpuKernels<Matmul> kernels_;
  bool whole_;  // the kernel knows nothing of chunks: all arrive before it, and leave after it
};

Status make_on_cpu(const MatmulProblem& problem, const Device& device,
                   const CpuKernels<Matmul>& kernels, bool whole, Made* made) {
  if (!problem.async()) return run_on_cpu<Matmul>(problem, device, kernels, made);
  *made = std::make_unique<ChunkedCpuMatmul>(problem, device, kernels, whole);
  return {};
}

// The reason of kernels that sum in one order.
std::string refuse_leaves(const MatmulProblem& problem) {
  return problem.leaves > 0 ? "does not sum in leaves" : "";
}

// In canonical order ranks that have all of the depth may have different n: products of f32 are
// split whatever their size.
bool splits_any_size(const MatmulProblem& problem) {
  return problem.leaves > 0 && !problem.shared_depth;
}

// The problem's leaves by a kernel that sums so many of them, or one.
Status make_leaves(const MatmulProblem& problem, int64_t at_once, const Device& device,
                   MakeMatmul make, Made* made) {
  return problem.leaves > at_once ? make_leaf_products(problem, at_once, device, make, made)
                                  : make(problem, device, made);
}
template <MakeMatmul kMake>
Status make_leaves(const MatmulProblem& problem, const Device& device, Made* made) {
  return make_leaves(problem, 1, device, kMake, made);
}

// wgmma and TMA, persistent: compute capability 9.0.
constexpr Implementation<Matmul> kSm90 = {
    .name = kSm90Name,
    .refuse =
        [](const MatmulProblem& problem, const Device& device) {
          const cuda::GpuFacts& gpu = device.gpu->facts();
          if (gpu.architecture != "sm_90a")
            return concatenate("made for compute capability 9.0, got ", gpu.major, ".", gpu.minor);
          if (is_float8(problem.dtype))
            return problem.leaves > 0 ? "of 8-bit types " + refuse_leaves(problem)
                                      : cuda::refuse_sm90_f8_matmul(problem);
          if (problem.dtype != DType::kF32) {
            std::string reason = cuda::refuse_sm90_matmul(problem);
            return reason.empty() ? refuse_copies(problem) : reason;
          }
          const MatmulProblem leaf = leaf_of(problem);
          std::string reason = cuda::refuse_split_matmul(leaf);
          if (reason.empty()) reason = cuda::refuse_sm90_f32_leaves(problem);
          if (reason.empty()) reason = refuse_leaf_products(problem);
          if (!reason.empty() || splits_any_size(problem)) return reason;
          return cuda::avoid_split_matmul(leaf);
        },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          if (is_float8(problem.dtype))
            return MatmulInWorkspace<cuda::Sm90F8Matmul>::make(problem, device, made);
          if (problem.dtype != DType::kF32) return make_sm90(problem, device, made);
          constexpr MakeMatmul kMake = MatmulInWorkspace<cuda::Sm90F32Matmul>::make;
          if (splits_any_size(problem)) return make_stored_by_tma(problem, device, kMake, made);
          return problem.precision == Precision::kTF32 ? make_leaves<kMake>(problem, device, made)
                                                       : kMake(problem, device, made);
        },
    .configurations = sm90_configurations,
    .make_with = make_sm90_with};

// mma.sync on tensor cores, any strides: compute capability 8.0 and up.
constexpr Implementation<Matmul> kTensorCore = {
    .name = "cuda:tensor_core",
    .refuse =
        [](const MatmulProblem& problem, const Device&) {
          const bool f32 = problem.dtype == DType::kF32;
          const MatmulProblem leaf = leaf_of(problem);
          std::string reason =
              f32 ? cuda::refuse_split_matmul(leaf) : cuda::refuse_tensor_core_matmul(leaf);
          // In canonical order it takes no size that cuda:sm90 does not take.
          if (reason.empty() && problem.leaves > 0) reason = cuda::refuse_large_matmul(leaf);
          if (reason.empty()) reason = refuse_leaf_products(problem);
          if (!reason.empty()) return reason;
          if (!f32 && problem.spared > 0 && problem.arrives())
            return concatenate("waits for chunks with all multiprocessors, of which ",
                               problem.spared, " are to be left");
          return f32 && !splits_any_size(problem) ? cuda::avoid_split_matmul(leaf) : "";
        },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          if (problem.dtype != DType::kF32) {
            const int64_t at_once =
                cuda::leaves_of_tensor_cores(problem, device.gpu->facts().shared_bytes);
            return make_leaves(problem, at_once, device,
                               MatmulInWorkspace<cuda::TensorCoreMatmul>::make, made);
          }
          return MatmulBetweenSignals::make(
              problem, device, make_leaves<MatmulInWorkspace<cuda::TensorCoreF32Matmul>::make>,
              made);
        }};

// Multiply-add of f32, any strides.
constexpr Implementation<Matmul> kFma = {
    .name = "cuda:fma",
    .refuse =
        [](const MatmulProblem& problem, const Device&) {
          std::string reason = cuda::refuse_fma_matmul(problem);
          if (!reason.empty() || problem.leaves == 0) return reason;
          // What is too large to be split has no other order instead.
          const MatmulProblem leaf = leaf_of(problem);
          if (leaf.depth() > 0) reason = cuda::refuse_split_matmul(leaf);
          return reason.empty() ? refuse_leaf_products(problem) : reason;
        },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          return MatmulBetweenSignals::make(
              problem, device, make_leaves<MatmulExecutable<cuda::FmaMatmul>::make>, made);
        }};

// Both operands packed into panels, any strides, types and chunks.
constexpr Implementation<Matmul> kPacked = {
    .name = "cpu:packed",
    .refuse = [](const MatmulProblem&, const Device&) { return std::string(); },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          const cpu::KernelTable& kernels = *device.kernels;
          return make_on_cpu(
              problem, device,
              {.forward = kernels.matmul,
               .forward_workspace = kernels.matmul_workspace(problem, device.workers())},
              false, made);
        }};

// The sums in float64, element by element: the oracle, slow.
constexpr Implementation<Matmul> kReference = {
    .name = "cpu:reference",
    .refuse = [](const MatmulProblem& problem, const Device&) { return refuse_leaves(problem); },
    .make =
        [](const MatmulProblem& problem, const Device& device, Made* made) {
          return make_on_cpu(problem, device, {.forward = cpu::reference::matmul}, true, made);
        }};

constexpr Implementation<Matmul> kList[] = {kSm90, kTensorCore, kFma, kPacked, kReference};

}  // namespace

std::span<const Implementation<Matmul>> matmul_implementations() { return kList; }

// Chunks make no difference to which configuration is fastest.
std::string problem_key(std::string_view implementation, const MatmulProblem& problem) {
  std::string key = concatenate(implementation, " matmul ", problem.batch, " x ", problem.m, " x ",
                                problem.n, " x ", problem.k, " ", name_of(problem.dtype), " ",
                                name_of(problem.type_of_b()), " ", name_of(problem.out_dtype));
  if (problem.beta != 0) key += " +c0";
  if (problem.bias) key += " bias";
  if (problem.scaling != Scaling::kNone)
    key += concatenate(" scaling ", static_cast<int>(problem.scaling));
  if (problem.accumulation == Accumulation::kFast) key += " fast";
  if (problem.scale_result) key += " scale_result";
  if (problem.activation != Activation::kNone) key += concatenate(" ", name_of(problem.activation));
  if (problem.amax) key += " amax";
  if (problem.leaves > 0) key += concatenate(" leaves ", problem.leaves);
  return key;
}

std::string tunable_sources() { return std::to_string(cuda::source_hash(cuda::kSm90MatmulHeader)); }

}  // namespace perseid::internal::dispatch
